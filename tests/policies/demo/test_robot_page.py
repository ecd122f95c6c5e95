"""The page of the robot demo in a real headless Chromium, with a robot that does as the test says."""

import pytest
from tiny_show import Encoder, Stand, show

from worldmodel import capabilities
from worldmodel.policies.demo.server import background

pytestmark = pytest.mark.browser
BAR = '#chart g[data-name="{}"]'


def counted(page, name: str, wanted: str) -> None:
    """Wait until the chart says how often a condition succeeded. wanted: a regular expression."""
    page.wait_for_function(
        """([name, wanted]) => [...document.querySelectorAll(`#chart g[data-name="${name}"] text`)]
             .some((text) => RegExp(`^${wanted}$`).test(text.textContent))""",
        arg=[name, wanted],
    )


def test_a_person_breaks_the_robot_and_lets_it_correct_itself():
    from playwright.sync_api import sync_playwright

    errors = []
    stand = Stand(lambda shift, known: shift == "nominal" or (known is not None and known[1] == 2), Encoder())
    with background(show(stand)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=capabilities.chromium_path(), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_default_timeout(30_000)
        page.goto(address)
        page.wait_for_selector('#status[data-state="live"]')
        page.click('[data-speed="0"]')
        page.wait_for_function(  # the robot's picture is on the canvas
            """() => { const [r, g] = picture.getContext("2d").getImageData(9, 9, 1, 1).data;
                       return Math.abs(r - 200) < 6 && Math.abs(g - 100) < 6; }"""
        )
        page.wait_for_selector(f"{BAR.format('as built')} .whisker")
        page.click("#pause")
        page.wait_for_selector('#status[data-state="paused"]')
        page.click("#clear")
        counted(page, "as built", "–")
        page.click('[data-kind="encoder-offset"]')
        page.click('[data-axis="0,1,0"]')
        page.wait_for_selector('[data-axis="0,1,0"][aria-checked="true"]')
        assert page.text_content("#delta") == "+0.0 right, +11.0 far, +0.0 up (cm)"
        page.check("#correct")
        page.wait_for_selector('#correct-note:has-text("Every failed trial becomes one token")')
        assert page.get_attribute('[data-way="mean"]', "aria-checked") == "true"
        page.click('[data-way="sum"]')
        page.wait_for_selector('[data-way="sum"][aria-checked="true"]')
        page.click("#pause")
        counted(page, "after 2", r"([1-9]\d*) / \1")
        counted(page, "after 1", r"0 / [1-9]\d*")
        page.click("#pause")
        page.wait_for_selector('#status[data-state="paused"]')
        assert page.locator("#strip i").count() >= 3 and page.locator("#strip i.good").count() >= 1
        assert page.locator(f"{BAR.format('broken')} .bar").count() == 1
        page.reload()
        page.wait_for_selector('#status[data-state="paused"]')  # the robot and its counts are still there
        assert (
            page.is_checked("#correct") and page.get_attribute('[data-kind="encoder-offset"]', "aria-checked") == "true"
        )
        counted(page, "as built", "–")
        browser.close()
    assert not errors and ("encoder-offset:0,0.11,0", 0) not in stand.begun
    assert {shift for shift, _ in stand.begun} >= {"nominal", "encoder-offset:0,0.11,0"}
