"""The JSON of every measuring command, and a page that needs nothing but itself."""

import base64
import io
import json
import re

import av
import numpy as np
import pytest

from worldmodel.errors import UserError
from worldmodel.evaluate import plots
from worldmodel.evaluate.page import film_mp4, png, render
from worldmodel.evaluate.report import Figure, Film, Metric, Picture, Report, describe, rounded
from worldmodel.evaluate.report_files import write


def video(frames=12, side=16):
    ramp = np.linspace(0, 255, side).astype(np.uint8)
    return np.broadcast_to(ramp[None, None, :, None], (frames, side, side, 3)).copy()


def example(**changes):
    line = plots.Curve("model", [1, 2, 3], [3, 2, 1], [2, 1, 0], [4, 3, 2])
    values = {
        "command": "worldmodel evaluate drift a <model>",
        "seeds": (0, 1),
        "metrics": {
            "psnr_h1": Metric(23.456789, "dB", 32, (22.0, 24.5)),
            "memory_bytes": Metric(2_949_280, "bytes"),
        },
        "headline": ("psnr_h1",),
        "verdicts": (("better than repeating", True, "2.1 dB"), ("as fast as asked", False, "3 < 20")),
        "notes": ("PSNR is PSNR, a & b.",),
        "figures": (Figure("Curve", plots.curves([line], "frame", "PSNR, dB"), "Band: 95 %."),),
        "films": (Film("Real | generated", video(), 12.0),),
        "pictures": (Picture("Sheet", video()[0]),),
    }
    return Report(**values | changes)


def test_json_is_exactly_the_agreed_object(tmp_path):
    write(example(), json=tmp_path / "new" / "drift.json")
    data = json.loads((tmp_path / "new" / "drift.json").read_text())
    assert set(data) == {"command", "versions", "device", "seeds", "metrics"}
    assert data["command"] == "worldmodel evaluate drift a <model>"
    assert data["seeds"] == [0, 1]
    assert data["metrics"] == {
        "psnr_h1": {"value": 23.456789, "unit": "dB", "n": 32, "interval": [22.0, 24.5]},
        "memory_bytes": {"value": 2949280.0, "unit": "bytes"},
    }
    assert {"worldmodel", "torch", "numpy", "python"} <= set(data["versions"])
    assert "cores" in data["device"]


def test_not_finite_numbers_are_refused():
    for value, interval in ((float("nan"), None), (1.0, (0.0, float("inf")))):
        with pytest.raises(ValueError, match="finite"):
            Metric(value, "", 1, interval)


def test_page_is_one_file_that_loads_nothing(tmp_path):
    write(example(), html=tmp_path / "drift.html")
    page = (tmp_path / "drift.html").read_text()
    for source in re.findall(r'(?:src|href|xlink:href)="([^"]*)"', page):
        assert source.startswith(("data:", "#")), source[:80]
    assert "url(http" not in page
    assert "<script" not in page
    assert "@import" not in page
    assert "a &lt;model&gt;" in page
    assert "<model>" not in page
    assert "a &amp; b" in page
    assert page.count("<video") == 1
    assert page.count("<svg") == 1
    assert "23.46" in page
    assert "2,949,280" in page
    assert "✗" in page
    assert not list(tmp_path.glob(".*"))


def test_film_decodes_to_its_frames():
    film = Film("ramp", video(frames=9, side=17), 30000 / 1001, scale=3)
    with av.open(io.BytesIO(film_mp4(film))) as file:
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
        rate = file.streams.video[0].average_rate
    assert (len(frames), float(rate)) == (9, pytest.approx(30000 / 1001))
    assert frames[0].shape == (50, 50, 3)  # 51, made even
    assert np.abs(frames[4][10, ::3, 1].astype(int) - video(1, 17)[0, 0, :, 1]).max() < 12


def test_picture_is_a_png_without_loss():
    import cv2

    frame = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    back = cv2.imdecode(np.frombuffer(png(frame), np.uint8), cv2.IMREAD_COLOR)
    assert (back[..., ::-1] == frame).all()
    found = re.search(r"data:image/png;base64,([A-Za-z0-9+/=]+)", render(example(pictures=(Picture("p", frame, 1),))))
    assert base64.b64decode(found[1]) == png(frame)


def test_words_for_the_terminal():
    assert rounded(0.123456) == "0.1235"
    assert rounded(2949280.0) == "2,949,280"
    assert describe(Metric(1.5, "dB", 4, (1.0, 2.0))) == "1.5 dB  [1, 2]  n=4"
    lines = example().lines()
    assert lines[0].startswith("psnr_h1  23.46 dB")
    assert lines[1:] == ["ok   better than repeating: 2.1 dB", "FAIL as fast as asked: 3 < 20"]  # headlines, verdicts
    lines = example(verdicts=(("steady", "not shown", "1.1"), ("fast", "n/a", "3"), ("good", True, "1"))).lines()
    assert lines[1:] == ["not shown steady: 1.1", "n/a       fast: 3", "ok        good: 1"]


def test_page_marks_what_is_neither():
    page = render(example(command="worldmodel evaluate drift m --data 'a b'", verdicts=(("steady", "not shown", "1"),)))
    assert "<li class=open><div>not shown: steady</div>" in page
    assert "<h1>Evaluate drift m</h1>" in page
    assert "worldmodel evaluate drift m --data &#x27;a b&#x27;</code>" in page


def test_unwritable_place_is_one_line(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match="taken"):
        write(example(), json=tmp_path / "taken")
    with pytest.raises(UserError, match="taken"):
        write(example(), html=tmp_path / "taken")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        write(example(), html=tmp_path / "file" / "x.html")


def test_same_data_gives_the_same_plot():
    assert example().figures[0].svg == example().figures[0].svg
    for svg in (
        plots.bars(["a", "b"], {"real": [1, 2], "made": [0.5, 1]}, "R2", 0.6),
        plots.scatter([("real", [1, 2], [1, 2], plots.REAL)], "x", "y"),
        plots.trace({"model": [1, 2, 3]}, "chunk", "ms"),
    ):
        assert svg.startswith("<svg")
        assert svg.rstrip().endswith("</svg>")


@pytest.mark.browser
def test_page_shows_in_a_browser(tmp_path):
    from playwright.sync_api import sync_playwright

    from worldmodel.capabilities import chromium_path

    write(example(), html=tmp_path / "drift.html")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        page, asked, told = browser.new_page(), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: told.append(message.text))
        page.goto((tmp_path / "drift.html").as_uri())
        page.wait_for_function("document.querySelector('video').readyState >= 2")
        assert page.evaluate("document.querySelector('video').videoWidth") == 48
        assert page.evaluate("document.querySelector('img').naturalWidth") == 32
        assert page.locator("h1").inner_text() == "Evaluate drift a <model>"
        assert page.locator(".verdicts li").count() == 2
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert told == []
