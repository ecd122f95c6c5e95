"""Parameters, memory and time of a training run before it starts.

Nothing of the model is allocated: it is built on the meta device and the bytes of a step are counted from shapes (see
footprint.py, and rollout_footprint.py for objectives that roll it out), so that a 14 B model takes a second on a
laptop.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from worldmodel.calibration import calibrate
from worldmodel.errors import UserError
from worldmodel.evaluate.report import Metric, Report
from worldmodel.evaluate.report_files import write
from worldmodel.footprint import Operations, Precision, Shapes, activations, operations
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.models.lora import LoraConfig, add_lora
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.objectives.frechet_forcing import FrechetForcing
from worldmodel.objectives.hero import Hero
from worldmodel.objectives.own_rollouts import check_lengths, growth
from worldmodel.objectives.pushforward import Pushforward
from worldmodel.objectives.reconstruction import Reconstruction
from worldmodel.objectives.self_forcing import SelfForcing
from worldmodel.optim import AdamW, Muon
from worldmodel.rollout_footprint import Rolled, RolloutStep, rollout_step
from worldmodel.run import Run

EFFICIENCY = 0.7  # training's share of the rate of one 1024^3 product; 0.6 to 0.9 measured on small models
ROLLING = 0.5  # the same where the model is rolled out: short passes, decoders and encoders; measured on the doom model

PARTS_OF_MEMORY = ("weights", "gradients", "optimizer", "ema", "casts", "activations", "update")

GPU_RATE = "give --tflops N for your GPU (about 0.4 of its dense bf16 rate, e.g. 120 for an A100, 390 for an H100)"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What decides the cost of a step on one device.

    batch: clips per step; micro: micro-batches they are cut into. frames: latent frames of a clip. text_tokens: of a
    row's text, for models with text. ema: whether averaged weights are kept. stream, tokenizer (its folder): of an
    objective that makes rollouts; the longest of its schedule are counted. In bf16, trained weights are fp32 and
    computed with in bf16 (autocast); frozen weights are bf16.
    """

    model: DiTConfig
    batch: int
    frames: int
    micro: int = 1
    objective: FlowMatching | FrechetForcing | SelfForcing | Hero | Pushforward = field(default_factory=FlowMatching)
    precision: Precision = "fp32"
    optimizer: AdamW | Muon = field(default_factory=AdamW)
    checkpointing: bool = False
    ema: bool = True
    lora: LoraConfig | None = None
    text_tokens: int = 512
    stream: StreamConfig = field(default_factory=StreamConfig)
    tokenizer: Path | None = None

    def __post_init__(self) -> None:
        if self.batch < 1 or self.micro < 1 or self.batch % self.micro:
            raise UserError(f"a batch of {self.batch} does not divide into {self.micro} micro-batches")
        if self.frames % self.model.chunk:
            raise UserError(f"a clip of {self.frames} frames does not cut into chunks of {self.model.chunk}")
        if not isinstance(self.objective, FlowMatching):
            starts = growth(self.objective)
            check_lengths(self.objective, self.model.chunk, self.frames, (), starts, max(starts, default=0) + 1)
        elif self.frames <= self.objective.context * self.model.chunk:
            raise UserError(f"a clip of {self.frames} frames is only context: nothing of it is trained on")

    @classmethod
    def of(cls, run: Run) -> "Workload":
        """The work of a run in one process."""
        if not isinstance(run.model, DiTConfig) or isinstance(run.objective, Reconstruction):
            raise UserError("estimate: only runs that train a transformer can be estimated")
        return cls(
            model=run.model, batch=run.data.batch, frames=run.data.length, micro=run.micro,
            objective=run.objective, precision=run.precision, optimizer=run.optimizer,
            checkpointing=run.checkpointing, ema=run.ema > 0, lora=run.lora, stream=run.stream,
            tokenizer=run.data.tokenizer,
        )  # fmt: skip

    @property
    def text(self) -> int:
        """Text tokens of a row, 0 without text."""
        return (self.model.text_tokens or self.text_tokens) if self.model.text else 0

    @property
    def shapes(self) -> Shapes:
        """Of a micro-batch's forward pass under flow matching."""
        assert isinstance(self.objective, FlowMatching)
        rows, chunk = self.batch // self.micro, self.model.chunk
        return Shapes.of(rows, self.frames, chunk, self.objective, self.text, self.precision, self.stream.memory)

    def rolled(self, model: DiT) -> RolloutStep:
        """A micro-batch under an objective that rolls the model out."""
        assert not isinstance(self.objective, FlowMatching)
        rows = self.batch // self.micro
        how = Rolled(model, rows, self.text, self.precision, self.checkpointing, self.stream)
        return rollout_step(how, self.objective, self.frames, self.micro, self.tokenizer)

    def build(self) -> DiT:
        """The model on the meta device, with its types and what is trained."""
        with torch.device("meta"):
            model = self.model.build()
        if self.lora is None:
            return model
        return add_lora(model.bfloat16() if self.precision == "bf16" else model, self.lora)


@dataclass(frozen=True, slots=True)
class Part:
    """Parameters under one name of the model."""

    name: str
    parameters: int
    trained: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device. `peak` is what has to fit beside the driver's and the allocator's own."""

    weights: int
    gradients: int
    optimizer: int
    ema: int
    casts: int  # bf16 copies of fp32 weights during a step
    activations: int  # at the peak of the backward pass
    update: int  # temporaries of the optimizer's step
    frozen: int = 0  # networks beside the model that are not trained
    host: int = 0  # populations and references of Frechet distances; not part of the peak

    @property
    def peak(self) -> int:
        """Gradients are there in full when the last activations go: a bound that is close with few of either."""
        kept = self.weights + self.gradients + self.optimizer + self.ema + self.frozen
        return kept + max(self.casts + self.activations, self.update)


@dataclass(frozen=True, slots=True)
class Estimate:
    """All about one step. seconds = operations of the step / rate."""

    parts: tuple[Part, ...]
    memory: Memory
    operations: Operations  # of all micro-batches
    tokens: int | None  # that the model sees in a step; None where it is rolled out
    frames: int  # latent frames of a step
    chunks: float | None = None  # of the rollouts of a step

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts)

    @property
    def trained(self) -> int:
        return sum(part.trained for part in self.parts)

    def seconds(self, rate: float) -> float:
        """Time per step at `rate` operations per second."""
        return self.operations.total / rate


def estimate(work: Workload) -> Estimate:
    """Parameters, bytes and operations of one training step."""
    model = work.build()
    if not isinstance(work.objective, FlowMatching):
        step = work.rolled(model)
        return Estimate(
            parts=(*_parts(model), *(Part("critic", *_counts(model.parameters())) for _ in range(step.critics))),
            memory=_memory(work, model, step),
            operations=step.operations.times(work.micro),
            tokens=None,
            frames=work.batch * work.frames,
            chunks=step.chunks,
        )
    shapes = work.shapes
    return Estimate(
        parts=_parts(model),
        memory=_memory(work, model, shapes),
        operations=operations(model, shapes, work.checkpointing).times(work.micro),
        tokens=work.batch * shapes.seen * work.model.geometry.tokens,
        frames=work.batch * work.frames,
    )


def _parts(model: DiT) -> tuple[Part, ...]:
    names = {name.split(".")[0]: None for name, _ in model.named_parameters()}
    parts = []
    for top in names:
        own = [p for name, p in model.named_parameters() if name.split(".")[0] == top]
        parts.append(Part(top, *_counts(own)))
    return tuple(parts)


def _counts(params: Iterable[nn.Parameter]) -> tuple[int, int]:
    """All parameters, and those that are trained."""
    sizes = [(p.numel(), p.numel() if p.requires_grad else 0) for p in params]
    return sum(size for size, _ in sizes), sum(trained for _, trained in sizes)


def _memory(work: Workload, model: DiT, step: Shapes | RolloutStep) -> Memory:
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    states = update = 0
    for optimizer in work.optimizer.build(model):
        own = sum(p.nbytes for group in optimizer.param_groups for p in group["params"])
        adam = isinstance(optimizer, torch.optim.AdamW)
        states += 2 * own if adam else own
        update += own if adam else 0  # AdamW steps all parameters at once on a GPU
    casts = _casts(model) if work.precision == "bf16" else 0
    if isinstance(step, Shapes):
        kept, depth = activations(model, step), work.model.depth
        peak, models, frozen, host = kept.peak(depth, work.checkpointing), 1, 0, 0
        if work.checkpointing and casts:  # forward: all copies; backward: those of the block that is computed again
            block = _casts(model.blocks[0])
            casts, peak = block, max(peak, kept.held(depth, True) + casts - block)
    else:
        peak, models, frozen, host = step.activations, 1 + step.critics, step.frozen, step.host
    return Memory(
        weights=models * sum(p.nbytes for p in model.parameters()),
        gradients=models * trained,
        optimizer=models * states,
        ema=trained if work.ema else 0,
        casts=casts,
        activations=peak,
        update=update,
        frozen=frozen,
        host=host,
    )


def _casts(module: nn.Module) -> int:
    layers = [m for m in module.modules() if isinstance(m, nn.Linear)]
    return sum(2 * p.numel() for layer in layers for p in layer.parameters() if p.dtype == torch.float32)


def print_estimate(
    work: Workload, *, title: str = "estimate", tflops: float | None = None, json: Path | None = None
) -> int:
    """Print the estimate as a table and write it as JSON.

    tflops: what the device reaches in training, 10^12 operations/s (a large GPU in bf16 about 0.4 of its data sheet's
    dense rate); without it, this machine's rate now, from one matrix product on one core, or for bf16, which wants a
    GPU, no time at all.
    """
    found, load = estimate(work), None
    if tflops is None and work.precision == "bf16":
        rate, source = None, GPU_RATE
    elif tflops is None:
        measured = calibrate()
        share = EFFICIENCY if found.chunks is None else ROLLING
        rate, load = share * measured.gflops * 1e9, measured.load
        source = f"{share} x {measured.gflops:.0f} GFLOP/s, one core here, load {measured.load:.1f}"
    elif 0 < tflops < float("inf"):
        rate, source = tflops * 1e12, f"{tflops:g} TFLOP/s, as given"
    else:
        raise UserError(f"estimate: tflops is {tflops}, must be a number above 0")
    report = _report(found, rate, title, load)
    Console().print(_table(found, work, rate, source, title))
    write(report, json=json)
    return 0


def _table(found: Estimate, work: Workload, rate: float | None, source: str, title: str) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column("what")
    table.add_column("how much", justify="right")
    table.add_column("notes", style="dim", overflow="fold")
    for part in found.parts:
        note = "" if part.trained == part.parameters else f"{part.trained:,} trained"
        table.add_row(f"parameters: {part.name}", f"{part.parameters:,}", note)
    table.add_row("parameters", f"{found.parameters:,}", f"{found.trained:,} trained", style="bold")
    table.add_section()
    memory = found.memory
    notes = {
        "weights": work.precision if work.lora else "fp32",
        "optimizer": type(work.optimizer).__name__,
        "activations": "with checkpointing" if work.checkpointing else "without checkpointing",
        "update": "while activations are gone",
        "frozen": "teachers, copies, decoders, encoders",
        "host": "populations; beside the peak",
    }
    for name in PARTS_OF_MEMORY if found.chunks is None else (*PARTS_OF_MEMORY, "frozen", "host"):
        table.add_row(f"memory: {name}", _gigabytes(getattr(memory, name)), notes.get(name, ""))
    table.add_row("memory: peak", _gigabytes(memory.peak), f"{_clips(work.batch // work.micro)} at once", style="bold")
    table.add_section()
    clips = f"{_clips(work.batch)} x {work.frames} latent frames, {_how(work.objective)}"
    if found.chunks is None:
        table.add_row("tokens per step", f"{found.tokens:,}", clips)
    else:
        table.add_row("chunks of a rollout", f"{found.chunks:g}", clips)
    table.add_row("operations per step", f"{found.operations.total / 1e12:,.4g} TFLOP")
    if rate is None:
        table.add_row("time per step", "unknown", source, style="bold")
    else:
        seconds = found.seconds(rate)
        table.add_row("time per step", f"{seconds:,.3g} s", source, style="bold")
        if found.chunks is not None:
            table.add_row("time per step and chunk", f"{seconds / found.chunks:,.3g} s")
        table.add_row("latent frames per second", f"{found.frames / seconds:,.4g}")
    return table


def _how(objective: FlowMatching | FrechetForcing | SelfForcing | Hero | Pushforward) -> str:
    return objective.chunk_noise if isinstance(objective, FlowMatching) else type(objective).__name__


def _clips(count: int) -> str:
    return "1 clip" if count == 1 else f"{count} clips"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"


def _report(found: Estimate, rate: float | None, title: str, load: float | None) -> Report:
    memory = found.memory
    names = (*PARTS_OF_MEMORY, "frozen", "host", "peak")
    metrics = {
        "parameters": Metric(found.parameters),
        "parameters_trained": Metric(found.trained),
        **{f"memory_{name}": Metric(getattr(memory, name), "bytes") for name in names},
        "operations_per_step": Metric(found.operations.total, "FLOP"),
    }
    if found.tokens is not None:
        metrics["tokens_per_step"] = Metric(found.tokens)
    if rate is not None:
        metrics |= {
            "rate": Metric(rate, "FLOP/s"),
            "step_time": Metric(found.seconds(rate), "s"),
            "frames_per_second": Metric(found.frames / found.seconds(rate), "latent frames/s"),
        }
        if found.chunks is not None:
            metrics["step_time_per_chunk"] = Metric(found.seconds(rate) / found.chunks, "s")
    if load is not None:
        metrics["load"] = Metric(load)
    return Report(command=f"worldmodel {title}", seeds=(), metrics=metrics)
