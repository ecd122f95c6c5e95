"""The commands that measure: `evaluate drift | compare | context | actions | latency | memory`."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from worldmodel.datasets.held_out import held_out
from worldmodel.errors import UserError
from worldmodel.evaluate.actions import evaluate_actions
from worldmodel.evaluate.compare import CompareSettings, evaluate_compare, parse_arms
from worldmodel.evaluate.context.arms import arms_of, overrides
from worldmodel.evaluate.context.bench import Away, ContextSettings
from worldmodel.evaluate.context.evaluate import evaluate_context
from worldmodel.evaluate.drift import evaluate_drift
from worldmodel.evaluate.latency import evaluate_latency
from worldmodel.evaluate.memory_bench import CostSettings, random_world
from worldmodel.evaluate.memory_cost import evaluate_memory
from worldmodel.evaluate.probe import WINDOW
from worldmodel.evaluate.report import Report
from worldmodel.evaluate.report_files import write, write_pictures
from worldmodel.folders import check_outputs
from worldmodel.models.world import WorldModel, check_device
from worldmodel.options import check_range, check_seeds, check_threads
from worldmodel.sampler import with_steps


def drift(
    checkpoint: Path,
    data: Path,
    out: Path | None = None,
    json: Path | None = None,
    camera: str | None = None,
    clips: int = 32,
    starts: int = 8,
    frames: int = 240,
    window: int | None = None,
    context: int = 4,
    encoders: tuple[str, ...] = ("lite0", "autoencoder"),
    seeds: tuple[int, ...] = (0, 1),
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """How pictures change as a rollout gets long, against held-out recordings.

    Example: worldmodel evaluate drift demos/models/doom --data runs/data/doom_test --out reports/drift

    --data: a dataset or a folder of videos that the model was not trained on. --clips short clips give the error per
    frame; --starts rollouts of --frames frames give Frechet distances in windows of --window (32, or --frames if there
    are fewer). --out gets an HTML page and drift.json; --json writes the numbers elsewhere.
    """
    command = as_typed(drift, locals())
    check_range(1, clips=clips, starts=starts, context=context)
    check_range(3, frames=frames)
    check_range(3, frames, window=window)
    check_seeds(seeds=seeds)
    check_outputs(out, file=json)
    world = _load(checkpoint, device, threads)
    found = evaluate_drift(
        world, held_out(data, world, camera), clips=clips, rollouts=starts, frames=frames, window=window,
        context=context, encoders=encoders, seeds=seeds,
    )  # fmt: skip
    return finish(replace(found, command=command), "drift", out, json)


def compare(
    arms: tuple[str, ...],
    data: Path,
    train_data: Path | None = None,
    out: Path | None = None,
    json: Path | None = None,
    keep: Path | None = None,
    camera: str | None = None,
    frames: int = 384,
    window: int = 32,
    windows: int = 8,
    rollouts: int = 12,
    clips: int = 64,
    horizon: int = 16,
    context: int = 4,
    clip_frames: int | None = None,
    readable: float = 0.6,
    encoders: tuple[str, ...] = ("lite0", "autoencoder"),
    seeds: tuple[int, ...] = (0,),
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Drift of several ways to train, several training seeds each, in one report.

    Example: worldmodel evaluate compare base=runs/a0,runs/a1 forced=runs/f0,runs/f1 --data runs/data/maze_test

    Each arm is NAME=FOLDER,FOLDER,...: the first arm is the baseline, and folder i of every arm belongs to the same
    training seed. All models get the same --rollouts beginnings of --data, the same recorded actions and noise, and are
    rolled out for --frames frames; --windows windows of --window frames are judged in the first of --encoders. Whether
    actions are followed is read by a probe that learns from --train-data (without: not measured), in the windows and in
    --clips short beginnings that are continued for --horizon frames. --clip-frames: what the models were trained on,
    for the plot. --readable: an action counts if the probe reads it from recorded clips with an R2 of at least that
    (at high frame rates one step hardly shows). --keep FOLDER keeps what was measured of each model, so that
    another arm later costs its own measurement only, and a run that was stopped goes on.
    """
    command = as_typed(compare, locals())
    check_range(1, rollouts=rollouts, windows=windows, clips=clips, horizon=horizon, context=context)
    check_range(1, clip_frames=clip_frames)
    check_range(3, frames=frames)
    check_range(3, frames, window=window)
    check_seeds(seeds=seeds)
    check_outputs(out, keep, file=json)
    chosen = parse_arms(arms)

    def open_world(folder: str) -> WorldModel:
        return _load(Path(folder), device, threads)

    first = open_world(chosen[0].folders[0])
    found = evaluate_compare(
        chosen,
        held_out(data, first, camera),
        None if train_data is None else held_out(train_data, first, camera),
        settings=CompareSettings(
            frames=frames, window=window, windows=windows, rollouts=rollouts, clips=clips, horizon=horizon,
            context=context, seeds=seeds,
        ),
        encoders=encoders,
        clip_frames=clip_frames,
        readable=readable,
        kept=keep,
        open_world=open_world,
    )  # fmt: skip
    if out is not None:
        write_pictures(found, out, "compare_start")
    return finish(replace(found, command=command), "compare", out, json)


def context(
    models: tuple[str, ...],
    data: Path,
    out: Path | None = None,
    json: Path | None = None,
    memory: tuple[str, ...] = (),
    camera: str | None = None,
    horizons: tuple[int, ...] = (4, 8, 16, 32, 64, 96, 128),
    visits: int = 24,
    lead: int | None = 64,
    away: Away = "own",
    views: int = 4,
    rivals: int = 15,
    measures: tuple[str, ...] = ("lite0", "psnr"),
    place: float = 0.02,
    heading: float = 1.0,
    seeds: tuple[int, ...] = (0,),
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """How long a model remembers what it saw: it turns away from a view, comes back, and what it draws is compared.

    Example: worldmodel evaluate context runs/maze --data runs/data/maze_revisit --out reports/context

    One folder is one model; NAME=FOLDER,FOLDER,... are arms with a folder per training seed, the first is the baseline.
    --data: recordings with visits that no model was trained on (worldmodel collect maze --policy revisit). A model
    gets --lead real frames up to the end of a look (None: all of the episode so far) and goes on by itself under
    the recorded actions; with --away recorded it gets the real frames of the time out of sight too and makes the
    way back alone, so that its memory is measured apart from its drift. At most --visits are taken of each of
    --horizons (frames out of sight). Effective context is the horizon at which half of the score at the shortest
    one is lost, by the first of --measures (psnr, or encoders).
    --memory '{"type": "WindowConfig", "sink": 2, "ring": 10}' replaces the memory of every model, NAME={...} that of an
    arm. --place and --heading: poses that count as the same, in the unit of the recorded x and y, and in degrees.
    """
    command = as_typed(context, locals())
    check_range(2, visits=visits)
    check_range(1, lead=lead, views=views, rivals=rivals)
    check_seeds(seeds=seeds)
    check_outputs(out, file=json)
    arms = arms_of(models)
    memories = overrides(memory, arms)

    def open_world(folder: str) -> WorldModel:
        return _load(Path(folder), device, threads)

    found = evaluate_context(
        arms,
        held_out(data, open_world(arms[0].folders[0]), camera),
        settings=ContextSettings(
            horizons=horizons, lead=lead, away=away, visits=visits, views=views, rivals=rivals, seeds=seeds,
            place=place, heading=heading,
        ),
        measures=measures,
        memories=memories,
        open_world=open_world,
    )  # fmt: skip
    if out is not None:
        write_pictures(found, out, "visits")
    return finish(replace(found, command=command), "context", out, json)


def actions(
    checkpoint: Path,
    data: Path,
    train_data: Path | None = None,
    out: Path | None = None,
    json: Path | None = None,
    camera: str | None = None,
    clips: int = 64,
    frames: int = 16,
    context: int = 4,
    seeds: tuple[int, int] = (0, 1),
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Whether generated video follows its actions, judged by a probe that is trained on real video.

    Example: worldmodel evaluate actions demos/models/doom --data runs/data/doom_test --train-data runs/data/doom

    --data: recordings that the model has not seen; --train-data: those that the probe learns from. Without, it learns
    from the first half of the episodes of --data and is scored on the rest.
    """
    command = as_typed(actions, locals())
    check_range(1, clips=clips, context=context)
    check_range(WINDOW, frames=frames)
    check_seeds(seeds=seeds)
    check_outputs(out, file=json)
    world = _load(checkpoint, device, threads)
    test = held_out(data, world, camera)
    if train_data is None:
        train, test = test.halves()
        source = f"The probe learned from the first {len(train.indices)} episodes of {data} and is scored on the other "
        source += f"{len(test.indices)}."
    else:
        train = held_out(train_data, world, camera)
        source = f"The probe learned from {train_data} and is scored on {data}."
    found = evaluate_actions(world, train, test, clips=clips, frames=frames, context=context, seeds=seeds)
    return finish(replace(found, command=command, notes=(source, *found.notes)), "actions", out, json)


def latency(
    checkpoint: Path,
    out: Path | None = None,
    json: Path | None = None,
    frames: int = 5000,
    short: bool = False,
    seed: int = 0,
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Frames per second, latency early and late in a long stream, bytes of memory, and what the memory saves.

    Example: worldmodel evaluate latency demos/models/doom --short

    --short ends within 50 s.
    """
    command = as_typed(latency, locals())
    check_range(1, frames=frames)
    check_seeds(seed=seed)
    check_outputs(out, file=json)
    found = evaluate_latency(_load(checkpoint, device, threads), frames=frames, short=short, seed=seed)
    return finish(replace(found, command=command), "latency", out, json)


def memory(
    checkpoint: Path | None = None,
    out: Path | None = None,
    json: Path | None = None,
    budget: int = 24,
    lengths: tuple[int, ...] = (),
    short: bool = False,
    steps: int | None = None,
    size: tuple[int, int] | None = None,
    chunk: int | None = None,
    width: int | None = None,
    depth: int | None = None,
    heads: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Time and bytes of a chunk against the length of the context, for every memory policy at equal bytes.

    Example: worldmodel evaluate memory demos/models/doom --budget 24 --out reports/memory

    Window, sink and window, slow-fast, retrieval and lact memories have the bytes of --budget frames; beside them are
    full memory, and full attention that is computed again without a memory. --lengths of the context in frames: 8 to
    512, doubling. Without a folder the model has random weights, latents of --size (8 8) in --chunk frames (2) and
    --width 192, --depth 6, --heads 6: only cost is measured. Fast weights for lact are added where the model has none.
    --steps: the sampler's model calls per chunk. --short takes 10 rounds instead of 50, and lengths 8, 32 and 128.
    """
    command = as_typed(memory, locals())
    check_range(1, budget=budget, steps=steps, chunk=chunk, width=width, depth=depth, heads=heads)
    check_seeds(seed=seed)
    check_outputs(out, file=json)
    if checkpoint is None:
        prepare(device, threads)
        world = random_world(size or (8, 8), chunk or 2, width or 192, depth or 6, heads or 6, device=device)
        source = "The model is one of random weights."
    else:
        for name, value in (("size", size), ("chunk", chunk), ("width", width), ("depth", depth), ("heads", heads)):
            if value is not None:
                raise UserError(f"--{name} is of a random model: it does not go with {checkpoint}")
        world, source = _load(checkpoint, device, threads), f"The model is {checkpoint}."
    if steps is not None:
        world = replace(world, stream=replace(world.stream, sampler=with_steps(world.stream.sampler, steps)))
    settings = CostSettings(budget=budget, lengths=lengths or None, seed=seed)
    found = evaluate_memory(world, settings, short=short, source=source)
    return finish(replace(found, command=command), "memory", out, json)


def _load(folder: Path, device: str, threads: int) -> WorldModel:
    prepare(device, threads)
    return WorldModel.find(folder, device)


def prepare(device: str, threads: int) -> None:
    check_threads(threads)
    torch.set_num_threads(threads)
    check_device(device)


def as_typed(function: Callable[..., int], given: Mapping[str, Any]) -> str:
    """What to type for the same report: the first argument, and the others that are not their defaults."""
    (first, _), *others = signature(function).parameters.items()
    places = given[first] if isinstance(given[first], tuple) else () if given[first] is None else (given[first],)
    words = ["worldmodel", "evaluate", function.__name__, *map(str, places)]
    for name, parameter in others:
        value = given[name]
        if value != parameter.default:
            values = () if value is True else value if isinstance(value, tuple) else (value,)
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)


def finish(report: Report, name: str, out: Path | None, json: Path | None) -> int:
    """Print the few lines that matter, write what was asked for, and say where the rest is."""
    print("\n".join(report.lines()))
    if out is not None:
        write(report, out / f"{name}.json", out / f"{name}.html")
        print(
            f"everything, with pictures: {out / f'{name}.html'}; all {len(report.metrics)} numbers: {name}.json there"
        )
    if json is not None:
        write(report, json)
        print(f"all {len(report.metrics)} numbers: {json}")
    if out is None and json is None:
        print(f"all {len(report.metrics)} numbers: --json FILE; with pictures and how it was measured: --out FOLDER")
    return 0
