"""One stream as a value: its beginning, its state, and the step to the next chunk of pictures.

`begin` and `advance` are pure: (world, opening, samplers and actions so far) give the same pictures on the same device.
The live session and the replay file both repeat them, so they cannot differ.

Shape letters: P pixel frames, T latent frames of the opening, K latent frames of a chunk, A packed action size,
D size of one environment action, C H W latent channels, height, width.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from worldmodel.actions import zero_action
from worldmodel.chunk import ActionControl, Chunk, Clip
from worldmodel.clock import clock
from worldmodel.errors import UserError
from worldmodel.memory import Holding, Inspectable
from worldmodel.models.tokenizer import DecodeState
from worldmodel.models.world import WorldModel
from worldmodel.noise import row_seed
from worldmodel.pixels import to_float, to_uint8
from worldmodel.rollout import start, step
from worldmodel.sampler import AnySampler, Streamable
from worldmodel.state import Pending, State

from .sources import Footage, Pixels

RECENT = 4  # good chunks that are kept to rebuild a memory from
PATIENCE = 3  # chunks in a row that may be not finite


class NotFinite(Exception):
    """The model's output stays NaN or infinite, whatever its memory is rebuilt from."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a stream begins with. The context is None for a model that starts from nothing."""

    context: Clip[ActionControl] | None  # [1, T, ...], T a multiple of the chunk
    seed: int


@dataclass(frozen=True, slots=True)
class Dream:
    """A stream between two chunks. `advance` consumes it; `copy` first to keep it."""

    opening: Opening
    state: State
    decoding: DecodeState | None
    recent: tuple[Chunk, ...]  # the newest good chunks, at most RECENT
    numbers: tuple[int, ...]  # of these; the first one made is 0, those of the opening are below
    last: Pixels  # [H, W, 3], the newest good picture
    chunks: int = 0  # made so far
    held: int = 0  # of these, not finite
    failing: int = 0  # of these, the newest ones in a row
    rebuilt: tuple[int, ...] = ()  # numbers of the chunks that the memory was last rebuilt from

    def copy(self) -> "Dream":
        """The same moment again, with storage of its own."""
        return replace(self, state=self.state.select(torch.arange(1, device=self.state.frame.device)))


@dataclass(frozen=True, slots=True)
class Pictures:
    """What one chunk shows, and the seconds that its stages took."""

    frames: Pixels  # [P, H, W, 3]
    held: bool  # the last good picture, because the new ones were not finite
    seconds: dict[str, float] = field(default_factory=dict)  # sample, remember, decode


def picture_size(world: WorldModel) -> tuple[int, int]:
    """Height and width of the pictures, pixels."""
    height, width = world.dit.cfg.size
    return height * world.tokenizer.spatial, width * world.tokenizer.spatial


def context_frames(world: WorldModel) -> int:
    """Latent frames T of an opening: as many as the shipped starts have, else two chunks."""
    return 2 * world.dit.chunk if world.starts is None else world.starts.x.shape[1]


def from_start(world: WorldModel, index: int, seed: int) -> Opening:
    """One of the model's own beginnings. Raises UserError if there is no such one."""
    count = 0 if world.starts is None else world.starts.batch
    if world.starts is None and index == 0:
        return Opening(None, seed)
    if world.starts is None or not 0 <= index < count:
        raise UserError(f"this world has {count} beginnings, number {index} is none of them (they count from 0)")
    return Opening(world.starts.select(torch.tensor([index], device=world.device)), seed)


def from_footage(world: WorldModel, footage: Footage, seed: int) -> Opening:
    """A beginning from real pictures and the actions between them. Raises UserError if the numbers do not fit."""
    if footage.pixels.shape[1:3] != picture_size(world):
        raise UserError(f"the pictures have {list(footage.pixels.shape[1:3])} pixels, this world {picture_size(world)}")
    pixels, latents = footage.pixels, 1 + (len(footage.pixels) - 1) // world.tokenizer.temporal
    if latents % world.dit.chunk:
        raise UserError(f"a beginning of {latents} latent frames is no multiple of the chunk of {world.dit.chunk}")
    with torch.no_grad():
        x = world.tokenizer.encode(to_float(torch.as_tensor(pixels).to(world.device))[None])
    action = _still(world, latents) if footage.actions is None else _packed(world, footage.actions, latents)
    has_action = torch.ones(1, latents, dtype=torch.bool, device=world.device)
    has_action[:, 0] = False
    return Opening(Clip(x, ActionControl(action, has_action), torch.zeros(1, dtype=torch.int64)), seed)


def from_picture(world: WorldModel, picture: Pixels, seed: int) -> Opening:
    """A beginning from one picture [H, W, 3]: a chunk in which nothing moves and nothing is done."""
    count = 1 + (world.dit.chunk - 1) * world.tokenizer.temporal
    return from_footage(world, Footage(np.repeat(picture[None], count, 0), None), seed)


def chunk_action(world: WorldModel, action: np.ndarray) -> Tensor:
    """Environment actions [K, D], one for each latent frame -> normalised and packed [K, A] fp32."""
    spec = world.actions
    if spec is None:
        return torch.zeros(len(action), 0)
    each = spec.normalise(torch.from_numpy(action).float()).repeat_interleave(spec.pack, 0)
    return spec.packed(each)


def begin(world: WorldModel, opening: Opening) -> Dream:
    """The stream before its first chunk."""
    context, height_width = opening.context, picture_size(world)
    with torch.no_grad():
        state = _remembering(world, context, opening.seed)
        if context is None:
            return Dream(opening, state, None, (), (), np.zeros((*height_width, 3), np.uint8))
        pixels, decoding = world.tokenizer.decode_stream(context.x, None)
    recent = tuple(context.chunks(world.dit.chunk))[-RECENT:]
    return Dream(opening, state, decoding, recent, tuple(range(-len(recent), 0)), to_uint8(pixels[0, -1]))


def advance(world: WorldModel, sampler: AnySampler, action: Tensor, dream: Dream) -> tuple[Pictures, Dream]:
    """The next chunk under `action` [K, A] (normalised): its pictures and the stream after it.

    If the chunk is not finite, the last good picture is shown again and the memory is rebuilt from the last good
    chunks, then from the opening; if that does not help, NotFinite is raised.
    """
    with torch.no_grad():
        watch = _Stopwatch(world.device)
        control = _control(world, action, dream, sampler.lookahead)
        chunk, state = step(world.dit, _Timed(sampler, watch), control, dream.state, world.stream.context_time)
        watch.lap("remember")
        pixels, decoding = world.tokenizer.decode_stream(chunk.x, dream.decoding)
        good = bool(torch.isfinite(chunk.x).all() & torch.isfinite(pixels).all())
        frames = to_uint8(pixels[0]) if good else np.repeat(dream.last[None], pixels.shape[1], 0)
        watch.lap("decode")
    pictures = Pictures(frames, not good, watch.seconds)
    if not good:
        return pictures, _rebuilt(world, dream)
    recent, numbers = (*dream.recent, chunk)[-RECENT:], (*dream.numbers, dream.chunks)[-RECENT:]
    after = replace(dream, state=state, decoding=decoding, recent=recent, numbers=numbers, last=frames[-1], failing=0)
    return pictures, replace(after, chunks=dream.chunks + 1)


def ago(world: WorldModel, dream: Dream, frame: int) -> int:
    """How many latent frames were shown after one that the memory knows by this number."""
    chunk, place = divmod(frame, world.dit.chunk)
    if chunk < len(dream.rebuilt):
        return (dream.chunks - dream.rebuilt[chunk]) * world.dit.chunk - 1 - place
    return int(dream.state.frame[0]) - 1 - frame


def holding(world: WorldModel, dream: Dream) -> Holding:
    """Which latent frames the memory holds."""
    memory, frame, capacity = dream.state.memory, dream.state.frame, world.stream.memory.capacity
    if isinstance(memory, Inspectable):
        return memory.holding(frame)[0]
    made = int(frame[0])
    return Holding(ring=made if capacity is None else min(made, capacity))


def _rebuilt(world: WorldModel, dream: Dream) -> Dream:
    """The stream after a chunk that was not finite."""
    failing = dream.failing + 1
    if failing > PATIENCE:
        raise NotFinite(f"{failing} chunks in a row are not finite: the weights or the actions are broken")
    recent = dream.recent if failing == 1 else ()
    context = _joined(recent) if recent else dream.opening.context
    seed = int(row_seed(dream.opening.seed, torch.tensor([dream.held + 1]))[0])  # other noise than the first time
    fresh = begin(world, Opening(context, seed))
    after = replace(fresh, opening=dream.opening, last=dream.last, failing=failing, held=dream.held + 1)
    given = tuple(range(-int(fresh.state.frame[0]) // world.dit.chunk, 0))
    numbers = dream.numbers if recent else fresh.numbers
    return replace(after, chunks=dream.chunks + 1, numbers=numbers, rebuilt=dream.numbers if recent else given)


def _joined(chunks: tuple[Chunk, ...]) -> Clip[ActionControl]:
    action = torch.cat([chunk.control.action for chunk in chunks], 1)
    has_action = torch.cat([chunk.control.has_action for chunk in chunks], 1)
    x = torch.cat([chunk.x for chunk in chunks], 1)
    return Clip(x, ActionControl(action, has_action), torch.zeros(1, dtype=torch.int64))


def _remembering(world: WorldModel, context: Clip[ActionControl] | None, seed: int) -> State:
    seeds = torch.tensor([seed], dtype=torch.int64, device=world.device)
    return start(world.dit, world.stream.memory, seeds, context, world.stream.context_time)


def _control(world: WorldModel, action: Tensor, dream: Dream, lookahead: int) -> ActionControl:
    """A pipelined sampler looks chunks ahead: it is told that the keys stay as they are."""
    action = action.to(world.device)[None].repeat(1, 1 + lookahead, 1)
    has_action = torch.ones(action.shape[:2], dtype=torch.bool, device=world.device)
    if dream.state.frame[0] == 0:
        has_action[:, 0] = False
    return ActionControl(action, has_action)


def _still(world: WorldModel, frames: int) -> Tensor:
    if world.actions is None:
        return torch.zeros(1, frames, 0, device=world.device)
    return zero_action(world.actions, 1, frames).to(world.device)


def _packed(world: WorldModel, actions: np.ndarray, latents: int) -> Tensor:
    """Environment actions [(T - 1) * pack, D] -> [1, T, A]; frame 0 has none."""
    spec = world.actions
    if spec is None:
        return _still(world, latents)
    if actions.shape != ((latents - 1) * spec.pack, spec.dim):
        raise UserError(
            f"{latents} latent frames have {(latents - 1) * spec.pack} actions of {spec.dim} numbers between them, "
            f"not {list(actions.shape)}"
        )
    later = spec.packed(spec.normalise(torch.from_numpy(np.ascontiguousarray(actions)).float()))[None]
    return torch.cat((_still(world, 1), later.to(world.device)), 1)


class _Stopwatch:
    """Seconds per stage. On a GPU every lap waits for the device, as the pictures would anyway."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        self._last = clock(device)

    def lap(self, name: str) -> None:
        now = clock(self._device)
        self.seconds[name], self._last = now - self._last, now


@dataclass(frozen=True, slots=True)
class _Timed:
    """A sampler whose end is noted as a lap of a stopwatch."""

    sampler: AnySampler
    watch: _Stopwatch

    @property
    def lookahead(self) -> int:
        return self.sampler.lookahead

    def __call__(self, model: Streamable, control: ActionControl, state: State) -> tuple[Tensor, Pending | None]:
        made = self.sampler(model, control, state)
        self.watch.lap("sample")
        return made
