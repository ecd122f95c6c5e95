"""Published packages: fetched by their client, checked, unpacked; what is missing or changed is one line."""

import hashlib
import io
import json
import os
import stat
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldmodel.errors import UserError
from worldmodel.face import packages
from worldmodel.face.networks.published import fill
from worldmodel.face.packages import CAR_CLIP, NETWORKS, Package, fetch, find, read
from worldmodel.face.tfjs import as_torch, read_weights


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORLDMODEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def client(folder: Path, name: str, archive: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for npm or pip first on the path, that gives an archive or fails."""
    script = folder / "bin" / name
    script.parent.mkdir(exist_ok=True)
    act = f"cp {archive} ." if archive is not None else "echo 'no such host' >&2; exit 7"
    script.write_text(f"#!/bin/sh\n{act}\n")
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")


def tgz(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "a.tgz"
    with tarfile.open(path, "w:gz") as packed:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    return path


def test_fetch_checks_unpacks_what_is_kept_and_does_it_once(tmp_path, monkeypatch, cache) -> None:
    archive = tgz(tmp_path, {"package/model/a.bin": b"12", "package/dist/b.js": b"3", "package/LICENSE": b"MIT"})
    package = replace(NETWORKS, sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    client(tmp_path, "npm", archive, monkeypatch)
    folder = fetch(package)
    assert folder == cache / "face-api-1.7.15"
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == [
        "package/LICENSE",
        "package/model/a.bin",
    ]
    assert list(cache.iterdir()) == [folder]
    client(tmp_path, "npm", None, monkeypatch)
    assert fetch(package) == folder
    digest = hashlib.sha256(b"12").hexdigest()
    assert read(package, "package/model/a.bin", digest) == b"12"
    (folder / "package/model/a.bin").write_bytes(b"13")
    with pytest.raises(UserError, match="has changed since it was published"):
        read(package, "package/model/a.bin", digest)
    with pytest.raises(UserError, match=r"b\.bin: missing"):
        find(package, "package/model/b.bin")


def test_another_archive_is_not_used(tmp_path, monkeypatch, cache) -> None:
    client(tmp_path, "npm", tgz(tmp_path, {"package/model/a.bin": b"evil"}), monkeypatch)
    with pytest.raises(UserError, match=r"sha256 [0-9a-f]{64}, expected 0d77fffe"):
        fetch(NETWORKS)
    assert not cache.exists()


def test_a_client_that_fails_or_is_missing_is_one_line(tmp_path, monkeypatch) -> None:
    client(tmp_path, "npm", None, monkeypatch)
    with pytest.raises(UserError, match="npm could not fetch it \\(no such host\\)"):
        fetch(NETWORKS)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"install Node\.js"):
        fetch(NETWORKS)


def test_what_is_not_here_names_the_command(monkeypatch) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    for package, what in ((NETWORKS, "networks"), (CAR_CLIP, "clips")):
        with pytest.raises(UserError, match=f"is not here: worldmodel face fetch --what {what}"):
            find(package, "x")


def test_a_wheel_by_pip_and_an_installed_package(tmp_path, monkeypatch, cache) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("few/data/clip.mp4", b"film")
        zipped.writestr("few/code.py", b"1")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    package = Package("pip", "few", "1.0", digest, ("few/data/",), "MIT", "clips", "few")
    client(tmp_path, "python", wheel, monkeypatch)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert [p.name for p in fetch(package).rglob("*.*") if p.is_file()] == ["clip.mp4"]
    (tmp_path / "site" / "lots" / "data").mkdir(parents=True)
    (tmp_path / "site" / "lots" / "__init__.py").write_text("raise SystemExit('never imported')")
    (tmp_path / "site" / "lots" / "data" / "a.txt").write_text("b")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert find(replace(package, name="lots", module="lots"), "lots/data/a.txt").read_text() == "b"


def test_quantised_weights() -> None:
    """q stands for min + scale q; plain numbers stay; order and shapes are the manifest's."""
    entries = [
        {"name": "a", "shape": [2, 3], "dtype": "float32", "quantization": {"dtype": "uint8", "scale": 0.5, "min": -2}},
        {"name": "b", "shape": [2], "dtype": "float32"},
        {"name": "c", "shape": [], "dtype": "float32", "quantization": {"dtype": "uint16", "scale": 2, "min": 1}},
    ]
    data = bytes([0, 1, 2, 4, 8, 255]) + np.array((1.5, -3), "<f4").tobytes() + np.array(300, "<u2").tobytes()
    manifest = json.dumps([{"paths": ["x"], "weights": entries}]).encode()
    found = read_weights(manifest, data, "x")
    assert found["a"].tolist() == [[-2, -1.5, -1], [0, 2, 125.5]]
    assert found["b"].tolist() == [1.5, -3] and found["c"].item() == 601
    for wrong, line in ((data + b"0", "describes 16 bytes, the file has 17"), (data[:9], "no weights in the format")):
        with pytest.raises(UserError, match=line):
            read_weights(manifest, wrong, "x")
    with pytest.raises(UserError, match="no weights in the format"):
        read_weights(b"{", data, "x")


def test_layouts_of_tensorflow_and_torch() -> None:
    """A convolution and a depthwise one give what direct sums over TensorFlow's layout give."""
    rng = torch.Generator().manual_seed(0)
    x, w = torch.rand(1, 3, 3, 2, generator=rng), torch.rand(3, 3, 2, 4, generator=rng)  # NHWC, HWIO
    by_hand = torch.einsum("bhwi,hwio->bo", x, w)
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), as_torch(w, "conv/filters"))
    torch.testing.assert_close(y[:, :, 0, 0], by_hand)
    d = torch.rand(3, 3, 2, 1, generator=rng)
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), as_torch(d, "a/depthwise_filter"), groups=2)
    torch.testing.assert_close(y[:, :, 0, 0], torch.einsum("bhwc,hwcm->bc", x, d))
    assert as_torch(torch.zeros(5, 7), "fc").shape == (7, 5)


def test_weights_must_fit_the_network() -> None:
    module = torch.nn.Linear(2, 3)
    good = {"weight": torch.ones(3, 2), "bias": torch.zeros(3)}
    assert fill(module, dict(good), "n").weight.requires_grad is False
    for bad in ({"weight": good["weight"]}, good | {"more": torch.zeros(1)}, good | {"bias": torch.zeros(4)}):
        with pytest.raises(UserError, match="does not fit the network"):
            fill(torch.nn.Linear(2, 3), bad, "n")
