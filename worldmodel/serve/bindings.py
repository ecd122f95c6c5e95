"""Which key moves which action, as data that the server sends: a page can drive any world without knowing it."""

from dataclasses import dataclass

from worldmodel.actions import ActionSpec

COMFORTABLE = 0.6  # of the 99 % quantile: a held turn key at full speed makes people dizzy


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One direction of an action: what is sent while one of its keys is held."""

    label: str
    value: float  # environment units
    keys: tuple[str, ...]  # KeyboardEvent.code


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """How one action is driven. Axes name a gamepad's or the mouse's direction: right and down are positive."""

    name: str
    rest: float  # the value while nothing is pressed, environment units
    positive: Side
    negative: Side
    axis: str | None = None  # "left x", "left y", "right x", "right y" of a gamepad
    axis_sign: int = 1  # 1: pushing the axis right or down means `positive`
    mouse: str | None = None  # "x" or "y": dragging over the picture


@dataclass(frozen=True, slots=True)
class _Known:
    """A name that worlds share, and how people expect to drive it."""

    names: tuple[str, ...]
    positive: tuple[str, tuple[str, ...]]  # label and keys
    negative: tuple[str, tuple[str, ...]]
    axis: str
    sign: int
    mouse: str | None = None
    fraction: float = 1.0


_LEFT, _RIGHT, _UP, _DOWN = "ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"
_KNOWN = (
    _Known(
        ("turn", "yaw"), ("turn left", (_LEFT,)), ("turn right", (_RIGHT,)), "right x", -1, "x", COMFORTABLE
    ),
    _Known(("forward", "throttle", "speed"), ("forward", (_UP, "KeyW")), ("back", (_DOWN, "KeyS")), "left y", -1),
    _Known(("strafe", "sideways"), ("step left", ("KeyA",)), ("step right", ("KeyD",)), "left x", -1),
    _Known(
        ("pitch", "look"), ("look up", ("PageUp",)), ("look down", ("PageDown",)), "right y", -1, "y", COMFORTABLE
    ),
)  # fmt: skip
_GENERIC = (  # pairs of keys for names that nobody knows, and the gamepad axes that go with them
    (("KeyD", _RIGHT), ("KeyA", _LEFT), "left x", 1),
    (("KeyW", _UP), ("KeyS", _DOWN), "left y", -1),
    (("KeyE",), ("KeyQ",), "right x", 1),
    (("KeyX",), ("KeyZ",), "right y", -1),
    (("KeyY",), ("KeyH",), None, 1),
    (("KeyU",), ("KeyJ",), None, 1),
    (("KeyI",), ("KeyK",), None, 1),
    (("KeyP",), ("KeyM",), None, 1),
)


def bind(spec: ActionSpec | None) -> list[Binding]:
    """A binding for every action of the spec, in its order; actions beyond the keys at hand get none.

    Positive turn, yaw and strafe mean LEFT (counter-clockwise), as everywhere in this project.
    """
    if spec is None:
        return []
    found = {name: known for name in spec.names for known in _KNOWN if name.lower() in known.names}
    taken = {key for known in found.values() for key in (*known.positive[1], *known.negative[1])}
    spare = iter([pair for pair in _GENERIC if not taken & {*pair[0], *pair[1]}])
    bindings = []
    for name, low, high in zip(spec.names, spec.low, spec.high, strict=True):
        if name in found:
            bindings.append(_familiar(name, low, high, found[name], strafes="KeyA" in taken))
        elif (pair := next(spare, None)) is not None:
            bindings.append(_generic(name, low, high, *pair))
    return bindings


def rest(low: float, high: float) -> float:
    """What an action does while nobody presses anything: 0, or the nearest value that its range holds."""
    return min(max(0.0, low), high)


def _familiar(name: str, low: float, high: float, known: _Known, strafes: bool) -> Binding:
    still = rest(low, high)
    left, right = known.positive[1], known.negative[1]
    if _LEFT in left and not strafes:  # a world without steps to the side turns with A and D, too
        left, right = (*left, "KeyA"), (*right, "KeyD")
    positive = Side(label=known.positive[0], value=_toward(still, high, known.fraction), keys=left)
    negative = Side(label=known.negative[0], value=_toward(still, low, known.fraction), keys=right)
    return Binding(
        name=name, rest=still, positive=positive, negative=negative, axis=known.axis, axis_sign=known.sign,
        mouse=known.mouse,
    )  # fmt: skip


def _generic(
    name: str, low: float, high: float, up: tuple[str, ...], down: tuple[str, ...], axis: str | None, sign: int
) -> Binding:
    still = rest(low, high)
    positive = Side(label=f"{name} +", value=_toward(still, high, COMFORTABLE), keys=up)
    negative = Side(label=f"{name} -", value=_toward(still, low, COMFORTABLE), keys=down)
    return Binding(name=name, rest=still, positive=positive, negative=negative, axis=axis, axis_sign=sign)


def _toward(start: float, end: float, fraction: float) -> float:
    return start + fraction * (end - start)
