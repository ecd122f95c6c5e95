"""A trained swap generator as one folder, and in a stream: a chunk model whose memory begins with the reference.

config.json         format version, sizes of the transformer, of the regions, memory and sampler, free text card
model.safetensors   weights of the transformer
tokenizer/          config.json and weights of the tokenizer

The reference is written to the memory's sink before anything is made (`Chunk.executed` says how much of its chunk
counts), the newest frames are in its ring (StreamingSwap's short context; interpretation of an abstract).

Letters: B rows (slots of faces), K frames of a chunk, R reference pictures, S side of a region.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldmodel.chunk import Chunk, ConditionControl
from worldmodel.errors import UserError
from worldmodel.face.generator import FaceControl
from worldmodel.face.region_codec import RegionCodec
from worldmodel.fingerprint import fingerprint
from worldmodel.folders import replaced
from worldmodel.memory import MemoryConfig, WindowConfig
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.models.world import StreamConfig, check_device, load_dit, made_in
from worldmodel.rollout import advance, start, step
from worldmodel.sampler import Streamable
from worldmodel.serial import check_config, from_json, read_json, to_json, write_json
from worldmodel.state import State
from worldmodel.weights import write_tensors

FORMAT, KIND = 1, "face swap"
FILES = ("config.json", "model.safetensors", "tokenizer")


def begin_stream(model: Streamable, memory: MemoryConfig, seed: Tensor, reference: Chunk[ConditionControl]) -> State:
    """The state of streams with seeds [B] that remember their reference [B, K, ...] and nothing else: video frames
    begin at position R. With gradients enabled they flow through the reference's pass."""
    return advance(model, reference, start(model, memory, seed))


def check_stream(stream: StreamConfig, references: int, model: DiTConfig) -> None:
    """A UserError unless a swap can be streamed so."""
    stream.check(model)
    memory, sampler = stream.memory, stream.sampler
    if not isinstance(memory, WindowConfig) or memory.sink != references:
        raise UserError(
            f"swap: stream.memory must be a WindowConfig with sink {references}, one place for each reference picture, "
            f"not {memory}"
        )
    if sampler.lookahead:
        raise UserError(f"swap: {sampler} looks ahead, the stream's next faces are not known yet")
    if getattr(sampler, "guidance", 1.0) != 1.0:
        raise UserError(f"swap: {sampler}: guidance must be 1, no swap is trained without its condition")


@dataclass(frozen=True, slots=True, eq=False)
class SwapState:
    """The state of B streams: a `face.generator.State`. reference: the chunk that they began with, one row."""

    model: "SwapModel"
    reference: Chunk[ConditionControl]
    state: State

    def reset(self, rows: Tensor) -> "SwapState":
        """The rows of a mask [B] bool as at `begin`: their memory holds the reference, which is written again."""
        rows = rows.to(self.state.frame.device)
        if not rows.any():
            return self
        fresh = self.state.reset(rows, self.state.seed)
        reference = _rows(self.reference, fresh)
        with torch.no_grad():
            written = advance(self.model.dit, reference, replace(fresh, active=rows))
        return replace(self, state=replace(written, active=fresh.active))


@dataclass(frozen=True, slots=True)
class SwapModel:
    """A transformer, its regions and how it is streamed: a `face.generator.Generator`. It is used without gradients."""

    dit: DiT
    codec: RegionCodec
    stream: StreamConfig
    card: dict[str, Any] = field(default_factory=dict)  # data, seeds, steps: for people

    @property
    def size(self) -> int:
        return self.codec.size

    @property
    def chunk(self) -> int:
        return self.dit.chunk

    @property
    def device(self) -> torch.device:
        return self.dit.patch_in.weight.device

    @property
    def fingerprint(self) -> str:
        """Of all weights."""
        return fingerprint(self.dit, self.codec.network)

    @torch.no_grad()
    def begin(self, reference: Tensor, rows: int) -> SwapState:
        """The state of `rows` streams of the aligned reference face [3, S, S] in -1..1, or of several pictures of it
        [R', 3, S, S]."""
        pictures = reference[None] if reference.ndim == 3 else reference
        written = self.codec.reference(pictures[None].to(self.device), self.chunk)
        seed = torch.arange(rows, device=self.device)
        state = start(self.dit, self.stream.memory, seed)
        return SwapState(self, written, advance(self.dit, _rows(written, state), state))

    @torch.no_grad()
    def generate(self, control: FaceControl, state: SwapState) -> tuple[Tensor, SwapState]:
        """New faces [B, K, 3, S, S] in -1..1 for the control's crops, and the state after them.

        `state` stays what it was. Rows without a face in the whole chunk do not move on.
        """
        device = control.crops.device
        condition = self.codec.condition(control.to(self.device))
        before = state.state.fork(1)
        before = replace(before, active=control.active.any(1).to(self.device))
        made, after = step(self.dit, self.stream.sampler, condition, before, self.stream.context_time)
        faces = self.codec.regions(made.x).to(device)
        return faces, replace(state, state=replace(after, active=torch.ones_like(after.active)))

    def save(self, folder: Path) -> None:
        """Write the folder; an older swap in it is replaced as a whole, other files stay."""
        with replaced(folder, FILES) as beside:
            write_tensors(self.dit.state_dict(), beside / "model.safetensors")
            self.codec.tokenizer.save(beside / "tokenizer")
            config = {
                "format": FORMAT,
                "kind": KIND,
                "dit": to_json(self.dit.cfg),
                "size": self.size,
                "references": self.codec.references,
                "stream": to_json(self.stream),
                "card": self.card,
            }
            write_json(config, beside / "config.json")

    @classmethod
    def find(cls, folder: Path, device: str = "cpu") -> "SwapModel":
        """Load a swap's folder, or what the run in a folder has made so far. Anything missing, broken or of another
        kind is a UserError that names it."""
        folder = made_in(folder)
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; a trained swap is a folder with config.json in it")
        check_device(device)
        path = folder / "config.json"
        config = check_config(read_json(path), KIND, FORMAT, path, keys=("dit", "size", "references", "stream"))
        for name in ("size", "references"):
            if isinstance(config[name], bool) or not isinstance(config[name], int) or not 1 <= config[name] <= 2**14:
                raise UserError(f"{path}: {name} must be a whole number in [1, {2**14}], not {config[name]!r}")
        cfg: DiTConfig = from_json(config["dit"], DiTConfig, f"{path}: dit")
        stream: StreamConfig = from_json(config["stream"], StreamConfig, f"{path}: stream")
        if not (folder / "tokenizer").is_dir():
            raise UserError(f"{folder / 'tokenizer'}: no such folder, the model's tokenizer is missing")
        codec = RegionCodec.of(folder / "tokenizer", config["size"], config["references"])
        try:
            codec.check(cfg)
            check_stream(stream, codec.references, cfg)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        dit = load_dit(cfg, folder / "model.safetensors", path)
        card = config.get("card", {})
        return cls(
            dit.to(device).eval().requires_grad_(False),
            codec.to(device),
            stream,
            card if isinstance(card, dict) else {},
        )


def _rows(reference: Chunk[ConditionControl], state: State) -> Chunk[ConditionControl]:
    """The reference, one row, for every row of a state."""
    rows = torch.zeros(state.batch, dtype=torch.int64, device=reference.x.device)
    executed = reference.executed[rows]
    return Chunk(reference.x[rows], reference.control.select(rows), state.frame, executed)
