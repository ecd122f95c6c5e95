"""From an observation to the actions that are carried out: one chunk by the engine's sampler, perhaps while moving.

A robot that moves while its policy computes has committed to the first d actions of the next chunk: those that its last
chunk planned. Three ways to make a chunk that goes on from them: `naive` ignores them; `guided` pulls the sampler
towards them (real-time chunking, 2506.07339, in our direction of time); `prefix` gives them to a policy that was
trained with a prefix (2512.05964).

Letters: B rows, K actions of a chunk, A numbers of an action. Actions are normalised unless said otherwise.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from worldmodel import flow
from worldmodel.errors import UserError
from worldmodel.memory import LastFrameConfig
from worldmodel.policies.flow_policy import FlowPolicy, Prepared
from worldmodel.policies.observation import Observation
from worldmodel.rollout import start
from worldmodel.sampler import Sampler, Solver, Streamable, Velocity, draws

Chunking = Literal["naive", "guided", "prefix"]
STRONGEST = 5.0  # of the guidance towards committed actions (2506.07339 clips there)


@dataclass(frozen=True, slots=True)
class Committed:
    """What the last chunk planned for the moments of the next one."""

    actions: Tensor  # [B, K, A]; what lies behind its end is never looked at
    planned: int  # how many of them there are
    fixed: int  # how many of these will have been carried out when the next chunk is ready

    def weights(self) -> Tensor:
        """[K]: 1 on the fixed actions, then falling to 0 at the end of what was planned (2506.07339, equation 5)."""
        place = torch.arange(self.actions.shape[1], dtype=torch.float32, device=self.actions.device)
        left = ((self.planned - place) / (self.planned - self.fixed + 1)).clamp(0, 1)
        soft = left * torch.expm1(left) / torch.expm1(torch.ones(()))
        return torch.where(place < self.fixed, torch.ones(()), soft)


@torch.no_grad()
def plan(
    model: Streamable,
    sampler: Sampler,
    seen: Observation,
    seed: Tensor,
    step: Tensor,
    chunking: Chunking = "naive",
    committed: Committed | None = None,
) -> Tensor:
    """The next chunk [B, K, A] of every row under its observation.

    seed [B] int64: of the rows; step [B] int64: control steps since the episode began. Noise is a function of both.
    committed: None where the robot stands still until the chunk is ready. UserError if chunks of a model without a
    velocity are to be joined otherwise than `naive`.
    """
    state = replace(start(model, LastFrameConfig(), seed), frame=step)
    if committed is None or chunking == "naive":
        return sampler(model, seen, state)[0]
    if not isinstance(model, FlowPolicy) or not isinstance(sampler, Solver):
        raise UserError(f"chunking {chunking}: only a flow policy of our own can join its chunks so")
    prepared = model.prepare(seen, state)
    held = committed.actions
    if chunking == "prefix":
        fixed = (torch.arange(model.chunk, device=seed.device) < committed.fixed)[None]
        velocity = prefixed(model, prepared, held, fixed)
        made = sampler.integrate(velocity, draws(model, state, model.chunk))
        return torch.where(fixed[..., None], held, made)
    return sampler.integrate(
        guided_by(model, prepared, held, committed.weights()),
        draws(model, state, model.chunk),
    )


def prefixed(model: FlowPolicy, prepared: Prepared, held: Tensor, fixed: Tensor) -> Velocity:
    """The velocity field in which the fixed places [1, K] hold clean actions at flow time 0."""

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return model.velocity(torch.where(fixed[..., None], held, x), t.masked_fill(fixed, 0), prepared)

    return velocity


def guided_by(
    model: FlowPolicy, prepared: Prepared, held: Tensor, weight: Tensor, strongest: float = STRONGEST
) -> Velocity:
    """The velocity field pulled so that its predicted data near `held` [B, K, A] where weight [K] says so.

    v - min(beta, t / ((1 - t) r^2)) J^T [W (Y - x0_hat)], r^2 = t^2 / (t^2 + (1 - t)^2), J = d x0_hat / d x_t
    (2506.07339, equation 2, with t = 1 noise). At t = 1 the factor is `strongest`.

    Our own: a row's gradient is never longer than its gap W (Y - x0_hat). Where J stretches, as it does on observations
    that no demonstration has, steps of the sampler overshoot, the next chunk is held to that, and targets grow without
    bound.
    """

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            v = model.velocity(x, t, prepared)
            clean = flow.clean(x, v, t)
            gap = weight[:, None] * (held - clean).detach()
            (gradient,) = torch.autograd.grad(clean, x, gap)
        gradient = gradient * (_length(gap) / _length(gradient).clamp_min(1e-12)).clamp(max=1)
        noise, data = t**2, (1 - t) ** 2
        factor = (noise + data) / (t * (1 - t)).clamp_min(1e-6)  # t / ((1 - t) r^2)
        return (v - factor.clamp(max=strongest)[..., None] * gradient).detach()

    return velocity


def _length(x: Tensor) -> Tensor:
    """[B, 1, 1], of each row as one vector."""
    return x.square().sum((1, 2), keepdim=True).sqrt()


def ensembled(chunks: list[tuple[int, Tensor]], moment: int, decay: float) -> Tensor:
    """The mean [A] of what chunks (first moment, actions [K, A]), oldest first, plan for a moment (2304.13705)."""
    planned = [chunk[moment - first] for first, chunk in chunks if 0 <= moment - first < len(chunk)]
    weight = torch.exp(-decay * torch.arange(len(planned), dtype=torch.float32))
    return (torch.stack(planned) * (weight / weight.sum())[:, None]).sum(0)
