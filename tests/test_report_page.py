"""The report in a browser: sorting, filters, the large view, by pointer and by keyboard alone."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from test_report import CLASSES, CURVES, HOSTILE, counted, write

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install -e '.[dev]')")


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

    def visit(width: int = 1280, height: int = 800, scheme: str = "light", **changes):
        write(tmp_path, **changes)
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
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


def focused(page) -> str:
    return page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText")


def test_summary_and_sorted_classes(visit):
    page = visit()
    assert page.locator("h1").inner_text().endswith(f"best.pt on {HOSTILE}")
    # (0.7377 + 0.4878 + 0.5) / 3; 185 / 250; (0.9 + 0.6 + 0.7) / 3; 0.4 * 0.7377 + 0.4 * 0.4878 + 0.2 * 0.5
    interval = "95 % confidence interval 55.00 to 65.00 %"
    figures = [f"57.52 %\n{interval}", "74.00 %", "73.33 %", "59.02 %"]
    assert page.locator("#figures dd").all_inner_texts() == figures
    assert page.locator("#facts dd").nth(1).inner_text() == f"data, {HOSTILE}, 7 images"
    assert page.locator("img[src=x]").count() == 0
    assert rows(page) == CLASSES
    header = page.locator("th", has_text="IoU").first
    header.get_by_role("button").click()
    assert rows(page) == ["road", "car", "sky", CLASSES[3]]  # 0.49, 0.5, 0.74, None
    header.get_by_role("button").click()
    assert rows(page) == ["sky", "car", "road", CLASSES[3]]
    assert header.get_attribute("aria-sort") == "descending"
    assert "absent" in page.locator("#rows tr").last.inner_text()
    page.get_by_label("Find a class").fill("R")
    assert rows(page) == ["car", "road"]


def test_gallery_order_and_class(visit):
    page = visit()
    assert cards(page) == ["bad.png", "fair.png", HOSTILE]  # 0.3, 0.5, 1
    page.get_by_role("button", name="Best first").click()
    assert cards(page) == [HOSTILE, "fair.png", "bad.png"]
    page.get_by_role("button", name="Worst first").click()
    page.locator("#class").select_option(label="road (2)")
    assert cards(page) == ["bad.png", "fair.png"]  # road: 0.2, 0.4
    page.locator("#rows").get_by_role("button", name="sky").click()  # the table's classes choose too
    assert page.locator("#class").input_value() == "0"
    assert cards(page) == ["fair.png", HOSTILE]  # sky: 0.6, 1
    page.locator("#class").select_option(value="3")
    assert cards(page) == []
    assert "None of the 3 images shown here has <b>moon</b>" in page.locator("#no-image").inner_text()
    page.get_by_role("button", name="Show all images").click()
    assert len(cards(page)) == 3


def test_large_view(visit):
    page = visit()
    dialog = page.get_by_role("dialog")
    page.locator("#gallery button", has_text="bad.png").click()
    assert dialog.get_by_role("heading", level=2).inner_text() == "bad.png"
    # The input, the errors over the input; truth and prediction of three layers: the input, colours, contours.
    assert dialog.locator("img").count() == 1 + 2 + 3 + 3
    assert page.evaluate("document.activeElement.id") == "dialog"  # not on a button that Enter would press
    page.keyboard.press("ArrowLeft")  # there is none before the first
    assert "1 of 3" in dialog.inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert dialog.get_by_role("heading", level=2).inner_text() == HOSTILE
    dialog.get_by_role("button", name="Previous").click()
    assert dialog.get_by_role("heading", level=2).inner_text() == "fair.png"
    # The classes of fair.png, the worst first.
    assert dialog.locator("li").all_inner_texts() == ["road 40.0 %", "sky 60.0 %"]
    dialog.get_by_label("Opacity of the classes over the image").focus()
    page.keyboard.press("Home")  # all overlays fade together
    opacity = "all => [...new Set(all.map((element) => getComputedStyle(element).opacity))]"
    assert page.locator(".fill, .lines").evaluate_all(opacity) == ["0"]
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert focused(page).startswith("bad.png")


def test_by_keyboard_alone(visit):
    page = visit()
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the summary"
    assert page.locator(".skip").evaluate("element => element.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    order = []  # what Tab comes to after the summary, by the name that is read out
    while not order or not order[-1].startswith("bad.png"):
        page.keyboard.press("Tab")
        order.append(focused(page))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", order
        assert len(order) < 60, order
        if order[-1] == "IoU":
            page.keyboard.press("Enter")
            assert rows(page)[0] == "road"
            page.keyboard.press("Space")
            assert rows(page)[0] == "sky"
        elif order[-1].startswith("Training loss"):
            page.keyboard.press("End")
            assert page.locator("#tip").inner_text().split("\n")[:2] == ["step 20, epoch 2", "total 1.250"]
        elif order[-1].startswith("Confusion matrix"):
            for name in ("ArrowRight", "ArrowDown", "ArrowRight"):  # into row 0, column 0, then to row 1, column 1, 2
                page.keyboard.press(name)
            assert page.locator("#tip").inner_text() == "true road predicted as road: 60.0 % (60 pixels)"
    assert "Best first" in order
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    assert page.locator("#dialog-name").inner_text() == "fair.png"
    page.keyboard.press("Escape")
    assert focused(page).startswith("bad.png")


def test_confusion_under_the_pointer_and_the_largest(visit):
    page = visit()
    page.locator("#matrix").scroll_into_view_if_needed()
    # The row of sky, the column of road: the second cell of the first row.
    x, y = page.evaluate("[matrix.gutter + 1.5 * matrix.cell, matrix.gutter + 0.5 * matrix.cell]")
    page.locator("#matrix").hover(position={"x": x, "y": y})
    assert page.locator("#tip").inner_text() == "true sky predicted as road: 10.0 % (10 pixels)"
    ranking = page.locator("#ranking li")
    pairs = ["road predicted as sky", "road predicted as car", "car predicted as road", "sky predicted as road"]
    # 20, 20, 13, 10 and 2 pixels, of rows of 100, 100, 50, 100 and 50.
    assert [text.split("\n")[0] for text in ranking.all_inner_texts()] == [*pairs, "car predicted as sky"]
    page.get_by_role("button", name="By share of the class").click()
    assert ranking.first.inner_text().split("\n") == ["car predicted as road", "26.0 %", "13 pixels"]


def test_curves_under_the_pointer(visit):
    page = visit()
    plots = page.locator(".plot")
    assert plots.count() == 2
    assert "Best validation mIoU: 60.00 % at step 20 (epoch 2)." in page.locator("#curves-note").inner_text()
    assert plots.last.locator("text", has_text="best 60.00 %").count() == 1
    line = plots.last.locator("circle:not(.best)")  # of 2 lines with 2 points each, the mIoU's first
    for name in ("cx", "cy"):
        assert plots.last.locator(".best").get_attribute(name) == line.nth(1).get_attribute(name)
    plots.first.hover(position={"x": plots.first.bounding_box()["width"] - 20, "y": 100})
    lines = ["step 20, epoch 2", "total 1.250", "seg 1.000", "lorm 0.2500", "learning rate 0.00500"]
    assert page.locator("#tip").inner_text().split("\n") == lines
    page = visit(curves=[CURVES[0] | {"loss": None}, *CURVES[1:]])  # of two totals one is missing: no line
    assert "L" not in page.locator(".plot path").first.get_attribute("d")


def test_page_without_curves_and_images(visit):
    page = visit(curves=[], shown=[])
    assert page.locator(".plot").count() == 0
    assert "without a metrics.jsonl" in page.locator("#curves-note").inner_text()
    assert page.locator("#no-image").inner_text().strip() == "The report was made without images."


def test_a_phone_scrolls_only_downwards(visit):
    classes = [*CLASSES, *(f"class-{k}-with-a-name-that-does-not-break" for k in range(4, 150))]
    confusion = np.ones((150, 150), np.int64)
    shown = [counted("x" * 200, {(0, 0): 9, (1, 2): 9})]
    page = visit(360, 740, split="y" * 200, classes=classes, confusion=confusion, shown=shown)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 360
    page.locator("#gallery button").click()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 360
    assert page.locator("#dialog").evaluate("element => element.scrollWidth <= element.clientWidth")
