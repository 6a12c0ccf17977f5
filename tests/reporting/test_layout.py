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


def test_sentences_of_a_table_can_be_read_on_a_phone(phone):
    cells = phone.locator(":is([data-name='comparison'], [data-name='confusions']) td").evaluate_all(
        "all => all.map((each) => [each.getBoundingClientRect().left, each.getBoundingClientRect().right])"
    )
    assert len(cells) >= 16
    assert all(left >= 0 and right <= 390 for left, right in cells)
    label = "getComputedStyle(document.querySelector(\"table[data-name='comparison'] td:nth-child(2)\"), '::before')"
    assert phone.evaluate(f"{label}.content") == '"points of AGS to the best"'


def test_a_row_keeps_its_name_while_a_table_is_scrolled(phone):
    table = "table[data-name='scores-recall@1:matched']"
    left = f'document.querySelector("{table} td").getBoundingClientRect().left'
    before = phone.evaluate(left)
    assert phone.evaluate(f'document.querySelector("{table}").parentElement.scrollLeft = 100') == 100
    assert phone.evaluate(left) == pytest.approx(before, abs=1)


def test_facts_leave_the_room_to_their_values(open_page):
    page = open_page(820)
    name, value = (page.locator("[data-name='how-it-was-made'] td").nth(i).bounding_box()["width"] for i in (0, 1))
    assert value > 2 * name
    pairs = page.locator(".pair").evaluate_all("all => all.map((each) => each.scrollWidth - each.clientWidth)")
    assert pairs
    assert max(pairs) <= 0
    page.context.close()


def test_a_key_sorts_a_table(open_page):
    page = open_page(1280)
    head = page.locator("table[data-name='scores-recall@1:matched'] th").nth(1)
    head.press(" ")
    assert head.get_attribute("aria-sort") == "descending"
    page.context.close()


def test_a_logarithmic_axis_labels_1_2_5_at_most(phone, open_page):
    desk = open_page(1280)
    for page in (phone, desk):
        labels = page.locator("[data-chart='spectra'] .ytick text").all_text_contents()
        assert len(labels) >= 2
        assert {label.strip("0.") for label in labels} <= {"1", "2", "5"}
    desk.context.close()


def test_a_copied_table_has_the_minus_that_programs_read(phone):
    made = "Object.assign(document.createElement('table'), {innerHTML: '<tr><td>a</td><td>−7.9</td></tr>'})"
    assert phone.evaluate(f"csvOf({made})") == "a,-7.9\r\n"
