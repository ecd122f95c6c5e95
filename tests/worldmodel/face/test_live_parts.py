"""The parts of a live swap by themselves: the allow-list, what is dropped, the marks, the methods, and the command."""

import json
import threading
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from live_client import agree, live, people, target
from painted import GREEN, paint
from small_swaps import small_swap

from worldmodel.errors import UserError
from worldmodel.face.consent import Consent
from worldmodel.face.generator import FaceControl
from worldmodel.face.live import marking
from worldmodel.face.live.command import chosen, swap_demo
from worldmodel.face.live.feed import MAX_SIDE, smaller
from worldmodel.face.live.guarded import Guarded
from worldmodel.face.live.intake import Intake, Shot
from worldmodel.face.live.marking import Marking, readable
from worldmodel.face.live.memories import held
from worldmodel.face.live.overlay import Numbers
from worldmodel.face.live.references import allowed
from worldmodel.face.watermark import Watermark
from worldmodel.serve.protocol import MAX_LINE

ANN = Consent("b3a5" + 60 * "0", "Ann", "I agree to my face in tests.", "2026-01-01")


@given(waiting=st.integers(1, 40), count=st.integers(1, 8), limit=st.integers(8, 40))
def test_what_is_taken_is_even_ends_with_the_newest_and_the_rest_is_counted(
    waiting: int, count: int, limit: int
) -> None:
    intake = Intake(limit)
    for number in range(waiting):
        intake.put(Shot(b"", number, number, 0.0))
    kept = min(waiting, limit)
    assert intake.dropped == waiting - kept
    if kept < count:
        assert not intake.wait(count, 0)
        return
    taken = [shot.number for shot in intake.take(count) or []]
    steps = np.diff(taken)
    assert len(taken) == count and taken[-1] == waiting - 1 and taken[0] >= waiting - kept
    assert set(steps) <= {kept // count, kept // count + 1}
    assert intake.received == waiting and intake.dropped == waiting - count and not intake.wait(1, 0)


def test_a_closed_intake_wakes_who_waits_and_takes_no_more() -> None:
    intake, taken = Intake(4), []
    thread = threading.Thread(target=lambda: taken.append(intake.take(2)))
    thread.start()
    intake.put(Shot(b"", 0, 0, 0.0))
    intake.close()
    thread.join(10)
    intake.put(Shot(b"", 1, 1, 0.0))
    assert taken == [None] and intake.take(1) is None and intake.received == 1


def test_an_allow_list_is_a_folder_or_a_file_of_pictures_with_consent(tmp_path: Path) -> None:
    folder = people(tmp_path / "people", "bob", "ann")
    (folder / "notes.txt").write_text("not looked at")
    found = allowed(folder)
    assert [each.name for each in found] == ["ann", "bob"]
    consent, pixels = found[0].load()
    assert consent.person == "ann Person" and pixels[48, 64].tolist() == [60, 220, 255]
    entries = [{"name": "me", "picture": "people/bob.png", "consent": "people/bob.json"}]
    (tmp_path / "list.json").write_text(json.dumps({"format": 1, "references": entries}))
    (me,) = allowed(tmp_path / "list.json")
    assert me.name == "me" and me.load()[0].person == "bob Person"


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: (f / "ann.json").unlink(), "ann.png: has no record of consent, ann.json is not beside it"),
        (lambda f: (f / "ann.png").unlink(), "ann.json: a record of consent without the picture ann.jpg"),
        (lambda f: (f / "ann.png").write_bytes((f / "bob.png").read_bytes()), "another picture"),
        (lambda f: (f / "ann.json").write_text("{"), "ann.json: not valid JSON"),
        (lambda f: write(f / "ann.json", json.loads((f / "ann.json").read_text()) | {"person": " "}), "'person'"),
        (lambda f: (f / "ann.jpg").write_bytes((f / "ann.png").read_bytes()), "two references have the name 'ann'"),
        (lambda f: [path.unlink() for path in f.iterdir()], "no reference in it"),
    ],
)
def test_one_reference_amiss_refuses_the_list(tmp_path: Path, spoil, said: str) -> None:
    folder = people(tmp_path / "people", "ann", "bob")
    spoil(folder)
    with pytest.raises(UserError) as caught:
        allowed(folder)
    assert said in str(caught.value) and str(folder) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("references", "said"),
    [
        ({"a": 1}, "'references' must be a list"),
        (["ann"], r"references\[0\]: must have the keys name, picture and consent"),
        ([{"name": "a", "picture": "p", "consent": "c", "more": 1}], r"references\[0\]: must have the keys"),
        ([{"name": "a", "picture": "p", "consent": None}], r"references\[0\]: name, picture and consent must be texts"),
        ([{"name": "a\n", "picture": "ann.png", "consent": "ann.json"}], "printable"),
        ([{"name": "a", "picture": "eve.png", "consent": "ann.json"}], "eve.png: could not be read"),
    ],
)
def test_a_list_that_is_none_names_the_place(tmp_path: Path, references: object, said: str) -> None:
    people(tmp_path / "people", "ann")
    with pytest.raises(UserError, match=said):
        allowed(write(tmp_path / "people" / "list.txt", {"format": 1, "references": references}))
    with pytest.raises(UserError, match="no such folder or file"):
        allowed(tmp_path / "nowhere")


@pytest.mark.parametrize("codec", ["jpeg", "webp"])
@pytest.mark.parametrize(("height", "width"), [(1080, 1920), (360, 640), (144, 176), (481, 271)])
def test_marks_are_proven_through_the_codec(height: int, width: int, codec: marking.CodecName) -> None:
    assert Marking(height, width, ANN, codec, 50).number == 0xB3A5


def test_marks_that_cannot_be_read_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(line: str, height: int = 360, width: int = 640) -> None:
        with pytest.raises(UserError, match=line) as caught:
            Marking(height, width, ANN, "jpeg", 88)
        assert "nothing is streamed" in str(caught.value) and len(str(caught.value)) < MAX_LINE

    refused("the label cannot be read in pictures of 60 x 40", 40, 60)
    with monkeypatch.context() as patch:
        patch.setattr(cv2, "putText", lambda *_: None)  # a font that draws nothing
        refused("the label cannot be read")
    with monkeypatch.context() as patch:
        patch.setattr(cv2, "getFontScaleFromHeight", lambda *_: 1 / 0)
        refused("cannot be marked as swapped")
    with monkeypatch.context() as patch:
        patch.setattr(Watermark, "draw", lambda self, picture: None)
        refused("the watermark cannot be found")
    other = Watermark(360, 640, 0x1234)
    with monkeypatch.context() as patch:
        draw = Watermark.draw
        patch.setattr(Watermark, "draw", lambda self, picture: draw(other, picture))
        refused("the watermark cannot be found")


def test_a_label_without_letters_or_ground_is_not_readable() -> None:
    plain = np.full((360, 640, 3), marking.GREY, np.uint8)
    assert not readable(plain)
    box = plain.copy()
    box[340:, :200] //= 3
    assert not readable(box)  # a dark box without letters
    box[345:355, 20:40] = 255
    assert not readable(box)  # too narrow for the text
    box[345:355, 20:180] = 255
    assert readable(box)


@pytest.mark.needs("signing")
def test_what_is_served_is_checked_before_anybody_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = people(tmp_path / "people", "ann")
    monkeypatch.setenv("WORLDMODEL_KEY", str(folder / "ann.json"))
    with pytest.raises(UserError, match="no key that can be read"):
        live(folder)
    monkeypatch.setenv("WORLDMODEL_KEY", str(tmp_path / "key.pem"))
    for options, said in (
        ({"methods": ("magic",)}, "--method magic: is none of"),
        ({"methods": ("poisson", "poisson")}, "another one has the name 'poisson'"),
        ({"methods": ()}, "--methods: name one or more"),
        ({"streams": 0}, "--max-streams"),
        ({"source": str(tmp_path / "nothing.mp4")}, "no such file"),
    ):
        with pytest.raises(UserError, match=said):
            live(folder, **options)
    with monkeypatch.context() as patch:
        patch.setattr(cv2, "putText", lambda *_: None)
        with pytest.raises(UserError, match="the label cannot be read"):
            live(folder)
    cv2.imwrite(str(folder / "nobody.png"), paint()[..., ::-1])
    agree(folder / "nobody.png")
    with pytest.raises(UserError, match=r"nobody\.png: no face found in it"):
        live(folder)


@pytest.mark.needs("signing")
def test_trained_swaps_have_their_folder_s_name_and_say_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLDMODEL_KEY", str(tmp_path / "key.pem"))
    small_swap(size=64).save(tmp_path / "mine" / "model")
    made = live(people(tmp_path / "people", "ann"), methods=("poisson", str(tmp_path / "mine" / "model")))
    facts = made.facts()["methods"]
    assert [(each["name"], each["chunk"], each["size"]) for each in facts] == [("poisson", 1, 64), ("mine", 2, 64)]
    assert facts[0]["parameters"] == 0 < facts[1]["parameters"]
    swap = made.stock.methods["mine"]
    state = swap.begin(made.stock.faces["ann", 64], 2)
    memory = held(state)
    assert (memory["references"], memory["newest"], memory["places"]) == (1, 0, 3) and memory["bytes"] > 0
    one = torch.ones(2, 2, 1, 64, 64)
    control = FaceControl(one.expand(2, 2, 3, 64, 64), one, torch.zeros(2, 2, 68, 2), torch.ones(2, 2).bool())
    assert held(swap.generate(control, state)[1]) == memory | {"newest": 2}


def test_what_is_not_finite_is_not_shown_and_the_row_begins_anew() -> None:
    @dataclass(frozen=True)
    class Counts:
        made: torch.Tensor  # [B] pictures since the beginning

        def reset(self, rows: torch.Tensor) -> "Counts":
            return Counts(self.made.masked_fill(rows, 0))

    class Spoilt:
        size, chunk = 2, 3
        spoilt: list[int] = []  # noqa: RUF012

        def begin(self, reference, rows):
            return Counts(torch.zeros(rows))

        def generate(self, control, state):
            made = state.made[:, None] + torch.arange(1, 4)
            faces = made[:, :, None, None, None].expand(-1, -1, 3, 2, 2).clone()
            faces[self.spoilt, 1] = torch.nan
            return faces, Counts(made[:, -1])

    one = torch.ones(2, 3, 1, 2, 2)
    control = FaceControl(-one.expand(2, 3, 3, 2, 2), one, torch.zeros(2, 3, 68, 2), torch.ones(2, 3).bool())
    spoilt = Spoilt()
    guarded = Guarded(spoilt)
    state, shown = guarded.begin(torch.zeros(3, 2, 2), 2), []
    for rows in ([], [0], [0], [], [1], [0]):
        spoilt.spoilt = rows
        if len(shown) == 5:
            state = state.reset(torch.tensor((True, False)))
        faces, state = guarded.generate(control, state)
        assert (faces == faces[:, :, :1, :1, :1]).all()
        shown.append(faces[:, :, 0, 0, 0].tolist())
    assert shown == [
        [[1, 2, 3], [1, 2, 3]],
        [[3, 3, 3], [4, 5, 6]],  # the last good face, while the other row goes on
        [[3, 3, 3], [7, 8, 9]],
        [[1, 2, 3], [10, 11, 12]],  # from the beginning
        [[4, 5, 6], [12, 12, 12]],
        [[-1, -1, -1], [1, 2, 3]],  # another face has taken the row: nothing of the one before, but the target
    ]
    assert state.held == 4


def test_numbers_are_rates_and_percentiles() -> None:
    numbers = Numbers()
    for i in range(11):
        numbers.came(10 + 0.1 * i)
    for i in range(5):
        numbers.chunk(10 + 0.2 * i, 1, [0.010 * (i + 1), 0.010 * (i + 1)], {"track": 0.004, "paste": 0.002 * i})
    report = numbers.report(11.0)
    assert report["came"] == 10.0 and report["made"] == 10.0 and report["pictures"] == 10 and report["swapped"] == 5
    assert report["latency"] == {"p50": 30.0, "p95": 50.0, "p99": 50.0, "n": 10}
    assert report["stages"]["track"] == 2.0 and report["stages"]["paste"] == 2.0 and report["stages"]["mark"] == 0.0
    assert numbers.report(20.0)["came"] == numbers.report(20.0)["made"] == 0.0
    numbers.begin()
    assert numbers.report(11.0)["latency"]["n"] == 0 and numbers.report(11.0)["pictures"] == 10


def test_large_pictures_of_the_server_are_made_smaller() -> None:
    assert smaller(target()) is not None and smaller(target()).shape == target().shape
    big = paint((GREEN, 1000, 600, 900), height=1200, width=2560)
    assert smaller(big).shape == (600, MAX_SIDE, 3)
    assert np.abs(smaller(big)[300, 500].astype(int) - GREEN).max() <= 1


def test_the_command_wants_one_kind_of_references(tmp_path: Path) -> None:
    folder = people(tmp_path / "people", "ann")
    (one,) = chosen(folder / "ann.png", folder / "ann.json", None)
    assert one.name == "ann" and [each.name for each in chosen(None, None, folder)] == ["ann"]
    for given_, said in (
        ((None, None, None), "needs --reference FILE with --consent FILE, or --references FOLDER"),
        ((folder / "ann.png", None, folder), "give either --references"),
        ((folder / "ann.png", None, None), "needs --consent FILE"),
    ):
        with pytest.raises(UserError, match=said):
            chosen(*given_)
    with pytest.raises(UserError, match="give --token"):
        swap_demo(references=folder, host="0.0.0.0")
    with pytest.raises(UserError, match="--faces"):
        swap_demo(references=folder, faces=9)
