"""worldmodel's flow-matching policy as a policy of lerobot: importing this registers its configuration and steps."""

from lerobot_policy_worldmodel.configuration_worldmodel import WorldModelConfig
from lerobot_policy_worldmodel.processor_worldmodel import WordsStep

__all__ = ["WordsStep", "WorldModelConfig"]
