"""Charts show what the table holds, in every view, on the page and in print."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from oodml.reporting.chart import COLOURS, Series, Style, View
from oodml.reporting.draw_matplotlib import draw
from oodml.reporting.draw_plotly import chart_data
from oodml.reporting.report_data import mean_sd, read_report_data
from oodml.reporting.run_charts import (
    discriminative_chart,
    few_shot_chart,
    spectra_chart,
    structure_chart,
    training_chart,
)
from oodml.reporting.shift_charts import GAIN, SCORE, difference_chart, progression_chart, ranking_chart, score_chart
from oodml.reporting.split_figures import map_charts
from oodml.reporting.study_page import build_sections
from oodml.study.correlations import structure_correlation
from oodml.study.statistics import ags
from oodml.study.store import Store
from oodml.study.table import Row, StudyTable, with_untrained

# Machado, Oliveira and Fernandes (2009), severity 1: how colours look without one kind of cone.
SEEN = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


@pytest.fixture(scope="module")
def data(made_study):
    return read_report_data(made_study.table, None, None, None)


@pytest.fixture(scope="module")
def charts(data):
    sections, _ = build_sections(data)
    return [chart for section in sections for chart in section.charts]


def test_every_kind_of_chart_is_there_when_the_study_has_the_data(charts):
    assert {chart.id for chart in charts} == {
        *("score", "difference", "ags", "forecast", "generic", "few-shot", "capacity", "structure", "spectra"),
        *("training", "progression"),
    }


def test_every_combination_of_switches_has_a_view_with_marks(charts):
    for chart in charts:
        for key in itertools.product(*chart.switches.values()):
            view = chart.views[key]
            values = [v for s in view.series for v in (s.x if s.kind == "bars" else s.y)]
            assert np.isfinite(values).any() or "was not scored by recall@1:matched" in view.note, (chart.id, key)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_two_scales_of_shift_on_one_page_are_said(data, monkeypatch, scale):
    """An audit builds by class means and measures by images."""
    steps = [{"step": i, "fid": scale * fid, "chosen": True} for i, fid in enumerate(data.table.fids)]
    monkeypatch.setattr(type(data), "json", lambda self, name: steps)
    assert ("between class means" in progression_chart(data).caption) == (scale != 1)


@pytest.mark.parametrize("first", [-2, 0])
def test_the_way_to_easier_splits_is_told_where_there_is_one(data, monkeypatch, first):
    steps = [{"step": first + i, "fid": fid, "chosen": True} for i, fid in enumerate(data.table.fids)]
    monkeypatch.setattr(type(data), "json", lambda self, name: steps)
    caption = progression_chart(data).caption
    assert ("to the left: swaps to easier splits" in caption) == (first < 0) and "removals of classes." in caption


def test_the_page_gets_plain_json(charts):
    for chart in charts:
        data = json.loads(json.dumps(chart_data(chart), allow_nan=False))
        count = np.prod([len(values) for values in chart.switches.values()], dtype=int)
        assert len(data["views"]) == count


def by_hand(table, method, split, metric, gain=False):
    rows = [row for row in table.rows if (row.method, row.split) == (method, split)]
    return [100 * (row.scores[metric] - (row.untrained[metric] if gain else 0)) for row in rows]


@pytest.mark.parametrize("show", [SCORE, GAIN])
def test_lines_are_means_and_bands_deviations(data, show):
    view = score_chart(data).views["recall@1", show]
    for method in data.trained:
        line = next(s for s in view.series if s.name == method and s.kind == "line")
        values = [by_hand(data.table, method, split, "recall@1", show == GAIN) for split in data.table.splits]
        np.testing.assert_allclose(line.y, [np.mean(v) for v in values])
        np.testing.assert_allclose(line.high, [np.mean(v) + np.std(v, ddof=1) for v in values])
        dots = next(s for s in view.series if s.name == method and s.faint)
        np.testing.assert_allclose(sorted(dots.y), sorted(itertools.chain(*values)))
        assert all("run " in text for text in dots.hover)


@pytest.mark.parametrize("show", [SCORE, GAIN])
def test_the_lower_chart_is_the_difference_to_the_mean_over_trained_methods(data, show):
    view = difference_chart(data).views["recall@1", show]
    lines = {s.name: s.y for s in view.series}
    for place, split in enumerate(data.table.splits):
        means = {m: np.mean(by_hand(data.table, m, split, "recall@1", show == GAIN)) for m in data.trained}
        for method, mean in means.items():
            assert lines[method][place] == pytest.approx(mean - np.mean(list(means.values())))


def test_bars_are_ags_best_on_top(made_study):
    data = read_report_data(StudyTable(with_untrained(made_study.table.rows)), None, None, None)
    assert ("interval over seeds" in ranking_chart(data).caption) == (len(data.table.seeds) > 1)
    view = ranking_chart(data).views["recall@1",]
    values = {s.name: s.x[0] for s in view.series}
    assert list(values.values()) == sorted(values.values())  # the last bar is drawn on top
    rows = [row for row in data.table.rows if row.untrained]
    by_split = [[row.untrained["recall@1"] for row in rows if row.split == split] for split in data.table.splits]
    untrained = [100 * np.mean(each) for each in by_split]
    assert values["untrained"] == pytest.approx(ags(data.table.fids, untrained))
    for method in data.trained:
        grid = np.array([by_hand(data.table, method, split, "recall@1") for split in data.table.splits])
        assert values[method] == pytest.approx(np.mean([ags(data.table.fids, g) for g in grid.T]))


@pytest.mark.parametrize("fids", [(7.0,), (7.0, 7.0), (0.0,), (None,)])
def test_bars_of_one_shift_are_means_over_its_splits_with_the_untrained_backbone_among_them(fids):
    rows = [
        Row(method, f"s{i}", fid, seed, {"recall@1": level + seed / 100 + i / 10}, {"recall@1": 0.4})
        for method, level in (("good", 0.7), ("bad", 0.2))
        for i, fid in enumerate(fids)
        for seed in (0, 2)
    ]
    chart = ranking_chart(read_report_data(StudyTable(with_untrained(rows)), None, None, None))
    values = {s.name: s.x[0] for s in chart.views["recall@1",].series}
    more = 5 * (len(fids) - 1)
    assert list(values) == ["bad", "untrained", "good"]  # the last bar is drawn on top
    assert list(values.values()) == pytest.approx([21 + more, 40, 71 + more])
    assert chart.title == "Methods compared" and chart.first.x_label == "recall@1 (%)"


def test_few_shot_gain_is_few_minus_zero_and_its_band_is_over_episodes_not_over_seeds_too(data):
    view = few_shot_chart(data).first
    for series in view.series:
        for fid, shown, low, high in zip(series.x, series.y, series.low, series.high, strict=True):
            gains = []
            for row in data.table.rows:
                if row.method == series.name and row.fid == fid:
                    held = json.loads((row.path / "few_shot.json").read_text())["2"]
                    gains.append(np.subtract(held["few"]["recall@1"][2], held["zero"]["recall@1"][2]))
            by_episode = 100 * np.mean(gains, axis=0)  # every seed has the same support sets
            assert shown == pytest.approx(by_episode.mean())
            t_interval = stats.t.interval(0.95, len(by_episode) - 1, shown, stats.sem(by_episode))
            assert (low, high) == pytest.approx(t_interval)


def test_structure_marks_and_trend_are_those_of_the_studys_correlation(data):
    view = structure_chart(data).views["rho", "train"]
    found = structure_correlation(data.table, "rho", data.metric, "train").overall
    marks = [s for s in view.series if s.kind == "points"]
    x, y = np.concatenate([s.x for s in marks]), np.concatenate([s.y for s in marks])
    np.testing.assert_allclose(np.sort(x), np.sort(found.measure))
    np.testing.assert_allclose(np.sort(y), np.sort(found.score))
    trend = next(s for s in view.series if s.name == "trend")
    assert (trend.y[1] - trend.y[0]) / (trend.x[1] - trend.x[0]) == pytest.approx(found.slope)


def test_structure_has_a_trend_over_all_splits_and_one_over_the_default_split(data):
    view = structure_chart(data).views["rho", "train"]
    found = structure_correlation(data.table, "rho", data.metric, "train")
    lines = {s.name: s for s in view.series if s.kind == "line"}
    assert lines.keys() == {"trend", f"trend, {found.default}"}
    of_default = lines[f"trend, {found.default}"]
    assert (of_default.y[1] - of_default.y[0]) / (of_default.x[1] - of_default.x[0]) == pytest.approx(
        found.default_only.slope
    )
    assert f"on {found.default}" in view.note
    assert discriminative_chart(data) is None


def test_structure_of_purely_discriminative_methods_has_a_chart_of_its_own(data):
    some = set(data.trained[:-1])
    rows = [replace(row, about={"discriminative": row.method in some}) for row in data.table.rows]
    subset = replace(data, table=StudyTable(rows))
    view = discriminative_chart(subset).views["rho", "train"]
    assert {s.name for s in view.series if s.kind == "points"} == some


def test_spectra_are_shares_of_the_singular_values(data):
    from safetensors.numpy import load_file

    chart = spectra_chart(data)
    series = chart.views["shift-2",].series[0]
    row = next(r for r in data.table.rows if (r.method, r.split, r.seed) == (series.name, "shift-2", 0))
    values = np.linalg.svd(load_file(row.path / "embeddings.safetensors")["embeddings"].astype(float), compute_uv=False)
    np.testing.assert_allclose(series.y, 100 * values / values.sum(), rtol=1e-4)


def test_a_curve_cut_off_by_a_kill_is_read_as_far_as_it_goes(made_study, data):
    path = made_study.table.rows[0].path / "metrics.jsonl"
    whole = path.read_text()
    try:
        path.write_text(whole[:-30])
        assert training_chart(data).views["val recall@1", "shift-1"].series
    finally:
        path.write_text(whole)


def test_maps_show_the_images_of_both_sides_at_the_same_places(made_study, tmp_path, monkeypatch):
    """Of splits that the study built; `tiny` features, so that it takes no pretrained network."""
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "cache"))
    held = json.loads((made_study.folder / "splits.json").read_text())
    for split in held["splits"]:
        split["provenance"] = {"recipe": {"backbone": "tiny", "images_per_class": 5}}
    held["splits"][-1]["train"] = held["splits"][-1]["train"][:2]  # classes were removed from the hardest
    store = Store(tmp_path / "study")
    store.write_json("splits.json", held)
    charts, notes = map_charts(read_report_data(made_study.table, store, None, None))
    assert notes == []
    assert [chart.id for chart in charts] == ["map-easy", "map-medium", "map-hard"]
    assert "shift-1" in charts[0].title
    assert "shift-4" in charts[2].title
    (train, test), (fewer, same) = charts[0].first.series, charts[2].first.series
    assert (len(train.x), len(test.x), len(fewer.x)) == (30, 30, 10)
    np.testing.assert_array_equal(test.x, same.x)
    assert set(zip(fewer.x, fewer.y, strict=True)) <= set(zip(train.x, train.y, strict=True))
    assert map_charts(read_report_data(made_study.table, None, None, None)) == ([], []), "these splits were not built"
    held["splits"][0]["provenance"]["recipe"]["data"] = "of other images"
    store.write_json("splits.json", held)
    told = "No maps of the splits: the dataset 'folder' has changed since they were built."
    assert map_charts(read_report_data(made_study.table, store, None, None)) == ([], [told])
    held["splits"][0]["provenance"]["recipe"] = {"backbone": "no such network", "images_per_class": 5}
    store.write_json("splits.json", held)
    assert map_charts(read_report_data(made_study.table, store, None, None))[1][0].startswith(
        "No maps of the splits: Unknown"
    )


def test_mean_and_deviation_leave_out_what_is_missing():
    values = np.array([[1.0, 2.0, np.nan], [5.0, np.nan, np.nan], [np.nan, np.nan, np.nan]])
    mean, sd = mean_sd(values)
    np.testing.assert_allclose(mean, [1.5, 5.0, np.nan])
    np.testing.assert_allclose(sd, [np.sqrt(0.5), np.nan, np.nan])


def lab(colour, matrix):
    """CIELAB (D65) of an sRGB colour seen through `matrix`."""
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(np.array(matrix) @ linear, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", SEEN)
def test_colours_are_told_apart_without_colour_vision(eyes):
    seen = [lab(colour, SEEN[eyes]) for colour in COLOURS]
    for a, b in itertools.combinations(range(len(COLOURS)), 2):
        assert np.linalg.norm(seen[a] - seen[b]) > 15, (COLOURS[a], COLOURS[b])


def test_no_two_methods_look_the_same():
    styles = [Style.of(place) for place in range(32)]
    assert len(set(styles)) == 32
    assert len({style.marker for style in styles[:8]}) == 8, "in print the first eight differ by their marker alone"


@pytest.mark.parametrize(("values", "labels"), [([1.6, 14.0], ["2", "5", "10"]), ([0.02, 40.0], ["0.1", "1", "10"])])
def test_a_printed_logarithmic_axis_labels_1_2_5_at_most(values, labels):
    figure = draw(View([Series("a", [1, 2], values, style=0)], "x", "y", log_y=True))
    figure.draw_without_rendering()
    axis, (low, high) = figure.axes[0].yaxis, figure.axes[0].get_ylim()
    ticks = [tick for tick in axis.get_ticklabels(which="both") if low <= tick.get_position()[1] <= high]
    assert [tick.get_text() for tick in ticks if tick.get_text()] == labels
