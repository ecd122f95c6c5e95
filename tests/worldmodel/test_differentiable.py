"""Differentiable rollouts: two passes equal the plain backward, and each policy opens exactly its calls."""

from dataclasses import dataclass, replace

import pytest
import torch
from tiny import close, small_clip, small_dit
from torch import Tensor

from worldmodel import flow
from worldmodel.chunk import Clip
from worldmodel.differentiable import Gradients, Watched, dream, parallel, pull, rehearse, unrolled
from worldmodel.errors import UserError
from worldmodel.memory import FullConfig, SlowFastConfig, WindowConfig
from worldmodel.models.dit import DiT
from worldmodel.rollout import join, replay, rollout, start
from worldmodel.sampler import Euler, FewStep, Heun, Solver

SEEDS = torch.tensor([3, 4])
SOLVERS = [Euler(steps=3, shift=2.0), Euler(steps=3, guidance=1.5), Heun(steps=2), FewStep(levels=(1.0, 0.6, 0.3))]
POLICIES = [
    Gradients(),
    Gradients(policy="random_step"),
    Gradients(policy="exit_step"),
    Gradients(policy="k_steps", k=2),
    Gradients(policy="all"),
]
MEMORY = WindowConfig(ring=4)
SLOW_FAST = SlowFastConfig(sink=1, slow=2, fast=2, every=2, surprise=0.9)
U = 0.4  # the second of three calls


@pytest.fixture(params=[False, True], ids=["plain", "anchor"])
def model(request: pytest.FixtureRequest) -> DiT:
    return small_dit(anchor=request.param)


def begin(model: DiT, clip: Clip, memory=MEMORY, grad: bool = False):
    with torch.set_grad_enabled(grad):
        return start(model, memory, SEEDS, clip.frames(0, 2))


def spread(x: Tensor) -> Tensor:
    """A loss that couples all frames, as a Frechet distance does."""
    flat = x.flatten(2).mean(-1)
    return flat.var() + (flat.mean() - 0.3).square() + flat.prod(1).mean()


def gradients(model: DiT) -> list[Tensor]:
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


def same(found: list[Tensor], wanted: list[Tensor], tolerance: float = 2e-6) -> None:
    """To a part of the largest gradient, about 0.01: far below 1e-6 in absolute terms, 16 roundings of fp32."""
    scale = max(float(w.abs().max()) for w in wanted)
    assert scale > 1e-3
    for a, b in zip(found, wanted, strict=True):
        assert float((a - b).abs().max()) <= tolerance * scale


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda g: g.policy)
def test_two_passes_equal_the_plain_backward(model, solver: Solver, policy: Gradients):
    clip = small_clip(model, frames=10)
    control = clip.control.frames(2, 10)
    takes, after = dream(model, control, solver, begin(model, clip), policy, U)
    assert after.frame.tolist() == [10, 10] and len(takes) == 4
    loss, pulls = pull(spread, takes)
    for seen, gradient in zip(
        rehearse(model, control, solver, begin(model, clip), policy, takes, U), pulls, strict=True
    ):
        (seen * gradient).sum().backward()
    found = gradients(model)
    plain = spread(torch.cat(unrolled(model, control, solver, begin(model, clip), policy, U), 1))
    plain.backward()
    assert plain.item() == pytest.approx(float(loss), rel=1e-6)
    same(found, gradients(model))


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda g: g.policy)
def test_training_deploys_the_same_sampler(model, solver: Solver, policy: Gradients):
    """Bit for bit the chunks that a stream would make, unless the policy is to stop early."""
    clip = small_clip(model, frames=8)
    control = clip.control.frames(2, 8)
    takes, _ = dream(model, control, solver, begin(model, clip), policy, U)
    with torch.no_grad():
        deployed = join(rollout(model, replay(control, 2), solver, begin(model, clip)))
    made = torch.cat([take.x for take in takes], 1)
    if policy.policy == "exit_step":
        assert not torch.allclose(made, deployed, atol=1e-3)
        close(made, torch.cat([take.seen for take in takes], 1), 1e-5)
    else:
        assert torch.equal(made, deployed)
    again = list(rehearse(model, control, solver, begin(model, clip), policy, takes, U))
    close(torch.cat(again, 1).detach(), torch.cat([take.seen for take in takes], 1), 1e-6)


@dataclass
class Counted:
    """A model that tells in which of its velocity calls gradients were on."""

    inner: DiT
    opened: list[bool]

    @property
    def chunk(self) -> int:
        return self.inner.chunk

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return self.inner.frame_shape

    def prepare(self, control, state):
        return self.inner.prepare(control, state)

    def velocity(self, x_t, t, prepared):
        self.opened.append(torch.is_grad_enabled())
        return self.inner.velocity(x_t, t, prepared)

    def remember(self, chunk, state, time=0.0):
        assert not torch.is_grad_enabled()
        return self.inner.remember(chunk, state, time)


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        (Gradients(), [0, 0, 0, 1], [1]),
        (Gradients(policy="random_step"), [0, 1, 0, 0], [1]),
        (Gradients(policy="exit_step"), [0, 1], [1]),
        (Gradients(policy="k_steps", k=3), [0, 1, 1, 1], [1, 1, 1]),
        (Gradients(policy="all"), [1, 1, 1, 1], [1, 1, 1, 1]),
    ],
    ids=lambda x: x.policy if isinstance(x, Gradients) else "",
)
def test_calls_of_the_two_passes(policy, first, second):
    """What each pass computes, and where it keeps a graph."""
    model = small_dit()
    clip, solver, u = small_clip(model, frames=6), Euler(steps=4), 0.3
    counted = Counted(model, [])
    control = clip.control.frames(2, 6)
    takes, _ = dream(counted, control, solver, begin(model, clip), policy, u)
    assert len(counted.opened) == 2 * len(first) and not any(counted.opened)
    counted.opened = []
    list(rehearse(counted, control, solver, begin(model, clip), policy, takes, u))
    assert counted.opened == [bool(o) for o in second] * 2
    counted.opened = []
    unrolled(counted, control, solver, begin(model, clip), policy, u)
    assert counted.opened == [bool(o) for o in first] * 2


def test_the_random_call_is_uniform():
    policy = Gradients(policy="random_step")
    drawn = [policy.calls(4, u / 1000)[0] for u in range(1000)]
    assert [drawn.count(i) for i in range(4)] == [250] * 4
    assert policy.calls(4, 1.0 - 2**-24) == range(3, 4)


@pytest.mark.parametrize("guidance", [1.0, 1.5])
@pytest.mark.parametrize("policy", ["last_step", "random_step", "exit_step"])
@pytest.mark.parametrize("memory", [FullConfig(), WindowConfig(ring=4), SLOW_FAST], ids=["full", "ring", "slow-fast"])
def test_replay_equals_the_rollout_and_its_context_has_gradients(model, memory, policy, guidance):
    """One pass over constant latents: the rollout's predictions, and the gradient through keys and values as well."""
    clip = small_clip(model, frames=12)
    context, control = clip.frames(0, 2), clip.control.frames(2, 12)
    solver, policy = Euler(steps=3, guidance=guidance), Gradients(policy=policy, memory="replay")
    takes, _ = dream(model, control, solver, begin(model, clip, memory), policy, U)
    together = parallel(model, context, control, solver, takes, memory)
    seen = torch.cat([take.seen for take in takes], 1)
    close(together.detach(), seen, 5e-6)
    _, pulls = pull(spread, takes)
    pulled = torch.cat(pulls, 1)
    (together * pulled).sum().backward()
    found = gradients(model)

    # The same by hand: the memory made with gradients from the constant latents, and one call per chunk.
    state, total = begin(model, clip, memory, grad=True), torch.zeros(())
    for i, take in enumerate(takes):
        part = control.frames(2 * i, 2 * i + 2)
        watched = Watched(solver, policy, U, grad=True, known=[take])
        x, _ = watched(model, part, state)
        total = total + (watched.take().seen * pulls[i]).sum()
        chunk = next(Clip(x, part, clip.index).chunks(2))
        state = state.advance(model.remember(replace(chunk, start=state.frame), state), x, chunk.executed)
    total.backward()
    wanted = gradients(model)
    same(found, wanted, 2e-5)
    for seen_part, pulled_part in zip(
        rehearse(model, control, solver, begin(model, clip, memory), Gradients(policy=policy.policy), takes, U),
        pulls,
        strict=True,
    ):
        (seen_part * pulled_part).sum().backward()
    constant = gradients(model)
    assert max(float((a - b).abs().max()) for a, b in zip(constant, wanted, strict=True)) > 1e-3


def test_full_memory_gradient_against_finite_differences():
    """The gradient through everything that is remembered is the derivative of the whole rollout."""
    model = small_dit()
    clip = small_clip(model, frames=6)
    control, solver, policy = clip.control.frames(2, 6), Euler(steps=2), Gradients(policy="all", memory="full")
    weight = model.blocks[0].qkv.weight

    def loss() -> Tensor:
        return spread(torch.cat(unrolled(model, control, solver, begin(model, clip, FullConfig(), True), policy), 1))

    loss().backward()
    assert weight.grad is not None
    direction = weight.grad / weight.grad.norm()
    slope, h = float((weight.grad * direction).sum()), 2e-3
    with torch.no_grad():
        weight.add_(h * direction)
        above = loss()
        weight.sub_(2 * h * direction)
        below = loss()
    assert slope == pytest.approx(float(above - below) / (2 * h), rel=3e-3)


def test_a_known_bias_is_corrected():
    """A model whose data lies off by a constant learns it away from the mean of its own rollouts alone."""

    class Biased(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.tensor(0.8))
            self.chunk, self.frame_shape = 2, (1, 1, 1)

        def prepare(self, control, state):
            return None

        def velocity(self, x_t, t, prepared):  # leads every frame to `bias`
            return (x_t - self.bias) / t[..., None, None, None]

        def remember(self, chunk, state, time=0.0):
            return state.memory

    model, clip = Biased(), small_clip(small_dit(), frames=8)
    state = start(small_dit(), WindowConfig(ring=4), SEEDS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(30):
        takes, _ = dream(model, clip.control, Euler(steps=3), state, Gradients())
        _, pulls = pull(lambda x: (x.mean() - 0.2).square(), takes)
        for seen, gradient in zip(
            rehearse(model, clip.control, Euler(steps=3), state, Gradients(), takes), pulls, strict=True
        ):
            (seen * gradient).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(model.bias) == pytest.approx(0.2, abs=1e-3)


def test_bad_policies():
    with pytest.raises(UserError, match="k must be at least 1, not 0"):
        Gradients(policy="k_steps", k=0)
    with pytest.raises(UserError, match="memory 'replay' goes with one call per chunk, not with policy 'all'"):
        Gradients(policy="all", memory="replay")
    with pytest.raises(UserError, match="k is 5, the sampler makes 4 calls per chunk"):
        Gradients(policy="k_steps", k=5).calls(4, 0.0)


def test_exit_leads_straight_to_the_prediction():
    """After the exit the field points at the prediction from wherever the solver stands."""
    x, t = torch.randn(2, 2, 1, 1, 1), torch.tensor([[0.5, 0.25]] * 2)
    model = small_dit()
    clip = small_clip(model, frames=4)
    takes, _ = dream(
        model, clip.control.frames(2, 4), Heun(steps=3), begin(model, clip), Gradients(policy="exit_step"), 0.0
    )
    close(takes[0].x, takes[0].seen, 1e-5)
    v = (x - 1.0) / t[..., None, None, None]
    close(flow.clean(x, v, t), torch.ones_like(x), 1e-6)


class Saved:
    """Bytes that autograd keeps for the backward pass: now, and at most."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def pack(self, x: Tensor) -> "Kept":
        return Kept(x, self)

    def __enter__(self) -> "Saved":
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda kept: kept.x)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.hooks.__exit__(*error)


class Kept:
    def __init__(self, x: Tensor, saved: Saved) -> None:
        self.x, self.saved, self.size = x, saved, x.nelement() * x.element_size()
        saved.now += self.size
        saved.peak = max(saved.peak, saved.now)

    def __del__(self) -> None:
        self.saved.now -= self.size


def test_two_passes_keep_one_chunk():
    """What is kept for the backward does not grow with the rollout; the plain way's does."""
    model, memory = small_dit(), WindowConfig(ring=4)
    peaks: dict[str, list[int]] = {"two passes": [], "plain": []}
    for chunks in (4, 32):
        clip = small_clip(model, frames=2 + 2 * chunks)
        control = clip.control.frames(2, 2 + 2 * chunks)
        with Saved() as saved:
            takes, _ = dream(model, control, Euler(steps=2), begin(model, clip, memory), Gradients())
            _, pulls = pull(spread, takes)
            again = rehearse(model, control, Euler(steps=2), begin(model, clip, memory), Gradients(), takes)
            for gradient in pulls:
                (next(again) * gradient).sum().backward()
        peaks["two passes"].append(saved.peak)
        with Saved() as saved:
            seen = unrolled(model, control, Euler(steps=2), begin(model, clip, memory), Gradients())
            spread(torch.cat(seen, 1)).backward()
        peaks["plain"].append(saved.peak)
    few, many = peaks["two passes"]
    assert many <= 1.05 * few, peaks
    assert peaks["plain"][1] > 6 * peaks["plain"][0], peaks
