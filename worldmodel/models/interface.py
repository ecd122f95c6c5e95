"""What goes into a world model and comes out of it: models that agree in it can be driven by the same actions."""

from typing import Any

from worldmodel.fingerprint import fingerprint
from worldmodel.models.world import WorldModel


def first_difference(one: WorldModel, other: WorldModel, *, ranges: bool) -> tuple[str, Any, Any] | None:
    """What two models do not share, for an error line: its name and both values; None if they agree.

    ranges: whether it matters which recorded actions are -1 and 1. Weights, memory and sampler never do.
    """
    theirs = _interface(other)
    for what, mine in _interface(one).items():
        if mine != theirs[what] and (ranges or what != "range of actions"):
            return what, mine, theirs[what]
    return None


def _interface(world: WorldModel) -> dict[str, Any]:
    tokenizer: Any = world.tokenizer  # tokenizers are modules
    spec = world.actions
    return {
        "picture size": [side * tokenizer.spatial for side in world.dit.frame_shape[1:]],
        "frame rate": world.fps,
        "number of pictures per chunk": world.pixel_frames,
        "kind of actions": "none" if spec is None else f"{list(spec.names)}, {spec.pack} per latent frame",
        "range of actions": None if spec is None else [list(spec.low), list(spec.high)],
        "tokenizer": fingerprint(tokenizer),
    }
