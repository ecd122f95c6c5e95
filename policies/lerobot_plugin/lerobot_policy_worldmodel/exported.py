"""A policy of `worldmodel train` as a folder that lerobot loads: weights, configuration, processors with statistics."""

from pathlib import Path

import numpy as np
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.utils.constants import ACTION, OBS_STATE

from lerobot_policy_worldmodel.configuration_worldmodel import PREFIX, SAMPLERS, WorldModelConfig
from lerobot_policy_worldmodel.modeling_worldmodel import WorldModelPolicy
from lerobot_policy_worldmodel.processor_worldmodel import as_quantiles, make_worldmodel_pre_post_processors
from worldmodel.errors import UserError
from worldmodel.policies.observation import Range
from worldmodel.policies.policy import Policy


def export(policy: Policy, folder: Path) -> None:
    """Write a new folder for `PreTrainedPolicy.from_pretrained`, lerobot-eval and lerobot-train --policy.path.

    UserError if it exists.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already: give a new folder")
    config = configuration(policy)
    made = WorldModelPolicy(config)
    weights = policy.model.state_dict().items()  # the head `ending` is for training alone, and lerobot's has none
    made.model.load_state_dict({name: weight for name, weight in weights if not name.startswith("ending.")})
    made.save_pretrained(folder)
    stats = {OBS_STATE: _stats(policy.interface.state), ACTION: _stats(policy.interface.action)}
    for pipeline in make_worldmodel_pre_post_processors(config, stats):
        pipeline.save_pretrained(folder)


def configuration(policy: Policy) -> WorldModelConfig:
    """The configuration under which lerobot runs this policy as we do."""
    interface, cfg, acting = policy.interface, policy.model.cfg, policy.acting
    sampler = next(name for name, kind in SAMPLERS.items() if isinstance(acting.sampler, kind))
    inputs = {f"{PREFIX}{camera}": PolicyFeature(FeatureType.VISUAL, (3, *interface.size))
              for camera in interface.cameras}  # fmt: skip
    inputs[OBS_STATE] = PolicyFeature(FeatureType.STATE, (len(interface.state.names),))
    return WorldModelConfig(
        device="cpu",
        push_to_hub=False,
        input_features=inputs,
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (len(interface.action.names),))},
        chunk_size=cfg.chunk,
        n_action_steps=acting.execute,
        dim=cfg.dim,
        depth=cfg.depth,
        heads=cfg.heads,
        hidden=cfg.hidden,
        channels=list(cfg.channels),
        keypoints=cfg.keypoints,
        time_width=cfg.time_width,
        sampler=sampler,
        steps=acting.sampler.steps,
        schedule_shift=acting.sampler.shift,
        guidance=acting.sampler.guidance,
        temporal_ensemble_coeff=acting.ensemble,
        constant=[*interface.state.constant, *interface.action.constant],
        state_names=list(interface.state.names),
        action_names=list(interface.action.names),
        vocabulary=list(interface.vocabulary),
        words=interface.words,
        fps=interface.fps,
    )


def _stats(of: Range) -> dict[str, object]:
    """All that `ranges` asks for."""
    ends = as_quantiles(np.array(of.low), np.array(of.high))
    return {**ends, "min": ends["q01"], "max": ends["q99"]}
