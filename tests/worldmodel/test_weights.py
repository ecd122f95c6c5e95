"""Weights on disk: whole files only, never a pickle, never half a file, never values that are not finite."""

import pickle
import resource
import signal

import pytest
import torch
from torch import nn

from worldmodel.errors import UserError
from worldmodel.weights import load_into, read_metadata, read_tensors, write_tensors


def test_there_and_back(tmp_path):
    path = tmp_path / "w.safetensors"
    tensors = {
        "a": torch.randn(3, 4).T,  # not contiguous
        "b": torch.arange(5),
        "c": torch.randn(2, 2).bfloat16(),
        "d": torch.tensor(7),
        "e": torch.zeros(0, 3),
        "f": torch.tensor([True, False]),
        "g": nn.Parameter(torch.ones(2)),
    }
    write_tensors(tensors, path, {"note": "hello"})
    read = read_tensors(path)
    assert read.keys() == tensors.keys() and read_metadata(path) == {"note": "hello"}
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)
    assert not read["g"].requires_grad
    write_tensors({"a": torch.zeros(1)}, path)
    assert read_metadata(path) == {} and torch.equal(read["b"], torch.arange(5))  # what was read does not change
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran code')",))


def test_pickles_are_never_read(tmp_path):
    for suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"):
        path = tmp_path / f"model{suffix}"
        path.write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(UserError, match=f"model{suffix}: a pickle could run code"):
            read_tensors(path)
    with pytest.raises(UserError, match=r"model\.safetensors: no such file; model\.\w+ is a pickle, which could run"):
        read_tensors(tmp_path / "model.safetensors")
    disguised = tmp_path / "other.safetensors"
    disguised.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match=r"other\.safetensors: not a complete safetensors file"):
        read_tensors(disguised)


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    write_tensors({"a": torch.randn(4), "b": torch.randn(3)}, path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"w\.safetensors: not a complete safetensors file") as error:
            read_tensors(path)
        assert "\n" not in str(error.value)
    path.write_bytes(whole + b"x")
    with pytest.raises(UserError, match="not a complete"):
        read_tensors(path)
    with pytest.raises(UserError, match="no such file"):
        read_tensors(tmp_path)


def test_a_write_that_fails_leaves_the_older_file(tmp_path):
    path = tmp_path / "w.safetensors"
    write_tensors({"a": torch.ones(4)}, path)
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"w\.safetensors: could not be written .*File too large"):
            write_tensors({"a": torch.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert torch.equal(read_tensors(path)["a"], torch.ones(4))
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]
    with pytest.raises(UserError, match=r"nowhere/w\.safetensors: could not be written"):
        write_tensors({}, tmp_path / "nowhere" / "w.safetensors")


def test_load_into():
    torch.manual_seed(0)
    module, other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    load_into(module, other.state_dict(), "here")
    for name, tensor in other.state_dict().items():
        assert torch.equal(module.state_dict()[name], tensor)
    good = other.state_dict()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for change, message in (
        (lambda t: t.pop("1.bias"), "here: weight '1.bias' is missing"),
        (lambda t: t.update(extra=torch.zeros(1)), "here: unknown weight 'extra'"),
        (lambda t: t.update({"0.bias": torch.zeros(4)}), r"here: weight '0.bias' has shape \[4\], .* expects \[3\]"),
        (lambda t: t.update({"0.weight": torch.full((3, 2), torch.inf)}), "'0.weight' holds values that are not"),
        (lambda t: (t.pop("1.bias"), t.pop("0.bias")), "weight '0.bias' is missing"),  # always the first in order
    ):
        tensors = dict(good)
        change(tensors)
        tensors["1.running_mean"] = torch.full((3,), 9.0)
        with pytest.raises(UserError, match=message):
            load_into(module, tensors, "here")
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in before.items())
