"""A world model as one folder: everything that a stream needs.

config.json           format version, sizes, action names and range, memory, sampler, frame rate, free text card
model.safetensors     weights of the transformer
tokenizer/            config.json and weights of the tokenizer
starts.safetensors    optional: latents and actions of a few real beginnings, so that a stream can start anywhere
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldmodel.actions import ActionSpec
from worldmodel.chunk import ActionControl, Clip
from worldmodel.errors import UserError
from worldmodel.memory import FullConfig, WindowConfig
from worldmodel.sampler import AnySampler, Euler
from worldmodel.serial import from_json, read_json, to_json
from worldmodel.weights import load_into, read_tensors, write_tensors

from .dit import DiT, DiTConfig
from .tokenizer import Tokenizer, load_tokenizer, save_tokenizer

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
        """Write the folder; an existing file of it is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(self.dit.state_dict(), folder / "model.safetensors")
        save_tokenizer(self.tokenizer, folder / "tokenizer")
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
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path | str, device: str = "cpu") -> "WorldModel":
        """Read a folder. Anything missing, truncated, newer, of another model or pickled is a UserError naming it."""
        folder = Path(folder)
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; a world model is a folder with config.json in it")
        path = folder / "config.json"
        config = read_json(path)
        if not isinstance(config, dict) or config.get("kind") != "world model":
            raise UserError(f"{path}: not the configuration of a world model")
        if config.get("format", 0) > FORMAT:
            raise UserError(f"{path}: format {config['format']} is newer than {FORMAT}, which this version reads")
        for key in ("dit", "actions", "fps", "stream"):
            if key not in config:
                raise UserError(f"{path}: key '{key}' is missing")
        dit = from_json(config["dit"], DiTConfig, f"{path}: dit").build()
        load_into(dit, read_tensors(folder / "model.safetensors"), str(folder / "model.safetensors"))
        tokenizer = load_tokenizer(folder / "tokenizer")
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
    if set(tensors) != {"x", "action", "has_action"} or tuple(tensors["x"].shape[2:]) != world.dit.frame_shape:
        raise UserError(f"{path}: not the beginnings of this model, whose frames are {list(world.dit.frame_shape)}")
    x: Tensor = tensors["x"]
    index = torch.arange(x.shape[0], device=x.device)
    return Clip(x.float(), ActionControl(tensors["action"], tensors["has_action"].bool()), index)
