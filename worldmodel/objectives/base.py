"""What a training objective is: it owns the models it trains and yields one Update per optimizer step."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from worldmodel.errors import UserError


def check_number(what: str, value: float, least: float, most: float) -> None:
    """A UserError unless a configuration's number lies in [least, most]; NaN never does."""
    if not least <= value <= most:
        raise UserError(f"{what} must be in [{least:g}, {most:g}], not {value}")


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step of one role.

    `losses` yields `count` scalars; each is backpropagated as it comes, so that only one graph lives at a time. Their
    sum is the loss. `metrics` is read after the last of them. A count of 0 reports metrics of a step that was skipped.
    """

    role: str
    losses: Iterable[Tensor]
    count: int
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """`updates` yields updates in order; each is applied before the next is asked for."""

    roles: dict[str, nn.Module]

    def begin(self, batches: Iterator[list[Any]]) -> None:
        """Called once, before the first step of a run, with this process's clips from step 0 on."""

    def updates(self, clips: list[Any]) -> Iterator[Update]:
        """clips: this process's micro-batches of one step, of equal size. Randomness is keyed by clip.index."""
        ...

    def validate(self, clip: Any) -> dict[str, Tensor]:
        """Losses on held-out data, without gradients."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the objective must find again after a resume, besides the roles' weights: tensors, and JSON values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
