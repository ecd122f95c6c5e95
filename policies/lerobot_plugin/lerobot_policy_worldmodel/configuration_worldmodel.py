"""The configuration of worldmodel's flow policy, as lerobot writes it to config.json."""

from dataclasses import dataclass, field
from typing import Any

from lerobot.configs import FeatureType, NormalizationMode, PreTrainedConfig
from lerobot.optim import AdamWConfig
from lerobot.optim.schedulers import DiffuserSchedulerConfig
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE

from worldmodel.errors import UserError
from worldmodel.policies.behaviour_cloning import BehaviourCloning
from worldmodel.policies.flow_policy import PolicyConfig
from worldmodel.policies.observation import Interface, Range, split
from worldmodel.policies.policy import Acting
from worldmodel.sampler import Euler, Heun

SAMPLERS = {"euler": Euler, "heun": Heun}
PREFIX = f"{OBS_IMAGES}."


@PreTrainedConfig.register_subclass("worldmodel")
@dataclass
class WorldModelConfig(PreTrainedConfig):
    """Sizes as of `PolicyConfig`, training as of `BehaviourCloning`, acting as of `Acting`.

    chunk_size: actions K made together; n_action_steps of them are carried out before the next observation.
    temporal_ensemble_coeff: decay of temporal ensembling, None for none. constant: names of state and action dimensions
    that may have no range; any other such dimension is an error. state_names, action_names, vocabulary, words (of the
    longest instruction) and fps are taken from the dataset.
    """

    chunk_size: int = 16
    n_action_steps: int = 8

    dim: int = 128
    depth: int = 4
    heads: int = 4
    hidden: int = 384
    channels: list[int] = field(default_factory=lambda: [16, 32, 32])
    keypoints: int = 32
    time_width: int = 64

    sampler: str = "euler"
    steps: int = 8
    schedule_shift: float = 1.0
    guidance: float = 1.0
    temporal_ensemble_coeff: float | None = None

    time_mean: float = 0.0
    time_std: float = 1.0
    time_shift: float = 1.0
    drop: float = 0.0
    prefix: int = 0

    constant: list[str] = field(default_factory=list)
    state_names: list[str] = field(default_factory=list)
    action_names: list[str] = field(default_factory=list)
    vocabulary: list[str] = field(default_factory=list)
    words: int = 1
    fps: float = 0.0

    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: {
            "VISUAL": NormalizationMode.IDENTITY,
            "STATE": NormalizationMode.QUANTILES,
            "ACTION": NormalizationMode.QUANTILES,
        }
    )

    optimizer_lr: float = 1e-3
    optimizer_weight_decay: float = 1e-3
    scheduler_warmup_steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_obs_steps != 1:
            raise UserError(f"worldmodel: the policy sees one observation, n_obs_steps cannot be {self.n_obs_steps}")
        if self.sampler not in SAMPLERS:
            raise UserError(f"worldmodel: no sampler '{self.sampler}'; there are {', '.join(SAMPLERS)}")
        self.sizes()
        self.objective()
        self.acting().check(self.chunk_size)

    # -- as our own values ---------------------------------------------------------------------------------------------

    def sizes(self) -> PolicyConfig:
        return PolicyConfig(
            chunk=self.chunk_size,
            dim=self.dim,
            depth=self.depth,
            heads=self.heads,
            hidden=self.hidden,
            channels=tuple(self.channels),
            keypoints=self.keypoints,
            time_width=self.time_width,
        )

    def acting(self) -> Acting:
        made = SAMPLERS[self.sampler](steps=self.steps, shift=self.schedule_shift, guidance=self.guidance)
        return Acting(sampler=made, execute=self.n_action_steps, ensemble=self.temporal_ensemble_coeff)

    def objective(self) -> BehaviourCloning:
        return BehaviourCloning(
            mean=self.time_mean, std=self.time_std, shift=self.time_shift, drop=self.drop, prefix=self.prefix
        )

    def interface(self) -> Interface:
        """What the policy sees and does, in the units of the model: lerobot's processors have scaled it to [-1, 1]."""
        self.validate_features()
        cameras = self.image_features
        return Interface(
            cameras=tuple(key.removeprefix(PREFIX) for key in cameras),
            size=next(tuple(feature.shape[1:]) for feature in cameras.values()),  # pyright: ignore[reportArgumentType]
            state=_unit(self.dimensions(OBS_STATE)),
            action=_unit(self.dimensions(ACTION)),
            vocabulary=tuple(self.vocabulary),
            words=self.words,
            fps=self.fps,
        )

    def dimensions(self, key: str) -> tuple[str, ...]:
        """Names of the dimensions of the state or the action; KEY[i] where the dataset has none."""
        feature = self.robot_state_feature if key == OBS_STATE else self.action_feature
        names = self.state_names if key == OBS_STATE else self.action_names
        size = 0 if feature is None else feature.shape[0]
        return tuple(names) if len(names) == size else tuple(f"{key}[{i}]" for i in range(size))

    # -- what lerobot calls --------------------------------------------------------------------------------------------

    def set_dataset_feature_metadata(self, features: dict[str, Any]) -> None:
        """Take the names of dimensions from a dataset's features; UserError if this policy has learned others."""
        for key, own in ((OBS_STATE, "state_names"), (ACTION, "action_names")):
            found = _flat(features.get(key, {}).get("names"))
            known = getattr(self, own)
            if self.pretrained_path and known and found and known != found:
                raise UserError(
                    f"worldmodel: {key} of the dataset has {', '.join(found)}, the policy {', '.join(known)}"
                )
            setattr(self, own, known if self.pretrained_path and known else found)

    def learn_language(self, tasks: list[str], fps: float) -> None:
        """Take vocabulary and rate from a dataset; UserError if this policy has learned others."""
        words = sorted({word for task in tasks for word in split(task)})
        longest = max((len(split(task)) for task in tasks), default=0)
        if not self.pretrained_path:
            self.vocabulary, self.words, self.fps = words, max(1, longest), fps
            return
        wrong = [f"it does not know {word}" for word in words if word not in self.vocabulary]
        wrong += [f"it reads {self.words} words, not {longest}"] * (longest > self.words)
        wrong += [f"it acts at {self.fps:g} fps, not {fps:g}"] * (bool(self.fps) and fps != self.fps)
        if wrong:
            raise UserError(f"worldmodel: the policy does not fit the dataset: {'; '.join(wrong)}")

    def validate_features(self) -> None:
        """One UserError that lists everything that is missing among the features, or too much."""
        wrong = []
        if not self.image_features:
            wrong.append(f"no picture ({PREFIX}NAME)")
        if len({feature.shape for feature in self.image_features.values()}) > 1:
            sizes = ", ".join(f"{key} {tuple(feature.shape)}" for key, feature in self.image_features.items())
            wrong.append(f"pictures of different sizes: {sizes}")
        wrong += [f"{key} has {feature.shape[0]} channels, not 3" for key, feature in self.image_features.items()
                  if feature.shape[0] != 3]  # fmt: skip
        if self.robot_state_feature is None:
            wrong.append(f"no {OBS_STATE}")
        wrong += [f"{key}: this policy does not read it" for key, feature in (self.input_features or {}).items()
                  if feature.type is not FeatureType.VISUAL and key != OBS_STATE]  # fmt: skip
        if self.action_feature is None:
            wrong.append(f"no {ACTION}")
        if wrong:
            raise UserError(f"worldmodel: {len(wrong)} problems with the features: {'; '.join(wrong)}")

    def get_optimizer_preset(self) -> AdamWConfig:
        return AdamWConfig(lr=self.optimizer_lr, weight_decay=self.optimizer_weight_decay, grad_clip_norm=1.0)

    def get_scheduler_preset(self) -> DiffuserSchedulerConfig:
        return DiffuserSchedulerConfig(name="cosine", num_warmup_steps=self.scheduler_warmup_steps)

    @property
    def observation_delta_indices(self) -> None:
        return None

    @property
    def action_delta_indices(self) -> list[int]:
        return list(range(self.chunk_size))

    @property
    def reward_delta_indices(self) -> None:
        return None


def _unit(names: tuple[str, ...]) -> Range:
    return Range(names, (-1.0,) * len(names), (1.0,) * len(names))


def _flat(names: Any) -> list[str]:
    """The names of a feature's dimensions: a list, a dictionary of lists (older datasets), or None."""
    if isinstance(names, dict):
        return [str(name) for part in names.values() for name in part]
    return [str(name) for name in names or ()]
