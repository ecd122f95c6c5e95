"""A model's name follows its weights and its configuration, and nothing else."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from tiny import small_dit
from torch import nn

from worldmodel.fingerprint import fingerprint
from worldmodel.models.dit import DiT


@dataclass(frozen=True)
class Old:
    width: int = 3
    rate: float = 0.5


@dataclass(frozen=True)
class New:
    width: int = 3
    rate: float = 0.5
    trick: bool = False


New.__name__ = "Old"  # a later version of the same class


class Configured(nn.Linear):
    def __init__(self, cfg: object) -> None:
        super().__init__(2, 2, bias=False)
        nn.init.eye_(self.weight)
        self.cfg = cfg


def test_every_weight_and_buffer_counts():
    model = small_dit()
    before = fingerprint(model)
    assert len(before) == 32 and int(before, 16) >= 0
    assert fingerprint(copy.deepcopy(model)) == before
    for name in model.state_dict():
        other = copy.deepcopy(model)
        other.state_dict()[name].view(-1)[0] += 1e-3
        assert fingerprint(other) != before, name


def test_long_tensors_are_sampled_evenly():
    """5,000,000 values are read every 1,220th: what lies between them is not seen."""
    model = nn.Linear(5000, 1000, bias=False).requires_grad_(False)
    flat, before = model.weight.view(-1), fingerprint(model)
    flat[1219] += 1
    assert fingerprint(model) == before
    flat[1220] += 1
    assert fingerprint(model) != before


def test_the_configuration_counts():
    model = small_dit()
    other = DiT(replace(model.cfg, theta=5000.0))
    other.load_state_dict(model.state_dict())
    assert fingerprint(other) != fingerprint(model)
    assert fingerprint(Configured(Old(rate=0.25))) != fingerprint(Configured(Old()))
    assert fingerprint(Configured(None)) != fingerprint(Configured(Old()))


def test_a_field_that_is_added_later_changes_no_name():
    assert fingerprint(Configured(New())) == fingerprint(Configured(Old()))
    assert fingerprint(Configured(New(width=4))) == fingerprint(Configured(Old(width=4)))
    assert fingerprint(Configured(New(trick=True))) != fingerprint(Configured(Old()))


def test_order_and_number_of_modules_count():
    a, b = Configured(Old()), Configured(Old(width=4))
    names = {fingerprint(a), fingerprint(b), fingerprint(a, b), fingerprint(b, a)}
    assert len(names) == 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_type_of_equal_values_does_not_count(dtype: torch.dtype):
    model = Configured(Old())
    assert fingerprint(copy.deepcopy(model).to(dtype)) == fingerprint(model)
