"""Which implementation of an operation runs: one setting for the whole process, and nothing that changes unseen.

An operation (`Op`) has several backends: `triton`, libraries (`xformers`, `flex`, `sdpa`) and `reference`, the plain
PyTorch that says what is right. A backend knows why it cannot serve a call (`reasons`). The setting is one of

- `auto`: the first backend in the op's order that can serve a call on its device. One that is passed over is logged
  once per reason and counted for ever (`fallbacks`), for the live overlay and `doctor`.
- the name of a backend: every op that has it uses it or raises `BackendError` with its reasons. An op that has no such
  backend (there is no xformers for a modulation) goes by `auto`; `explain` says so.

The choice is made from a call's shapes, types and device before anything runs. An error of a backend that runs is an
error: no other one takes its place. Choosing takes about two microseconds, works under torch.compile(fullgraph=True)
and happens there at compile time.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, get_args

import torch

from .names import SETTINGS, Name, Setting

_log = logging.getLogger(__name__)
_setting: Setting = "auto"


def constant[F: Callable[..., object]](function: F) -> F:
    """Called while compiling, its result is a constant of the graph: torch.compiler.assume_constant_result, which does
    nothing but this, and imports the compiler for it (seconds)."""
    vars(function)["_dynamo_marked_constant"] = True
    return function


class BackendError(RuntimeError):
    """A backend that was asked for by name cannot serve a call, or there is none of that name; one line says why."""


class Call(Protocol):
    """The arguments of one use of an op, as a value."""

    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True, slots=True)
class Backend[C: Call, R]:
    """One way to compute an op.

    reasons: why it cannot serve a call, empty if it can; looks at shapes, types, strides and devices, never at values.
    run: the result of a call that it can serve. auto: the types of device on which `auto` considers it, of the op's
    backends in their order; none if it must be asked for by name.
    """

    name: Name
    reasons: Callable[[C], tuple[str, ...]]
    run: Callable[[C], R]
    auto: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fallback:
    """What `auto` passed over, and why."""

    op: str
    wanted: Name
    reason: str

    def __str__(self) -> str:
        return f"{self.op}: the backend {self.wanted} is not used: {self.reason}"


@dataclass(frozen=True, slots=True)
class Op[C: Call, R]:
    """An operation; the order of its backends is that in which `auto` looks at them, and the last serves every call."""

    name: str
    backends: tuple[Backend[C, R], ...]

    def __call__(self, call: C, setting: Setting | None = None) -> R:
        return self.choose(call, setting).run(call)

    def choose(self, call: C, setting: Setting | None = None) -> Backend[C, R]:
        """The backend that serves a call. setting: None for that of the process.

        BackendError if one that was named cannot, or if the last one of `auto` cannot.
        """
        setting = _setting if setting is None else setting
        if setting != "auto":
            for backend in self.backends:
                if backend.name == setting:
                    reasons = backend.reasons(call)
                    if reasons:
                        raise BackendError(f"{self.name}: the backend {setting} cannot: {'; '.join(reasons)}")
                    return backend
        kind = call.device.type
        last = self.backends[-1]
        for backend in self.backends:
            if kind in backend.auto or backend is last:
                reasons = backend.reasons(call)
                if not reasons:
                    return backend
                _passed_over(self.name, backend.name, reasons)
        raise BackendError(f"{self.name}: no backend can: {self._all_reasons(call)}")

    def explain(self, call: C) -> dict[Name, tuple[str, ...]]:
        """Why each backend cannot serve a call; empty for those that can. A backend it does not have has a reason."""
        own = {backend.name: backend.reasons(call) for backend in self.backends}
        missing = (f"{self.name} has no such backend",)
        return {name: own.get(name, missing) for name in get_args(Name)}

    def _all_reasons(self, call: C) -> str:
        own = {backend.name: backend.reasons(call) for backend in self.backends}
        return "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in own.items())


def setting() -> Setting:
    """The backend setting of this process."""
    return _setting


def use(name: str) -> None:
    """Set the backend of all ops of this process, from now on. BackendError for an unknown name."""
    global _setting
    if name not in SETTINGS:
        raise BackendError(f"no backend '{name}'; there are {', '.join(SETTINGS)}")
    _setting = name


@contextmanager
def using(name: str) -> Iterator[None]:
    """The same for the time of a `with` block. Process-wide: other threads see it too."""
    before = _setting
    use(name)
    try:
        yield
    finally:
        use(before)


_counts: dict[Fallback, int] = {}
_lock = threading.Lock()


def fallbacks() -> dict[Fallback, int]:
    """How often `auto` has passed over a backend in this process; under torch.compile, how often while compiling."""
    with _lock:
        return dict(_counts)


def forget_fallbacks() -> None:
    """Start counting, and logging, anew."""
    with _lock:
        _counts.clear()


@constant
def _passed_over(op: str, wanted: Name, reasons: tuple[str, ...]) -> None:
    for reason in reasons:
        fallback = Fallback(op, wanted, reason)
        with _lock:
            first = fallback not in _counts
            _counts[fallback] = _counts.get(fallback, 0) + 1
        if first:
            _log.warning("%s", fallback)
