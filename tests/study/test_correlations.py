"""Rank correlation between splits and structure against performance, checked by formulas written out here."""

import numpy as np
import pytest

import oodml
from oodml.study.correlations import rank_correlation, structure_correlation, structure_correlations, trend
from oodml.study.table import Row, StudyTable


def table(seed=0, methods=6, seeds=2, slope=0.02, noise=0.002):
    """Recall rises with rho inside every split; levels and spreads of the splits differ."""
    rng = np.random.default_rng(seed)
    rows = []
    for m in range(methods):
        own = rng.normal()
        for s, (level, scale) in enumerate([(0.8, 1.0), (0.6, 3.0), (0.5, 0.5)]):
            for run in range(seeds):
                rho = 5 * s + scale * own
                score = level + slope * scale * own + rng.normal(0, noise)
                structure = {"train": {"rho": rho, "flat": 1.0}}
                rows.append(Row(f"m{m}", f"s{s}", 10.0 * s, run, {"recall@1": score}, structure=structure))
    rows += [Row("generic", f"s{s}", 10.0 * s, 0, {"recall@1": 0.1}, kind="external") for s in range(3)]
    return StudyTable(rows)


def spearman_by_hand(a, b):
    ranks = [np.argsort(np.argsort(x)) for x in (a, b)]  # no ties in these numbers
    d = ranks[0] - ranks[1]
    n = len(a)
    return 1 - 6 * np.sum(d**2) / (n * (n**2 - 1))


def test_splits_that_rank_alike_correlate_and_only_trained_methods_count():
    made = table()
    found = rank_correlation(made, "recall@1")
    means = np.array([[made.cell("recall@1", f"m{m}", s).mean for s in made.splits] for m in range(6)])
    for i in range(3):
        for j in range(3):
            assert found[i, j] == pytest.approx(spearman_by_hand(means[:, i], means[:, j]))


def test_two_methods_say_nothing_about_ranks():
    assert np.isnan(rank_correlation(table(methods=2), "recall@1")).all()


def test_structure_is_normalised_per_split_before_it_is_pooled():
    made = table(noise=0.01)
    found = structure_correlation(made, "rho", scale="standard")
    x, y = [], []
    for s in made.splits:
        rho = made.structure("rho")[:6, made.splits.index(s)].mean(axis=1)
        recall = np.array([made.cell("recall@1", f"m{m}", s).mean for m in range(6)])
        x.append((rho - rho.mean()) / rho.std(ddof=1))
        y.append((recall - recall.mean()) / recall.std(ddof=1))
    pooled_x, pooled_y = np.concatenate(x), np.concatenate(y)
    centred = pooled_x - pooled_x.mean(), pooled_y - pooled_y.mean()
    slope = centred[0] @ centred[1] / (centred[0] @ centred[0])
    assert found.overall.n == 18
    assert found.overall.slope == pytest.approx(slope)
    assert found.overall.intercept == pytest.approx(pooled_y.mean() - slope * pooled_x.mean(), abs=1e-12)
    assert found.overall.pearson == pytest.approx(np.corrcoef(pooled_x, pooled_y)[0, 1])
    assert found.default == "s0"
    assert found.default_only.n == 6
    assert found.default_only.pearson == pytest.approx(np.corrcoef(x[0], y[0])[0, 1])
    assert found.default_only.spearman == pytest.approx(spearman_by_hand(x[0], y[0]))
    # Without normalising, the levels of the splits would turn the sign.
    raw = made.structure("rho").mean(axis=2)[:6].T.ravel()
    assert np.corrcoef(raw, made.means("recall@1")[:6].T.ravel())[0, 1] < 0 < found.overall.pearson


def test_both_are_scaled_to_0_and_1_on_every_split_as_in_the_paper():
    made = table(noise=0.01)
    found = structure_correlation(made, "rho")
    x, y = [], []
    for s in made.splits:
        rho = made.structure("rho")[:6, made.splits.index(s)].mean(axis=1)
        recall = np.array([made.cell("recall@1", f"m{m}", s).mean for m in range(6)])
        x.append((rho - rho.min()) / (rho.max() - rho.min()))
        y.append((recall - recall.min()) / (recall.max() - recall.min()))
    np.testing.assert_allclose(np.sort(found.overall.measure), np.sort(np.concatenate(x)))
    assert found.overall.slope == pytest.approx(np.polyfit(np.concatenate(x), np.concatenate(y), 1)[0])
    assert found.default_only.slope == pytest.approx(np.polyfit(x[0], y[0], 1)[0])
    assert (found.default_only.measure.min(), found.default_only.score.max()) == (0, 1)


def test_the_purely_discriminative_methods_alone_may_be_asked_for():
    made = table()
    rows = [
        Row(**{**vars(row), "about": {"discriminative": row.method in ("m0", "m1", "m2", "m5")}}) for row in made.rows
    ]
    subset = StudyTable(rows)
    assert subset.discriminative == ["m0", "m1", "m2", "m5"]
    found = structure_correlation(subset, "rho", methods=subset.discriminative)
    assert (found.overall.n, found.default_only.n) == (12, 4)
    rest = StudyTable(row for row in made.rows if row.method in subset.discriminative)
    assert found.overall.pearson == pytest.approx(structure_correlation(rest, "rho").overall.pearson)
    with pytest.raises(oodml.OodmlError, match="trained method"):
        structure_correlation(subset, "rho", methods=["generic"])


def test_a_measure_that_does_not_vary_has_no_trend_and_stands_last():
    found = structure_correlations(table())
    assert [each.structure for each in found] == ["rho", "flat"]
    assert np.isnan(found[1].overall.slope)


def test_noise_gives_no_trend_and_lines_are_found_exactly():
    rng = np.random.default_rng(1)
    x = rng.normal(size=50)
    exact = trend(x, 3 * x - 1)
    assert (exact.slope, exact.intercept, exact.pearson) == pytest.approx((3, -1, 1))
    p_values = [trend(x, rng.normal(size=50)).p_value for _ in range(200)]
    assert 0.01 <= np.mean(np.array(p_values) < 0.05) <= 0.11


def test_unknown_names_are_refused():
    with pytest.raises(oodml.OodmlError, match="Did you mean 'rho'"):
        structure_correlation(table(), "rhoo")
    with pytest.raises(oodml.OodmlError, match="split"):
        structure_correlation(table(), "rho", default="s9")
    with pytest.raises(oodml.OodmlError, match="Did you mean 'unit'"):
        structure_correlation(table(), "rho", scale="units")
