"""The worlds of one server: models of one format, so that the same keys drive each of them from the same beginning."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from worldmodel.errors import UserError
from worldmodel.models.interface import first_difference
from worldmodel.models.world import WorldModel

LONGEST_NAME = 40  # characters


@dataclass(frozen=True, slots=True)
class Worlds:
    """Models by their names, in the order in which people see them; at least one.

    Their pictures, actions and latents mean the same, and all have the beginnings of the first: what is read of these
    from `first` holds for every one of them.
    """

    named: Mapping[str, WorldModel]

    @classmethod
    def of(cls, named: Mapping[str, WorldModel]) -> Self:
        """Check that the worlds can be driven by the same keys. Raises UserError that names two and what differs."""
        names = list(named)
        for name in names:
            _check_name(name)
        first = named[names[0]]
        for name in names[1:]:
            if found := first_difference(first, named[name], ranges=True):
                what, value, its = found
                raise UserError(
                    f"worlds '{names[0]}' and '{name}' cannot be driven by the same keys: {what} {value} and {its}"
                )
        return cls({name: replace(world, starts=first.starts) for name, world in named.items()})

    @property
    def first(self) -> WorldModel:
        """The one that a client gets who names none."""
        return self.named[self.first_name]

    @property
    def first_name(self) -> str:
        return next(iter(self.named))

    def find(self, name: str) -> WorldModel:
        """The world of a name. Raises UserError if there is none."""
        if name not in self.named:
            raise UserError(f"this server has no world '{name}', only {', '.join(self.named)}")
        return self.named[name]


def _check_name(name: str) -> None:
    if not (0 < len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip()):
        raise UserError(f"world name {name!r}: use 1 to {LONGEST_NAME} printable characters, no space at the ends")
