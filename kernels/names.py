"""The names of backends, which a person may ask for; importable without torch."""

from typing import Literal, get_args

Name = Literal["triton", "xformers", "flex", "sdpa", "grid_sample", "reference"]
Setting = Literal["auto", "triton", "xformers", "flex", "sdpa", "grid_sample", "reference"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
