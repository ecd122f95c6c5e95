"""A trained swap in the `swap` command: found by its folder, known by its weights."""

import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from painted import GREEN, RED, interrupt_third_chunk, networks, paint, read, write
from small_swaps import small_swap

from worldmodel.errors import UserError
from worldmodel.face import command
from worldmodel.face.consent import write_consent
from worldmodel.face.generator import CopyPaste, PoissonBlend
from worldmodel.face.methods import USUAL, find_method
from worldmodel.face.sign import check_side_file
from worldmodel.memory import WindowConfig


def test_baselines_have_names_and_trained_swaps_folders(tmp_path: Path) -> None:
    assert find_method("copy-paste", None) == (CopyPaste(size=USUAL), "copy-paste")
    assert find_method("poisson", 64) == (PoissonBlend(size=64), "poisson")
    swap = small_swap(size=64)
    swap.save(tmp_path / "run" / "model")  # what a run has made
    found, known = find_method(str(tmp_path / "run"), None)
    assert found.size == 64 and found.chunk == 2 and known["weights"] == swap.fingerprint
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert find_method(str(tmp_path / "moved"), 64)[1] == known
    replace(swap, stream=replace(swap.stream, memory=WindowConfig(sink=1, ring=5))).save(tmp_path / "longer")
    assert find_method(str(tmp_path / "longer"), None)[1] != known
    with torch.no_grad():
        next(swap.dit.parameters()).add_(1e-3)
    swap.save(tmp_path / "other")
    assert find_method(str(tmp_path / "other"), None)[1]["weights"] != known["weights"]


def test_what_is_no_method_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--method nobody: is none of copy-paste, poisson, nor the folder"):
        find_method("nobody", None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty/config\.json: no such file"):
        find_method(str(tmp_path / "empty"), None)
    small_swap(size=64).save(tmp_path / "swap")
    with pytest.raises(UserError, match=r"--size 128: .* makes regions of 64 pixels"):
        find_method(str(tmp_path / "swap"), 128)


@pytest.mark.needs("h264", "signing")
def test_a_video_is_swapped_by_trained_weights_and_goes_on_with_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLDMODEL_KEY", str(tmp_path / "key.pem"))
    monkeypatch.setattr(command, "default_networks", networks)
    reference, consent, out = tmp_path / "me.png", tmp_path / "me.json", tmp_path / "out.mp4"
    cv2.imwrite(str(reference), paint((GREEN, 64, 48, 60))[..., ::-1])
    write_consent(reference, "A. Person", "I agree to my face in tests of this program.", consent)
    target = write(tmp_path / "talk.mp4", [paint((RED, 40 + i, 48, 36)) for i in range(12)])
    swap = small_swap(size=64)
    swap.save(tmp_path / "swap")
    with torch.no_grad():
        next(swap.dit.parameters()).add_(1e-3)
    swap.save(tmp_path / "other")

    def run(method: str) -> int:
        return command.swap(
            str(target), reference, str(out), consent, method=str(tmp_path / method), occlusion=False, label=False,
            watermark=False, lossless=True,
        )  # fmt: skip

    interrupt_third_chunk(monkeypatch)
    assert run("swap") == 130
    with pytest.raises(UserError, match="parts of another swap"):
        run("other")
    assert run("swap") == 0
    facts = check_side_file(out)
    known = find_method(str(tmp_path / "swap"), None)[1]
    assert facts["settings"]["method"] == known and facts["pictures_with_a_swap"] >= 6
    assert str(tmp_path) not in str(facts["settings"])
    before, after = read(target)[0], read(out)[0]
    assert len(after) == 12
    changed = np.stack([(a != b).any(-1) for a, b in zip(before, after, strict=True)])
    assert 0.01 < changed.mean() < 0.5 and changed.any((1, 2)).all()  # only where the face is, and in all pictures
