"""The page of a whole benchmark, 8 methods × 9 splits × 5 seeds, stays small; its time is in benchmarks/report.py."""

import pytest

from oodml.reporting import report

METHODS = ["margin", "multisimilarity", "arcface", "proxyanchor", "R-margin", "uniform-prior", "s2sd", "diva"]


@pytest.mark.long
def test_360_runs_take_15_megabytes(tmp_path, make_study):
    levels = {name: 0.55 + 0.02 * i for i, name in enumerate(METHODS)}
    study = make_study(tmp_path / "study", "glyphs", levels, 9, 5, dim=128)
    page = report(study.table, tmp_path / "report.html")
    assert 1e6 < page.stat().st_size < 15e6
