"""What a client may ask of a served policy: keys, types and sizes, and a message that says all that is wrong with one.

Names of observations are LeRobot's (`observation.images.CAMERA`, `observation.state`), the instruction is `prompt`, as
openpi's clients call it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldmodel import __version__
from worldmodel.errors import UserError
from worldmodel.options import MAX_SEED
from worldmodel.policies.episodes import Trial
from worldmodel.policies.observation import Interface

IMAGES, STATE, PROMPT = "observation.images.", "observation.state", "prompt"
OPTIONAL, TOKEN = ("seed", "step", "committed", "delay"), "token"
MAX_STEP = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Request:
    """One observation, read and checked.

    seed, step: the sampler's noise is a function of both. committed: what the last chunk planned from this moment on,
    in the robot's units, [n, A] with 1 <= n <= K; None where the robot waits. delay: how many of these will have been
    carried out when the answer comes.
    """

    image: NDArray[np.uint8]  # [N, 3, H, W]
    state: NDArray[np.float32]  # [S]
    words: tuple[int, ...]
    seed: int
    step: int
    committed: NDArray[np.float32] | None = None
    delay: int = 0
    token: NDArray[np.float32] | None = None  # [W] what is known of this robot; None: nothing


class Served(Protocol):
    """A policy behind the server. Only one thread calls it."""

    @property
    def interface(self) -> Interface: ...

    @property
    def chunk(self) -> int:
        """K, actions of an answer."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What else a client is told when it connects: numbers, texts and lists of them."""
        ...

    @property
    def context(self) -> int | None:
        """W, numbers of a token; None without a context encoder."""
        ...

    def infer(self, requests: list[Request]) -> list[NDArray[np.float32]]:
        """The next chunk of each request, [K, A] in the robot's units."""
        ...

    def token(self, trial: Trial) -> NDArray[np.float32]:
        """What a trial shows of the robot that made it, [W]; only with a context encoder."""
        ...


def metadata(served: Served, max_message: int) -> dict[str, Any]:
    """What a client is told when it connects. max_message: bytes of the largest request."""
    interface = served.interface
    keys: dict[str, Any] = {
        IMAGES + camera: {"dtype": "uint8", "shape": [*interface.size, 3]} for camera in interface.cameras
    }
    keys[STATE] = {"dtype": "float32", "shape": [len(interface.state.names)], "names": list(interface.state.names)}
    if interface.instructed:
        keys[PROMPT] = {"dtype": "str", "words": list(interface.vocabulary)}
    actions = interface.action.names
    return {
        "server": f"worldmodel {__version__}",
        "observation": keys,
        "optional": list(_optional(served)),
        "actions": {"dtype": "float32", "shape": [served.chunk, len(actions)], "names": list(actions)},
        "fps": interface.fps,
        "max_message": max_message,
        **served.facts,
    }


def read_request(message: Mapping[str, Any], served: Served, seed: int, step: int) -> Request:
    """A message as a request; seed and step are for one that gives none. UserError with all that is wrong with it."""
    interface, wrong = served.interface, list[str]()
    pictures = [IMAGES + camera for camera in interface.cameras]
    wanted = [*pictures, STATE, *([PROMPT] if interface.instructed else [])]
    if missing := [key for key in wanted if key not in message]:
        wrong.append(f"missing: {', '.join(missing)}")
    if unknown := [f"{key:.60}" for key in message if key not in (*wanted, PROMPT, *_optional(served))]:
        wrong.append(f"unknown: {', '.join(unknown[:8])}{' ...' * (len(unknown) > 8)}")
    for key in pictures:
        if key in message:
            wrong += check_array(key, message[key], "u", (*interface.size, 3), "uint8")
    if STATE in message:
        wrong += check_array(STATE, message[STATE], "f", (len(interface.state.names),), "floats", interface.state.names)
    words: list[int] = []
    if PROMPT in message:
        try:
            words = interface.encode(_text(message[PROMPT])) if interface.instructed else []
            if interface.instructed and not any(words):
                wrong.append(f"{PROMPT}: an instruction is needed, of the words {', '.join(interface.vocabulary)}")
        except UserError as error:
            wrong.append(str(error))
    numbers: dict[str, int] = {}
    for key, default, most in (("seed", seed, MAX_SEED), ("step", step, MAX_STEP), ("delay", 0, served.chunk)):
        value = message.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= most:
            wrong.append(f"{key}: a whole number in [0, {most}] is needed, not {shown(value)}")
        else:
            numbers[key] = int(value)
    committed = message.get("committed")
    if committed is not None:
        wrong += _committed(committed, served, numbers.get("delay", 0))
    elif numbers.get("delay", 0):
        wrong.append("delay: means nothing without committed")
    token = message.get(TOKEN) if served.context is not None else None
    if token is not None:
        wrong += check_array(TOKEN, token, "f", (served.context or 0,), "floats")
    if wrong:
        raise UserError("; ".join(wrong))
    return Request(
        image=np.stack([message[key] for key in pictures]).transpose(0, 3, 1, 2).copy(),
        state=message[STATE].astype(np.float32),
        words=tuple(words),
        seed=numbers["seed"],
        step=numbers["step"],
        committed=None if committed is None else committed.astype(np.float32),
        delay=numbers["delay"],
        token=None if token is None or not token.any() else token.astype(np.float32),  # zeros change nothing
    )


def _optional(served: Served) -> tuple[str, ...]:
    return OPTIONAL if served.context is None else (*OPTIONAL, TOKEN)


def check_array(
    key: str, value: object, kind: str, shape: tuple[int, ...], of: str, names: tuple[str, ...] = ()
) -> Iterator[str]:
    """What is wrong with an array of `shape`, of floats (kind "f") or uint8 ("u"); names: of its last dimension."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != kind or (kind == "u" and value.dtype != np.uint8):
        yield f"{key}: an array of {of} and shape {_sides(shape)} is needed, not {shown(value)}"
    elif value.shape != shape:
        yield f"{key}: shape {_sides(shape)} is needed, not {_sides(value.shape)}"
    elif kind == "f" and not (finite := _as_float32_is_finite(value)).all():
        bad = np.flatnonzero(~finite.reshape(-1, shape[-1]).all(0))
        yield f"{key}: not finite in {', '.join(names[i] if names else str(i) for i in bad[:8])}"


def _committed(value: object, served: Served, delay: int) -> Iterator[str]:
    actions = served.interface.action.names
    rows = len(value) if isinstance(value, np.ndarray) and value.ndim == 2 else 0
    if not 1 <= rows <= served.chunk:
        yield (
            f"committed: an array of floats and shape (n, {len(actions)}), n in [1, {served.chunk}], is needed, not "
            f"{shown(value)}"
        )
        return
    yield from check_array("committed", value, "f", (rows, len(actions)), "floats", actions)
    if delay > rows:
        yield f"delay: {delay} steps, but committed has {rows} actions"


def _as_float32_is_finite(value: np.ndarray) -> NDArray[np.bool_]:
    with np.errstate(over="ignore"):
        return np.isfinite(value.astype(np.float32))


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 1000:
        raise UserError(f"{PROMPT}: a text of at most 1000 characters is needed, not {shown(value)}")
    return value


def _sides(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def shown(value: object) -> str:
    """What a value is, for errors."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {_sides(value.shape)}"
    if isinstance(value, bool | int | float | np.generic):
        return f"{value!s:.40}"
    return f"a {type(value).__name__}"
