"""Small models and clips in which nothing is zero, so that no mistake can hide. Shared by the tests beside it."""

import itertools
import json
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from worldmodel import checkpoint, noise
from worldmodel import train as training
from worldmodel.actions import ActionSpec
from worldmodel.chunk import ActionControl, Clip, ConditionControl
from worldmodel.errors import UserError
from worldmodel.memory import WindowConfig
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.optim import AdamW, Schedule
from worldmodel.run import Run
from worldmodel.sampler import Euler
from worldmodel.weights import read_tensors, write_tensors

SIZES: dict[str, Any] = {
    "channels": 2, "size": (4, 6), "chunk": 2, "dim": 32, "depth": 2, "heads": 2, "hidden": 48, "actions": 3,
    "rank": 4, "time_width": 32,
}  # fmt: skip


def small_dit(seed: int = 0, **changes: Any) -> DiT:
    """A DiT with random weights everywhere, those that start at zero included."""
    torch.manual_seed(seed)
    model = DiTConfig(**(SIZES | changes)).build()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.3 if p.ndim == 1 else 0.5 / p.shape[-1] ** 0.5))
    return model


def small_clip(model: DiT, rows: int = 2, frames: int = 8, seed: int = 0) -> Clip[Any]:
    """Random latents and actions, or conditions; every fourth frame has no action."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, frames, *model.frame_shape, generator=rng)
    if model.cfg.condition:
        condition = torch.randn(rows, frames, model.cfg.condition, *model.cfg.size, generator=rng)
        return Clip(x, ConditionControl(condition), torch.arange(rows))
    action = torch.rand(rows, frames, model.cfg.actions, generator=rng) * 2 - 1
    has_action = (torch.arange(frames) + torch.arange(rows)[:, None]) % 4 > 0
    text = torch.randn(rows, 5, model.cfg.text, generator=rng) if model.cfg.text else None
    return Clip(x, ActionControl(action, has_action, text), torch.arange(rows))


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """max |a - b| <= tolerance * max(1, max |b|), and the same shape and type."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    found, expected = found.detach(), expected.detach()
    error = float((found - expected).abs().max())
    assert error <= tolerance * max(1.0, float(expected.abs().max())), error


def traced(function: Callable[[], Any]) -> tuple[Any, int, int]:
    """What `function` returns, and the bytes that are held after it and at its peak, by torch's own allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        result = function()
    held = peak = 0
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return result, held, peak


# -- training ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TinyData:
    """Clips that are a pure function of their index. `folder` holds a tokenizer.

    stop_at, nan_at, die_at: at this step the process gets SIGTERM, the clips turn NaN, the process is killed.
    """

    folder: Path
    batch: int = 4
    length: int = 6
    curriculum: tuple[tuple[int, int], ...] = ()
    weights: tuple[float, ...] = ()
    low: float = -2.0
    held_out: tuple[str, ...] = ("0/3",)
    pixels: bool = False
    pause: float = 0.0
    stop_at: int = -1
    nan_at: int = -1
    die_at: int = -1
    fps: float = 10.0

    @property
    def tokenizer(self) -> Path:
        return self.folder

    @property
    def action_spec(self) -> ActionSpec | None:
        return None if self.pixels else ActionSpec(names=("a", "b", "c"), low=(self.low,) * 3, high=(2.0,) * 3)

    @property
    def split(self) -> dict[str, Any]:
        return {"train": ["0/0", "0/1"], "validation": list(self.held_out)}

    def batches(self, first_step: int, rank: int, world: int, micro: int) -> Iterator[list[Clip]]:
        size = self.batch // (world * micro)
        for step in itertools.count(first_step):
            time.sleep(self.pause)
            for at, number in ((self.stop_at, signal.SIGTERM), (self.die_at, signal.SIGKILL)):
                if step == at:
                    os.kill(os.getpid(), number)
            length = next((length for until, length in self.curriculum if step < until), self.length)
            first = step * self.batch + rank * size * micro
            clips = [self._clip(torch.arange(first + m * size, first + (m + 1) * size), length) for m in range(micro)]
            yield [replace(c, x=c.x * torch.nan) for c in clips] if step == self.nan_at else clips

    def validation_batches(self, count: int) -> Iterator[Clip]:
        for n in range(count):
            yield self._clip(10**6 + torch.arange(n * self.batch, (n + 1) * self.batch), self.length)

    def _clip(self, index: Tensor, length: int) -> Clip[ActionControl]:
        seed, frames = noise.row_seed(7, index), torch.arange(length).expand(len(index), -1)
        action = noise.normal(seed, frames, 0, (3,)).clamp(-1, 1)
        x = noise.normal(seed, frames, 1, (3, 8, 12) if self.pixels else (2, 4, 6))
        x = (x + action.mean(-1)[..., None, None, None]).cumsum(1) / 2
        return Clip(x.clamp(-1, 1) if self.pixels else x, ActionControl(action, frames > 0), index)


def tiny_run(out: Path, data: dict[str, Any] | None = None, **changes: Any) -> Run:
    """A run of a second; its tokenizer is written beside `out`."""
    folder = out.parent / "tokenizer"
    if not folder.exists():
        torch.manual_seed(0)
        AutoencoderConfig(channels=2, widths=(4,), blocks=(0,)).build().save(folder)
    fields: dict[str, Any] = {
        "model": DiTConfig(**(SIZES | {"dim": 16, "depth": 1, "hidden": 16, "time_width": 8, "heads": 1})),
        "objective": FlowMatching(context_noise=0.2),
        "optimizer": AdamW(lr=1e-2),
        "schedule": Schedule(warmup=3),
        "stream": StreamConfig(memory=WindowConfig(ring=4), sampler=Euler(steps=1)),
        "steps": 8, "log_every": 1, "save_every": 3, "validate_every": 4, "validate": 2, "sample_every": 0, "ema": 0.9,
        "threads": 1,
    }  # fmt: skip
    return Run(data=TinyData(folder=folder, **(data or {})), out=out, **(fields | changes))


def tensors_in(out: Path) -> dict[str, Tensor]:
    """Every tensor of the newest checkpoint of a run."""
    folder = checkpoint.steps(out)[-1]
    return {f"{p.name}/{name}": t for p in sorted(folder.glob("*.safetensors")) for name, t in read_tensors(p).items()}


def same_training(a: Path, b: Path) -> bool:
    """Whether two runs' newest checkpoints are the same bits at the same step."""
    one, two = tensors_in(a), tensors_in(b)
    return checkpoint.steps(a)[-1].name == checkpoint.steps(b)[-1].name and all(
        torch.equal(one[name], two[name]) for name in one.keys() | two.keys()
    )


FROM_CLEAN = multiprocessing.get_context("forkserver")
FROM_CLEAN.set_forkserver_preload(["worldmodel.train", "torch.utils.tensorboard", "torch._dynamo"])  # take seconds


def record(run: Run, to: Path) -> None:
    """Train, and write the metrics of every step, the first step's gradients and the number of processes.

    The target of processes that are started for a test; what goes wrong as a UserError is written to `to`/error.txt.
    """
    to.mkdir(parents=True, exist_ok=True)
    (to / "started").touch()
    apply, steps = training.apply, []
    rank, world = int(os.environ.get("RANK", "0")), []

    def watched(accelerator: Any, role: Any, *args: Any) -> dict[str, float]:
        clip = accelerator.clip_grad_norm_

        def first(parameters: Any, *rest: Any) -> Any:
            if not steps:
                world.append(accelerator.num_processes)
                grads = {n.removeprefix("module."): p.grad.clone() for n, p in role.model.named_parameters()}
                write_tensors(grads, to / f"gradients{rank}.safetensors")
            return clip(parameters, *rest)

        accelerator.clip_grad_norm_ = first
        steps.append(apply(accelerator, role, *args))
        accelerator.clip_grad_norm_ = clip
        return steps[-1]

    training.apply = watched
    try:
        final = training.train(run)
        (to / f"{rank}.json").write_text(json.dumps({"steps": steps, "final": final, "world": world}))
    except UserError as error:
        (to / "error.txt").write_text(str(error))


def free_port() -> int:
    """A port that nobody listens to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def in_processes(run: Run, to: Path, count: int = 1) -> list[Any]:
    """Processes that `record` a run together, started and not awaited; they are forked from a clean one."""
    made, port = [], free_port()
    for rank in range(count):
        world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {name: str(value) for name, value in world.items()} if count > 1 else {}
        process = FROM_CLEAN.Process(target=_in_environment, args=(environment, run, to))
        process.start()
        made.append(process)
    return made


def _in_environment(environment: dict[str, str], run: Run, to: Path) -> None:
    os.environ.update(environment)
    record(run, to)
