"""What the training loop asks of a `Run`: how a world model or a tokenizer is built, trained, known and saved."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from worldmodel import artifact
from worldmodel.chunk import Clip
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.objectives.base import Objective
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.objectives.frechet_forcing import FrechetForcing
from worldmodel.objectives.hero import Hero
from worldmodel.objectives.own_rollouts import check_lengths, growth
from worldmodel.objectives.pushforward import Pushforward
from worldmodel.objectives.reconstruction import Reconstruction
from worldmodel.objectives.self_forcing import SelfForcing
from worldmodel.run import Data, Recipe, Run, Training


def recipe_of(run: Training) -> Recipe:
    """A run of another kind of model is its own recipe."""
    if isinstance(run, Recipe):
        return run
    assert isinstance(run, Run)
    return WorldRecipe(run)


@dataclass(frozen=True, slots=True)
class WorldRecipe(Recipe):
    run: Run

    @property
    def batches(self) -> Data:
        return self.run.data

    def build(self) -> nn.Module:
        frozen = torch.bfloat16 if self.run.precision == "bf16" else torch.float32
        return self._equipped(artifact.build(self.run, frozen))

    def _equipped(self, model: nn.Module) -> nn.Module:
        if isinstance(model, DiT):
            model.checkpointing = self.run.checkpointing
            for block in model.blocks if self.run.compile else ():
                block.compile()
        return model

    def build_objective(self, model: nn.Module, add: Callable[[str, nn.Module], nn.Module]) -> Objective:
        run, shape = self.run, self.run.model
        if isinstance(run.objective, FrechetForcing | SelfForcing | Hero | Pushforward):
            assert isinstance(shape, DiTConfig)  # artifact.check
            starts = growth(run.objective)
            check_lengths(run.objective, shape.chunk, run.data.length, run.data.curriculum, starts, run.steps)
        match run.objective:
            case FrechetForcing() as forcing:
                assert isinstance(shape, DiTConfig)  # artifact.check
                return forcing.build(model, shape, run.seed, run.stream, run.data.tokenizer)
            case SelfForcing() as forcing:
                assert isinstance(shape, DiTConfig)
                teacher = forcing.frozen(shape, run.data.tokenizer)
                device = next(model.parameters()).device
                critic = copy.deepcopy(teacher.model.to(device)).requires_grad_(True)
                return forcing.build(model, add("critic", self._equipped(critic)), teacher, run.seed, run.stream)
            case Hero() | Pushforward() as unrolled:
                return unrolled.build(model, run.stream, run.seed)
            case FlowMatching() as plain:
                assert isinstance(shape, DiTConfig)
                return plain.build(model, shape, run.seed, run.stream.memory)
            case Reconstruction() as plain:
                assert isinstance(shape, AutoencoderConfig)
                return plain.build(model, shape, run.seed)

    def template(self) -> artifact.Template:
        return artifact.Template.of(self.run)

    @property
    def next_command(self) -> str:
        if isinstance(self.run.model, DiTConfig):
            return f"serve {self.run.out}"
        return f"encode DATA --tokenizer {self.run.out / 'model'} --out DATA_latents"

    def identity(self, frozen: str | None) -> dict[str, Any]:
        run = self.run
        values = {
            "model": run.model,
            "objective": run.objective,
            "lora": run.lora,
            "data.batch": run.data.batch,
            "data.length": run.data.length,
            "data.curriculum": run.data.curriculum,
            "data.weights": run.data.weights,
            "data.action_spec": run.data.action_spec,
            "data.split": run.data.split,
        }
        if isinstance(run.objective, FrechetForcing | SelfForcing | Hero | Pushforward):
            values["stream"] = run.stream  # its sampler, memory and context time make the rollouts
        else:
            values["stream.memory"] = run.stream.memory if self._limits() else "one that holds whole clips"
        if frozen is not None:
            values["init"] = {"path": run.init, "frozen": frozen}
        return values

    def _limits(self) -> bool:
        """Whether chunks of the clips see less, by the stream's memory, than all that is before them."""
        memory, shape = self.run.stream.memory, self.run.model
        if not isinstance(shape, DiTConfig) or memory.capacity is None:
            return False
        return memory.compares or memory.capacity < self.run.data.length - shape.chunk

    @property
    def compiles(self) -> bool:
        return self.run.compile

    @property
    def saves_memory(self) -> str:
        return f"turn on checkpointing (now {self.run.checkpointing}), shorten the clips, or "

    def seconds_per_chunk(self, step: int, clip: Clip, seconds: float) -> float | None:
        match self.run.objective:
            case FrechetForcing() | SelfForcing() as forcing:
                return seconds / forcing.rollouts.made(step)
            case Hero() as hero if isinstance(self.run.model, DiTConfig):
                return seconds / (clip.x.shape[1] // self.run.model.chunk - hero.prefix)
            case _:
                return None
