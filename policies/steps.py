"""An episode at every one of its control steps, as datasets hold it: what a robot showed, was told, and got for it.

Letters: T control steps, N cameras, H W pixels, S state and A action dimensions.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Steps:
    """Row i: what was seen and read before step i, the command of that step, and the step's reward and success."""

    task: str  # the instruction
    image: NDArray[np.uint8]  # [T, N, H, W, 3]
    state: NDArray[np.float32]  # [T, S] as proprioception reports it
    action: NDArray[np.float32]  # [T, A] as commanded
    reward: NDArray[np.float32]  # [T]
    success: NDArray[np.bool_]  # [T]


@dataclass(slots=True)
class StepLog:
    """Steps while they are made."""

    image: list[NDArray[np.uint8]] = field(default_factory=list)  # [N, 3, H, W] each
    state: list[NDArray[np.float32]] = field(default_factory=list)
    action: list[NDArray[np.float32]] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    success: list[bool] = field(default_factory=list)

    def see(self, image: NDArray[np.uint8], state: NDArray[np.float32], action: NDArray[np.float32]) -> None:
        """Before a step: pictures [N, 3, H, W], state [S] and command [A]."""
        self.image.append(image)
        self.state.append(state)
        self.action.append(action)

    def get(self, reward: float, success: bool) -> None:
        """After it."""
        self.reward.append(reward)
        self.success.append(success)

    def steps(self, task: str) -> Steps:
        return Steps(
            task,
            np.stack(self.image).transpose(0, 1, 3, 4, 2),
            np.stack(self.state),
            np.stack(self.action),
            np.array(self.reward, np.float32),
            np.array(self.success, np.bool_),
        )
