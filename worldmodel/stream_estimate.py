"""What a deployed stream costs, before anything is trained: operations, rates and bytes, counted from shapes.

A chunk is the sampler's calls and the pass that writes it to the memory, against a memory that is full. The transformer
alone is counted: tokenizers, detectors and whatever else a product has around it come on top.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from worldmodel.errors import UserError
from worldmodel.evaluate.report import Metric, Report
from worldmodel.evaluate.report_files import write
from worldmodel.footprint import Precision
from worldmodel.models.dit import DiTConfig
from worldmodel.models.world import StreamConfig
from worldmodel.rollout_footprint import Rolled


@dataclass(frozen=True, slots=True)
class StreamCost:
    """Of one stream. sampling, remembering: operations per chunk. weights, memory: bytes.

    calls: of the model per chunk and guidance's rows, without the pass that writes. chunk, context: latent frames.
    tokens: of a frame.
    """

    parameters: int
    tokens: int
    chunk: int
    context: int
    calls: int
    sampling: float
    remembering: float
    weights: int
    memory: int

    @property
    def per_frame(self) -> float:
        """Operations per latent frame."""
        return (self.sampling + self.remembering) / self.chunk


def stream_cost(model: DiTConfig, stream: StreamConfig, precision: Precision = "bf16") -> StreamCost:
    """Of a model of these sizes. UserError for a memory without a bound, or a sampler of several chunks at once."""
    context = stream.memory.capacity
    if context is None:
        raise UserError("estimate: stream.memory keeps everything, so that every chunk costs more than the one before")
    stream.check(model)
    with torch.device("meta"):
        built = model.build().requires_grad_(False)
    built = built.bfloat16() if precision == "bf16" else built
    rolled = Rolled(built, 1, model.text_tokens or 0, precision, False, stream)
    calls = rolled.solver.calls
    return StreamCost(
        parameters=sum(p.numel() for p in built.parameters()),
        tokens=model.geometry.tokens,
        chunk=model.chunk,
        context=context,
        calls=calls * rolled.guided,
        sampling=rolled.sample(0, calls).forward,
        remembering=rolled.remember(0).forward,
        weights=sum(p.nbytes for p in built.parameters()),
        memory=rolled.memory(context),
    )


def print_stream(
    model: DiTConfig,
    stream: StreamConfig,
    fps: float,
    *,
    precision: Precision = "bf16",
    tflops: float | None = None,
    title: str = "estimate",
    json: Path | None = None,
) -> int:
    """Print what `fps` latent frames a second ask for, and what `tflops` (10^12 operations/s) would give."""
    for name, value in (("--stream", fps), ("--tflops", tflops)):
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"estimate: {name} is {value:g}, must be a number above 0")
    found = stream_cost(model, stream, precision)
    needed = found.per_frame * fps
    metrics = {
        "parameters": Metric(found.parameters),
        "tokens_per_frame": Metric(found.tokens),
        "operations_per_frame": Metric(found.per_frame, "FLOP"),
        "operations_sampling": Metric(found.sampling, "FLOP per chunk"),
        "operations_remembering": Metric(found.remembering, "FLOP per chunk"),
        "rate_needed": Metric(needed, "FLOP/s"),
        "memory_weights": Metric(found.weights, "bytes"),
        "memory_stream": Metric(found.memory, "bytes"),
    }
    table = Table(title=title, show_header=False, title_justify="left")
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify, overflow="fold")
    table.add_row("parameters", f"{found.parameters:,}", f"{found.weights / 1e9:,.2f} GB in {precision}")
    table.add_row("tokens of a frame", f"{found.tokens:,}")
    table.add_row("context", f"{found.context} frames", f"{found.memory / 1e6:,.1f} MB of memory for one stream")
    table.add_row("a chunk", f"{found.chunk} frames", f"{found.calls} passes to make it, 1 to remember it")
    table.add_row("operations per chunk", _tera(found.sampling), f"and {_tera(found.remembering)} to remember it")
    table.add_row("operations per frame", _tera(found.per_frame))
    table.add_row(f"for {fps:g} frames/s", f"{_tera(needed)}/s", "reached, not of a data sheet", style="bold")
    if tflops is not None:
        rate = tflops * 1e12 / found.per_frame
        metrics["frames_per_second"] = Metric(rate, "latent frames/s")
        table.add_row(f"with {tflops:g} TFLOP/s", f"{rate:,.1f} frames/s", f"{needed / tflops / 1e10:,.0f} % of it")
    Console().print(table)
    write(Report(command=f"worldmodel {title}", seeds=(), metrics=metrics), json=json)
    return 0


def _tera(operations: float) -> str:
    return f"{operations / 1e12:,.3g} TFLOP" if operations >= 1e11 else f"{operations / 1e9:,.3g} GFLOP"
