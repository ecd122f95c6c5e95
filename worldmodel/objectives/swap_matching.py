"""Train a swap generator: flow matching on exact or recorded swaps along the way that a stream goes.

The reference is written to the memory, then one chunk after another is denoised against a memory of those before it,
and written in its turn: real ones (teacher forcing), or the model's own (short-context rollouts). Both run `prepare`,
`velocity` and `remember` as they are deployed, with gradients through what is remembered.

Letters: B rows, T frames of a clip, K of a chunk, n chunks, C h w latents, S side of a region.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel import flow, noise
from worldmodel.chunk import Chunk, Clip
from worldmodel.errors import UserError
from worldmodel.face.networks.embedder import FaceEmbedder
from worldmodel.face.region_codec import RegionCodec
from worldmodel.face.swap_control import SwapControl
from worldmodel.face.swap_model import begin_stream
from worldmodel.models.world import StreamConfig
from worldmodel.rollout import advance, join, replay, rollout

from .base import Objective, Update, check_number
from .joint_rec_id import JointRecId, Likeness
from .own_rollouts import Forwarded

NOISE, LEVEL = range(2)  # draws of a sample's keyed generator
OWN, LENGTH = 0x4F57_4E00, 0x4C45_4E00  # salts of the seeds
VALIDATION = 1 << 40  # validation samples are keyed beyond any training sample


@dataclass(frozen=True, kw_only=True)
class ShortContext:
    """Training on own rollouts (StreamingSwap's short-context rollout training; interpretation of an abstract).

    The deployed sampler makes some chunks, each under the stream's short memory; then the whole of them is written once
    more with gradients, as constant latents, and the next `last` chunks are denoised from there: their noise is added
    to the truth, which a swap knows for every frame, so that the target stays exact however far the rollout has left.
    chunks: fewest and most that are made before the first of those, drawn at every step.
    """

    chunks: tuple[int, int] = (2, 7)
    last: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.chunks[0] <= self.chunks[1]:
            raise UserError(f"short context: chunks {self.chunks} must be two numbers that rise, from 1 on")
        check_number("short context: last", self.last, 1, 1e4)


@dataclass(frozen=True, kw_only=True)
class SwapMatching:
    """Configuration. identity: None is pure flow matching. rollouts: None is teacher forcing. mean, std: of the
    logit-normal flow times, one per chunk; shift: of their schedule."""

    identity: JointRecId | None = None
    rollouts: ShortContext | None = None
    mean: float = 0.0
    std: float = 1.0
    shift: float = 1.0

    def __post_init__(self) -> None:
        check_number("swap matching: shift", self.shift, 1e-3, 1e3)
        check_number("swap matching: mean", self.mean, -10, 10)
        check_number("swap matching: std", self.std, 0, 10)

    def check(self, chunk: int, length: int) -> None:
        """A UserError unless clips of so many frames can be trained on."""
        need = chunk if self.rollouts is None else chunk * (self.rollouts.chunks[1] + self.rollouts.last)
        if length % chunk or length < need:
            raise UserError(
                f"swap matching: clips of {length} frames must be chunks of {chunk}, {need} frames or more "
                "(data.length, data.curriculum)"
            )

    def build(
        self, model: nn.Module, codec: RegionCodec, stream: StreamConfig, seed: int, embedder: nn.Module | None
    ) -> "SwapMatchingObjective":
        """model: a DiT with a condition, or its wrapper. embedder: the recogniser, with `identity`."""
        return SwapMatchingObjective(self, model, codec, stream, seed, embedder)

    def embedder(self) -> nn.Module | None:
        """The recogniser that `identity` names; UserErrors as those of `FaceEmbedder.find`."""
        return None if self.identity is None else FaceEmbedder.find(self.identity.embedder).model


class SwapMatchingObjective(Objective):
    """One role, `model`, one update per step. Clips have x [B, T, 3, S, S], the swapped regions."""

    def __init__(
        self, cfg: SwapMatching, model: nn.Module, codec: RegionCodec, stream: StreamConfig, seed: int,
        embedder: nn.Module | None,
    ) -> None:  # fmt: skip
        device = next(model.parameters()).device
        self.cfg, self.codec, self.stream, self.seed = cfg, codec.to(device), stream, seed
        self.likeness = None if embedder is None else Likeness(embedder.to(device))
        self.model, self.roles, self.step = Forwarded(model), {"model": model}, 0

    def updates(self, clips: list[Clip[SwapControl]]) -> Iterator[Update]:
        metrics = dict[str, Tensor]()
        yield Update("model", self._losses(clips, metrics), len(clips), metrics)
        self.step += 1

    def _losses(self, clips: list[Clip[SwapControl]], metrics: dict[str, Tensor]) -> Iterator[Tensor]:
        for clip in clips:
            loss, parts = self.loss(clip)
            for name, value in parts.items():
                metrics[name] = metrics.get(name, 0) + value / len(clips)
            yield loss / len(clips)

    def loss(self, clip: Clip[SwapControl]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss [] of a clip, and its parts: `reconstruction`, the mean squared error of the velocity, and `cosine`
        of the predicted faces with their reference, where there is a recogniser."""
        size, rollouts = self.model.chunk, self.cfg.rollouts
        self.cfg.check(size, clip.x.shape[1])
        if rollouts is None:
            return self._along(clip, self.codec.latents(clip.x), 0, self.seed)
        made = self._made_first()
        clip = clip.frames(0, (made + rollouts.last) * size)
        own = self.own(clip.frames(0, (made + rollouts.last - 1) * size))
        return self._along(clip, own, made, self.seed)

    def _made_first(self) -> int:
        """How many own chunks come first at this step, the same on every process."""
        assert self.cfg.rollouts is not None
        (least, most), key = self.cfg.rollouts.chunks, noise.row_seed(self.seed ^ LENGTH, torch.tensor([self.step]))
        return least + int(noise.uniform(key, torch.zeros(1, 1, dtype=torch.int64), 0).double() * (most - least + 1))

    @torch.no_grad()
    def own(self, clip: Clip[SwapControl]) -> Tensor:
        """What the deployed model makes of a clip's targets and references, [B, T, C, h, w]."""
        size = self.model.chunk
        seed = noise.row_seed(self.seed ^ OWN, clip.index)
        reference = self.codec.reference(clip.control.reference, size)
        state = begin_stream(self.model, self.stream.memory, seed, reference)
        controller = replay(self.codec.condition(clip.control.target), size)
        return join(rollout(self.model, controller, self.stream.sampler, state, self.stream.context_time))

    def _along(
        self, clip: Clip[SwapControl], history: Tensor, first: int, seed: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss over a clip's chunks from number `first` on, each against the reference and `history`
        [B, T' <= T, C, h, w] before it."""
        size, index = self.model.chunk, noise.row_seed(seed, clip.index)
        x, condition = self.codec.latents(clip.x), self.codec.condition(clip.control.target)
        reference = self.codec.reference(clip.control.reference, size)
        who = None if self.likeness is None else self.likeness.references(clip.control.reference)
        state = begin_stream(self.model, self.stream.memory, index, reference)
        errors, cosines, times = list[Tensor](), list[Tensor](), list[Tensor]()
        for i in range(x.shape[1] // size):
            part = slice(i * size, (i + 1) * size)
            control = condition.frames(part.start, part.stop)
            if i >= first:
                x_t, t, v = self._noised(x[:, part], index, i)
                found = self.model.velocity(x_t, t, self.model.prepare(control, state))
                errors.append((found.float() - v).square().flatten(2).mean(-1))
                times.append(t)
                if self.likeness is not None and who is not None:
                    cosines.append(self._cosine(self.likeness, flow.clean(x_t, found, t), who))
            if (i + 1) * size < x.shape[1]:
                finished = Chunk.whole(history[:, part], control, state.frame)
                state = advance(self.model, finished, state, self.stream.context_time)
        counts = clip.control.target.active[:, first * size :].float()
        return self._sum(torch.cat(errors, 1), torch.cat(cosines, 1) if cosines else None, torch.cat(times, 1), counts)

    def _noised(self, x: Tensor, seed: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """x_t [B, K, C, h, w], t [B, K] and the velocity of chunk x, the clip's `number`-th."""
        frames = number * x.shape[1] + torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        eps = noise.normal(seed, frames, NOISE, tuple(x.shape[2:]))
        level = torch.sigmoid(self.cfg.mean + self.cfg.std * noise.normal(seed, frames[:, :1], LEVEL, ()))
        t = flow.shift(level, self.cfg.shift).expand(-1, x.shape[1])
        return flow.interpolate(x, eps, t), t, flow.velocity(x, eps)

    def _cosine(self, likeness: Likeness, x: Tensor, who: Tensor) -> Tensor:
        identity = self.cfg.identity
        with torch.set_grad_enabled(torch.is_grad_enabled() and identity is not None and identity.differentiates):
            return likeness(self.codec.regions(x), who)

    def _sum(
        self, errors: Tensor, cosines: Tensor | None, times: Tensor, counts: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """All [B, F]. Frames without a face, counts 0, have no part."""
        total = counts.sum().clamp_min(1)
        parts = {"reconstruction": errors, **({} if cosines is None else {"cosine": cosines})}
        noted = {name: (part.detach() * counts).sum() / total for name, part in parts.items()}
        loss = errors
        if self.cfg.identity is not None:
            if cosines is None:
                raise ValueError("a loss of identity needs a recogniser")
            loss = self.cfg.identity(errors, cosines, times)
        return (loss * counts).sum() / total, noted

    def validate(self, clip: Clip[SwapControl]) -> dict[str, Tensor]:
        """`loss`: the velocity's error under teacher forcing, whatever is trained, at the same draws; of a rollout with
        the deployed sampler, within what will be seen of it, `psnr` in dB, and with a recogniser `cosine`."""
        plain = SwapMatching(mean=self.cfg.mean, std=self.cfg.std, shift=self.cfg.shift)
        held_out = SwapMatchingObjective(plain, self.roles["model"], self.codec, self.stream, self.seed, None)
        with torch.no_grad():
            loss, _ = held_out._along(clip, self.codec.latents(clip.x), 0, self.seed + VALIDATION)
            made = self.codec.regions(self.own(clip))
            mask = clip.control.target.mask
            found = {"loss": loss, "psnr": seen_psnr(made, clip.x, mask)}
            if self.likeness is not None:
                who = self.likeness.references(clip.control.reference)
                found["cosine"] = self.likeness(made, who).mean()
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"step"}:
            raise UserError(f"swap matching: the checkpoint holds {sorted(state)}, not ['step']")
        self.step = int(state["step"])


def seen_psnr(made: Tensor, true: Tensor, mask: Tensor) -> Tensor:
    """PSNR [] in dB of regions [B, T, 3, S, S] in -1..1 where a mask [B, T, 1, S, S] shows them, weighted by it."""
    error = ((made - true).square() * mask).sum() / (3 * mask.sum()).clamp_min(1)
    return 10 * torch.log10(4 / error.clamp_min(1e-10))
