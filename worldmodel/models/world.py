"""A world model as one folder: everything that a stream needs.

config.json           format version, sizes, action names and range, memory, sampler, frame rate, free text card
model.safetensors     weights of the transformer
tokenizer/            config.json and weights of the tokenizer
starts.safetensors    optional: latents and actions of a few real beginnings, so that a stream can start anywhere
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldmodel.actions import ActionSpec
from worldmodel.chunk import ActionControl, Clip
from worldmodel.errors import UserError
from worldmodel.memory import FullConfig, WindowConfig
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.models.tokenizer import Tokenizer
from worldmodel.models.tokenizer_folder import load_tokenizer
from worldmodel.sampler import AnySampler, Euler
from worldmodel.serial import check_format, from_json, read_json, to_json, write_json
from worldmodel.weights import PICKLES, load_into, read_tensors, write_tensors

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """How a model is deployed: what it remembers, how it samples, at which flow time chunks are written to memory."""

    memory: FullConfig | WindowConfig = field(default_factory=WindowConfig)
    sampler: AnySampler = field(default_factory=Euler)
    context_time: float = 0.0


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
        """Write the folder; an existing file of it is replaced, each in one piece. A full disk is a UserError."""
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(self.dit.state_dict(), folder / "model.safetensors")
        self.tokenizer.save(folder / "tokenizer")
        if self.starts is not None:
            control = self.starts.control
            tensors = {"x": self.starts.x, "action": control.action, "has_action": control.has_action}
            write_tensors(tensors, folder / "starts.safetensors")
        else:
            (folder / "starts.safetensors").unlink(missing_ok=True)  # of another model
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
        made = folder / "model"
        return cls.load(made if (made / "config.json").exists() else folder, device)

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
        path = folder / "config.json"
        config = read_json(path)
        if not isinstance(config, dict) or config.get("kind") != "world model":
            raise UserError(f"{path}: not the configuration of a world model")
        check_format(config, FORMAT, path, keys=("dit", "actions", "fps", "stream"))
        if not isinstance(config["fps"], int | float) or not config["fps"] > 0:
            raise UserError(f"{path}: fps must be a number above 0, not {config['fps']!r}")
        dit = from_json(config["dit"], DiTConfig, f"{path}: dit").build()
        load_into(dit, read_tensors(folder / "model.safetensors"), str(folder / "model.safetensors"))
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
            stream=from_json(config["stream"], StreamConfig, f"{path}: stream"),
            card=config.get("card", {}),
        )
        starts = folder / "starts.safetensors"
        return replace(world, starts=_read_starts(starts, world)) if starts.exists() else world


def _read_starts(path: Path, world: WorldModel) -> Clip[ActionControl]:
    tensors = read_tensors(path, str(world.device))
    fits = set(tensors) == {"x", "action", "has_action"} and tuple(tensors["x"].shape[2:]) == world.dit.frame_shape
    if fits:
        starts = tensors["x"].shape[:2]
        fits = tensors["action"].shape == (*starts, world.dit.cfg.actions) and tensors["has_action"].shape == starts
        fits = fits and starts[1] % world.dit.chunk == 0
    if not fits:
        raise UserError(
            f"{path}: not the beginnings of this model: frames of {list(world.dit.frame_shape)} in chunks of "
            f"{world.dit.chunk}, actions of size {world.dit.cfg.actions}"
        )
    x: Tensor = tensors["x"]
    index = torch.arange(x.shape[0], device=x.device)
    return Clip(x.float(), ActionControl(tensors["action"], tensors["has_action"].bool()), index)
