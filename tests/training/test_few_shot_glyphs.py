"""Few-shot adaptation where it is meant for: the hardest split of the packaged dataset."""

import pytest
from scipy import stats

import oodml

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    data = oodml.load_dataset("glyphs")
    some = data.sample(8)
    features = oodml.extract_features(some, quiet=True)
    hardest = oodml.build_splits(features, some.labels, class_names=some.classes, n_splits=3, dataset="glyphs")[-1]
    config = oodml.RunConfig(
        dataset="glyphs", split=hardest, backbone="tiny", embedding_dim=64, steps=120, views=4, metrics=("recall@1",),
        quiet=True, device="cpu", out=str(tmp_path_factory.mktemp("glyphs") / "run"),
    )  # fmt: skip
    run = oodml.train(config).path
    split = oodml.make_episodes(hardest, data, shots=2, episodes=5)
    split = oodml.make_episodes(split, data, shots=5, episodes=5)
    return {
        shots: oodml.few_shot(run, split, shots, 5, lr=1e-4, steps=400, device="cpu", quiet=True) for shots in (2, 5)
    }


@pytest.mark.parametrize("shots", [2, 5])
def test_every_score_has_its_interval_over_episodes(adapted, shots):
    for side in ("zero", "few"):
        for mean, half_width, values in adapted[shots][side].values():
            low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))
            assert (mean - half_width, mean + half_width) == pytest.approx((low, high))
    assert adapted[shots].notes == []


def test_five_labelled_images_per_class_help(adapted):
    for metric in ("recall@1", "map@1000"):
        gain = adapted[5].gain(metric)
        assert gain.mean > gain.half_width, (metric, gain)


def test_more_images_help_more(adapted):
    assert adapted[5].gain("map@1000").mean > adapted[2].gain("map@1000").mean
