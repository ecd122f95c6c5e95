"""Rollouts that training differentiates: the deployed sampler itself, with gradients through chosen calls of it.

A loss over a whole rollout would keep every chunk's graph alive. Two passes keep one: `dream` rolls out without
gradients and notes each sampler call; the caller turns its loss over all chunks into dL/dx of each (`pull`); `rehearse`
then goes through the same rollout again, along the very same latents, and yields one chunk's differentiable prediction
at a time, whose product with its dL/dx is backpropagated before the next chunk is made. The sum of these gradients is
that of the plain backward. Frechet Forcing (2607.07675) and FD-loss (2604.28190) need this; the arrangement is ours.

Shape letters: B rows, K frames of a chunk, n chunks, T = n K frames.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import flow
from .chunk import ActionControl, Clip, Control
from .errors import UserError
from .memory import MemoryConfig
from .rollout import replay, rollout
from .sampler import Solver, Streamable, Velocity, draws, guide, guided
from .state import State

Policy = Literal["last_step", "random_step", "exit_step", "k_steps", "all"]


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Where gradients flow in a rollout.

    policy: `last_step` through the last sampler call of each chunk; `random_step` through one call, the same for all
    chunks and ranks, whose predicted data the loss sees, while all calls run and the final sample is remembered;
    `exit_step` as that, but sampling stops there and the prediction is the sample (Self Forcing, 2506.08009);
    `k_steps` through the last `k` calls; `all` through every call. memory: `none`, what is remembered is constant;
    `replay`, keys and values of the context are made again with gradients from constant latents, for all chunks at once
    (Self Gradient Forcing, 2607.20368); `full`, through the remembered latents too, which keeps the whole graph.
    """

    policy: Policy = "last_step"
    k: int = 1
    memory: Literal["none", "replay", "full"] = "none"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"gradients: k must be at least 1, not {self.k}")
        if self.memory == "replay" and self.policy in ("k_steps", "all"):
            raise UserError(f"gradients: memory 'replay' goes with one call per chunk, not with policy {self.policy!r}")

    def calls(self, total: int, u: float) -> range:
        """The calls of a chunk's `total` that carry gradients; u in [0, 1) draws the random one."""
        match self.policy:
            case "last_step":
                return range(total - 1, total)
            case "random_step" | "exit_step":
                chosen = min(int(u * total), total - 1)
                return range(chosen, chosen + 1)
            case "k_steps":
                if self.k > total:
                    raise UserError(f"gradients: k is {self.k}, the sampler makes {total} calls per chunk")
                return range(total - self.k, total)
            case "all":
                return range(total)


@dataclass(frozen=True, slots=True)
class Take:
    """What the first pass keeps of one chunk."""

    x: Tensor  # [B, K, ...] the sample, which is remembered
    seen: Tensor  # [B, K, ...] what the loss sees: the sample, or the prediction of one call
    point: tuple[Tensor, Tensor]  # x_t [B, K, ...] and t [B, K] of the first call that carries gradients
    velocities: tuple[Tensor, ...]  # of the calls before that one


class _Field:
    """A velocity field whose calls are watched: gradients only through the chosen ones."""

    def __init__(self, velocity: Velocity, chosen: range, exits: bool, known: Sequence[Tensor]) -> None:
        self.velocity, self.chosen, self.exits, self.known = velocity, chosen, exits, known
        self.calls = 0
        self.before: list[Tensor] = []
        self.point: tuple[Tensor, Tensor] | None = None
        self.predicted: Tensor | None = None  # the data that the last chosen call points at

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        i, self.calls = self.calls, self.calls + 1
        if i in self.chosen:
            if self.point is None:
                self.point = (x.detach(), t)
            v = self.velocity(x, t)
            self.predicted = flow.clean(x, v, t)
            return v
        if i > self.chosen[-1] and self.exits:  # straight on to the prediction, without the model
            assert self.predicted is not None
            return (x - self.predicted) / t.reshape(*t.shape, *(1,) * (x.ndim - t.ndim))
        if i < len(self.known):
            return self.known[i]
        with torch.no_grad():
            v = self.velocity(x, t)
        if i < self.chosen[0]:
            self.before.append(v)
        return v


class Watched:
    """A solver under watch, used as the sampler of a rollout; `newest` is its take of the last chunk."""

    lookahead = 0

    def __init__(
        self, solver: Solver, gradients: Gradients, u: float, grad: bool, known: Iterable[Take] | None = None
    ) -> None:
        """grad: build graphs. known: the takes of an earlier pass, whose samples and first calls are used again."""
        self.solver, self.gradients, self.chosen = solver, gradients, gradients.calls(solver.calls, u)
        self.grad, self.known = grad, None if known is None else iter(known)
        self.newest: Take | None = None

    def take(self) -> Take:
        """The newest take, handed over: its graph lives as long as the caller keeps it."""
        take, self.newest = self.newest, None
        assert take is not None
        return take

    def __call__(self, model: Streamable, control: Any, state: State) -> tuple[Tensor, None]:
        known = None if self.known is None else next(self.known)
        with torch.set_grad_enabled(self.grad):
            velocity = guided(model, control, state, self.solver.guidance)
            first = () if known is None else known.velocities
            field = _Field(velocity, self.chosen, self.gradients.policy == "exit_step", first)
            if known is not None and len(self.chosen) == 1:  # no other call matters
                field.calls = self.chosen[0]
                field(*known.point)
                x = known.x
            else:
                x = self.solver.integrate(field, draws(model, state, model.chunk))
        assert field.predicted is not None and field.point is not None
        self.newest = Take(x, field.predicted if len(self.chosen) == 1 else x, field.point, tuple(field.before))
        return (x if self.gradients.memory == "full" else x.detach()), None


def dream(
    model: Streamable,
    control: Control,
    solver: Solver,
    state: State,
    gradients: Gradients,
    u: float = 0.0,
    context_time: float = 0.0,
) -> tuple[list[Take], State]:
    """The first pass: a rollout under `control` [B, T] without gradients, and the state after it.

    u in [0, 1): draws the call of the `random_step` and `exit_step` policies.
    """
    watched, takes = Watched(solver, gradients, u, grad=False), list[Take]()
    with torch.no_grad():
        for _, after in rollout(model, replay(control, model.chunk), watched, state, context_time):
            takes.append(watched.take())
            state = after
    return takes, state


def rehearse(
    model: Streamable,
    control: Control,
    solver: Solver,
    state: State,
    gradients: Gradients,
    takes: Sequence[Take],
    u: float = 0.0,
    context_time: float = 0.0,
) -> Iterator[Tensor]:
    """The second pass: what the loss sees of every chunk [B, K, ...], each with a graph of its own.

    Starts from an equal `state` as `dream` did (a memory is consumed by a rollout: build it again, or fork it before).
    """
    watched = Watched(solver, gradients, u, grad=True, known=takes)
    chunks = rollout(model, replay(control, model.chunk), watched, state, context_time)
    for _ in takes:
        with torch.no_grad():  # for what is remembered; the sampler turns gradients on for its call
            next(chunks)
        yield watched.take().seen


def unrolled(
    model: Streamable,
    control: Control,
    solver: Solver,
    state: State,
    gradients: Gradients,
    u: float = 0.0,
    context_time: float = 0.0,
) -> list[Tensor]:
    """What the loss sees of every chunk, in one graph: the plain way, and the way of memory `full`."""
    watched, seen = Watched(solver, gradients, u, grad=True), list[Tensor]()
    chunks = rollout(model, replay(control, model.chunk), watched, state, context_time)
    while True:
        with torch.set_grad_enabled(gradients.memory == "full"):
            if next(chunks, None) is None:
                return seen
        seen.append(watched.take().seen)


def parallel(
    model: nn.Module,
    context: Clip[ActionControl],
    control: ActionControl,
    solver: Solver,
    takes: Sequence[Take],
    memory: MemoryConfig | None = None,
    context_time: float = 0.0,
) -> Tensor:
    """What the loss sees of all chunks [B, T, ...], made in one pass whose context has gradients too (memory `replay`).

    model: a DiT or its wrapper. context: what the rollout started from; control: of the rollout [B, T]. memory:
    the rollout's, None for all. The predictions equal those of the rollout.
    """
    x_t, t = (torch.cat([take.point[i] for take in takes], 1) for i in (0, 1))
    x = torch.cat((context.x, *(take.x.detach() for take in takes[:-1])), 1)
    whole = context.control.join(control)
    time = torch.full(x.shape[:2], context_time, device=x.device)
    if solver.guidance == 1.0:
        return flow.clean(x_t, model("clip", x_t, t, whole, (x, time), memory), t)
    rows = torch.arange(2 * x.shape[0], device=x.device)
    twice, drop = rows % x.shape[0], rows >= x.shape[0]
    v = model("clip", x_t[twice], t[twice], whole.select(twice), (x[twice], time[twice]), memory, drop)
    with_control, without = v.chunk(2)
    return flow.clean(x_t, guide(with_control, without, solver.guidance), t)


def pull(loss: Callable[[Tensor], Tensor], takes: Sequence[Take]) -> tuple[Tensor, list[Tensor]]:
    """The loss [] of the rollout that the takes make, x [B, T, ...], and its gradient for each chunk [B, K, ...]."""
    x = torch.cat([take.seen for take in takes], 1).detach().requires_grad_()
    with torch.enable_grad():
        value = loss(x)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), list(gradient.split([take.seen.shape[1] for take in takes], 1))
