"""The page in a real browser: it draws, switches, hides, sorts and fits, and nothing in a name is run."""

import json
from pathlib import Path

import pytest

MARKS = "[data-chart='{}'] .plot :is(.scatterlayer path, .barlayer path)"


@pytest.fixture(scope="module")
def page(open_page):
    return open_page()


def chart_ids(page):
    return page.eval_on_selector_all("[data-chart]", "all => all.map((each) => each.dataset.chart)")


def drawn(page, chart):
    """The positions of a chart's marks, as the browser has drawn them."""
    return page.eval_on_selector_all(
        MARKS.format(chart), "all => all.map((each) => each.getAttribute('d') + each.getAttribute('transform'))"
    )


def legend(page, chart):
    return page.locator(f"[data-chart='{chart}'] .legend .traces")


@pytest.mark.parametrize(("width", "height", "theme"), [(390, 844, "dark"), (1440, 900, "light")])
def test_the_page_opens_without_a_complaint_and_draws_every_chart(open_page, width, height, theme):
    page = open_page(width, height, theme)
    assert page.problems == []
    assert page.dialogs == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in chart_ids(page):
        assert drawn(page, chart), f"{chart} draws no marks"
        box = page.locator(f"[data-chart='{chart}'] .main-svg").first.bounding_box()
        assert box["width"] <= width
        assert box["width"] > 0.8 * min(width, 1000), chart
    assert paper(page) == ("rgb(255, 255, 255)" if theme == "light" else "rgb(20, 24, 28)")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert paper(page) == "rgb(255, 255, 255)", "ink is not spent on a dark page"
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.context.close()


def paper(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_metric_switch_changes_every_chart_that_has_it(page):
    before = {chart: drawn(page, chart) for chart in ("score", "difference", "ags", "spectra")}
    page.locator("[data-chart='score'] select[data-switch='metric']").select_option("map@1000")
    after = {chart: drawn(page, chart) for chart in before}
    assert [chart for chart in before if before[chart] != after[chart]] == ["score", "difference", "ags"]
    assert page.locator("[data-chart='ags'] select[data-switch='metric']").input_value() == "map@1000"
    assert page.locator("table[data-name='scores-map@1000']").is_visible()
    assert not page.locator("table[data-name='scores-recall@1']").is_visible()
    page.locator("[data-chart='score'] select[data-switch='show']").select_option("gain over untrained")
    assert drawn(page, "score") != after["score"]
    page.locator("[data-chart='score'] select[data-switch='show']").select_option("score")
    page.locator("[data-chart='score'] select[data-switch='metric']").select_option("recall@1:matched")
    assert drawn(page, "score") == before["score"]


def test_a_click_on_the_legend_hides_the_method_everywhere(page):
    visible = """(chart) => document.querySelector(`[data-chart='${chart}'] .plot`).data
        .filter((trace) => trace.legendgroup === 'margin' && trace.visible === true).length"""
    before, marks = page.evaluate(visible, "score"), len(drawn(page, "score"))
    assert before >= 2
    assert page.evaluate(visible, "ags") == 1
    entry = page.locator("[data-chart='score'] .legendtoggle").first
    entry.click()
    page.wait_for_function(f"({visible})('score') === 0")
    assert len(drawn(page, "score")) < marks
    assert page.evaluate(visible, "ags") == 0
    page.wait_for_timeout(400)  # a second click at once would be a double click
    entry.click()
    page.wait_for_function(f"({visible})('score') === {before}")


def test_pointing_at_a_mark_names_the_run(page):
    plot = page.locator("[data-chart='score'] .plot")
    plot.scroll_into_view_if_needed()
    point = page.locator("[data-chart='score'] .scatterlayer .trace .points path").first.bounding_box()
    page.mouse.move(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    page.wait_for_selector("[data-chart='score'] .hoverlayer .hovertext")
    said = page.locator("[data-chart='score'] .hoverlayer .hovertext").first.text_content()
    assert said.startswith("margin, shift-1")
    assert "run" in said


def test_no_button_sends_the_data_away(page):
    buttons = page.locator(".modebar-btn").evaluate_all("all => all.map((each) => each.dataset.title)")
    assert set(buttons) == {"Download plot", "Zoom", "Pan", "Reset axes"}


def column(page, table, number):
    return page.locator(f"table[data-name='{table}'] tbody tr td:nth-child({number})").all_inner_texts()


def test_tables_sort_by_number_and_by_name(page):
    name = "scores-recall@1:matched"
    head = page.locator(f"table[data-name='{name}'] th")
    head.nth(1).click()
    values = [float(text.split()[0]) for text in column(page, name, 2) if text and text != "–"]
    assert values == sorted(values, reverse=True)
    head.nth(1).click()
    again = [float(text.split()[0]) for text in column(page, name, 2) if text and text != "–"]
    assert again == sorted(values)
    head.first.click()
    head.first.click()
    names = column(page, name, 1)
    assert names == sorted(names, key=str.lower)


def test_a_table_can_be_downloaded_as_csv(page):
    table = page.locator("table[data-name='scores-recall@1:matched']")
    with page.expect_download() as started:
        page.locator(".scroll:has(table[data-name='scores-recall@1:matched']) + .tools .csv").click()
    assert started.value.suggested_filename == "scores-recall@1_matched.csv"
    lines = Path(started.value.path()).read_bytes().decode().split("\r\n")
    assert lines[0].startswith("method,AGS,shift-1 FID 20")
    assert len(lines) == table.locator("tr").count() + 1


def test_galleries_show_pictures_with_right_and_wrong_marked(page):
    gallery = page.locator("#gallery")
    assert gallery.locator(".query").count() >= 1
    sizes = gallery.locator("img").evaluate_all("all => all.map((each) => each.naturalWidth)")
    assert len(sizes) > 6
    assert all(sizes)
    assert gallery.locator(".image.wrong").count() >= 1
    switch = gallery.locator("select[data-switch='method']")
    method = switch.input_value()  # said in words too: with one, no switch is
    said = gallery.locator("p").first.inner_text()
    assert said.startswith(f"{method}: ") and "queries searched" in said
    first = gallery.locator(".image.wrong").first
    first.scroll_into_view_if_needed()
    first.hover()
    tip = page.locator("#tip")
    assert ".png" in tip.inner_text()
    assert "class:" in tip.inner_text()
    assert "distance" in tip.inner_text()
    seen, right = {method: gallery.inner_html()}, gallery.locator(".image.right").count()
    for other in switch.locator("option").all_text_contents():
        switch.select_option(other)
        seen[other] = gallery.inner_html()
        right += gallery.locator(".image.right").count()
    assert len(seen) == len(set(seen.values())) > 1
    assert right


def test_a_name_with_markup_is_shown_as_text(page, nasty):
    """In the legend, on an axis, in a hover, in a table, in a gallery: the letters, not what they would do."""
    assert page.locator("[onerror]").count() == 0
    assert page.locator("main b, main i, main u").count() == 0
    shown = f"own {nasty}"[:30]
    assert any(text.startswith(shown) for text in page.locator("[data-chart='score'] .legendtext").all_text_contents())
    assert any(nasty in text for text in page.locator("[data-chart='ags'] .ytick text").all_text_contents())
    assert any(nasty in text for text in column(page, "scores-recall@1:matched", 1))
    items = json.loads(page.evaluate("unpack('packed-data')"))["galleries"]["items"]
    named = next(i for i in items if any(nasty in q["image"][1] for q in i["queries"]))
    page.locator("#gallery select[data-switch='method']").select_option(named["method"])
    page.locator("#gallery select[data-switch='split']").select_option(named["split"])
    assert any(nasty in text for text in page.locator("#gallery .name").all_inner_texts())
    assert page.dialogs == []


def test_the_theme_button_repaints_the_charts(page):
    ink = "getComputedStyle(document.querySelector('[data-chart=score] .xtick text')).fill"
    before = page.evaluate(ink)
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(ink) != before
    page.locator("#theme").click()
    assert page.evaluate(ink) == before


def test_the_page_can_be_printed(page, tmp_path):
    page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().count(b"/Type /Page\n") >= 5
