"""A report of a whole benchmark: 8 methods × 9 splits × 5 seeds in 20 seconds and 15 MB."""

import time

import pytest

from oodml.reporting import report

METHODS = ["margin", "multisimilarity", "arcface", "proxyanchor", "R-margin", "uniform-prior", "s2sd", "diva"]


@pytest.mark.long
def test_360_runs_take_20_seconds_and_15_megabytes(tmp_path, make_study):
    levels = {name: 0.55 + 0.02 * i for i, name in enumerate(METHODS)}
    study = make_study(tmp_path / "study", "glyphs", levels, 9, 5, dim=128)
    begin = time.perf_counter()
    page = report(study.table, tmp_path / "report.html")
    seconds, megabytes = time.perf_counter() - begin, page.stat().st_size / 1e6
    print(f"360 runs: {seconds:.1f} s, {megabytes:.1f} MB")
    assert seconds < 20
    assert megabytes < 15
