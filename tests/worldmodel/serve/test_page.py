"""The page in a real headless Chromium, against the world that shows its actions as colours."""

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from relay import Relay

from worldmodel import capabilities
from worldmodel.memory import SlowFastConfig
from worldmodel.serve.client import Client
from worldmodel.serve.limits import Limits
from worldmodel.serve.protocol import Hello

pytestmark = pytest.mark.browser

COLOUR = """() => {
  const canvas = document.getElementById("ID"), [r, g, b] = canvas.getContext("2d").getImageData(9, 9, 1, 1).data;
  return [r, g, b];
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=capabilities.chromium_path(), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium) -> Iterator:
    """open_page(address) gives a page on which no error has happened until the end of the test."""
    contexts, errors = [], []

    def visit(address: str, **options):
        contexts.append(chromium.new_context(viewport={"width": 1280, "height": 800}, **options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_default_timeout(60_000)  # of a machine under load; none waits that long otherwise
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not errors


def live(page, state: str = "live") -> None:
    page.wait_for_selector(f'#status[data-state="{state}"]')


def until_colour(page, expected: tuple[int, int, int], canvas: str = "dream", tolerance: int = 3) -> None:
    """Wait until the picture has a colour."""
    text = COLOUR.replace("ID", canvas)
    near = (
        f"() => {{ const c = ({text})(); return {list(expected)}.every((v, i) => Math.abs(v - c[i]) <= {tolerance}); }}"
    )
    page.wait_for_function(near)


def number(page, name: str) -> float:
    text = page.text_content(f'#numbers dd[data-name="{name}"]')
    return float(re.sub(r"[^0-9.].*", "", text.replace(",", "")))


REST = (128, 128, 128)


def test_keys_move_the_picture(painted, serving, open_page) -> None:
    turn = round(127.5 * 0.6)
    with serving(painted) as (address, _):
        page = open_page(address)
        live(page)
        until_colour(page, REST)
        for keys, colour in (
            (["ArrowLeft"], (128 + turn, 128, 128)),
            (["ArrowRight", "w"], (128 - turn, 255, 128)),
            (["s", "a"], (128, 0, 255)),
            (["d"], (128, 128, 0)),
        ):
            for key in keys:
                page.keyboard.down(key)
            until_colour(page, colour)
            assert page.locator(".key.down").count() == len(keys)
            for key in keys:
                page.keyboard.up(key)
            until_colour(page, REST)


STOP_SHOWING = """() => {
  const ask = window.requestAnimationFrame.bind(window), held = [];
  window.requestAnimationFrame = (then) => held.push(then);
  window.showAgain = () => { window.requestAnimationFrame = ask; held.forEach((then) => ask(then)); };
}"""


def test_a_new_beginning_while_the_page_shows_nothing(painted, serving, open_page) -> None:
    """All pictures that the page takes without showing one are of the old stream: the new one comes all the same."""
    with serving(painted) as (address, _):
        page = open_page(address)
        live(page)
        until_colour(page, REST)
        page.evaluate(STOP_SHOWING)
        page.wait_for_timeout(1500)
        page.keyboard.press("r")
        page.wait_for_timeout(500)
        page.evaluate("() => window.showAgain()")
        page.keyboard.down("w")
        until_colour(page, (128, 255, 128))


def test_touch_buttons_and_the_mouse(painted, serving, open_page) -> None:
    with serving(painted) as (address, _):
        page = open_page(address)
        live(page)
        button = page.locator(".key", has_text="forward").bounding_box()
        page.mouse.move(button["x"] + 9, button["y"] + 9)
        page.mouse.down()
        until_colour(page, (128, 255, 128))
        page.mouse.up()
        until_colour(page, REST)
        box = page.locator("#dream").bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 200)
        page.mouse.down()
        page.evaluate(
            """() => {
              let x = 600, last = performance.now();
              window.dragging = setInterval(() => {
                x -= 2 * (performance.now() - last); // as fast as a hand, however busy the machine is
                last = performance.now();
                const at = { clientX: x, clientY: 300, pointerId: 1, bubbles: true };
                document.getElementById("dream").dispatchEvent(new PointerEvent("pointermove", at));
              }, 16);
            }"""
        )
        page.wait_for_function(f"() => ({COLOUR.replace('ID', 'dream')})()[0] > 150")  # to the left: turns left
        page.evaluate("clearInterval(window.dragging)")
        page.mouse.up()
        until_colour(page, REST)


def test_the_overlay_counts(painted, serving, open_page) -> None:
    with serving(painted) as (address, studio):
        page = open_page(address)
        live(page)
        assert page.locator("#overlay").is_hidden()
        page.keyboard.press("o")
        page.wait_for_selector('#numbers dd[data-name="frame"]')
        before = number(page, "frame")
        page.keyboard.down("w")
        until_colour(page, (128, 255, 128))
        shown = "Number(document.querySelector('[data-name=frame]').textContent.replace(',', ''))"
        page.wait_for_function(f"() => {shown} > {before + 20}")
        page.wait_for_function("""() => document.querySelector('[data-name="key to picture"]').textContent != "–" """)
        assert number(page, "made") > 0
        assert 0 < number(page, "key to picture") < 5000
        assert number(page, "viewers") == 1
        assert number(page, "memory") == 12
        assert page.text_content('#numbers dd[data-name="kernels"]') == "auto"
        (session,) = studio.sessions
        assert session.projector.index >= number(page, "frame")
        assert set(session.meter.stages()) == {"sample", "remember", "decode", "encode", "send"}


def test_two_pages_have_dreams_of_their_own(painted, serving, open_page) -> None:
    with serving(painted) as (address, studio):
        one, two = open_page(address), open_page(address)
        live(one)
        live(two)
        one.keyboard.down("w")
        two.keyboard.down("s")
        until_colour(one, (128, 255, 128))
        until_colour(two, (128, 0, 128))
        assert len(studio.sessions) == 2
        two.close()
        one.keyboard.up("w")
        until_colour(one, REST)


def test_the_page_connects_again(painted, serving, open_page) -> None:
    with serving(painted) as (address, _):
        page = open_page(address)
        live(page)
        port = int(address.split(":")[2].strip("/"))
    live(page, "lost")
    assert "connection lost" in page.text_content("#veil-text")
    with serving(painted, port=port):
        live(page)
        assert page.locator("#veil").is_hidden()
        page.keyboard.down("w")
        until_colour(page, (128, 255, 128))


def test_the_page_finds_its_dream_again(painted, serving, open_page) -> None:
    """The network fails twice: once for a moment, once for longer than the server keeps the dream."""
    with (
        serving(painted, Limits(resume=4)) as (address, studio),
        Relay(int(address.split(":")[2].strip("/"))) as network,
    ):
        page = open_page(network.address)
        live(page)
        (session,) = studio.sessions
        page.keyboard.press("b")
        page.wait_for_selector("#back:enabled")
        page.keyboard.down("w")
        until_colour(page, (128, 255, 128))
        network.cut()
        live(page, "lost")
        made = session.projector.index
        live(page)
        until_colour(page, (128, 255, 128))  # the key is still down, and the page has said so
        page.keyboard.up("w")
        until_colour(page, REST)
        assert studio.sessions == [session]
        assert (session.projector.stream, session.projector.index > made) == (1, True)
        assert page.locator("#back").is_enabled()
        assert page.locator(".toast", has_text="yours is gone").count() == 0

        network.up = False
        network.cut()
        live(page, "lost")
        while studio.sessions:
            page.wait_for_timeout(50)
        network.up = True
        page.wait_for_selector('.toast:has-text("a broken stream is kept for 4 seconds at most, yours is gone")')
        live(page)
        (fresh,) = studio.sessions
        assert fresh is not session
        assert page.locator("#back").is_disabled()
        until_colour(page, REST)


def test_pause_reset_seed_and_beginnings(painted, serving, open_page) -> None:
    with serving(painted) as (address, studio):
        page = open_page(address)
        live(page)
        (session,) = studio.sessions
        page.keyboard.press("Space")
        live(page, "paused")
        made = session.projector.index
        page.wait_for_timeout(300)
        assert session.projector.index == made
        page.click("#veil")
        live(page)
        page.wait_for_selector("#starts button >> nth=2")
        page.click("#starts button >> nth=2")
        page.wait_for_selector('#starts button:nth-child(3)[aria-pressed="true"]')
        page.keyboard.press("n")
        page.wait_for_selector('#starts button:nth-child(1)[aria-pressed="true"]')
        page.fill("#seed", "77")
        page.press("#seed", "Enter")
        page.wait_for_function("() => document.activeElement.id !== 'seed'")
        for _ in range(200):
            if session.seed == 77:
                break
            page.wait_for_timeout(20)
        assert session.seed == 77
        page.locator("#steps").fill("7")
        for _ in range(200):
            if session.choices.steps == 7:
                break
            page.wait_for_timeout(20)
        assert session.choices.steps == 7
        page.click("#speed button[data-pace='0']")
        page.wait_for_timeout(200)
        assert session.choices.pace == 0
        page.keyboard.press("b")
        page.wait_for_selector("#back:enabled")
        page.keyboard.press("v")
        page.wait_for_timeout(200)
        live(page)


def test_a_picture_and_a_replay_file(painted, serving, open_page, tmp_path: Path) -> None:
    Image.fromarray(np.full((50, 50, 3), (10, 200, 30), np.uint8)).save(tmp_path / "green.png")
    with serving(painted) as (address, studio):
        page = open_page(address, accept_downloads=True)
        live(page)
        page.keyboard.press("Space")
        live(page, "paused")
        (session,) = studio.sessions
        page.set_input_files("#picture-file", tmp_path / "green.png")
        live(page)
        page.keyboard.down("w")
        until_colour(page, (128, 255, 128))
        with page.expect_download() as download:
            page.click("#save")
        download.value.save_as(tmp_path / "replay.safetensors")
        assert download.value.suggested_filename == f"dream-{session.seed}.safetensors"
        page.keyboard.up("w")
        page.set_input_files("#replay-file", tmp_path / "replay.safetensors")
        page.wait_for_selector("#replaying", state="visible")
        until_colour(page, (128, 255, 128))
        live(page, "paused")  # at its end
        assert "yours to drive" in page.text_content("#toasts")
        (tmp_path / "text.png").write_text("no picture")
        page.set_input_files("#picture-file", tmp_path / "text.png")
        page.wait_for_selector(".toast.bad")
        assert "not a picture" in page.text_content("#toasts")


@pytest.mark.needs("h264")
def test_a_recording_is_downloaded(painted, serving, open_page) -> None:
    with serving(painted) as (address, _):
        page = open_page(address, accept_downloads=True)
        live(page)
        page.keyboard.press("c")
        page.wait_for_selector("#recording", state="visible")
        page.wait_for_timeout(500)
        with page.expect_download() as download:
            page.keyboard.press("c")
        data = Path(download.value.path()).read_bytes()
        assert download.value.suggested_filename.endswith(".mp4")
        assert b"ftyp" in data[:16]
        assert page.locator("#recording").is_hidden()


LIT = """() => {
  const note = ({target}) => target.matches('.key.down') && window.lit.push(target.textContent);
  new MutationObserver((all) => all.forEach(note)).observe(document, {subtree: true, attributeFilter: ['class']});
}"""  # window.lit: the keys that were lit, however briefly


def test_the_same_keys_in_another_world(world, base, serving, open_page) -> None:
    """T repeats the run in the other world, with the pictures of this one beside it; a key takes over."""
    with serving(world, base=base) as (address, studio):
        page = open_page(address)
        live(page)
        (session,) = studio.sessions
        assert page.locator("#worlds button").all_text_contents() == ["world", "base"]
        assert page.locator("#before-screen").is_hidden()
        page.keyboard.down("w")
        page.wait_for_selector(".key.down")
        made = session.projector.index
        while session.projector.index < made + 200:  # more than a slow page can skip
            page.wait_for_timeout(20)
        page.keyboard.up("w")
        while session.projector.index < 400:  # long enough to press "faster" in time
            page.wait_for_timeout(20)
        page.evaluate(LIT)
        for name, before in (("base", "world"), ("world", "base")):
            page.evaluate("window.lit = []")
            page.keyboard.press("t")
            page.wait_for_selector(f'#worlds button[data-world="{name}"][aria-checked="true"]')
            page.wait_for_selector("#before-screen", state="visible")
            assert page.text_content("#before-name") == f"{before}, before"
            page.wait_for_function("() => window.lit.length > 0")  # the page may skip pictures that come faster
            page.click("#faster")
            page.wait_for_selector('#veil[data-kind="over"]')
            assert set(page.evaluate("window.lit")) == {"↑Wforward"}  # the recorded one
            while session.choices.pace != world.fps:
                page.wait_for_timeout(20)
        same = "Array.from(document.getElementById(ID).getContext('2d').getImageData(0, 0, 16, 16).data).join()"
        assert page.evaluate(same.replace("ID", "'dream'")) != page.evaluate(same.replace("ID", "'before'"))
        page.click('#worlds button[data-world="base"]')
        page.wait_for_selector('#worlds button[data-world="base"][aria-checked="true"]')
        width = "parseFloat(document.getElementById('script-done').style.width)"
        page.wait_for_function(f"() => {width} > 10 && {width} < 70")
        page.keyboard.down("s")
        page.wait_for_selector("#script", state="hidden")
        assert page.locator("#before-screen").is_hidden()
        live(page)
        made = session.projector.index
        while session.projector.index < made + 8:
            page.wait_for_timeout(20)
        assert page.locator(".key.down").all_text_contents() == ["↓Sback"]


PRESS = """() => {
  const press = () => dispatchEvent(new KeyboardEvent("keydown", {key: "t", code: "KeyT", bubbles: true}));
  window.press = press;
}"""


def test_keys_pressed_faster_than_the_server_answers(world, base, serving, open_page) -> None:
    """T twice at once leads back to the first world, three times to the other."""
    with serving(world, base=base) as (address, studio):
        page = open_page(address)
        live(page)
        (session,) = studio.sessions
        page.evaluate(PRESS)
        for times, name in ((2, "world"), (3, "base")):
            stream = session.projector.stream
            page.evaluate(f"for (let i = 0; i < {times}; i++) press()")
            while session.projector.stream < stream + times:
                page.wait_for_timeout(20)
            page.wait_for_selector(f'#worlds button[data-world="{name}"][aria-checked="true"]')
            assert page.text_content("#world-name") == name


def test_one_world_has_no_switch(painted, serving, open_page) -> None:
    with serving(painted) as (address, studio):
        page = open_page(address)
        live(page)
        assert page.locator("#switcher").is_hidden() and page.locator("#world-name").is_hidden()
        page.keyboard.press("t")
        page.wait_for_timeout(200)
        assert studio.sessions[0].projector.stream == 1


class Mirror:
    """A simulator that shows its last turn as green."""

    def reset(self, seed: int) -> np.ndarray:
        return np.full((32, 32, 3), (0, 100, 0), np.uint8)

    def step(self, actions: np.ndarray) -> np.ndarray:
        return np.full((1, 32, 32, 3), (0, round(100 + 10 * float(actions[0, 0])), 0), np.uint8)

    def close(self) -> None: ...


def test_the_real_world_beside_the_dream(painted, serving, open_page) -> None:
    with serving(painted, real=Mirror) as (address, _):
        page = open_page(address)
        live(page)
        assert page.locator("#real-screen").is_hidden()
        page.check("#real-on")
        page.wait_for_selector("#real-screen", state="visible")
        until_colour(page, (0, 100, 0), "real")
        page.keyboard.down("ArrowLeft")
        until_colour(page, (0, 148, 0), "real")
        page.uncheck("#real-on")
        assert page.locator("#real-screen").is_hidden()


def test_what_a_person_reads_when_it_does_not_work(painted, serving, open_page) -> None:
    with serving(painted, Limits(sessions=1)) as (address, _), Client(address, Hello(version=2)) as client:
        client.message("started")
        page = open_page(address)
        live(page, "lost")
        assert "all 1 places" in page.text_content("#veil-text")
        client.close()
        page.wait_for_timeout(300)
        page.click("#veil")
        live(page)
    with serving(painted, token="open-sesame") as (address, _):
        page = open_page(address.split("?")[0])
        live(page, "lost")
        assert "needs its token" in page.text_content("#veil-text")
        page = open_page(address)
        live(page)
        until_colour(page, REST)
        page.wait_for_function("() => document.querySelector('#starts img').naturalWidth === 32")


def test_worlds_with_other_actions_get_bars(painted, serving, open_page) -> None:
    spec = replace(painted.actions, names=("x", "y", "grip"), low=(-1.0, -1.0, -1.0), high=(1.0, 1.0, 1.0))
    with serving(replace(painted, actions=spec)) as (address, _):
        page = open_page(address)
        live(page)
        assert page.locator(".bars div").all_text_contents() == ["x", "y", "grip"]
        page.keyboard.down("e")
        until_colour(page, (128, 128, round(127.5 + 127.5 * 0.6)))
        assert page.evaluate("() => document.querySelectorAll('.bars i')[2].style.getPropertyValue('--v')") == "1"


def remembering(world):
    """With a memory in which every second frame stays a while: keys of zeros, as here, are always surprising."""
    memory = SlowFastConfig(sink=1, slow=3, fast=4, every=2)
    return replace(world, stream=replace(world.stream, memory=memory))


def colour_of(page, index: int) -> list[int]:
    """The first pixel of the thumbnail of a picture, red, green and blue."""
    return page.evaluate(
        f"""() => {{
          const canvas = document.querySelector('#memory .kept[data-index="{index}"] canvas');
          return [...canvas.getContext("2d").getImageData(9, 9, 1, 1).data].slice(0, 3);
        }}"""
    )


def test_the_overlay_shows_what_the_memory_holds(painted, serving, open_page) -> None:
    """Thumbnails of the slow memory are the pictures that it names; what came before the page has a placeholder."""
    with serving(remembering(painted)) as (address, studio):
        page = open_page(address)
        live(page)
        strip = page.locator("#memory")
        assert strip.is_hidden()
        page.keyboard.press("o")
        page.wait_for_selector("#memory", state="visible")
        page.keyboard.down("w")
        green = """() => {
          const seen = [...document.querySelectorAll('#memory .kept canvas')];
          return seen.length === 3 && seen.every((canvas) => canvas.width === 32)
            && seen.every((canvas) => canvas.getContext("2d").getImageData(9, 9, 1, 1).data[1] > 250);
        }"""
        page.wait_for_function(green)  # all that was seen at rest has gone
        page.wait_for_function("() => document.querySelectorAll('#memory .kept:last-child.fresh').length === 1")
        assert page.locator("#memory .fresh").count() == 1
        page.keyboard.press("Space")
        live(page, "paused")
        page.keyboard.up("w")
        (session,) = studio.sessions
        slow = session.stats(1).slow
        page.wait_for_function(f"() => document.querySelector('#memory .kept:last-child').dataset.index == {slow[-1]}")
        assert [int(each.get_attribute("data-index")) for each in strip.locator(".kept").all()] == slow
        newest = session.projector.index - 1
        ages = [f"{(newest - index) / 24:.1f} s" for index in slow]
        page.wait_for_function(f"() => document.querySelector('#memory .kept span').textContent === '{ages[0]}'")
        assert strip.locator(".kept span").all_text_contents() == ages
        assert [colour_of(page, index)[1] for index in slow] == [255] * 3
        assert strip.locator(".sink span").text_content() == "first 1"
        assert strip.locator(".ring i").count() == 4

        page.fill("#seed", "77")  # a stream begins, and is paused
        page.press("#seed", "Enter")
        page.wait_for_selector("#memory .kept.unseen")
        assert session.stats(1).slow == [-5]  # frame 2 of 8
        assert strip.locator(".unseen").get_attribute("title") == "given before the stream began"
        assert strip.locator(".kept span").all_text_contents() == ["", "", "0.2 s"]
        assert strip.locator(".fresh").count() == 0
        page.set_viewport_size({"width": 390, "height": 844})
        box = strip.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_kept_pictures_are_bounded(painted, serving, open_page) -> None:
    with serving(remembering(painted)) as (address, _):
        page = open_page(address)
        page.evaluate(
            """() => {
              const set = Map.prototype.set;
              window.kept = new Set(); // maps of picture messages, by index
              window.most = 0;
              Map.prototype.set = function (key, value) {
                const changed = set.call(this, key, value);
                if (value?.payload && value.index === key) window.kept.add(this);
                for (const map of window.kept) window.most = Math.max(window.most, map.size);
                return changed;
              };
            }"""
        )
        live(page)
        page.click("#speed button[data-pace='0']")
        page.wait_for_function("() => Number(document.querySelector('#memory .kept:last-child')?.dataset.index) > 150")
        assert 1 < page.evaluate("window.most") <= 4 + 8 * 4 + 1 + 3 * 17  # ring, late chunks, and what is named


def test_window_memory_has_no_strip(painted, serving, open_page) -> None:
    with serving(painted) as (address, _):
        page = open_page(address)
        live(page)
        page.keyboard.press("o")
        page.wait_for_function(
            "() => document.querySelector('#numbers [data-name=memory]')?.textContent.startsWith('12 ')"
        )
        assert page.locator("#memory").is_hidden()


def test_small_screens_show_picture_and_buttons(painted, serving, open_page) -> None:
    with serving(painted) as (address, _):
        page = open_page(address, has_touch=True, is_mobile=True)
        page.set_viewport_size({"width": 390, "height": 844})
        live(page)
        picture, button = page.locator("#dream").bounding_box(), page.locator(".key").first.bounding_box()
        assert picture["width"] > 340
        assert button["height"] >= 56
        assert button["y"] + button["height"] < 844
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        shot = np.asarray(Image.open(io.BytesIO(page.screenshot())))
        assert shot.std() > 5
