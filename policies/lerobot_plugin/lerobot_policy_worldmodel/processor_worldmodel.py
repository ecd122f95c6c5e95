"""What stands between lerobot's batches and the policy: ranges to [-1, 1], instructions to places in the vocabulary.

The steps are saved with the weights, statistics included. Ranges are those of `worldmodel.policies.observation.Range`:
from the 1 % to the 99 % quantile, the whole range where these are the same. They are written as the quantiles that
lerobot's own normaliser reads, so that lerobot can exchange them.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from lerobot.configs import PipelineFeatureType, PolicyFeature
from lerobot.configs.types import FeatureType
from lerobot.lerobot_types import PolicyAction, RobotObservation, TransitionKey
from lerobot.processor import ObservationProcessorStep, PolicyProcessorPipeline, ProcessorStepRegistry
from lerobot.processor.factory import make_default_policy_processor_steps, make_policy_processor_pipelines
from lerobot.utils.constants import ACTION, OBS_LANGUAGE_TOKENS, OBS_STATE
from numpy.typing import NDArray

from lerobot_policy_worldmodel.configuration_worldmodel import WorldModelConfig
from worldmodel.errors import UserError
from worldmodel.policies.observation import CONSTANT, Interface, Range

Statistics = dict[str, dict[str, Any]]


@dataclass
@ProcessorStepRegistry.register(name="worldmodel_words")
class WordsStep(ObservationProcessorStep):
    """`task`, a text or one per row, to `observation.language.tokens` int64 [B, L]: places in the vocabulary from 1 on,
    0 for none. No task is an empty instruction; a word that the policy has never seen is a UserError."""

    vocabulary: list[str] = field(default_factory=list)
    words: int = 1

    def observation(self, observation: RobotObservation) -> RobotObservation:
        known = self.transition.get(TransitionKey.COMPLEMENTARY_DATA) or {}
        any_part = next(iter(observation.values()))  # what is missing, the policy tells
        task = known.get("task") or ""
        tasks = [task] * len(any_part) if isinstance(task, str) else list(task)
        reader = Interface(("",), (1, 1), _NONE, _NONE, tuple(self.vocabulary), self.words, 0.0)
        tokens = torch.tensor([reader.encode(each) for each in tasks], dtype=torch.int64, device=any_part.device)
        return {**observation, OBS_LANGUAGE_TOKENS: tokens}

    def get_config(self) -> dict[str, Any]:
        return {"vocabulary": list(self.vocabulary), "words": self.words}

    def transform_features(
        self, features: dict[PipelineFeatureType, dict[str, PolicyFeature]]
    ) -> dict[PipelineFeatureType, dict[str, PolicyFeature]]:
        tokens = {OBS_LANGUAGE_TOKENS: PolicyFeature(FeatureType.LANGUAGE, (self.words,))}
        return {**features, PipelineFeatureType.OBSERVATION: {**features[PipelineFeatureType.OBSERVATION], **tokens}}


_NONE = Range(("",), (0.0,), (1.0,))


def make_worldmodel_pre_post_processors(
    config: WorldModelConfig, dataset_stats: Statistics | None = None
) -> tuple[
    PolicyProcessorPipeline[dict[str, Any], dict[str, Any]], PolicyProcessorPipeline[PolicyAction, PolicyAction]
]:
    """What lerobot calls for a new policy. UserError that lists every statistic that is missing or cannot be used."""
    steps = make_default_policy_processor_steps(config, ranges(config, dataset_stats or {}))
    words = WordsStep(list(config.vocabulary), config.words)
    return make_policy_processor_pipelines(
        input_steps=[steps.rename_observations, steps.add_batch_dim, words, steps.to_device, steps.normalize],
        output_steps=[steps.unnormalize, steps.to_cpu],
    )


def ranges(config: WorldModelConfig, stats: Statistics) -> Statistics:
    """q01 and q99 of state and action, fp32 [dim], from the statistics of a dataset.

    A dimension without a range must be named in `config.constant`: it keeps its unit, and its one value becomes 0.
    """
    wrong: list[str] = []
    made: Statistics = {}
    for key in (OBS_STATE, ACTION):
        names = config.dimensions(key)
        moments = {name: _moment(stats.get(key, {}).get(name), key, name, names, wrong) for name in _MOMENTS}
        low, high, least, most = (moments[name] for name in _MOMENTS)
        if low is None or high is None or least is None or most is None:
            continue
        narrow = high - low < CONSTANT
        low, high = np.where(narrow, least, low), np.where(narrow, most, high)
        bare = high - low < CONSTANT
        wrong += [f"'{key}' dimension '{name}' is constant at {value:g}: name it in constant if that is right"
                  for name, value, is_bare in zip(names, low, bare, strict=True)
                  if is_bare and name not in config.constant]  # fmt: skip
        made[key] = as_quantiles(low, high)
    if wrong:
        raise UserError(f"worldmodel: {len(wrong)} problems with the statistics: {'; '.join(wrong)}")
    return made


_MOMENTS = ("q01", "q99", "min", "max")


def as_quantiles(low: NDArray[np.float64], high: NDArray[np.float64]) -> dict[str, torch.Tensor]:
    """The ends [dim] of ranges as lerobot's normaliser reads them, fp32 [dim]: a dimension without a range gets one of
    half a width of 1 around its value."""
    bare = high - low < CONSTANT
    middle = (low + high) / 2
    low, high = np.where(bare, middle - 1, low), np.where(bare, middle + 1, high)
    return {"q01": torch.tensor(low, dtype=torch.float32), "q99": torch.tensor(high, dtype=torch.float32)}


def _moment(value: Any, key: str, name: str, names: tuple[str, ...], wrong: list[str]) -> NDArray[np.float64] | None:
    if value is None:
        wrong.append(f"statistic '{key}/{name}' is missing")
        return None
    found = np.asarray(value, np.float64).reshape(-1)
    if len(found) != len(names):
        wrong.append(f"statistic '{key}/{name}' has {len(found)} values for {len(names)} dimensions")
        return None
    bad = [f"statistic '{key}/{name}' of '{n}' is {x}" for n, x in zip(names, found, strict=True) if not np.isfinite(x)]
    wrong += bad
    return None if bad else found
