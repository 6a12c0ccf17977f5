"""The page: whole, self-contained, names as text, sections only where there is something to show."""

import json
import re
import sys

import numpy as np
import pytest
from PIL import Image

import oodml
from oodml._errors import OodmlError
from oodml.cli.report import report_command
from oodml.reporting import report
from oodml.study.store import Store
from oodml.study.table import Row, StudyTable


def plain_table(best="margin", fids=(5.0, 30.0)):
    rng = np.random.default_rng(0)
    return StudyTable(
        Row(method, f"s{i}", fid, seed, {"recall@1": level + rng.normal(0, 0.001)}, {"recall@1": 0.31})
        for method, start in ((best, 0.9), ("contrastive", 0.8))
        for i, fid in enumerate(fids)
        for level in [start - (fid or 0) / 100]
        for seed in (0, 1)
    )


@pytest.fixture(scope="module")
def whole_page(made_study, tmp_path_factory):
    return report(made_study.table, tmp_path_factory.mktemp("page") / "report.html").read_text()


def sections_of(html):
    return re.findall(r'<section id="([^"]+)"', html)


def test_a_study_of_one_shift_has_bars_and_no_curves(tmp_path):
    html = oodml.report(plain_table(fids=(None,)), out=tmp_path / "report.html").read_text()
    assert sections_of(html)[:2] == ["methods", "scores"] and not {"shift", "ags"} & set(sections_of(html))
    assert "recall@1 at one gallery size for all splits" not in html and "FID 0" not in html
    assert html.index(">margin<") < html.index(">contrastive<")  # best first


def test_the_page_opens_with_the_answer_and_shows_the_scores(tmp_path):
    study = plain_table()
    html = oodml.report(study, out=tmp_path / "report.html").read_text()
    assert "margin generalises best" in html[: html.index("<main>")]
    for value in study.scores("recall@1").mean(axis=2).ravel():
        assert f"<td>{100 * value:.1f} ±" in html


def test_a_table_without_folders_has_only_the_sections_it_has_data_for(tmp_path):
    html = report(plain_table(), tmp_path / "r.html").read_text()
    assert sections_of(html) == ["shift", "scores", "ags", "made"]


def test_an_unfinished_study_says_so_at_its_head_and_foot(tmp_path):
    missing = {f"run{i}": method for i, method in enumerate(["DiVA", "DiVA", "S2SD"])}
    html = report(StudyTable(plain_table().rows, missing), tmp_path / "r.html").read_text()
    head = html[: html.index("<main>")]
    assert "Unfinished: 3 of 11 runs are missing (DiVA, S2SD)." in head
    assert "8 of 11 runs" in head
    assert "0 failed, 3 of 11 not run yet" in html
    whole = report(plain_table(), tmp_path / "r.html").read_text()
    assert "nfinished" not in whole
    assert "not run yet" not in whole


def test_a_single_split_has_no_ags(tmp_path):
    html = report(plain_table(fids=(5.0,)), tmp_path / "r.html").read_text()
    assert "ags" not in sections_of(html)
    assert "One split cannot say" in html


def test_a_study_with_everything_has_every_section(whole_page):
    assert sections_of(whole_page) == [
        *("shift", "scores", "ags", "forecast", "generic", "few-shot", "capacity", "structure", "galleries"),
        *("training", "splits", "made"),
    ]


def test_the_page_loads_nothing(whole_page):
    assert not re.search(r"""(src|href)=["'](https?:)?//""", whole_page)
    assert "default-src 'none'" in whole_page
    assert len(whole_page) < 3_000_000


def test_names_are_text(whole_page, nasty):
    assert nasty not in whole_page
    assert "own &lt;img src=x onerror=alert(1)&gt;&lt;b&gt;bold" in whole_page


def test_what_failed_after_training_is_told_too(make_study, make_images, tmp_path):
    images = make_images(tmp_path / "images", ["a", "b", "c", "d"], images=2)
    spec = {"name": "folder", "root": str(images)}
    made = make_study(tmp_path / "study", spec, {"margin": 0.6}, n_splits=2, seeds=1, extras=False)
    Store(made.folder).record_failure(made.table.rows[0].path.name, "Traceback …\nOodmlError: no episodes")
    html = report(made.table, tmp_path / "report.html").read_text()
    assert "2 finished, 1 failed" in html and "OodmlError: no episodes" in html
    assert "Per cent." in html and "interval over seeds" not in html  # one seed has none


def test_what_failed_and_how_it_was_made_are_told(whole_page):
    made = whole_page[whole_page.index('<section id="made"') :]
    assert "RuntimeError: &lt;u&gt;out of memory" in made
    assert "60 finished, 1 failed" in made
    assert "held-out train classes" in made
    assert "torch 2.13" in made
    assert "name: made" in made  # the study file


def test_an_audit_opens_with_its_own_answer(made_study, tmp_path):
    path = made_study.folder / "audit.json"
    path.write_text(json.dumps({"answer": ["Use <margin>.", "Expect 61 %."], "notes": ["2 images were unreadable."]}))
    try:
        html = report(made_study.table, tmp_path / "r.html").read_text()
    finally:
        path.unlink()
    assert '<p class="answer">Use &lt;margin&gt;.</p>' in html
    assert '<div class="details"><p>Expect 61 %.</p><p>2 images were unreadable.</p></div>' in html


def test_numbers_stand_beside_the_papers(made_study, tmp_path):
    """A study named like a published table shows both, and the difference is theirs from ours."""
    from oodml.study.published import published

    cell = next(c for c in published("oodml-s4") if c.metric == "recall@1" and c.spread)
    rows = [
        Row(cell.method, cell.split, 10.0, seed, {cell.metric: cell.value + 0.02 + 0.001 * seed}, path=made.path)
        for seed, made in enumerate(made_study.table.rows[:3])
    ]
    from oodml.reporting.report_data import read_report_data
    from oodml.reporting.tables import papers_tables

    data = read_report_data(StudyTable(rows), None, None, None)
    for result in data.results.values():
        result["dataset"]["name"] = cell.dataset
    html = papers_tables(data)
    assert f"<td>{100 * cell.value:.1f} ± {100 * cell.spread:.1f}</td>" in html
    assert "<td>+2.1</td>" in html
    assert papers_tables(read_report_data(made_study.table, None, None, None)) == ""


def test_an_unknown_metric_is_refused_and_the_old_page_stays(tmp_path):
    page = tmp_path / "report.html"
    page.write_text("old")
    with pytest.raises(OodmlError, match="recall@1"):
        report(plain_table(), page, metric="recal@1")
    assert page.read_text() == "old"
    assert list(tmp_path.iterdir()) == [page]


def test_without_the_chart_library_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(OodmlError, match="pip install plotly"):
        report(plain_table(), tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_page_and_every_figure(made_study, tmp_path, capsys):
    runs = [
        {"id": row.path.name, "method": row.method, "split": row.split, "seed": row.seed}
        for row in made_study.table.rows
        if row.path
    ]
    (made_study.folder / "plan.json").write_text(json.dumps({"format": 1, "runs": runs}))
    report_command(str(made_study.folder), tmp_path / "r.html", tmp_path / "figures", "nmi", "My title")
    assert str(tmp_path / "r.html") in capsys.readouterr().out.replace("\n", "")
    html = (tmp_path / "r.html").read_text()
    assert "multisimilarity generalises best" in html
    assert "<h1>My title</h1>" in html
    figures = sorted((tmp_path / "figures").iterdir())
    charts = re.findall(r'<figure[^>]*data-chart="([^"]+)"', html)
    assert [path.name for path in figures] == sorted(f"{c}.{suffix}" for c in charts for suffix in ("png", "svg"))
    for path in figures:
        if path.suffix == ".png":
            assert Image.open(path).size[0] == 1800  # six inches at 300 dpi
        else:
            assert "<svg" in path.read_text()


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(OodmlError, match="holds no study"):
        report(tmp_path, tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []
