"""A stream on disk: what it began with and what was done, so that it can be made again, bit for bit.

One safetensors file: `actions` [N, K, A] (normalised, as the model read them), `steps` [N] (sampler steps of each
chunk, 0 for the model's own), and the opening (`x`, `action`, `has_action`, absent for a stream from nothing). Its
metadata holds the format, the seed, the fingerprint of the model and the stream configuration as JSON. The same
pictures come out on the same kind of device with the same number of threads.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import safetensors
import torch
from safetensors.torch import load, save
from torch import Tensor

from worldmodel.chunk import ActionControl, Clip
from worldmodel.errors import UserError
from worldmodel.fingerprint import fingerprint
from worldmodel.models.world import WorldModel
from worldmodel.sampler import AnySampler, with_steps
from worldmodel.serial import to_json

from .dream import Opening, Pictures, advance, begin
from .protocol import MAX_SEED, in_words, one_line
from .worlds import Worlds

FORMAT = 1
MAX_ACTION = 1.5  # normalised; ActionSpec clips there
MAX_VALUE = 1e4  # of the latents and actions of a beginning, whose bulk lies about [-1, 1]
MAX_STEPS = 64  # of a sampler, as in the protocol


@dataclass(frozen=True, slots=True)
class Deed:
    """What one chunk was made under."""

    action: Tensor  # [K, A], normalised
    steps: int  # 0: the model's own


@dataclass(frozen=True, slots=True)
class Replay:
    """Everything that a stream was made from, besides the weights."""

    opening: Opening
    deeds: tuple[Deed, ...]


def sampler_of(world: WorldModel, steps: int) -> AnySampler:
    """The world's sampler with a number of steps, 0 for its own. Raises UserError if it has no such number."""
    return with_steps(world.stream.sampler, steps) if steps else world.stream.sampler


def play(world: WorldModel, replay: Replay) -> Iterator[Pictures]:
    """Make the stream again, chunk by chunk."""
    dream = begin(world, replay.opening)
    for deed in replay.deeds:
        pictures, dream = advance(world, sampler_of(world, deed.steps), deed.action, dream)
        yield pictures


def _weights(world: WorldModel) -> str:
    tokenizer: Any = world.tokenizer  # tokenizers are modules
    return fingerprint(world.dit, tokenizer)


def write_replay(world: WorldModel, replay: Replay) -> bytes:
    """The content of a replay file."""
    size = (world.dit.chunk, world.dit.cfg.actions)
    actions = torch.stack([deed.action.float() for deed in replay.deeds]) if replay.deeds else torch.zeros(0, *size)
    tensors = {"actions": actions, "steps": torch.tensor([deed.steps for deed in replay.deeds], dtype=torch.int64)}
    context = replay.opening.context
    if context is not None:
        control = context.control
        tensors |= {"x": context.x.float(), "action": control.action.float(), "has_action": control.has_action.bool()}
    facts = {
        "format": FORMAT,
        "kind": "replay",
        "seed": replay.opening.seed,
        "weights": _weights(world),
        "stream": to_json(world.stream),
        "device": world.device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(cpu, {"replay": json.dumps(facts)})


def read_replay(world: WorldModel, data: bytes) -> Replay:
    """A replay from the content of its file. Raises UserError for anything else, or a replay of another model."""
    facts, layout = _parts(data)
    form, seed = facts.get("format"), facts.get("seed")
    if type(form) is not int or form < 1:
        raise UserError(f"replay: format {one_line(repr(form))} is none, it is a number from 1")
    if form > FORMAT:
        raise UserError(f"replay: format {one_line(str(form))} is newer than {FORMAT}, which this version reads")
    if not _made_by(world, facts):
        raise UserError("replay: it was made with another model or other stream settings, it would show something else")
    if type(seed) is not int or not 0 <= seed <= MAX_SEED:
        raise UserError(f"replay: seed {one_line(repr(seed))} is none, it is a whole number from 0 to {MAX_SEED}")
    _check_layout(world, layout)
    tensors = load(data)
    _check_values(world, tensors)
    deeds = tuple(Deed(a, int(step)) for a, step in zip(tensors["actions"], tensors["steps"], strict=True))
    if "x" not in tensors:
        return Replay(Opening(None, seed), deeds)
    control = ActionControl(tensors["action"], tensors["has_action"])
    context = Clip(tensors["x"], control, torch.zeros(1, dtype=torch.int64)).to(world.device)
    return Replay(Opening(context, seed), deeds)


def maker(worlds: Worlds, data: bytes) -> str:
    """Name of the world that made a replay; if none did, of the first, which will not read it. Raises UserError."""
    facts, _ = _parts(data)
    return next((name for name, world in worlds.named.items() if _made_by(world, facts)), worlds.first_name)


def _made_by(world: WorldModel, facts: dict[str, Any]) -> bool:
    return facts.get("weights") == _weights(world) and facts.get("stream") == to_json(world.stream)


_Layout = dict[str, tuple[str, tuple[int, ...]]]
"""Type, as safetensors names it, and shape of every tensor."""


def _parts(data: bytes) -> tuple[dict[str, Any], _Layout]:
    """The metadata and the layout, without reading a tensor.

    safetensors puts the length of its JSON header into the first 8 bytes.
    """
    try:
        layout = {name: (part["dtype"], tuple(part["shape"])) for name, part in safetensors.deserialize(data)}
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        facts = json.loads(header["__metadata__"]["replay"])
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"replay: not a whole replay file ({in_words(error)})") from error
    if not isinstance(facts, dict) or facts.get("kind") != "replay":
        raise UserError("replay: not a replay file")
    return facts, layout


def _check_layout(world: WorldModel, layout: _Layout) -> None:
    """Raise UserError unless names, types and shapes are those of a stream of this world."""
    k, a = world.dit.chunk, world.dit.cfg.actions
    _, steps = layout.get("steps", ("", (0,)))
    if len(steps) != 1:
        raise UserError(f"replay: 'steps' has shape {list(steps)}, it should be [chunks]")
    wanted: _Layout = {"actions": ("F32", (*steps, k, a)), "steps": ("I64", steps)}
    if "x" in layout:
        _, shape = layout["x"]
        latents = shape[1] if len(shape) == 5 else 0
        if latents == 0 or latents % k or shape != (1, latents, *world.dit.frame_shape):
            frame = ", ".join(map(str, world.dit.frame_shape))
            raise UserError(
                f"replay: its opening has shape {list(shape)}, not [1, T, {frame}] with T a multiple of {k}"
            )
        wanted |= {"x": ("F32", shape), "action": ("F32", (1, latents, a)), "has_action": ("BOOL", (1, latents))}
    for name in sorted(layout.keys() | wanted.keys()):
        if name not in wanted:
            raise UserError(f"replay: it holds a tensor '{one_line(name)}', which no replay has")
        if name not in layout:
            raise UserError(f"replay: the tensor '{name}' is missing")
        if layout[name] != wanted[name]:
            (kind, shape), (right, size) = layout[name], wanted[name]
            raise UserError(f"replay: '{name}' is {kind} {list(shape)}, it should be {right} {list(size)}")


def _check_values(world: WorldModel, tensors: dict[str, Tensor]) -> None:
    """Raise UserError unless the values are finite and such as a stream can have."""
    bounds = {"actions": MAX_ACTION, "action": MAX_VALUE, "x": MAX_VALUE}
    for name, bound in bounds.items():
        if name in tensors and not (tensors[name].abs() <= bound).all():  # NaN is not, either
            raise UserError(f"replay: '{name}' holds values that no stream had, beyond {bound:g} or not finite")
    if "has_action" in tensors and not (tensors["has_action"].view(torch.uint8) <= 1).all():
        raise UserError("replay: 'has_action' holds values that are neither true nor false")
    for steps in tensors["steps"].unique().tolist():
        if not 0 <= steps <= MAX_STEPS:
            raise UserError(f"replay: 'steps' holds {steps}, no stream had so many")
        sampler_of(world, steps)
