"""The page: says the answer, shows every number, keeps markup in names harmless."""

import re

import numpy as np

from oodml.reporting import write_page
from oodml.study.table import Row, StudyTable


def table(best="margin"):
    rng = np.random.default_rng(0)
    return StudyTable(
        Row(method, split, fid, seed, {"recall@1": level - fid / 100 + rng.normal(0, 0.001)}, {"recall@1": 0.31})
        for method, level in ((best, 0.9), ("contrastive", 0.8))
        for split, fid in (("easy", 5.0), ("hard", 30.0))
        for seed in (0, 1)
    )


def test_the_page_opens_with_the_answer_and_shows_the_scores(tmp_path):
    study = table()
    html = write_page(study, tmp_path / "report.html", "Glyphs", ["recall@1"], {"seeds": "0, 1"}).read_text()
    assert "margin generalises best" in html
    for value in study.scores("recall@1").mean(axis=2).ravel():
        assert f"<td>{100 * value:.1f}</td>" in html
    assert html.count("<svg") == 2
    assert not re.search(r'(src|href)="https?://', html), "the page must not load anything"


def test_a_name_with_markup_is_shown_as_text(tmp_path):
    html = write_page(table("<script>alert(1)</script>"), tmp_path / "r.html", "<b>x", ["recall@1"], {}).read_text()
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_one_seed_does_not_claim_a_lead(tmp_path):
    study = StudyTable(row for row in table().rows if row.seed == 0)
    assert "one seed cannot say" in write_page(study, tmp_path / "r.html", "x", ["recall@1"], {}).read_text()
