"""The report in a browser: sorting, filters, the large view, confusion and curves."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from test_report import CLASSES, CURVES, HOSTILE, counted, write

pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install -e '.[dev]')")


@pytest.fixture
def visit(browser, tmp_path) -> Iterator[Callable]:
    """Write a report and open it without a network. The test fails if the page asks for more or reports an error."""
    contexts, faults = [], []

    def only_the_page(route):
        if route.request.url == (tmp_path / "new/index.html").as_uri():
            route.continue_()
        else:
            faults.append(f"asked for {route.request.url}")
            route.abort()

    def visit(width: int = 1280, height: int = 800, **changes):
        write(tmp_path, **changes)
        context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
        contexts.append(context)
        context.route(lambda url: not url.startswith("data:"), only_the_page)
        page = context.new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(f"alert {dialog.message}"))
        page.goto((tmp_path / "new/index.html").as_uri())
        return page

    yield visit
    for context in contexts:
        context.close()
    assert faults == []


def rows(page) -> list[str]:
    return page.locator("#rows tr:visible th").all_inner_texts()


def cards(page) -> list[str]:
    return page.locator("#gallery b").all_inner_texts()


def test_summary_and_sorted_classes(visit):
    page = visit()
    assert page.locator("h1").inner_text().endswith(f"best.pt on {HOSTILE}")
    # (0.7377 + 0.4878 + 0.5) / 3; 185 / 250; (0.9 + 0.6 + 0.7) / 3; 0.4 * 0.7377 + 0.4 * 0.4878 + 0.2 * 0.5
    # Dice is 2 IoU / (1 + IoU): (0.8491 + 0.6557 + 0.6667) / 3
    interval = "95 % confidence interval 55.00 to 65.00 %"
    figures = [f"57.52 %\n{interval}", "72.38 %", "74.00 %", "73.33 %", "59.02 %"]
    assert page.locator("#figures dd").all_inner_texts() == figures
    assert page.locator("#facts dd").nth(1).inner_text() == f"data, {HOSTILE}, 7 images"
    assert rows(page) == CLASSES
    for expected in (["road", "car", "sky"], ["sky", "car", "road"]):  # 0.49, 0.5, 0.74; absent classes come last
        page.locator("th", has_text="IoU").first.get_by_role("button").click()
        assert rows(page) == [*expected, CLASSES[3]]
    assert "absent" in page.locator("#rows tr").last.inner_text()
    page.get_by_label("Find a class").fill("R")
    assert rows(page) == ["car", "road"]


def test_gallery_and_large_view(visit):
    page = visit()
    dialog = page.get_by_role("dialog")
    assert cards(page) == ["bad.png", "fair.png", HOSTILE]  # 0.3, 0.5, 1
    page.locator("#images-order").select_option("Best first")
    assert cards(page) == [HOSTILE, "fair.png", "bad.png"]
    page.locator("#images-order").select_option("Worst first")
    page.locator("#class").select_option(label="road (2)")
    assert cards(page) == ["bad.png", "fair.png"]  # road: 0.2, 0.4
    page.locator("#rows").get_by_role("button", name="sky").click()  # the table's classes choose too
    assert cards(page) == ["fair.png", HOSTILE]  # sky: 0.6, 1
    page.locator("#class").select_option(value="3")
    assert "None of the 3 images shown here has <b>moon</b>" in page.locator("#gallery").inner_text()
    page.get_by_role("button", name="Show all images").click()
    page.locator("#gallery button", has_text="bad.png").click()
    # The input, the errors over the input; truth and prediction of three layers: the input, colours, contours.
    assert dialog.locator("img").count() == 1 + 2 + 3 + 3
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    dialog.get_by_role("button", name="Previous").click()
    assert dialog.get_by_role("heading", level=2).inner_text() == "fair.png"
    assert dialog.locator("li").all_inner_texts() == ["road 40.0 %", "sky 60.0 %"]  # its classes, the worst first
    dialog.get_by_label("Opacity of the classes over the image").focus()
    page.keyboard.press("Home")  # all overlays fade together
    opacity = "all => [...new Set(all.map((element) => getComputedStyle(element).opacity))]"
    assert page.locator(".fill, .lines").evaluate_all(opacity) == ["0"]
    page.keyboard.press("Escape")
    assert not dialog.is_visible()


def test_confusion_and_curves_under_the_pointer(visit):
    page = visit()
    page.locator("#matrix").scroll_into_view_if_needed()
    page.locator("#matrix tbody tr").first.locator("td").nth(1).hover()  # the row of sky, the column of road
    assert page.locator("#tip").inner_text() == "true sky predicted as road: 10.0 % (10 pixels)"
    page.locator("#matrix").focus()
    for key in ("ArrowDown", "ArrowDown"):  # to the first cell, then to the one below it
        page.keyboard.press(key)
    assert page.locator("#tip").inner_text() == "true road predicted as sky: 20.0 % (20 pixels)"
    ranking = page.locator("#ranking li")
    pairs = ["road predicted as sky", "road predicted as car", "car predicted as road", "sky predicted as road"]
    # 20, 20, 13, 10 and 2 pixels, of rows of 100, 100, 50, 100 and 50.
    assert [text.split("\n")[0] for text in ranking.all_inner_texts()] == [*pairs, "car predicted as sky"]
    page.locator("#ranking-order").select_option("By share of the class")
    assert ranking.first.inner_text().split("\n") == ["car predicted as road", "26.0 %", "13 pixels"]
    plots = page.locator(".plot")
    assert "Best validation mIoU: 60.00 % at step 20 (epoch 2)." in page.locator("#curves-note").inner_text()
    assert plots.last.locator("text", has_text="best 60.00 %").count() == 1
    plots.first.hover(position={"x": plots.first.bounding_box()["width"] - 20, "y": 100})
    lines = ["step 20, epoch 2", "total 1.250", "seg 1.000", "lorm 0.2500", "learning rate 0.00500"]
    assert page.locator("#tip").inner_text().split("\n") == lines


def test_pages_with_little_and_with_much(visit):
    page = visit(curves=[CURVES[0] | {"loss": None}, *CURVES[1:]])  # of two totals one is missing: no line
    assert "L" not in page.locator(".plot path").first.get_attribute("d")
    page = visit(curves=[], shown=[])
    assert page.locator(".plot").count() == 0
    assert "without a metrics.jsonl" in page.locator("#curves-note").inner_text()
    assert page.locator("#gallery").inner_text().strip() == "The report was made without images."
    classes = [*CLASSES, *(f"class-{k}-with-a-name-that-does-not-break" for k in range(4, 150))]
    shown = [counted("x" * 200, {(0, 0): 9, (1, 2): 9})]
    page = visit(360, 740, split="y" * 200, classes=classes, confusion=np.ones((150, 150), np.int64), shown=shown)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 360  # a phone scrolls only downwards
