"""The averaged weights in closed form."""

import pytest
import torch
from torch import nn

from worldmodel.ema import Ema


def model():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    made[2].weight.requires_grad_(False)
    return made


def test_closed_form():
    """After weights w0 (at the start), w1, ..., wn: a product of decays, warm-up included."""
    m, decay = model(), 0.6
    ema, expected = Ema(m, decay), m[0].weight.detach().clone()
    for n in range(12):
        with torch.no_grad():
            m[0].weight.add_(n + 1.0)
        ema.update()
        d = min(decay, (1 + n) / (10 + n))
        expected = d * expected + (1 - d) * m[0].weight.detach()
    torch.testing.assert_close(ema.average["0.weight"], expected, rtol=1e-6, atol=1e-6)
    assert ema.updates == 12


def test_constant_weights_stay():
    m = model()
    ema = Ema(m, 0.99)
    for _ in range(5):
        ema.update()
    torch.testing.assert_close(ema.average["0.bias"], m[0].bias.detach())


def test_only_what_is_trained_is_averaged():
    assert set(Ema(model(), 0.9).average) == {"0.weight", "0.bias", "1.weight", "1.bias", "2.bias"}


def test_applied_is_undone_even_after_an_error():
    m = model()
    ema, before = Ema(m, 0.9), {n: p.detach().clone() for n, p in m.state_dict().items()}
    ema.average["0.weight"] += 1

    def fail():
        with ema.applied():
            torch.testing.assert_close(m[0].weight.detach(), before["0.weight"] + 1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert all(torch.equal(m.state_dict()[name], tensor) for name, tensor in before.items())
    torch.testing.assert_close(ema.average["0.weight"], before["0.weight"] + 1)
    with ema.applied():  # writing to the model inside does not reach the average
        m[0].weight.data.fill_(9)
    torch.testing.assert_close(ema.average["0.weight"], before["0.weight"] + 1)


def test_state_dict():
    m = model()
    ema, other = Ema(m, 0.9), Ema(m, 0.9)
    ema.average["0.bias"] += 2
    ema.updates = 41
    other.load_state_dict(ema.state_dict())
    assert other.updates == 41 and torch.equal(other.average["0.bias"], ema.average["0.bias"])
    other.average["0.bias"] += 1
    assert not torch.equal(other.average["0.bias"], ema.average["0.bias"])
