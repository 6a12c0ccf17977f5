"""Nothing on the page covers, cuts or hides anything else: boxes in a real browser, on a phone and on a desk."""

import pytest

# Pairs of what must lie apart inside a chart: its buttons, and what they might lie on.
COVERED = """() => [...document.querySelectorAll("[data-chart]")].flatMap((chart) => {
    const boxes = (what) => [...chart.querySelectorAll(what)].map((each) => each.getBoundingClientRect());
    const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
    const others = boxes(".legendtext, .barlayer path, select, .draglayer .nsewdrag");
    return boxes(".modebar-btn").flatMap((button) => others.filter((other) => !apart(button, other)))
        .map(() => chart.dataset.chart);
})"""


@pytest.fixture(scope="module")
def phone(open_page):
    page = open_page(390, 844)
    yield page
    page.context.close()


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_the_buttons_of_a_chart_cover_nothing(open_page, width):
    page = open_page(width)
    assert page.evaluate(COVERED) == []
    page.context.close()


def test_the_pointer_reaches_the_buttons_and_the_switches_beside_them(open_page):
    page = open_page(1280)
    page.locator("[data-chart='score'] select[data-switch='show']").click(trial=True, timeout=3000)
    page.locator("[data-chart='score'] .plot").hover()
    page.locator("[data-chart='score'] .modebar-btn[data-title='Pan']").click(timeout=3000)
    assert page.evaluate("document.querySelector(\"[data-chart='score'] .plot\").layout.dragmode") == "pan"
    page.context.close()
