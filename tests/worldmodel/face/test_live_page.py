"""The page of live swapping in a real headless Chromium, whose camera shows painted people."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import av
import pytest
from live_client import live, people, target
from painted import write

from worldmodel import capabilities
from worldmodel.face.live.server import background

pytestmark = [pytest.mark.browser, pytest.mark.needs("signing")]
COLOUR = """([id, x, y]) => { const canvas = document.getElementById(id);
  return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3); }"""
LABEL = """() => { const { data } = after.getContext("2d").getImageData(0, after.height - 8, 90, 8);
  return data.some((value, i) => i % 4 === 0 && value > 200); }"""


def film(path: Path, codec: str, container: str) -> Path:
    with av.open(str(path), "w", format=container) as file:
        stream = file.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 320, 180, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.options = {"qmin": "1", "qmax": "2"} if codec == "mjpeg" else {"crf": "4", "b": "4M"}
        for i in range(50):
            picture = target(150 + 6 * abs(i % 20 - 10) / 10)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())
    return path


@pytest.fixture
def visit(tmp_path: Path) -> Iterator:
    """visit(address) gives a page of a browser with a camera; no error may have happened on it in the end."""
    from playwright.sync_api import sync_playwright

    errors: list[str] = []
    camera = film(tmp_path / "camera.mjpeg", "mjpeg", "mjpeg")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=capabilities.chromium_path(),
            args=["--no-sandbox", "--disable-gpu", "--use-fake-ui-for-media-stream",
                  "--use-fake-device-for-media-stream", f"--use-file-for-fake-video-capture={camera}"],
        )  # fmt: skip

        def open_page(address: str):
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.set_default_timeout(60_000)
            page.goto(address)
            return page

        yield open_page
        browser.close()
    assert not errors


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.setenv("WORLDMODEL_KEY", str(tmp_path / "key.pem"))
    return SimpleNamespace(folder=people(tmp_path / "people", "ann", "bob"))


def colour(page, canvas: str, x: int) -> list[int]:
    return page.evaluate(COLOUR, [canvas, x, 90])


def until_colour(page, canvas: str, x: int, says: str) -> None:
    page.wait_for_function(f"(at) => {{ const [r, g, b] = ({COLOUR})(at); return {says}; }}", arg=[canvas, x, 90])


def gone(page, made) -> None:
    for _ in range(600):
        if made.streams == 0:
            return
        page.wait_for_timeout(20)
    raise AssertionError("the stream is still there")


def test_the_camera_is_swapped_and_everything_is_freed(served: SimpleNamespace, visit) -> None:
    made = live(served.folder)
    with background(made, token="a-long-secret") as address:
        page = visit(address)
        page.wait_for_selector("#people button")
        assert page.get_attribute("#status", "data-state") == "off" and made.streams == 0
        assert page.locator("[data-source=server]:visible").count() == 0
        page.click("#begin-buttons [data-source=camera]")
        page.wait_for_selector('#status[data-state="live"]')
        # The camera is mirrored: the face, at 150 to 156, is at 164 to 170. Ann's patch is blue, red is left beside it.
        until_colour(page, "after", 167, "b > 120")
        assert page.evaluate(LABEL)
        red, _, blue = colour(page, "before", 167)
        assert red > 180 and blue < 110
        page.wait_for_selector('#rates dd[data-name="faces"]:has-text("A of 1")')
        for stage in ("decode", "track", "crop", "generate", "paste", "mark", "encode"):
            page.wait_for_selector(f'#stages b[data-name="{stage}"]:has-text(" ms")')
        page.wait_for_selector('#latency dd[data-name="to screen"]:has-text(" ms")')
        assert page.inner_text("#held-text") == "the reference, nothing of the past"
        assert page.inner_text("#agreed").startswith("ann Person agreed on 20")
        drawn = page.evaluate("() => marks.getContext('2d').getImageData(0, 0, 320, 180).data.some((v) => v > 0)")
        assert drawn
        page.click("[data-reference=bob]")
        until_colour(page, "after", 167, "b < 100")
        assert page.inner_text("#agreed").startswith("bob Person")
        page.click("[data-method=poisson]")
        page.wait_for_selector('#facts:has-text("poisson")')
        with page.expect_download() as download:
            page.click("#save-record")
        assert '"person": "bob Person"' in Path(download.value.path()).read_text()

        second = visit(address)
        second.wait_for_selector("#people button")
        second.click("#begin-buttons [data-source=camera]")
        second.wait_for_selector('#veil-text:has-text("1 stream runs already")')
        page.click("#stop")
        gone(page, made)
        assert page.evaluate("() => video.srcObject === null && document.body.className.includes('off')")
        second.click("#veil")
        second.click("#begin-buttons [data-source=camera]")
        second.wait_for_selector('#status[data-state="live"]')
        assert made.streams == 1
        second.close()  # closing a page frees as much as stopping
        gone(page, made)


@pytest.mark.needs("h264")
def test_the_server_s_video_begins_by_itself_and_a_file_of_the_browser_may_follow(
    served: SimpleNamespace, visit, tmp_path: Path
) -> None:
    video = write(tmp_path / "talk.mp4", [target(150) for _ in range(50)])
    mine = film(tmp_path / "mine.webm", "libvpx", "webm")
    with background(live(served.folder, source=str(video))) as address:
        page = visit(address)
        page.wait_for_selector('#status[data-state="live"]')
        until_colour(page, "after", 150, "b > 120")
        assert page.inner_text("#before-caption") == "talk.mp4" and page.evaluate(LABEL)
        until_colour(page, "before", 150, "r > 180 && b < 110")
        page.set_input_files("#file", str(mine))
        page.wait_for_selector('#before-caption:has-text("mine.webm")')
        page.wait_for_selector('#status[data-state="live"]')
        page.wait_for_selector('#latency dd[data-name="to screen"]:has-text(" ms")')
        until_colour(page, "after", 153, "b > 120")
        until_colour(page, "before", 153, "r > 180 && b < 110")


def test_a_page_without_its_token_says_so(served: SimpleNamespace, visit) -> None:
    with background(live(served.folder), token="a-long-secret") as address:
        page = visit(address.split("?")[0])
        page.wait_for_selector('#begin-text:has-text("this server needs its token")')
        assert page.locator("#begin-buttons:visible").count() == 0
