"""Large-chunk updates against a loop over tokens with autograd in fp64, and Newton-Schulz against the SVD."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.nn import functional as F

from worldmodel.kernels.fast_weight import FastWeights, read, update
from worldmodel.kernels.newton_schulz import QUINTIC, newton_schulz

SHAPES = [(2, 3, 7, 4, 6), (1, 1, 1, 5, 3), (2, 1, 4, 1, 8), (1, 2, 5, 8, 1), (3, 2, 0, 4, 4)]  # B, G, N, D, E


class Case:
    """Drawn inputs of one chunk, in fp64 with every value exact in fp32."""

    def __init__(self, b, g, n, d, e, seed=0):
        self.draw, self.lead = torch.Generator().manual_seed(seed), (b, g)
        self.initial, self.weights = self.three(d, e), self.three(d, e)
        self.momentum = self.three(d, e)
        self.keys, self.values, self.queries = (self.normal(b, g, n, d) for _ in range(3))
        self.rates = F.softplus(self.normal(b, g, n, 3)).float().double()
        self.beta = self.normal(b, g).sigmoid().float().double()

    def normal(self, *shape):
        return torch.randn(shape, generator=self.draw).double()

    def three(self, d, e):
        return FastWeights(*(self.normal(*self.lead, *shape) for shape in ((e, d), (d, e), (e, d))))

    @property
    def chunk(self):
        return self.keys, self.values, self.rates

    def stepped(self, momentum=False, muon_steps=0, dtype=torch.float64):
        def cast(x):
            return FastWeights(*map(cast, x)) if isinstance(x, FastWeights) else x.to(dtype)

        kept = {"momentum": cast(self.momentum), "beta": cast(self.beta)} if momentum else {}
        return update(cast(self.weights), cast(self.initial), *map(cast, self.chunk), **kept, muon_steps=muon_steps)

    def expected(self, momentum=False, muon_steps=0):
        return by_tokens(
            self.weights,
            self.initial,
            *self.chunk,
            self.momentum if momentum else None,
            self.beta if momentum else None,
            muon_steps,
        )


def f(w0, w1, w2, x):
    """The definition for one token x: [D]."""
    a = w0 @ x
    return w1 @ (a / (1 + torch.exp(-a)) * (w2 @ x))


def by_tokens(weights, initial, keys, values, rates, momentum=None, beta=None, muon_steps=0):
    """The definition: autograd of every token's loss at the weights from before the chunk, one token after another."""
    new, kept = ([torch.empty_like(w) for w in weights] for _ in range(2))
    for b, g in ((b, g) for b in range(keys.shape[0]) for g in range(keys.shape[1])):
        start = [w[b, g].detach().requires_grad_() for w in weights]
        step = [torch.zeros_like(w) for w in start]
        for k, v, r in zip(keys[b, g], values[b, g], rates[b, g], strict=True):
            if r.any():
                grads = torch.autograd.grad(-(f(*start, k) * v).sum(), start)
                step = [d - rate * grad for d, rate, grad in zip(step, r, grads, strict=True)]
        for i, w in enumerate(start):
            if not rates[b, g].any():
                new[i][b, g], kept[i][b, g] = w.detach(), list(momentum)[i][b, g] if momentum else 0
                continue
            d = step[i] if momentum is None else beta[b, g] * list(momentum)[i][b, g] + step[i]
            kept[i][b, g] = d
            moved = w.detach() + (by_svd(d, muon_steps) if muon_steps else d)
            for row, first in enumerate(list(initial)[i][b, g]):
                new[i][b, g, row] = moved[row] * math.sqrt((first**2).sum() / (moved[row] ** 2).sum())
    return FastWeights(*new), FastWeights(*kept) if momentum else None


def by_svd(x, steps):
    """The same quintic, applied to the singular values in fp64."""
    u, s, v = torch.linalg.svd(x.double(), full_matrices=False)
    s = s / torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    a, b, c = QUINTIC
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return u * s[..., None, :] @ v


def distance(found, wanted):
    """The largest difference of a matrix over its largest entry, the worst of the three."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(found, wanted, strict=True)]
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("momentum", [False, True])
def test_update_equals_its_definition(shape, momentum):
    case = Case(*shape)
    (wanted, kept), (exact, held) = case.expected(momentum), case.stepped(momentum)
    assert distance(exact, wanted) < 1e-13
    single, held32 = case.stepped(momentum, dtype=torch.float32)
    assert distance(single, wanted) < 1e-5 and all(w.dtype == torch.float32 for w in single)
    if momentum:
        assert distance(held, kept) < 1e-13 and distance(held32, kept) < 1e-5
    else:
        assert held is held32 is kept is None


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2]])
@pytest.mark.parametrize("momentum", [False, True])
def test_muon_equals_its_definition(shape, momentum):
    """The quintic multiplies small singular values, and their rounding errors, by up to 3.4445^5 = 485."""
    case = Case(*shape)
    wanted, _ = case.expected(momentum, muon_steps=5)
    assert distance(case.stepped(momentum, muon_steps=5)[0], wanted) < 1e-5
    assert distance(case.stepped(momentum, muon_steps=5, dtype=torch.float32)[0], wanted) < 1e-4


def test_muon_is_after_the_momentum():
    """What is kept is the momentum itself, not its orthogonalised form."""
    case = Case(2, 1, 4, 3, 5)
    assert equal(case.stepped(True, muon_steps=5)[1], case.stepped(True)[1])


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (1, 6), (3, 4, 9), (2, 2, 7, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 5])
def test_newton_schulz_equals_the_svd(shape, dtype, steps):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    made = newton_schulz(x, steps)
    assert made.shape == x.shape and made.dtype == dtype
    assert (made.double() - by_svd(x, steps)).abs().max() < 1e-5


def test_newton_schulz_spreads_singular_values_as_said():
    s = torch.linspace(0.01, 1, 200, dtype=torch.float64)
    s = torch.diag_embed(torch.stack((s, (1 - s**2).clamp_min(0).sqrt()), -1))  # of Frobenius norm 1
    made = newton_schulz(s, 5).diagonal(dim1=-2, dim2=-1)[:, 0]
    assert 0.65 < made.min() < 0.75 and 1.1 < made.max() < 1.25
    assert torch.equal(newton_schulz(torch.zeros(3, 4), 5), torch.zeros(3, 4))


@pytest.mark.parametrize("shape", SHAPES)
def test_read_equals_its_definition(shape):
    case = Case(*shape)
    found = read(case.weights, case.queries)
    assert found.shape == case.queries.shape
    for place in torch.cartesian_prod(*map(torch.arange, found.shape[:3])).tolist():
        b, g, _ = place
        wanted = f(*(w[b, g] for w in case.weights), case.queries[tuple(place)])
        torch.testing.assert_close(found[tuple(place)], wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("muon_steps", [0, 2])
def test_gradients_of_two_chunks(muon_steps):
    """Of all inputs, through a read, an update, a read with what was written, an update and a last read."""
    case = Case(1, 2, 4, 2, 3, seed=1)

    def stream(q, k, v, rates, beta, *matrices):
        weights, initial, momentum = (FastWeights(*matrices[i : i + 3]) for i in (0, 3, 6))
        out = []
        for chunk in (slice(0, 2), slice(2, 4)):
            out.append(read(weights, q[:, :, chunk]))
            parts = (x[:, :, chunk] for x in (k, v, rates))
            weights, momentum = update(weights, initial, *parts, momentum, beta, muon_steps)
        return torch.cat((*out, read(weights, q)), 2), *weights, *momentum

    inputs = (case.queries, *case.chunk, case.beta, *case.weights, *case.initial, *case.momentum)
    assert gradcheck(stream, tuple(x.clone().requires_grad_() for x in inputs))


def test_read_before_update_is_causal():
    """What a chunk reads depends on the chunks before it, and on nothing of its own or later keys and values."""
    case = Case(2, 2, 12, 3, 4)
    keys, values = (x.clone().requires_grad_() for x in (case.keys, case.values))
    weights, out = case.weights, []
    for chunk in (slice(0, 4), slice(4, 8), slice(8, 12)):
        out.append(read(weights, case.queries[:, :, chunk]))
        weights, _ = update(weights, case.initial, *(x[:, :, chunk] for x in (keys, values, case.rates)))
    for i in (1, 2):
        for seen in torch.autograd.grad(out[i].sum(), (keys, values), retain_graph=True):
            reached = seen.abs().amax((0, 1, 3)) > 0
            assert reached[: 4 * i].all() and not reached[4 * i :].any()
    assert not out[0].requires_grad


def test_inputs_are_left_alone():
    case, same = Case(2, 2, 3, 4, 5), Case(2, 2, 3, 4, 5)
    case.stepped(momentum=True, muon_steps=5)
    read(case.weights, case.queries)
    for name in ("weights", "initial", "momentum", "chunk"):
        assert equal(getattr(case, name), getattr(same, name))


@given(st.data(), st.integers(1, 3), st.integers(1, 2), st.integers(0, 5), st.integers(1, 5), st.integers(1, 5))
def test_tokens_that_are_left_out_leave_no_trace(data, b, g, n, d, e):
    """Poisoned, they change no bit of values and gradients; the rest is as if they were not there."""
    case = Case(b, g, n, d, e, seed=data.draw(st.integers(0, 99)))
    muon_steps = data.draw(st.sampled_from([0, 5]))
    flags = data.draw(st.lists(st.booleans(), min_size=b * g * n, max_size=b * g * n))
    out = torch.tensor(flags, dtype=torch.bool).reshape(b, g, n, 1)
    case.rates = case.rates.masked_fill(out, 0)
    results = []
    for poison in (1.0, math.nan, math.inf):
        k, v = (x.masked_fill(out, poison).requires_grad_() for x in (case.keys, case.values))
        rates = case.rates.clone().requires_grad_()
        new, kept = update(case.weights, case.initial, k, v, rates, case.momentum, case.beta, muon_steps)
        assert kept is not None
        loss = sum((w * c).sum() for w, c in zip((*new, *kept), (*case.initial, *case.weights), strict=True))
        grads = torch.autograd.grad(loss, (k, v, rates)) if n else ()
        assert all(not grad.masked_fill(~out, 0).any() for grad in grads)
        results.append((*new, *kept, *grads))
    assert all(equal(results[0], other) for other in results[1:])
    wanted, held = case.expected(True, muon_steps)
    assert distance(results[0][3:6], held) < 1e-12
    assert distance(results[0][:3], wanted) < (1e-5 if muon_steps else 1e-10)


@pytest.mark.parametrize("muon_steps", [0, 5])
def test_rows_without_a_rate_keep_every_bit(muon_steps):
    case = Case(3, 2, 4, 3, 5)
    still = torch.tensor([[True, False], [True, True], [False, False]])
    case.rates[still] = 0
    new, kept = case.stepped(True, muon_steps, torch.float32)
    for after, before in ((new, case.weights), (kept, case.momentum)):
        for a, b in zip(after, before, strict=True):
            assert torch.equal(a[still], b[still].float())
            assert (a[~still] != b[~still].float()).flatten(1).any(1).all()


def test_a_token_with_one_rate_moves_one_matrix():
    for moving in range(3):
        case = Case(1, 1, 4, 3, 5)
        case.rates[..., torch.arange(3) != moving] = 0
        (new, _), fresh = case.stepped(), case.weights
        moved = [_angle(a, b) > 1e-3 for a, b in zip(new, fresh, strict=True)]
        assert moved == [i == moving for i in range(3)]


def _angle(a, b):
    """The largest difference of two rows' directions."""
    return float((F.normalize(a, dim=-1) - F.normalize(b, dim=-1)).norm(dim=-1).max())


@pytest.mark.parametrize("muon_steps", [0, 5])
@pytest.mark.parametrize("scale", [1e-4, 1e3])
def test_extreme_keys_stay_finite(scale, muon_steps):
    case = Case(2, 2, 16, 8, 16)
    inputs = [x.float().requires_grad_() for x in (case.keys * scale, case.values * scale, case.rates, *case.weights)]
    initial, momentum = (FastWeights(*(w.float() for w in x)) for x in (case.initial, case.momentum))
    new, kept = update(
        FastWeights(*inputs[3:]), initial, *inputs[:3], momentum, case.beta.float(), muon_steps=muon_steps
    )
    for w, first in zip(new, initial, strict=True):
        torch.testing.assert_close(w.norm(dim=-1), first.norm(dim=-1), rtol=1e-5, atol=0)
    y = read(new, case.queries.float() * scale)
    grads = torch.autograd.grad((y / scale**2).sum(), inputs)
    assert all(x.isfinite().all() for x in (*new, *kept, y, *grads))


def test_norms_do_not_drift():
    """After 300 chunks the rows have their initial norms, as after one."""
    case = Case(1, 2, 4, 6, 5)
    weights = initial = FastWeights(*(w.float() for w in case.initial))
    for _ in range(300):
        k, v = (F.normalize(case.normal(1, 2, 4, 6), dim=-1).float() for _ in range(2))
        weights, _ = update(weights, initial, k, v, case.rates.float())
    for w, first in zip(weights, initial, strict=True):
        torch.testing.assert_close(w.norm(dim=-1), first.norm(dim=-1), rtol=1e-6, atol=0)


def test_a_row_of_zeros_stays_one():
    case = Case(1, 1, 4, 3, 5)
    for w in case.initial:
        w[..., 0, :] = 0
    case.initial.w1.requires_grad_()
    new, _ = case.stepped(muon_steps=5)
    assert all(not w[..., 0, :].any() and w[..., 1:, :].all() for w in new)
    assert torch.autograd.grad(sum(w.sum() for w in new), case.initial.w1)[0].isfinite().all()


@given(st.permutations(range(9)), st.sampled_from([0, 5]))
def test_the_order_of_tokens_does_not_matter(order, muon_steps):
    case, other = Case(1, 2, 9, 4, 4), Case(1, 2, 9, 4, 4)
    other.keys, other.values, other.rates = (x[:, :, order] for x in case.chunk)
    for dtype in (torch.float64, torch.float32):
        tolerance = 1e-6 if dtype == torch.float64 or not muon_steps else 1e-4
        (a, _), (b, _) = (x.stepped(True, muon_steps, dtype) for x in (case, other))
        assert distance(a, b) < tolerance


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_state_in_fp32(dtype):
    """Cast or under autocast, what is computed is fp32 arithmetic on the inputs as they are."""
    case = Case(2, 2, 5, 4, 6)
    keys, values, queries = (x.to(dtype) for x in (case.keys, case.values, case.queries))
    weights, initial = (FastWeights(*(w.float() for w in x)) for x in (case.weights, case.initial))
    wanted, _ = by_tokens(case.weights, case.initial, keys.double(), values.double(), case.rates)
    with torch.autocast("cpu", torch.bfloat16):
        new, _ = update(weights, initial, keys, values, case.rates.float())
        y = read(weights, queries)
    assert y.dtype == dtype and distance(new, wanted) < 1e-5 and all(w.dtype == torch.float32 for w in new)
    assert torch.equal(y, read(weights, queries.float()).to(dtype))
    halved = FastWeights(*(w.to(dtype) for w in initial))  # parameters of a model that was cast whole
    new, _ = update(halved, halved, keys, values, case.rates.to(dtype))
    assert all(w.dtype == torch.float32 for w in new)


def test_rows_share_weights_by_broadcasting():
    """One set of parameters for all rows, and several rows for each of two shared states."""
    case = Case(6, 2, 4, 3, 5)
    one = FastWeights(*(w[0] for w in case.initial))
    all_rows = FastWeights(*(w.expand(6, *w.shape) for w in one))
    assert equal(update(one, one, *case.chunk)[0], update(all_rows, all_rows, *case.chunk)[0])
    two = FastWeights(*(w[:2] for w in case.weights))
    repeated = FastWeights(*(w[:2].repeat(3, 1, 1, 1) for w in case.weights))
    torch.testing.assert_close(
        read(two, case.queries.unflatten(0, (3, 2))).flatten(0, 1), read(repeated, case.queries), rtol=0, atol=1e-13
    )


def test_a_chunk_is_remembered():
    """Reading a written key answers with its value more than before; a rate of W1 alone raises <f(k), v> by r |h|^2."""
    case = Case(1, 1, 1, 8, 16)
    k, v = (F.normalize(x, dim=-1) for x in (case.keys, case.values))
    new, _ = update(case.weights, case.initial, k, v, case.rates)
    before, after = (F.cosine_similarity(read(w, k), v, dim=-1) for w in (case.weights, new))
    assert (after > before + 0.1).all()


def test_differences_and_bytes():
    b, g, d, e = 2, 3, 4, 6
    case = Case(b, g, 5, d, e)
    new, kept = case.stepped(True, dtype=torch.float32)
    assert kept is not None
    assert sum(w.nbytes for w in (*new, *kept)) == 2 * (4 * 3 * b * g * d * e)
    gone = case.initial + case.weights - case.initial
    assert distance(gone, case.weights) < 1e-14


def test_momentum_and_beta_come_together():
    case = Case(1, 1, 2, 3, 3)
    for kept in ({"momentum": case.momentum}, {"beta": case.beta}):
        with pytest.raises(ValueError, match="come together"):
            update(case.weights, case.initial, *case.chunk, **kept)
