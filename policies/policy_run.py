"""The training of a policy, as one value that `worldmodel train` runs: a file in configs/ returns it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.memory import LastFrameConfig
from worldmodel.objectives.base import Objective
from worldmodel.pixels import write_video
from worldmodel.policies.behaviour_cloning import BehaviourCloning
from worldmodel.policies.demonstrations import Chunks, Demonstrations
from worldmodel.policies.flow_policy import FlowPolicy, PolicyConfig
from worldmodel.policies.observation import Observation
from worldmodel.policies.policy import Acting, Policy
from worldmodel.rollout import start
from worldmodel.run import Recipe, Training
from worldmodel.weights import load_into

LOOKED_AT = 16  # held-out chunks in a sample
PLOT = 192  # pixels of its sides


@dataclass(frozen=True, kw_only=True)
class PolicyRun(Training, Recipe):
    """model: sizes. data: what is imitated. acting: how the policy will be run. For all else see `Training`."""

    data: Demonstrations
    model: PolicyConfig = field(default_factory=PolicyConfig)
    objective: BehaviourCloning = field(default_factory=BehaviourCloning)
    acting: Acting = field(default_factory=Acting)

    @property
    def batches(self) -> Chunks:
        return self.data.chunks(self.model.chunk)

    def build(self) -> FlowPolicy:
        """UserErrors for data that cannot be learned from and parts that do not fit each other."""
        self.acting.check(self.model.chunk)
        if bool(self.model.ending) != bool(self.objective.ending):
            raise UserError(
                f"policy: model.ending {self.model.ending} (a width) and objective.ending {self.objective.ending} "
                "(a weight) must both be 0, or neither"
            )
        model = self.model.build(self.batches.read.interface)
        if model.frozen is not None:
            model.frozen.load_imagenet()
        return model

    def build_objective(self, model: nn.Module, add: Callable[[str, nn.Module], nn.Module]) -> Objective:
        return self.objective.build(model, self.model.chunk, self.seed)

    def template(self) -> "PolicyTemplate":
        return PolicyTemplate(self, self.build())

    @property
    def next_command(self) -> str:
        return f"evaluate policy {self.out} --tasks TASK"

    def identity(self, frozen: str | None) -> dict[str, Any]:
        read = self.batches.read
        return {
            "model": self.model,
            "objective": self.objective,
            "data.batch": self.data.batch,
            "data.seed": self.data.seed,
            "data.shift": self.data.shift,
            "data.early": self.data.early,
            "data.offset": self.data.offset,
            "data.interface": read.interface,
            "data.split": read.split,
            "frozen": frozen,
        }


@dataclass(frozen=True, slots=True)
class PolicyTemplate:
    """The policy of a run, filled with weights at every save."""

    run: PolicyRun
    model: FlowPolicy

    def fill(self, weights: dict[str, Tensor], card: dict[str, Any]) -> Policy:
        fixed = {name: t for name, t in self.model.state_dict().items() if name.startswith("frozen.")}
        load_into(self.model, {**fixed, **weights}, str(self.run.out))
        return Policy(self.model.eval().requires_grad_(False), self.run.acting, card)

    def look(self, made: Policy, video: Path) -> None:
        """Chunks that nobody trained on (all have been, where none is held out): what the first camera saw, and the
        actions of the demonstration (grey) and of the policy (colours) over the chunk."""
        chunks = self.run.batches
        clips = chunks.validation_batches(1) if chunks.read.held_out else (c[0] for c in chunks.batches(0, 0, 1, 1))
        clip: Clip[Observation] = next(iter(clips))
        clip = clip.select(torch.arange(min(LOOKED_AT, clip.batch)))
        state = start(made.model, LastFrameConfig(), clip.index)
        with torch.no_grad():
            x, _ = made.acting.sampler(made.model, clip.control, state)
        rows = zip(clip.control.image[:, 0], clip.x.numpy(), x.numpy(), strict=True)
        pictures = [_beside(image.permute(1, 2, 0).numpy(), real, own) for image, real, own in rows]
        write_video(video, np.stack(pictures), 2)


def _beside(image: NDArray[np.uint8], real: NDArray[np.float32], own: NDArray[np.float32]) -> NDArray[np.uint8]:
    picture = cv2.resize(image, (PLOT, PLOT), interpolation=cv2.INTER_NEAREST)
    plot = np.full((PLOT, PLOT, 3), 255, np.uint8)
    colours = ((200, 60, 60), (50, 140, 60), (60, 80, 200), (200, 140, 30))
    across = np.linspace(8, PLOT - 8, len(real))
    for chunk, shades in ((real, ((170, 170, 170),)), (own, colours)):
        for number, line in enumerate(chunk.T):
            points = np.stack((across, (1 - np.clip(line, -1.2, 1.2) / 1.2) * PLOT / 2), -1).round().astype(np.int32)
            cv2.polylines(plot, [points], False, shades[number % len(shades)], 2)
    return np.concatenate((np.asarray(picture, np.uint8), plot), 1)
