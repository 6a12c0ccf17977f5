"""AGS against the published numbers and its defining properties."""

import numpy as np
import pytest

import oodml

# ooDML supplement, table 6 (Stanford Online Products, Recall@1 per split) and table 3 (AGS).
SOP_FIDS = [3.43, 24.59, 53.47, 99.38, 135.53, 155.25, 189.81, 235.10]
SOP_RECALL = {
    "Margin": ([79.39, 78.58, 77.48, 76.18, 74.53, 72.62, 70.68, 69.71], 74.6),
    "Multisimilarity": ([79.31, 78.40, 77.40, 76.10, 74.45, 72.63, 70.90, 69.98], 74.6),
    "ArcFace": ([79.61, 78.46, 77.48, 75.67, 73.70, 71.78, 69.21, 67.89], 73.9),
    "ProxyAnchor": ([79.73, 78.60, 77.60, 75.70, 73.69, 71.96, 69.36, 68.07], 74.0),
    "R-Margin": ([79.42, 78.50, 77.75, 76.44, 74.84, 73.15, 71.30, 70.21], 74.9),
    "Uniform Prior": ([79.42, 78.61, 77.57, 76.12, 74.45, 72.68, 70.61, 69.65], 74.6),
    "S2SD": ([79.95, 78.88, 78.00, 76.66, 74.86, 73.33, 71.13, 70.19], 75.1),
    "DiVA": ([79.76, 78.75, 77.81, 76.58, 74.83, 73.15, 71.42, 70.30], 75.0),
}


@pytest.mark.parametrize("method", SOP_RECALL)
def test_published_scores_are_reproduced_within_rounding(method):
    scores, published = SOP_RECALL[method]
    assert oodml.ags(SOP_FIDS, scores) == pytest.approx(published, abs=0.1)


def test_order_of_splits_and_scale_of_fid_do_not_matter():
    rng = np.random.default_rng(0)
    fids, scores = rng.uniform(1, 100, 7), rng.uniform(0, 1, 7)
    order = rng.permutation(7)
    expected = oodml.ags(fids, scores)
    assert oodml.ags(fids[order], scores[order]) == pytest.approx(expected)
    assert oodml.ags(3 * fids + 5, scores) == pytest.approx(expected)


def test_a_flat_curve_scores_its_level():
    assert oodml.ags([1.0, 2.0, 50.0], [0.4, 0.4, 0.4]) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("fids", "scores", "message"),
    [
        ([1, 2, 3], [0.1, 0.2], "one score for each FID"),
        ([1, 2], [0.1, float("nan")], "finite"),
        ([2, 2, 2], [0.1, 0.2, 0.3], "two different FIDs"),
        ([], [], "two different FIDs"),
    ],
)
def test_bad_input_is_refused(fids, scores, message):
    with pytest.raises(oodml.OodmlError, match=message):
        oodml.ags(fids, scores)
