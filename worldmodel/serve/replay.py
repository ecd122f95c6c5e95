"""A stream on disk: what it began with and what was done, so that it can be made again, bit for bit.

One safetensors file: `actions` [N, K, A] (normalised, as the model read them), `steps` [N] (sampler steps of each
chunk, 0 for the model's own), and the opening (`x`, `action`, `has_action`, absent for a stream from nothing). Its
metadata holds the format, the seed, the fingerprint of the weights and the stream configuration as JSON. The same
pictures come out on the same kind of device with the same number of threads.
"""

import hashlib
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
from worldmodel.models.world import WorldModel
from worldmodel.sampler import AnySampler, with_steps
from worldmodel.serial import to_json

from .dream import Opening, Pictures, advance, begin

FORMAT = 1
_SAMPLES = 4096  # of each weight tensor, in the fingerprint


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


def fingerprint(world: WorldModel) -> str:
    """A short name of the weights: the hash of evenly spaced values of every tensor."""
    digest = hashlib.sha256()
    for module in (world.dit, world.tokenizer):
        for name, tensor in sorted(module.state_dict().items()):  # pyright: ignore[reportAttributeAccessIssue]
            flat = tensor.detach().flatten()
            values = flat[:: max(1, flat.numel() // _SAMPLES)].cpu().double().contiguous()
            digest.update(f"{name} {list(tensor.shape)}".encode() + values.numpy().tobytes())
    return digest.hexdigest()[:32]


def write_replay(world: WorldModel, replay: Replay) -> bytes:
    """The content of a replay file."""
    size = (world.dit.chunk, world.dit.cfg.actions)
    actions = torch.stack([deed.action for deed in replay.deeds]) if replay.deeds else torch.zeros(0, *size)
    tensors = {"actions": actions, "steps": torch.tensor([deed.steps for deed in replay.deeds], dtype=torch.int64)}
    context = replay.opening.context
    if context is not None:
        tensors |= {"x": context.x, "action": context.control.action, "has_action": context.control.has_action}
    facts = {
        "format": FORMAT,
        "kind": "replay",
        "seed": replay.opening.seed,
        "weights": fingerprint(world),
        "stream": to_json(world.stream),
        "device": world.device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(cpu, {"replay": json.dumps(facts)})


def read_replay(world: WorldModel, data: bytes) -> Replay:
    """A replay from the content of its file. Raises UserError for anything else, or a replay of another model."""
    facts = _facts(data)
    if facts.get("format", 0) > FORMAT:
        raise UserError(f"replay: format {facts['format']} is newer than {FORMAT}, which this version reads")
    if facts.get("weights") != fingerprint(world) or facts.get("stream") != to_json(world.stream):
        raise UserError("replay: it was made with another model or other stream settings, it would show something else")
    tensors = load(data)
    seed, (k, a) = facts.get("seed"), (world.dit.chunk, world.dit.cfg.actions)
    actions, steps = tensors.get("actions"), tensors.get("steps")
    if actions is None or steps is None or type(seed) is not int or actions.shape != (len(steps), k, a):
        raise UserError(f"replay: its actions are not [chunks, {k}, {a}] with steps and a seed")
    if not torch.isfinite(actions).all() or not ((steps >= 0) & (steps <= 64)).all():
        raise UserError("replay: it holds actions or steps that no stream had")
    deeds = tuple(Deed(action.float(), int(step)) for action, step in zip(actions, steps, strict=True))
    return Replay(Opening(_context(world, tensors), seed), deeds)


def _facts(data: bytes) -> dict[str, Any]:
    """The metadata, without reading a tensor; safetensors puts the length of its JSON header into the first 8 bytes."""
    try:
        safetensors.deserialize(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        facts = json.loads(header["__metadata__"]["replay"])
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"replay: not a whole replay file ({error})") from error
    if not isinstance(facts, dict) or facts.get("kind") != "replay":
        raise UserError("replay: not a replay file")
    return facts


def _context(world: WorldModel, tensors: dict[str, Tensor]) -> Clip[ActionControl] | None:
    if "x" not in tensors:
        return None
    x, action, has_action = tensors["x"], tensors.get("action"), tensors.get("has_action")
    latents = x.shape[1] if x.ndim == 5 else -1
    if action is None or has_action is None:
        raise UserError("replay: its opening has no actions")
    wanted = (1, latents, world.dit.cfg.actions)
    whole = latents > 0 and latents % world.dit.chunk == 0 and x.shape[2:] == world.dit.frame_shape
    if not whole or action.shape != wanted or has_action.shape != wanted[:2]:
        raise UserError(f"replay: its opening has shape {list(x.shape)}, this model's frames are not of that shape")
    control = ActionControl(action.float(), has_action.bool())
    return Clip(x.float(), control, torch.zeros(1, dtype=torch.int64)).to(world.device)
