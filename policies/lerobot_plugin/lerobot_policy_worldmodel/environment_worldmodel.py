"""Our robot as an environment of lerobot, so that lerobot-eval runs any policy on what `evaluate policy` runs ours on.

The same cases: episode n of lerobot-eval --seed S is that of seed S + n under `evaluate policy --episode-seed S`.
"""

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig
from lerobot.envs.utils import freeze_after_episode_end
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.policies.robot import ACTIONS, CAMERAS, HandRobot
from worldmodel.policies.shifts import parse_shift

Observation = dict[str, Any]


@EnvConfig.register_subclass("worldmodel_robot")
@dataclass
class WorldModelRobotConfig(EnvConfig):
    """task: of Meta-World, under absolute targets of the hand. shift: as `parse_shift` reads it. size: of the pictures.
    episode_length: most control steps of an episode, in [1, 500]."""

    task: str | None = "reach"
    fps: int = 80
    episode_length: int = 200
    size: int = 64
    cameras: list[str] = field(default_factory=lambda: list(CAMERAS))
    shift: str = "nominal"

    def __post_init__(self) -> None:
        if not 1 <= self.episode_length <= 500:
            raise UserError(f"worldmodel_robot: episode_length must be in [1, 500], not {self.episode_length}")
        parse_shift(self.shift)
        self.features = {ACTION: PolicyFeature(FeatureType.ACTION, (len(ACTIONS),)),
                         "agent_pos": PolicyFeature(FeatureType.STATE, (4,))}  # fmt: skip
        self.features_map = {ACTION: ACTION, "agent_pos": OBS_STATE}
        for camera in self.cameras:
            self.features[f"pixels/{camera}"] = PolicyFeature(FeatureType.VISUAL, (self.size, self.size, 3))
            self.features_map[f"pixels/{camera}"] = f"{OBS_IMAGES}.{camera}"

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        return {}

    def create_envs(
        self, n_envs: int, use_async_envs: bool = False
    ) -> dict[str, dict[int, gymnasium.vector.VectorEnv]]:
        """One task, `n_envs` robots. use_async_envs: each in a process of its own."""
        makes = [freeze_after_episode_end(lambda: LeRobotRobot(self)) for _ in range(n_envs)]
        if use_async_envs and n_envs > 1:
            return {self.type: {0: gymnasium.vector.AsyncVectorEnv(makes, context="forkserver")}}
        return {self.type: {0: gymnasium.vector.SyncVectorEnv(makes)}}


class LeRobotRobot(gymnasium.Env[Observation, NDArray[np.float32]]):
    """`HandRobot` with lerobot's names: an episode ends at its first success."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012 (as gymnasium declares it)

    def __init__(self, cfg: WorldModelRobotConfig) -> None:
        from worldmodel.datasets.worlds.metaworld import check_task

        for camera in cfg.cameras:
            check_task(str(cfg.task), camera, cfg.size)
        cameras = tuple(cfg.cameras)
        self.robot = HandRobot(str(cfg.task), shift=parse_shift(cfg.shift), cameras=cameras, size=cfg.size)
        self.task = self.task_description = self.robot.facts.task
        self.render_mode = "rgb_array"
        self._max_episode_steps, self._step = cfg.episode_length, 0
        picture = gymnasium.spaces.Box(0, 255, (cfg.size, cfg.size, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "pixels": gymnasium.spaces.Dict(dict.fromkeys(cameras, picture)),
                "agent_pos": gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
            }
        )
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(ACTIONS),), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        super().reset(seed=seed)
        self._step = 0
        observation, _ = self.robot.reset(seed=seed)
        return self._seen(observation), {"is_success": False}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        observation, reward, _, truncated, info = self.robot.step(action)
        self._step += 1
        success = bool(info["success"])
        over = truncated or self._step >= self._max_episode_steps
        return self._seen(observation), float(reward), success, over and not success, {"is_success": success}

    def render(self) -> NDArray[np.uint8]:
        return self.robot.render()

    def close(self) -> None:
        self.robot.close()

    def _seen(self, observation: Any) -> Observation:
        return {"pixels": self.robot.look(), "agent_pos": observation["state"]}
