"""A reference on disk comes back as it was, and is refused for features of another kind."""

import json

import pytest
import torch
from populations import sample

from worldmodel.errors import UserError
from worldmodel.frechet.bank import Bank, Source
from worldmodel.frechet.moments import Moments

SOURCE = Source("lite0", (128, 128), 6)


def saved(folder, source=SOURCE):
    bank = Bank(source, Moments.of(sample(40, 6, 0)))
    bank.save(folder)
    return bank


def test_round_trip_is_exact(tmp_path):
    bank = saved(tmp_path / "bank")
    found = Bank.load(tmp_path / "bank", SOURCE)
    assert found.source == SOURCE
    assert found.moments.count == 40
    assert torch.equal(found.moments.mean, bank.moments.mean)
    assert torch.equal(found.moments.covariance, bank.moments.covariance)
    card = json.loads((tmp_path / "bank" / "bank.json").read_text())
    assert {key: card[key] for key in ("encoder", "size", "dimension", "count")} == {
        "encoder": "lite0", "size": [128, 128], "dimension": 6, "count": 40,
    }  # fmt: skip


def test_saving_again_replaces_it(tmp_path):
    saved(tmp_path / "bank")
    Bank(SOURCE, Moments.of(sample(9, 6, 1))).save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", SOURCE).moments.count == 9
    assert sorted(path.name for path in (tmp_path / "bank").iterdir()) == ["bank.json", "bank.safetensors"]


@pytest.mark.parametrize(
    ("needed", "message"),
    [
        (Source("dino", (128, 128), 6), "encoder lite0, the features computed now have dino"),
        (Source("lite0", (224, 128), 6), r"size \(128, 128\), the features computed now have \(224, 128\)"),
        (Source("lite0", (128, 128), 7), "dimension 6, the features computed now have 7"),
        (Source("lite0", (128, 128), 6, True), "centred False, the features computed now have True"),
    ],
)
def test_other_features_are_refused(tmp_path, needed, message):
    saved(tmp_path)
    with pytest.raises(UserError, match=rf"bank\.json: the reference has {message}"):
        Bank.load(tmp_path, needed)


def test_broken_banks_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"bank\.json: no such file"):
        Bank.load(tmp_path, SOURCE)
    saved(tmp_path)
    card = json.loads((tmp_path / "bank.json").read_text())
    for change, message in (
        ({"format": 2}, "format 2 is newer"),
        ({"count": 1}, "count is 1"),
        ({"count": "many"}, "count is 'many'"),
        ({"size": [128]}, r"size: expected 2 values"),
        ({"colour": 1}, "unknown key 'colour'"),
    ):
        (tmp_path / "bank.json").write_text(json.dumps(card | change))
        with pytest.raises(UserError, match=message):
            Bank.load(tmp_path, SOURCE)
    (tmp_path / "bank.json").write_text(json.dumps({k: v for k, v in card.items() if k != "encoder"}))
    with pytest.raises(UserError, match="'encoder' is missing"):
        Bank.load(tmp_path, SOURCE)
    (tmp_path / "bank.json").write_text(json.dumps(card | {"dimension": 5}))
    with pytest.raises(UserError, match=r"bank\.safetensors: needs 'mean' in fp64 of shape \[5\]"):
        Bank.load(tmp_path, Source("lite0", (128, 128), 5))
    (tmp_path / "bank.json").write_text(json.dumps(card))
    bad = Bank(SOURCE, Moments(torch.zeros(6).double(), torch.full((6, 6), float("nan")).double(), 9))
    bad.save(tmp_path)
    with pytest.raises(UserError, match=r"bank\.safetensors: 'covariance' holds values that are not finite"):
        Bank.load(tmp_path, SOURCE)
    (tmp_path / "bank.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"bank\.safetensors: not a complete safetensors file"):
        Bank.load(tmp_path, SOURCE)
