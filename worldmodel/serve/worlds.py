"""The worlds of one server: models of one format, so that the same keys drive each of them from the same beginning."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from worldmodel.errors import UserError
from worldmodel.fingerprint import fingerprint
from worldmodel.models.world import WorldModel
from worldmodel.serial import to_json

from .dream import picture_size

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
            _check_same(names[0], first, name, named[name])
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


def _check_same(one: str, first: WorldModel, two: str, other: WorldModel) -> None:
    """Raise UserError unless deeds and latents of one world mean the same in another."""
    mine, its = _format(first), _format(other)
    for what, value in mine.items():
        if its[what] != value:
            raise UserError(
                f"worlds '{one}' and '{two}' cannot be driven by the same keys: {what} {value} and {its[what]}"
            )


def _format(world: WorldModel) -> dict[str, Any]:
    tokenizer: Any = world.tokenizer  # tokenizers are modules
    spec = to_json(world.actions) if world.actions else {}
    return {
        "pictures of": f"{list(picture_size(world))} pixels",
        "frames per second": world.fps,
        "pictures per chunk": world.pixel_frames,
        "actions": spec.get("names"),
        "action ranges from": spec.get("low"),
        "action ranges to": spec.get("high"),
        "actions per frame": spec.get("pack"),
        "tokenizer": fingerprint(tokenizer),
    }
