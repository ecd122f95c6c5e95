"""Rollout objectives on a chaotic equation, in minutes on one CPU core.

    python demos/pde.py compare --seeds 0 1 2 --out runs/pde
    python demos/pde.py compare --seeds 0 --arms pushforward hero --budget 3000 --out runs/pde_short

A small Fourier neural operator learns to step the Kuramoto-Sivashinsky equation. It is first trained on single steps;
then each objective trains it on, from the same weights and with the same budget: `one-step` (more of the same),
`rollout` (absolute error of a few steps, differentiated through all), `pushforward` and `hero`. What counts is for how
long its rollouts of fresh trajectories stay near the truth. It runs in the engine of the world models: the same
rollout loop, state and objective protocol.

The budget is counted in forward passes of a batch through the network; a pass that will be differentiated counts as
three, as a backward pass costs about two. The operators of all seeds are trained side by side (models/together.py),
each on its own clips. What is finished in `--out` is not trained again.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.calibration import calibrate
from worldmodel.chunk import ActionControl, Clip
from worldmodel.datasets.pde.kuramoto_sivashinsky import KuramotoSivashinsky
from worldmodel.datasets.pde.trajectories import Side, Trajectories
from worldmodel.errors import UserError
from worldmodel.evaluate.report import Metric, Report
from worldmodel.evaluate.report_files import write
from worldmodel.evaluate.statistics import bootstrap
from worldmodel.folders import check_outputs, make_folder
from worldmodel.memory.last_frame import LastFrameConfig
from worldmodel.models.fno import FNO, FNOConfig
from worldmodel.models.one_step import Apply
from worldmodel.models.together import Together
from worldmodel.objectives.hero import Hero
from worldmodel.objectives.pushforward import Pushforward
from worldmodel.objectives.unrolled import Deployment, RolloutError, Unroll
from worldmodel.optim import AdamW, Schedule
from worldmodel.options import check_range
from worldmodel.serial import read_json, to_json, write_json
from worldmodel.weights import load_into, read_tensors, write_tensors

UNROLL = Unroll(stream=Deployment(sampler=Apply(), memory=LastFrameConfig()))
MODEL = FNOConfig(points=32, width=8, modes=8, depth=2, hidden=16)
THRESHOLD = 0.5  # of the error relative to the fields' root mean square: the end of a stable rollout
MAX_SEED = 2**32  # every seed has 2^21 steps of clips of its own, numbered in 64 bits
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """frames: of a training clip, the given first one among them."""

    objective: RolloutError | Pushforward | Hero
    frames: int
    lr: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """base, budget: forward passes for the first, one-step training and for every arm. horizon: frames of a test.

    tests: trajectories that the arms are judged on, which nothing else has seen.
    """

    base: int = 9000
    budget: int = 36_000
    horizon: int = 50
    tests: int = 128

    def data(self, frames: int) -> Trajectories:
        return Trajectories(
            equation=KuramotoSivashinsky(points=MODEL.points), interval=4.0, steps=40, length=frames, batch=16
        )


BASE = Arm(objective=RolloutError(), frames=2, lr=8e-3)
ARMS = {
    "one-step": Arm(objective=RolloutError(), frames=2, lr=2e-3),
    "rollout": Arm(objective=RolloutError(), frames=9),
    "pushforward": Arm(objective=Pushforward(), frames=3, lr=2e-3),
    "hero": Arm(objective=Hero(), frames=9, lr=2e-3),
}


class Meter:
    """Counts the passes of the networks that it is attached to, copies of them included."""

    def __init__(self) -> None:
        self.spent = 0

    def __call__(self, *_: Any) -> None:
        self.spent += 3 if torch.is_grad_enabled() else 1


def train(model: Together, arm: Arm, data: Trajectories, budget: int, firsts: Sequence[int]) -> int:
    """Train until the budget of each model is spent, the learning rate following a cosine over it.

    firsts: number of the first step of each model's stream of clips. Returns the number of updates.
    """
    meter = Meter()
    hook = model.register_forward_hook(lambda *call: meter(*call))
    objective = arm.objective.build(model, UNROLL.stream, 0)
    optimizers, schedule = AdamW(lr=arm.lr, weight_decay=0.0).build(model), Schedule(warmup=budget // 50)
    updates = 0
    for parts in zip(*(data.batches(first) for first in firsts), strict=True):
        updates += 1
        for update in objective.updates([_joined([clip for (clip,) in parts])]):
            for loss in update.losses:
                (loss * model.count).backward()  # a mean over all rows
            clip_each(model, updates, arm)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = arm.lr * schedule(min(meter.spent, budget), budget)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        if meter.spent >= budget:
            break
    hook.remove()
    return updates


def clip_each(model: Together, updates: int, arm: Arm, most: float = 1.0) -> None:
    """Scale every model's own gradient to a norm of at most `most`."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0).sqrt()
    if not bool(torch.isfinite(norm).all()):
        raise UserError(f"a gradient is not finite after {updates} updates: lower the learning rate {arm.lr}")
    scale = (most / (norm + 1e-6)).clamp(max=1)
    for g in grads:
        g.mul_(scale.reshape(-1, *(1,) * (g.ndim - 1)))


def _joined(clips: Sequence[Clip]) -> Clip:
    """The rows of all clips, one after another."""
    control = [clip.control for clip in clips]
    nothing = [torch.cat([getattr(c, name) for c in control]) for name in ("action", "has_action")]
    return Clip(torch.cat([c.x for c in clips]), ActionControl(*nothing), torch.cat([c.index for c in clips]))


@torch.no_grad()
def errors(model: FNO, data: Trajectories, side: Side, count: int, frames: int) -> Floats:
    """Relative error of free rollouts, [count, frames]: root mean square of the difference over that of all fields."""
    clip = data.whole(side, count, 1 + frames)
    difference = UNROLL(model, clip, 0) - UNROLL.target(model, clip)
    found = difference.square().mean((2, 3, 4)).sqrt() / clip.x.square().mean().sqrt()
    return torch.nan_to_num(found, nan=torch.inf).double().numpy()


def stable_times(error: Floats, interval: float, threshold: float = THRESHOLD) -> Floats:
    """When the error [count, frames] of each rollout first passes the threshold; the horizon if it never does."""
    passed = error > threshold
    first = np.where(passed.any(1), passed.argmax(1), error.shape[1] - 1)
    return (first + 1) * interval


def perform(experiment: Experiment, arm: str | None, seeds: Sequence[int], out: Path) -> None:
    """Train one arm, or with None the base, of all seeds together and test it, unless that is done already."""
    chosen, frames = BASE if arm is None else ARMS[arm], experiment.data(2)
    settings = {
        "experiment": to_json(experiment),
        "model": to_json(MODEL),
        "arm": to_json(chosen),
        "base": to_json(BASE),
    }
    cards = [out / f"seed_{seed}" / f"{arm or 'base'}.json" for seed in seeds]
    for card in (card for card in cards if card.is_file()):
        if _read(card)["settings"] != settings:
            raise UserError(f"{card}: was made with other settings; choose another --out")
    if all(card.is_file() for card in cards):
        print(f"{arm or 'base'}: done before", flush=True)
        return
    models, budget = [], experiment.base if arm is None else experiment.budget
    for seed in seeds:
        torch.manual_seed(seed)
        models.append(MODEL.build())
        if arm is not None:
            base = out / f"seed_{seed}" / "base.safetensors"
            load_into(models[-1], read_tensors(base), str(base))
    together, cpu = Together(models), time.process_time()
    firsts = [(2 * seed + (arm is not None)) << 20 for seed in seeds]  # other seeds see other clips
    updates = train(together, chosen, experiment.data(chosen.frames), budget, firsts)
    spent = {"updates": updates, "cpu": time.process_time() - cpu}
    for card, model, state in zip(cards, models, together.states(), strict=True):
        load_into(model, state, "the trained operator")
        tested = errors(model, frames, "test", experiment.tests, experiment.horizon)
        make_folder(card.parent)
        write_tensors(model.state_dict(), card.with_suffix(".safetensors"))
        # An error that overflows is written as a number: JSON has none for infinity.
        write_json({"settings": settings, "spent": spent, "errors": np.minimum(tested, 1e6).round(6).tolist()}, card)
        mean = stable_times(tested, frames.interval).mean()
        print(f"{card}: {updates} updates, CPU {spent['cpu']:.0f} s for all seeds, stable for {mean:.1f}", flush=True)


def _read(card: Path) -> dict[str, Any]:
    found = read_json(card)
    if not isinstance(found, dict) or not {"settings", "spent", "errors"} <= found.keys():
        raise UserError(f"{card}: not what a finished arm has left; delete it to train that arm again")
    return found


def summarise(command: str, experiment: Experiment, seeds: Sequence[int], arms: Sequence[str], out: Path) -> Report:
    """Stable times of all arms and seeds, and their ratios; intervals are over test trajectories."""
    interval, metrics, times = experiment.data(2).interval, {}, {}
    for arm in ("base", *arms):
        cards = [_read(out / f"seed_{seed}" / f"{arm}.json") for seed in seeds]
        times[arm] = np.stack([stable_times(np.array(card["errors"]), interval) for card in cards])  # [seeds, tests]
        metrics[f"stable_time__{arm}"] = _mean(times[arm])
        metrics[f"cpu_seconds__{arm}"] = Metric(cards[0]["spent"]["cpu"], "s, all seeds")
        metrics[f"updates__{arm}"] = Metric(cards[0]["spent"]["updates"], "updates")
        for seed, own in zip(seeds, times[arm], strict=True):
            metrics[f"stable_time__{arm}__seed_{seed}"] = Metric(float(own.mean()), "time units", len(own))
    for other in (arm for arm in arms if arm != "hero" and "hero" in arms):
        metrics[f"hero_over_{other}"] = _ratio(times["hero"], times[other])
        for row, seed in enumerate(seeds):
            metrics[f"hero_over_{other}__seed_{seed}"] = _ratio(times["hero"][[row]], times[other][[row]])
    speed = calibrate()
    metrics |= {"gflops": Metric(speed.gflops, "GFLOP/s"), "load": Metric(speed.load)}
    shown = (*(f"stable_time__{arm}" for arm in ("base", *arms)), *(m for m in metrics if m.startswith("hero_over")))
    return Report(command=command, seeds=tuple(seeds), metrics=metrics, headline=shown)


def _mean(times: Floats) -> Metric:
    found = bootstrap(lambda rows: float(times[:, rows].mean()), times.shape[1])
    return Metric(float(times.mean()), "time units", times.shape[1], found)


def _ratio(times: Floats, others: Floats) -> Metric:
    """Ratio of the means over [seeds, tests], with an interval from the same test trajectories drawn for both."""
    found = bootstrap(lambda rows: float(times[:, rows].mean() / others[:, rows].mean()), times.shape[1])
    return Metric(float(times.mean() / others.mean()), "", times.shape[1], found)


def plot(experiment: Experiment, seeds: Sequence[int], arms: Sequence[str], out: Path, file: Path) -> None:
    """Median error over time, one thin line per seed, and every seed's stable time."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    interval = experiment.data(2).interval
    for place, arm in enumerate(("base", *arms)):
        found = np.array([_read(out / f"seed_{seed}" / f"{arm}.json")["errors"] for seed in seeds])
        time = interval * np.arange(1, 1 + found.shape[2])
        for n, error in enumerate(np.median(found, 1)):
            left.plot(time, error, color=f"C{place}", lw=0.9, label=arm if n == 0 else None)
        right.plot([place] * len(seeds), [stable_times(e, interval).mean() for e in found], "o", color=f"C{place}")
    left.axhline(THRESHOLD, color="k", lw=0.6, ls=":")
    left.set(yscale="log", xlabel="time", ylabel="relative error (median over tests)", ylim=(1e-3, 3))
    left.legend(frameon=False)
    right.set(ylabel="stable time (mean over tests)", xticks=range(1 + len(arms)), xticklabels=("base", *arms))
    figure.savefig(file, dpi=110)


def compare(arguments: argparse.Namespace) -> None:
    seeds, arms, out = arguments.seeds, arguments.arms, arguments.out
    file, picture = arguments.json or out / "compare.json", arguments.plot or out / "compare.png"
    check_range(1, base=arguments.base, budget=arguments.budget)
    for seed in seeds:
        check_range(0, MAX_SEED, seeds=seed)
    for name, values in (("seeds", seeds), ("arms", arms)):
        if len(set(values)) < len(values):
            raise UserError(f"--{name} takes different ones, not '{' '.join(map(str, values))}'")
    if picture.suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"{picture}: a plot is .png, .pdf or .svg")
    check_outputs(out, file=file)
    check_outputs(file=picture)
    experiment = Experiment(base=arguments.base, budget=arguments.budget)
    torch.set_num_threads(1)
    for arm in (None, *arms):  # the base first
        perform(experiment, arm, seeds, out)
    report = summarise(f"python demos/pde.py {' '.join(sys.argv[1:])}", experiment, seeds, arms, out)
    write(report, file)
    make_folder(picture.parent)
    plot(experiment, seeds, arms, out, picture)
    print("\n".join(report.lines()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command = parser.add_subparsers(required=True).add_parser("compare", help="train all arms, test and compare them")
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    command.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    command.add_argument("--base", type=int, default=Experiment.base, help="forward passes of the one-step training")
    command.add_argument("--budget", type=int, default=Experiment.budget, help="forward passes of each arm")
    command.add_argument("--out", type=Path, default=Path("runs/pde"))
    command.add_argument("--json", type=Path, help="default: OUT/compare.json")
    command.add_argument("--plot", type=Path, help="default: OUT/compare.png")
    arguments = parser.parse_args()
    try:
        compare(arguments)
    except UserError as error:
        print(f"pde: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
