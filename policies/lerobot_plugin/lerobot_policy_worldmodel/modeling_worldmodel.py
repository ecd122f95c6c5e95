"""worldmodel's flow policy behind lerobot's interface: a loss for its training, chunks and single actions for robots.

Letters: B rows, K actions of a chunk, A numbers of an action. Batches are those of lerobot after the policy's own
processors: pictures float [B, 3, H, W] in [0, 1], states and actions in [-1, 1], instructions as places in the
vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch
from lerobot.policies import PreTrainedPolicy
from lerobot.utils.constants import ACTION, OBS_LANGUAGE_TOKENS, OBS_STATE
from torch import Tensor

from lerobot_policy_worldmodel.configuration_worldmodel import WorldModelConfig
from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.memory import LastFrameConfig
from worldmodel.policies.observation import Observation
from worldmodel.policies.planning import ensembled
from worldmodel.rollout import start
from worldmodel.sampler import guided

SEEDS = 2**62


class WorldModelPolicy(PreTrainedPolicy):
    """The flow policy `model` as lerobot trains, saves and runs it."""

    config_class = WorldModelConfig  # pyright: ignore[reportAssignmentType]
    name = "worldmodel"  # pyright: ignore[reportAssignmentType]
    config: WorldModelConfig

    def __init__(self, config: WorldModelConfig, dataset_stats: Any = None, dataset_meta: Any = None) -> None:
        """dataset_meta: of the dataset that is trained on, whose instructions and rate the configuration takes over.
        dataset_stats: unused, the processors hold the statistics."""
        super().__init__(config)
        if dataset_meta is not None:
            config.learn_language([str(task) for task in dataset_meta.tasks.index], float(dataset_meta.fps))
        self.model = config.sizes().build(config.interface())
        self.acting = config.acting()
        self._objective = config.objective().build(self.model, config.chunk_size, seed=0)
        self.reset()

    def get_optim_params(self) -> Any:
        return self.parameters()

    def reset(self) -> None:
        """An episode begins: forget the chunks that are being carried out, and the seeds of the noise."""
        self._moment = 0  # control steps since then
        self._seeds: Tensor | None = None  # [B] int64, of the rows' noise
        self._chunks: list[tuple[int, Tensor]] = []  # first moment and actions [K, B * A], oldest first

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """The loss [] of a batch with actions [B, K, A]; behind an episode's end they repeat the last one, a target
        that is held. Times and noise come from torch's global generator."""
        seen = self._observation(batch)
        x = batch[ACTION]
        index = torch.randint(0, SEEDS, (len(x),)).to(x.device)
        loss = self._objective.loss(Clip(x, seen, index), 0)
        return loss, {"velocity_error": loss.item()}

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Tensor], noise: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The next chunk [B, K, A] for an observation. noise [B, K, A]: that it starts from; drawn for the episode and
        its moment if not given (the episode's seeds come from torch's global generator)."""
        seen = self._observation(batch)
        rows = seen.batch
        if self._seeds is None or len(self._seeds) != rows:
            self._seeds = torch.randint(0, SEEDS, (rows,)).to(seen.state.device)
        state = start(self.model, LastFrameConfig(), self._seeds)
        state = replace(state, frame=torch.full_like(self._seeds, self._moment))
        sampler = self.acting.sampler
        if noise is None:
            return sampler(self.model, seen, state)[0]
        given: Any = lambda _: noise  # noqa: E731 (these samplers draw once)
        return sampler.integrate(guided(self.model, seen, state, sampler.guidance), given)

    @torch.no_grad()
    def select_action(self, batch: dict[str, Tensor], noise: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The action [B, A] of this moment: of the last chunk, or the mean of all that planned for it. Every
        `n_action_steps` calls the observation is looked at."""
        if self._moment % self.acting.execute == 0:
            made = self.predict_action_chunk(batch, noise=noise).transpose(0, 1).flatten(1)
            since = self._moment - self.model.chunk
            kept = [] if self.acting.ensemble is None else [part for part in self._chunks if part[0] > since]
            self._chunks = [*kept, (self._moment, made)]
        first, last = self._chunks[-1]
        action = last[self._moment - first]
        if self.acting.ensemble is not None:
            action = ensembled(self._chunks, self._moment, self.acting.ensemble)
        self._moment += 1
        return action.unflatten(0, (-1, *self.model.frame_shape))

    def _observation(self, batch: dict[str, Tensor]) -> Observation:
        """UserError that lists every key that is missing, or of another shape than the policy's features."""
        cameras = self.config.image_features
        wanted = {key: tuple(feature.shape) for key, feature in cameras.items()}
        wanted[OBS_STATE] = (len(self.model.interface.state.names),)
        wrong = [f"{key} is missing" for key in (*wanted, OBS_LANGUAGE_TOKENS) if key not in batch]
        wrong += [
            f"{key} is {tuple(batch[key].shape[1:])}, the policy sees {shape}"
            for key, shape in wanted.items()
            if key in batch and tuple(batch[key].shape[1:]) != shape
        ]
        if wrong:
            raise UserError(f"worldmodel: {len(wrong)} problems with an observation: {'; '.join(wrong)}")
        pictures = torch.stack([batch[key] for key in cameras], 1)
        if pictures.is_floating_point():
            pictures = (pictures * 255).round().clamp(0, 255).to(torch.uint8)
        return Observation(pictures, batch[OBS_STATE], batch[OBS_LANGUAGE_TOKENS], self.model.chunk)
