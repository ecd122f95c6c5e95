"""worldmodel's policy and robot for lerobot: importing this registers configurations and processor steps."""

from lerobot_policy_worldmodel.configuration_worldmodel import WorldModelConfig
from lerobot_policy_worldmodel.environment_worldmodel import WorldModelRobotConfig
from lerobot_policy_worldmodel.processor_worldmodel import WordsStep

__all__ = ["WordsStep", "WorldModelConfig", "WorldModelRobotConfig"]
