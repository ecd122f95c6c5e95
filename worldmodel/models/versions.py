"""Whether a module's weights are still what they were: asked once per chunk, so it must cost next to nothing."""

from torch import Tensor, nn


class Versions:
    """The parts and weights of a module as they are now, to be compared with what they are later.

    A weight counts as changed when it was written in place, given other data, or replaced; a part when it was replaced.
    Walking the module again would take ten times as long. It holds the module's parts, not the module itself.
    """

    def __init__(self, module: nn.Module) -> None:
        self._places = [
            (holder, name, value)
            for part in module.modules()
            for holder in (part._modules, part._parameters)
            for name, value in holder.items()
        ]
        self._weights = [value for _, _, value in self._places if isinstance(value, Tensor)]
        self._marks = self._now()

    def unchanged(self) -> bool:
        """Whether all parts are in their places, with the same numbers in the same memory."""
        for holder, name, value in self._places:
            if holder.get(name) is not value:
                return False
        return self._now() == self._marks

    def _now(self) -> list[int]:
        return [w.data_ptr() for w in self._weights] + [w._version for w in self._weights]
