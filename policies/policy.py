"""A policy as one folder: everything that a robot's loop needs.

config.json        format version, sizes, interface (cameras, units, vocabulary), sampler, steps executed, card
model.safetensors  weights
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.folders import replaced
from worldmodel.models.world import check_device, made_in
from worldmodel.policies.flow_policy import FlowPolicy, PolicyConfig
from worldmodel.policies.observation import Interface
from worldmodel.policies.planning import Chunking
from worldmodel.sampler import Euler, Heun, Sampler, Streamable
from worldmodel.serial import check_config, from_json, read_json, to_json, write_json
from worldmodel.weights import PICKLES, build_with, read_tensors, write_tensors

FORMAT = 1
FILES = ("config.json", "model.safetensors")
KIND = "policy"
LARGEST = 2**16  # of any size that a configuration names


class ActionModel(Streamable, Protocol):
    """A model whose chunks are actions [B, K, A]."""

    def normalised(self, actions: Tensor) -> Tensor:
        """Actions [..., A] in the robot's units to those of the model."""
        ...

    def in_units(self, x: Tensor) -> Tensor:
        """The inverse of `normalised`."""
        ...


class Run(Protocol):
    """How a policy is run, see `Acting`."""

    @property
    def sampler(self) -> Sampler: ...
    @property
    def execute(self) -> int: ...
    @property
    def ensemble(self) -> float | None: ...


class AnyPolicy(Protocol):
    """What evaluation needs of a policy: one of ours, or another library's behind an adapter.

    history: observations that it looks at, of as many consecutive control steps. chunkings: ways in which it can join
    its chunks while it moves.
    """

    @property
    def model(self) -> ActionModel: ...
    @property
    def acting(self) -> Run: ...
    @property
    def interface(self) -> Interface: ...
    @property
    def history(self) -> int: ...
    @property
    def chunkings(self) -> tuple[Chunking, ...]: ...
    @property
    def device(self) -> torch.device: ...


def find_policy(folder: Path, device: str = "cpu") -> AnyPolicy:
    """Load a policy's folder, ours or lerobot's, or what the run in a folder has made so far. Anything missing, broken
    or of another kind is a UserError."""
    from worldmodel.policies.lerobot_folder import pretrained_in
    from worldmodel.policies.lerobot_policy import LeRobotPolicy

    found = pretrained_in(folder)
    return Policy.find(folder, device) if found is None else LeRobotPolicy.load(found, device)


@dataclass(frozen=True, kw_only=True)
class Acting:
    """How a policy is run.

    execute: actions of a chunk that are carried out before the next observation (receding horizon). ensemble: every
    action is the mean of what all chunks so far have planned for its moment, the i-th oldest weighing
    exp(-ensemble * i) (temporal ensembling, 2304.13705); None carries out the newest chunk alone.
    """

    sampler: Euler | Heun = field(default_factory=lambda: Euler(steps=8))
    execute: int = 8
    ensemble: float | None = None

    def check(self, chunk: int) -> None:
        """UserError unless a policy with chunks of K actions can be run so."""
        if not 1 <= self.execute <= chunk:
            raise UserError(f"acting: execute must be in [1, {chunk}], the policy's chunk, not {self.execute}")
        if self.ensemble is not None and not 0 <= self.ensemble <= 100:
            raise UserError(f"acting: ensemble must be in [0, 100], not {self.ensemble}")


@dataclass(frozen=True, slots=True)
class Policy:
    """A flow policy and how it is run."""

    model: FlowPolicy
    acting: Acting
    card: dict[str, Any] = field(default_factory=dict)  # data, seeds, steps: for people

    @property
    def interface(self) -> Interface:
        return self.model.interface

    @property
    def history(self) -> int:
        return 1

    @property
    def chunkings(self) -> tuple[Chunking, ...]:
        return "naive", "guided", "prefix"

    @property
    def device(self) -> torch.device:
        return self.model.action_in.weight.device

    def save(self, folder: Path) -> None:
        """Write the folder; an older policy in it is replaced as a whole, other files stay."""
        with replaced(folder, FILES) as beside:
            write_tensors(self.model.state_dict(), beside / "model.safetensors")
            config = {
                "format": FORMAT,
                "kind": KIND,
                "model": to_json(self.model.cfg),
                "interface": to_json(self.interface),
                "acting": to_json(self.acting),
                "card": self.card,
            }
            write_json(config, beside / "config.json")

    @classmethod
    def find(cls, folder: Path, device: str = "cpu") -> "Policy":
        """Load a policy's folder, or what the run in a folder has made so far. UserErrors as those of `load`."""
        return cls.load(made_in(folder), device)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> "Policy":
        """Read a folder. Anything missing, truncated, newer, of another kind or pickled is a UserError naming it."""
        if folder.suffix in PICKLES:
            raise UserError(
                f"{folder}: a pickle could run code when it is read; only folders of safetensors are loaded"
            )
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; a policy is a folder with config.json in it")
        check_device(device)
        path = folder / "config.json"
        config = check_config(read_json(path), KIND, FORMAT, path, keys=("model", "interface", "acting"))
        cfg: PolicyConfig = from_json(config["model"], PolicyConfig, f"{path}: model")
        interface: Interface = from_json(config["interface"], Interface, f"{path}: interface")
        acting: Acting = from_json(config["acting"], Acting, f"{path}: acting")
        for name, size in _sizes(cfg, interface):
            if not 1 <= size <= LARGEST:
                raise UserError(f"{path}: {name} is {size}, it must be in [1, {LARGEST}]")
        try:
            acting.check(cfg.chunk)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        weights = folder / "model.safetensors"
        model = build_with(lambda: cfg.build(interface), read_tensors(weights), str(weights))
        card = config.get("card", {})
        return cls(model.to(device).eval().requires_grad_(False), acting, card if isinstance(card, dict) else {})


def _sizes(cfg: PolicyConfig, interface: Interface) -> Iterator[tuple[str, int]]:
    for name in ("chunk", "dim", "depth", "heads", "hidden", "keypoints", "time_width"):
        yield f"model.{name}", getattr(cfg, name)
    yield from (("interface.size", side) for side in interface.size)
    yield "interface.cameras", len(interface.cameras)
