"""How a comparison was measured, in words."""

from collections.abc import Sequence

from worldmodel.evaluate.compare.arms import Measured
from worldmodel.evaluate.compare.bench import Bench
from worldmodel.evaluate.compare.reader import Reader
from worldmodel.evaluate.long_rollouts import Scale
from worldmodel.models.world import WorldModel


def notes(
    world: WorldModel,
    bench: Bench,
    arms: Sequence[Measured],
    scales: Sequence[Scale],
    reader: Reader | None,
    clip_frames: int | None,
) -> tuple[str, ...]:
    """How it was measured, one paragraph each."""
    settings, base = bench.settings, arms[0]
    episodes = len(set(bench.course.pieces.episode.tolist()))
    found = [
        "Arms: " + "; ".join(f"{arm.name} = {', '.join(arm.arm.folders)}" for arm in arms) + ".",
        _pairs(arms),
        f"Rollouts: {settings.rollouts} held-out beginnings from {episodes} episodes, {settings.context} chunks of "
        f"{world.dit.chunk} latent frames of real context, then {settings.frames} frames at {world.fps:g} frames/s "
        f"under the recorded actions (beyond the end of an episode, those of the next one). Every model gets the same "
        f"beginnings, actions and noise (sampling seeds {', '.join(map(str, settings.seeds))}). Sampler of the first "
        f"model of {base.name}: {world.stream.sampler}, memory {world.stream.memory}; every model is deployed with its "
        f"own.",
        f"Frechet distance: |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2) of features, in fp64, of N = "
        f"{settings.rollouts * settings.window} generated pictures ({settings.rollouts} rollouts x {settings.window} "
        f"frames), in {len(bench.starts)} windows that begin at frames "
        f"{', '.join(str(start + 1) for start in bench.starts)}, against {len(bench.course.reference)} real frames of "
        f"held-out episodes that no rollout starts in. Subtracted is the same for {len(bench.course.draws)} draws of "
        f"as many real stretches from the episodes that rollouts start in (floors: "
        + ", ".join(f"{scale.encoder.name} {scale.floor.value:.4g}" for scale in scales)
        + f"). The judge is {scales[0].encoder.name}. It is not FID, and values for another N or encoder do not "
        f"compare.",
        "Intervals over seeds: Student's t on one value per training seed (paired: on the seeds' differences); all "
        "seeds have the same starts, whose chance is therefore not in them. Intervals over starts: delete-one "
        "jackknife, a start being left out of both arms, all seeds, all windows and the floor at once; they hold for "
        "these trained models, and count starts of one episode as independent. Slope: least squares over the windows' "
        "middles. Contrast and colour shift: of the last window, against real stretches.",
    ]
    if reader is None:
        found.append("Action following was not measured: no recordings were given for a probe to learn from.")
    else:
        scores = zip(reader.spec.names, reader.real_short.scores(), strict=True)
        found.append(
            f"Action following: R2 of one inverse-dynamics probe, trained on real recordings and the same for all "
            f"models, which reads optical flow of neighbouring frames. Short: {settings.clips} held-out beginnings of "
            f"their own, {settings.horizon} frames after {settings.context} chunks of real context. Long: the windows "
            f"of the rollouts. Mean over {', '.join(reader.counted)}, the actions that it reads from recorded short "
            f"clips with R2 of at least {reader.readable} ("
            + ", ".join(f"{name} {score:.2f}" for name, score in scores)
            + "). "
            "Units of the jackknife are clips (short) and starts (long)."
        )
    if clip_frames is not None:
        found.append(
            f"Models were trained on clips of {clip_frames} frames: rollouts are {settings.frames / clip_frames:.3g} "
            f"times as long."
        )
    return tuple(found)


def _pairs(arms: Sequence[Measured]) -> str:
    base = arms[0]
    if base.seeds == 1:
        return "The baseline has one training seed: differences from it have no intervals over seeds, only over starts."
    text = []
    for arm in arms[1:]:
        used = min(arm.seeds, base.seeds)
        left = f" (the other {base.seeds - used} of {base.name} are not used there)" if used < base.seeds else ""
        left += f" (its other {arm.seeds - used} have no pair)" if used < arm.seeds else ""
        alone = ", so there is no interval over seeds" if used == 1 else ""
        text.append(f"{arm.name}: folders 1 to {used}{left}{alone}")
    return f"Pairs, by place in the list, for differences from {base.name}: " + "; ".join(text) + "."
