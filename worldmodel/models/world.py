"""A world model as one folder: everything that a stream needs.

config.json           format version, sizes, action names and range, memory, sampler, frame rate, free text card
model.safetensors     weights of the transformer
tokenizer/            config.json and weights of the tokenizer
starts.safetensors    optional: latents and actions of a few real beginnings, so that a stream can start anywhere
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldmodel.actions import ActionSpec
from worldmodel.chunk import ActionControl, Clip
from worldmodel.errors import UserError
from worldmodel.folders import replaced
from worldmodel.memory import AnyMemory, WindowConfig
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.models.tokenizer import Tokenizer
from worldmodel.models.tokenizer_folder import load_tokenizer
from worldmodel.sampler import AnySampler, Euler
from worldmodel.serial import check_config, from_json, read_json, to_json, write_json
from worldmodel.weights import PICKLES, build_with, read_tensors, write_tensors

FORMAT = 1
FILES = ("config.json", "model.safetensors", "tokenizer", "starts.safetensors")
KEYS = ("format", "kind", "dit", "actions", "fps", "stream", "card")
LONGEST, LARGEST = 2**16, 2**24  # frames that a window may hold; any size that the weights do not bound


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """How a model is deployed: what it remembers, how it samples, at which flow time chunks are written to memory."""

    memory: AnyMemory = field(default_factory=WindowConfig)
    sampler: AnySampler = field(default_factory=Euler)
    context_time: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.context_time < 1:  # NaN too
            raise UserError(f"stream.context_time must be in [0, 1), not {self.context_time}")
        if (self.memory.capacity or 0) > LONGEST:
            raise UserError(f"stream.memory holds {self.memory.capacity} frames, at most {LONGEST} are possible")

    def check(self, model: DiTConfig) -> None:
        """A memory that a model of these sizes cannot use is a UserError."""
        try:
            model.check_memory(self.memory)
        except UserError as error:
            raise UserError(f"stream.memory: {error}") from None

    def check_readable(self) -> None:
        """A memory or a sampler that a saved world could not name (AnyMemory, AnySampler) is a UserError."""
        try:
            again: StreamConfig = from_json(to_json(self), StreamConfig, "stream")
        except (TypeError, UserError) as error:
            raise UserError(f"a world with this stream could not be read back: {error}") from error
        for name, kind in (("memory", type(self.memory)), ("sampler", type(self.sampler))):
            if type(getattr(again, name)) is not kind:
                raise UserError(f"a world with this stream could not be read back: stream.{name} is another {kind}")


def made_in(folder: Path) -> Path:
    """The folder of what the run in `folder` has made so far; `folder` itself if that is no run's."""
    made = folder / "model"
    return made if (made / "config.json").exists() else folder


@dataclass(frozen=True, slots=True)
class WorldModel:
    """A transformer, its tokenizer, and what its numbers mean."""

    dit: DiT
    tokenizer: Tokenizer
    actions: ActionSpec | None  # None for a model without actions
    fps: float  # pixel frames per second of the training data
    stream: StreamConfig
    starts: Clip[ActionControl] | None = None  # [S, T, ...] real beginnings, T a multiple of the chunk
    card: dict[str, Any] = field(default_factory=dict)  # data, seeds, steps, evaluation: for people

    @property
    def device(self) -> torch.device:
        return self.dit.patch_in.weight.device

    @property
    def pixel_frames(self) -> int:
        """Pixel frames that one chunk adds to a running stream."""
        return self.dit.chunk * self.tokenizer.temporal

    def save(self, folder: Path) -> None:
        """Write the folder; an older world model in it is replaced as a whole, other files stay.

        A full disk, and a stream that could not be read back, are UserErrors and leave what was there.
        """
        self.stream.check_readable()
        with replaced(folder, FILES) as beside:
            self._write(beside)

    def _write(self, folder: Path) -> None:
        write_tensors(self.dit.state_dict(), folder / "model.safetensors")
        self.tokenizer.save(folder / "tokenizer")
        if self.starts is not None:
            control = self.starts.control
            tensors = {"x": self.starts.x, "action": control.action, "has_action": control.has_action}
            write_tensors(tensors, folder / "starts.safetensors")
        config = {
            "format": FORMAT,
            "kind": "world model",
            "dit": to_json(self.dit.cfg),
            "actions": to_json(self.actions),
            "fps": self.fps,
            "stream": to_json(self.stream),
            "card": self.card,
        }
        write_json(config, folder / "config.json")

    @classmethod
    def find(cls, folder: Path, device: str = "cpu") -> "WorldModel":
        """Load a world model's folder, or what the run in a folder has made so far. UserErrors as those of `load`."""
        return cls.load(made_in(folder), device)

    @classmethod
    def load(cls, folder: Path | str, device: str = "cpu") -> "WorldModel":
        """Read a folder. Anything missing, truncated, newer, of another model or pickled is a UserError naming it."""
        folder = Path(folder)
        if folder.suffix in PICKLES:
            raise UserError(
                f"{folder}: a pickle could run code when it is read; only folders of safetensors are loaded"
            )
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; a world model is a folder with config.json in it")
        check_device(device)
        path = folder / "config.json"
        config = read_json(path)
        if isinstance(config, dict) and config.get("kind") == "policy":
            raise UserError(f"{path}: a policy, not a world model; worldmodel serve-policy serves it")
        check_config(config, "world model", FORMAT, path, keys=("dit", "actions", "fps", "stream"))
        _check_plain(config, path)
        stream: StreamConfig = from_json(config["stream"], StreamConfig, f"{path}: stream")
        dit = load_dit(from_json(config["dit"], DiTConfig, f"{path}: dit"), folder / "model.safetensors", path)
        if dit.cfg.condition:
            raise UserError(f"{path}: dit.condition is {dit.cfg.condition}: not a world model, those take actions")
        try:
            stream.check(dit.cfg)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        if not (folder / "tokenizer").is_dir():
            raise UserError(f"{folder / 'tokenizer'}: no such folder, the model's tokenizer is missing")
        tokenizer: Any = load_tokenizer(folder / "tokenizer")  # tokenizers are modules
        if tokenizer.channels != dit.cfg.channels:
            raise UserError(f"{path}: {dit.cfg.channels} latent channels, but its tokenizer makes {tokenizer.channels}")
        actions = None if config["actions"] is None else from_json(config["actions"], ActionSpec, f"{path}: actions")
        if (actions.size if actions else 0) != dit.cfg.actions:
            raise UserError(
                f"{path}: actions of size {actions.size if actions else 0}, the model takes {dit.cfg.actions}"
            )
        world = cls(
            dit=dit.to(device).eval().requires_grad_(False),
            tokenizer=tokenizer.to(device).eval().requires_grad_(False),
            actions=actions,
            fps=config["fps"],
            stream=stream,
            card=config.get("card", {}),
        )
        starts = folder / "starts.safetensors"
        return replace(world, starts=_read_starts(starts, world)) if starts.exists() else world


def check_device(name: str) -> None:
    """A device that torch does not know, or that this machine does not have, is a UserError."""
    try:
        if torch.device(name).type == "meta":
            raise RuntimeError("it holds no numbers")
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch asserts that it has CUDA
        reason = str(error).split("\n")[0]
        raise UserError(f"device '{name}' cannot be used here: {reason}") from error


def _check_plain(config: dict[str, Any], path: Path) -> None:
    for key in config:
        if key not in KEYS:
            raise UserError(f"{path}: unknown key '{key}'; a world model has {sorted(KEYS)}")
    fps = config["fps"]
    number = isinstance(fps, int | float) and not isinstance(fps, bool)
    if not number or not 0 < fps < LARGEST or not math.isfinite(fps):
        raise UserError(f"{path}: fps must be a number above 0, not {fps!r}")
    if not isinstance(config.get("card", {}), dict):
        raise UserError(f"{path}: card: expected an object, found {type(config['card']).__name__}")


def load_dit(cfg: DiTConfig, weights: Path, path: Path) -> DiT:
    """The transformer with its weights. Sizes that these weights cannot have are refused before memory is taken."""
    tensors = read_tensors(weights)
    numbers = sum(tensor.numel() for tensor in tensors.values())
    for name in (
        "channels",
        "patch",
        "dim",
        "hidden",
        "heads",
        "actions",
        "text",
        "text_tokens",
        "rank",
        "time_width",
        "condition",
    ):
        if getattr(cfg, name) > max(numbers, LARGEST if name == "heads" else 0):
            raise UserError(f"{path}: dit.{name} is {getattr(cfg, name)}, but {weights} holds {numbers} numbers in all")
    if cfg.depth > max(64, len(tensors)):
        raise UserError(f"{path}: dit.depth is {cfg.depth}, but {weights} holds {len(tensors)} weights in all")
    for name, value in (("chunk", cfg.chunk), ("size", max(cfg.size))):
        if value > LONGEST:
            raise UserError(f"{path}: dit.{name} is {value}, at most {LONGEST} is possible")
    return build_with(cfg.build, tensors, str(weights))


def _read_starts(path: Path, world: WorldModel) -> Clip[ActionControl]:
    tensors = read_tensors(path, str(world.device))
    fits = set(tensors) == {"x", "action", "has_action"} and tuple(tensors["x"].shape[2:]) == world.dit.frame_shape
    if fits:
        starts = tensors["x"].shape[:2]
        fits = tensors["action"].shape == (*starts, world.dit.cfg.actions) and tensors["has_action"].shape == starts
        fits = fits and starts[0] > 0 and starts[1] > 0 and starts[1] % world.dit.chunk == 0
        fits = fits and not any(tensors[name].is_complex() for name in tensors)
    if not fits:
        raise UserError(
            f"{path}: not the beginnings of this model: frames of {list(world.dit.frame_shape)} in chunks of "
            f"{world.dit.chunk}, actions of size {world.dit.cfg.actions}"
        )
    for name in ("x", "action"):
        if not torch.isfinite(tensors[name]).all():
            raise UserError(f"{path}: '{name}' holds values that are not finite")
    x: Tensor = tensors["x"]
    index = torch.arange(x.shape[0], device=x.device)
    return Clip(x.float(), ActionControl(tensors["action"].float(), tensors["has_action"].bool()), index)
