"""Large-chunk test-time training of a SwiGLU ("Test-Time Training Done Right", LaCT, 2505.23884).

A row and head group remembers in the weights of f(k) = W1 (silu(W0 k) * (W2 k)), with W0, W2: [E, D] and W1: [D, E].
Queries read f(q). A chunk writes by one step of gradient descent on -sum_i <f(k_i), v_i>, every gradient taken at the
weights from before the chunk, so the order of its tokens does not matter. Causal use: read a chunk, then update with
it. Keys and queries should have unit norm: the gradient grows with the square of the key.

Shapes: letters B rows, G head groups, N tokens, D width of a group, E hidden width. Leading axes broadcast: weights
[G, E, D] serve every row, and [P, G, E, D] serve tokens [n, P, G, N, D] of n rows for each of P shared states.

Bytes of a state, in fp32: 4 * 3 * B * G * D * E a layer, twice that with momentum, whatever the length of the rollout.
With width C = G * D and E = r * D this is 12 * B * r * C^2 / G: more groups make it smaller. The initial weights are
parameters, not state.

State is fp32, or fp64 where the weights are: inputs of other types are cast, and autocast does not apply.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.kernels.newton_schulz import newton_schulz


@dataclass(frozen=True, slots=True, eq=False)
class FastWeights:
    """The three matrices, or something of their shapes: a gradient, a momentum, a difference of two states."""

    w0: Tensor  # [..., E, D], the gate
    w1: Tensor  # [..., D, E], the output
    w2: Tensor  # [..., E, D], what is gated

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.w0, self.w1, self.w2))

    def __add__(self, other: "FastWeights") -> "FastWeights":
        return FastWeights(*(a + b for a, b in zip(self, other, strict=True)))

    def __sub__(self, other: "FastWeights") -> "FastWeights":
        return FastWeights(*(a - b for a, b in zip(self, other, strict=True)))

    def state(self) -> "FastWeights":
        """The same in the type that states have: fp32, or fp64 where it is that already."""
        return FastWeights(*(w.to(torch.promote_types(w.dtype, torch.float32)) for w in self))


def read(weights: FastWeights, q: Tensor) -> Tensor:
    """f(q) for q: [B, G, N, D]. Returns the shape and type of q."""
    w0, w1, w2 = weights.state()
    with torch.autocast(q.device.type, enabled=False):
        x = q.to(w0.dtype)
        return ((F.silu(x @ w0.mT) * (x @ w2.mT)) @ w1.mT).to(q.dtype)


def update(
    weights: FastWeights,
    initial: FastWeights,
    keys: Tensor,
    values: Tensor,
    rates: Tensor,
    momentum: FastWeights | None = None,
    beta: Tensor | None = None,
    muon_steps: int = 0,
) -> tuple[FastWeights, FastWeights | None]:
    """One step for a whole chunk: gradient, momentum, Muon, and every row of a matrix back to its initial norm.

    weights: the state before the chunk. initial: whose rows give the norms, along the last axis. keys, values:
    [B, G, N, D]. rates: [B, G, N, 3], at least 0, the learning rate of a token for W0, W1 and W2. momentum and beta
    come together: the momentum before the chunk and its decay [B, G] in [0, 1); m <- beta m + step. muon_steps:
    Newton-Schulz steps that orthogonalise what is added, 0 for none; with them only the ratio of rates matters.
    Returns the state and the momentum (None if none was given) after the chunk; nothing is written in place.

    A token whose three rates are 0 is left out: whatever its key and value hold, NaN too, it has no influence and gets
    no gradient. A row and group all of whose tokens are left out keeps its weights and its momentum bit by bit.

    Interpretation of the paper: what is left out, a decay that belongs to the chunk and not to each of its tokens, and
    a row of zeros, which stays one; the published code adds 1e-5 to a norm that it divides by, this is exact.
    Raises ValueError if only one of momentum and beta is given.
    """
    if (momentum is None) != (beta is None):
        raise ValueError("fast weights: momentum and beta come together")
    weights, initial = weights.state(), initial.state()
    dtype = weights.w0.dtype
    learned = (rates != 0).any(-1, keepdim=True)  # [B, G, N, 1]; negative and NaN rates show in the result
    moved = learned.any(-2, keepdim=True)
    with torch.autocast(keys.device.type, enabled=False):
        k, v = (torch.where(learned, x, 0).to(dtype) for x in (keys, values))
        step = _descent(weights, k, v, rates.to(dtype))
        if momentum is not None and beta is not None:
            decay = beta.to(dtype)[..., None, None]
            step = FastWeights(*(decay * m + d for m, d in zip(momentum, step, strict=True)))
            momentum = _choose(moved, step, momentum)
        if muon_steps:
            step = FastWeights(*(newton_schulz(d, muon_steps) for d in step))
        stepped = FastWeights(*(_with_norms_of(i, w) for i, w in zip(initial, weights + step, strict=True)))
        return _choose(moved, stepped, weights), momentum


def _descent(weights: FastWeights, k: Tensor, v: Tensor, rates: Tensor) -> FastWeights:
    """Minus the gradient of -sum_i <f(k_i), v_i>, in closed form, each token's part times its rate."""
    w0, w1, w2 = weights
    r0, r1, r2 = rates.split(1, -1)
    gate, up = k @ w0.mT, k @ w2.mT  # [B, G, N, E]
    sigmoid = gate.sigmoid()
    silu, slope = gate * sigmoid, sigmoid * (1 + gate * (1 - sigmoid))
    back = v @ w1  # of the hidden product
    return FastWeights((r0 * back * up * slope).mT @ k, (r1 * v).mT @ (silu * up), (r2 * back * silu).mT @ k)


def _with_norms_of(initial: Tensor, w: Tensor) -> Tensor:
    """w with the norm of every row of `initial`."""
    return F.normalize(w, dim=-1) * torch.linalg.vector_norm(initial, dim=-1, keepdim=True)


def _choose(where: Tensor, a: FastWeights, b: FastWeights) -> FastWeights:
    return FastWeights(*(torch.where(where, x, y) for x, y in zip(a, b, strict=True)))
