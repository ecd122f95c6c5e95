"""The training of a swap generator, as one value that `worldmodel train` runs: a file in configs/ returns it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from worldmodel.datasets.faces.clips import FaceClips
from worldmodel.datasets.heads.swaps import HeadSwaps
from worldmodel.errors import UserError
from worldmodel.face.region_codec import RegionCodec
from worldmodel.face.swap_model import SwapModel, check_stream
from worldmodel.fingerprint import fingerprint
from worldmodel.memory import WindowConfig
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.base import Objective
from worldmodel.objectives.swap_matching import SwapMatching
from worldmodel.pixels import to_uint8, write_video
from worldmodel.run import Recipe, Training
from worldmodel.sampler import Euler
from worldmodel.weights import load_into

LOOKED_AT = 8  # held-out clips in a sample


@dataclass(frozen=True, kw_only=True)
class SwapRun(Training, Recipe):
    """data: rendered swaps, or real faces. tokenizer: its folder, that of a run which trained one, or "pixels". model:
    `channels`, `size` and `condition` must be those of the data's regions through the tokenizer. stream: how the
    generator will run, and runs in rollouts; the memory's sink has a place for each reference. init: folder of a
    trained swap of these sizes to start from. For all else see `Training`."""

    data: HeadSwaps | FaceClips = field(default_factory=HeadSwaps)
    model: DiTConfig
    tokenizer: str = "pixels"
    objective: SwapMatching = field(default_factory=SwapMatching)
    stream: StreamConfig = field(
        default_factory=lambda: StreamConfig(memory=WindowConfig(sink=1, ring=6), sampler=Euler(steps=4))
    )
    init: Path | None = None

    @property
    def batches(self) -> HeadSwaps | FaceClips:
        return self.data

    @property
    def codec(self) -> RegionCodec:
        """UserErrors for parts that do not fit each other."""
        codec = RegionCodec.of(self.tokenizer, self.data.size, self.data.references)
        codec.check(self.model)
        check_stream(self.stream, codec.references, self.model)
        self.stream.check_readable()
        for length in (self.data.length, *(length for _, length in self.data.curriculum)):
            self.objective.check(self.model.chunk, length)
        return codec

    def build(self) -> DiT:
        codec = self.codec
        self.objective.embedder()  # what is wrong with either is said before anything starts
        model = self.model.build()
        if self.init is not None:
            begun = SwapModel.find(self.init)
            if fingerprint(begun.codec.network) != fingerprint(codec.network):
                raise UserError(f"{self.init}: was trained with another tokenizer than {self.tokenizer}")
            load_into(model, begun.dit.state_dict(), str(self.init))
        return model

    def build_objective(self, model: nn.Module, add: Callable[[str, nn.Module], nn.Module]) -> Objective:
        return self.objective.build(model, self.codec, self.stream, self.seed, self.objective.embedder())

    def template(self) -> "SwapTemplate":
        embedder = self.objective.embedder()
        recogniser = "" if embedder is None else fingerprint(embedder)
        return SwapTemplate(self, self.model.build(), self.codec, recogniser)

    @property
    def next_command(self) -> str:
        return f"swap VIDEO --method {self.out} --reference FACE --consent FILE --out OUT"

    def identity(self, frozen: str | None) -> dict[str, Any]:
        objective, embedder = self.objective, self.objective.embedder()
        if objective.identity is not None and embedder is not None:  # known by its weights, wherever it lies
            known = replace(objective.identity, embedder=Path(fingerprint(embedder)))
            objective = replace(objective, identity=known)
        return {
            "model": self.model,
            "objective": objective,
            "data": self.data,
            "stream": self.stream,
            "tokenizer": fingerprint(self.codec.network),
            "frozen": frozen,
        }


@dataclass(frozen=True, slots=True)
class SwapTemplate:
    """The swap of a run, filled with weights at every save. recogniser: fingerprint of the one that the loss looks at,
    "" for none: it is written into the card, so that `evaluate swap` takes no teacher for a judge."""

    run: SwapRun
    model: DiT
    codec: RegionCodec
    recogniser: str

    def fill(self, weights: dict[str, Tensor], card: dict[str, Any]) -> SwapModel:
        load_into(self.model, weights, str(self.run.out))
        card = {**card, "recogniser": self.recogniser}
        return SwapModel(self.model.eval().requires_grad_(False), self.codec, self.run.stream, card)

    def look(self, made: SwapModel, video: Path) -> None:
        """Held-out people (of the training side, where none is held out), a row each: the reference, the target, the
        swap as it is streamed, the truth."""
        data, rows = self.run.data, torch.arange(min(LOOKED_AT, self.run.data.batch))
        clip = next(iter(data.validation_batches(1))) if self.run.validate else next(data.batches(0, 0, 1, 1))[0]
        clip = clip.select(rows)
        swapped = []
        for row in rows.tolist():
            one = clip.select(rows[row : row + 1])
            state, target, faces = made.begin(one.control.reference[0], 1), one.control.target, list[Tensor]()
            for start in range(0, target.length, made.chunk):
                new, state = made.generate(target.frames(start, start + made.chunk), state)
                faces.append(new)
            swapped.append(torch.cat(faces, 1)[0])
        reference = clip.control.reference[:, :1].expand_as(clip.x)
        shown = torch.stack((reference, clip.control.target.crops, torch.stack(swapped), clip.x), 1)  # [B, 4, T, ...]
        write_video(video, rearrange(to_uint8(shown), "b n t h w c -> t (b h) (n w) c"), 8)
