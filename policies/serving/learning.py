"""What a robot's client keeps of a trial, and what its failed trials have shown."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.policies.serving.contexts import ACTIONS, TRIAL


class Learning:
    """The present trial of a robot, and the tokens [W] of its failed ones. offers: what the server says of trials on
    connecting (`contexts.metadata`), None if it has no context encoder: then nothing is kept."""

    def __init__(self, offers: Mapping[str, Any] | None, way: Literal["sum", "mean"] = "sum") -> None:
        self._offers, self._way = offers, way
        self.tokens: list[NDArray[np.float32]] = []
        self._seen: list[Mapping[str, Any]] = []
        self._told: list[NDArray[np.float32]] = []

    @property
    def token(self) -> NDArray[np.float32] | None:
        """What is known of the robot, [W]; None: nothing."""
        if not self.tokens:
            return None
        total = np.stack(self.tokens).sum(0)
        return np.asarray(total if self._way == "sum" else total / len(self.tokens), np.float32)

    def keep(self, observation: Mapping[str, Any], action: NDArray[np.float32] | None) -> None:
        """An observation from which a chunk was asked for, and what was carried out at that step. The first moments of
        a trial are kept, as many as the server reads."""
        if self._offers is None or action is None or len(self._seen) >= self._offers["moments"]:
            return
        self._seen.append({key: observation[key] for key in self._offers[TRIAL] if key in observation})
        self._told.append(np.array(action, np.float32))

    def trial(self) -> dict[str, Any]:
        """The message that asks for this trial's token. UserError if there is none to be had."""
        if self._offers is None:
            raise UserError("this server has no context encoder (serve-policy --encoder FOLDER): it learns of no trial")
        if not self._seen:
            raise UserError("nothing of this trial is known: no action of the policy has been carried out")
        arrays = {key: np.stack([each[key] for each in self._seen]) for key in self._seen[0]}
        return {TRIAL: {**arrays, ACTIONS: np.stack(self._told)}}

    def begin(self) -> None:
        """Another trial of the same robot."""
        self._seen, self._told = [], []

    def forget(self) -> None:
        """Another robot, or one that was repaired."""
        self.tokens = []
        self.begin()
