"""Few-shot adaptation: against a plain loop of the library's parts, one by one, on disk, and its errors."""

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import oodml
from oodml import OodmlError, Split
from oodml.adaptation import FewShot, evaluate_run, few_shot, load_few_shot, save_few_shot, transfer
from oodml.adaptation.adapt import few_shots, start_boundary
from oodml.adaptation.episodes import FreshViews, cached_views
from oodml.adaptation.fine_tuning import Support, draw, fine_tune, last_layers, margin_losses, stacked_embedding
from oodml.adaptation.result import EpisodeScore
from oodml.adaptation.target import read_target
from oodml.losses.margin import Margin
from oodml.shift import episode_indices
from oodml.training import train

QUICK = {"steps": 12, "lr": 1e-4, "episodes": 3, "quiet": True, "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One trained run on the patterns, shared by the tests: none of them may change it."""
    out = tmp_path_factory.mktemp("few") / "run"
    config = oodml.RunConfig(
        dataset="patterns", method="margin", embedding_dim=8, steps=12, batch_size=16, samples_per_class=4,
        metrics=("recall@1",), views=2, quiet=True, device="cpu", out=str(out),
    )  # fmt: skip
    train(config)
    return out


@pytest.fixture(scope="module")
def head_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("few") / "head"
    config = oodml.RunConfig(
        dataset="patterns", method={"name": "rho", "base": "margin"}, train="head", embedding_dim=8, steps=12,
        batch_size=16, samples_per_class=4, metrics=("recall@1",), views=2, quiet=True, device="cpu", out=str(out),
    )  # fmt: skip
    train(config)
    return out


def files(folder):
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*.*")}


def test_the_result_has_the_promised_form_and_leaves_the_run_alone(run):
    before = files(run)
    found = few_shot(run, shots=2, **QUICK)
    assert files(run) == before
    assert set(found) == {"zero", "few"} and set(found["few"]) == {"recall@1", "map@1000"}
    mean, half_width, values = found["few"]["map@1000"]
    assert len(values) == 3 and mean == pytest.approx(np.mean(values))
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert half_width == pytest.approx((high - low) / 2)
    assert found.about["shots"] == 2 and found.about["beta"] == pytest.approx(1.2)
    assert any("no episodes of 2 shots" in note for note in found.notes)


def test_adaptation_helps_where_there_is_something_to_learn(run):
    found = few_shot(run, shots=4, episodes=4, steps=150, lr=1e-2, quiet=True, device="cpu")
    assert found.gain("map@1000").mean > found.gain("map@1000").half_width > 0


def test_zero_shot_is_the_run_as_it_is_on_the_same_queries(run):
    data = oodml.load_dataset("patterns")
    split = data.default_split
    split = oodml.make_episodes(split, data, shots=2, episodes=3)
    found = few_shot(run, split, shots=2, **QUICK)
    assert not any("episodes" in note for note in found.notes)
    embed = oodml.load_embedder(run)
    for number, value in enumerate(found["zero"]["recall@1"].per_episode):
        support, query = episode_indices(split, data, 2, number)
        assert not set(support) & set(query)
        assert sorted([*support, *query]) == data.indices_of(split.test).tolist()
        rows = embed([data.image(i) for i in query])
        assert value == pytest.approx(oodml.evaluate(rows, data.labels[query], ["recall@1"])["recall@1"], abs=1e-9)


def test_all_episodes_at_once_give_what_each_gives_alone(head_run):
    together = few_shot(head_run, shots=3, **QUICK)
    alone = few_shot(head_run, shots=3, batched=False, **QUICK)
    for metric in ("recall@1", "map@1000"):
        assert together["few"][metric].per_episode == pytest.approx(alone["few"][metric].per_episode, abs=1e-6)


def test_stacked_layers_equal_those_trained_alone(run):
    target = read_target(run).with_episodes(2, 3)
    source = cached_views(target, [support_of(target, i).positions for i in range(3)], 2, quiet=True)
    trained = target.trained
    embed, start = stacked_embedding(trained.embedder, trained.method), last_layers(trained.embedder)

    def tuned(numbers):
        draws = draw([support_of(target, i) for i in numbers], 30, 112, list(numbers), torch.device("cpu"))
        return next(fine_tune(embed, start, source.training(list(numbers), draws), draws, 1.2, 1e-2))[1]

    together = tuned(range(3))
    for number in range(3):
        for name, value in tuned([number]).items():
            torch.testing.assert_close(together[name][number], value[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together[name][0], together[name][1], atol=1e-3)


def support_of(target, number, shots=2):
    rows, _ = episode_indices(target.split, target.data, shots, number)
    return Support(rows, np.unique(target.data.labels[rows], return_inverse=True)[1])


def test_an_episode_equals_a_plain_loop_over_the_librarys_loss_miner_and_adam(run):
    """The oracle: nn.Linear, make_loss with its miner, torch.optim.Adam; the same batches, views and draws."""
    target = read_target(run).with_episodes(2, 1)
    source = cached_views(target, [support_of(target, 0).positions], 2, quiet=True)
    trained = target.trained
    draws = draw([support_of(target, 0)], 25, 112, [5], torch.device("cpu"))
    inputs = source.training([5], draws)
    start = last_layers(trained.embedder)
    embed = stacked_embedding(trained.embedder, trained.method)
    half, (steps, fast) = fine_tune(embed, start, inputs, draws, 1.2, 1e-2, stops=(12, 25))
    assert half[0] == 12 and steps == 25 and not torch.equal(half[1][next(iter(start))], fast[next(iter(start))])

    layer = torch.nn.Linear(64, 8)
    layer.load_state_dict({name.rpartition(".")[2]: value for name, value in start.items()})
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-2)
    queue = iter(draws.uniforms[:, 0])
    loss = Margin(beta=1.2, learn_beta=False, miner=oodml.make_miner("distance"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oodml._sampling.uniforms", lambda count, device, generator: next(queue))
        for step in range(25):
            optimiser.zero_grad()
            loss(layer(inputs(step)[0] / trained.embedder.feature_scale), draws.labels[step, 0]).backward()
            optimiser.step()
    for name, value in fast.items():
        torch.testing.assert_close(
            value[0], layer.get_parameter(name.rpartition(".")[2]).detach(), rtol=1e-3, atol=1e-4
        )


def test_the_batched_loss_follows_the_formula_in_float64():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 10, 6, generator=generator, dtype=torch.float64)
    labels = torch.arange(5).repeat_interleave(2).expand(4, 10)
    points = torch.rand(4, 20, generator=generator, dtype=torch.float64)
    found = margin_losses(x, labels, points, beta=1.1)
    for e in range(4):
        unit = (x[e] / x[e].norm(dim=1, keepdim=True)).numpy()
        distances = np.linalg.norm(unit[:, None] - unit[None], axis=2)
        total, active = 0.0, 0
        for a in range(10):
            positives = [p for p in range(10) if labels[e, p] == labels[e, a] and p != a]
            p = positives[int(points[e, a] * len(positives))]
            negatives = [n for n in range(10) if labels[e, n] != labels[e, a]]
            within = [n for n in negatives if distances[a, n] <= 1.4] or negatives
            d = distances[a, within].clip(0.5)
            weights = 1 / (d**4 * (1 - d**2 / 4) ** 1.5) if within is not negatives else np.ones(len(d))
            n = within[int(np.searchsorted(np.cumsum(weights) / weights.sum(), float(points[e, 10 + a]), "right"))]
            terms = [max(0.0, distances[a, p] - 1.1 + 0.2), max(0.0, 1.1 - distances[a, n] + 0.2)]
            total, active = total + sum(terms), active + sum(t > 0 for t in terms)
        assert found[e].item() == pytest.approx(total / active, rel=1e-9)


def test_batches_hold_two_images_per_class_of_the_support_set_alone():
    support = Support(np.arange(100, 140), np.repeat(np.arange(20), 2))
    draws = draw([support, support], 7, 16, [1, 2], torch.device("cpu"))
    assert draws.positions.shape == (7, 2, 16) and draws.uniforms.shape == (7, 2, 32)
    for batch, labels in zip(draws.positions.reshape(-1, 16), draws.labels.view(-1, 16), strict=True):
        assert len(set(batch)) == 16 and (batch >= 100).all()
        assert (torch.bincount(labels, minlength=20)[labels] == 2).all()
        assert (support.labels[batch - 100] == labels.numpy()).all()
    assert not np.array_equal(draws.positions[:, 0], draws.positions[:, 1])
    again = draw([support], 7, 16, [2], torch.device("cpu"))
    assert np.array_equal(again.positions[:, 0], draws.positions[:, 1])
    small = draw([Support(np.arange(9), np.repeat(np.arange(3), 3))], 2, 112, [0], torch.device("cpu"))
    assert small.positions.shape == (2, 1, 8)  # no larger than the support set


@pytest.mark.parametrize("depth", ["all", "head"])
def test_cached_views_are_those_of_the_images_drawn(run, head_run, depth):
    target = read_target(run if depth == "all" else head_run).with_episodes(2, 2)
    supports = [support_of(target, i) for i in range(2)]
    source = cached_views(target, [each.positions for each in supports], 2, quiet=True)
    draws = draw(supports, 40, 8, [0, 1], torch.device("cpu"))
    inputs = source.training([0, 1], draws)
    images = target.data if depth == "head" else target.data.subset(np.unique(np.concatenate([s[0] for s in supports])))
    options = {"views": 2, "crop_scale": target.config.crop_scale, "size": target.trained.input, "quiet": True}
    features = torch.from_numpy(oodml.extract_features(images, target.trained.embedder.backbone, **options))
    every = np.arange(len(target.data)) if depth == "head" else images.parent[1]
    seen = torch.zeros(3)
    for step in range(40):
        for found, position in zip(inputs(step).flatten(0, 1), draws.positions[step].ravel(), strict=True):
            views = features[:, np.searchsorted(every, position)]
            same = ((found - views).abs().amax(1) < 1e-5).float()
            assert same.any()
            seen += same
    assert (seen > 0.25 * seen.sum()).all()  # all three views are drawn
    rows = source.evaluation(target.test[[3, 1]])
    whole = oodml.extract_features(target.data, target.trained.embedder.backbone, size=target.trained.input, quiet=True)
    torch.testing.assert_close(rows, torch.from_numpy(whole[target.test[[3, 1]]]), rtol=1e-4, atol=1e-5)


def test_fresh_augmentations_are_features_of_new_views(run):
    target = read_target(run).with_episodes(2, 2)
    draws = draw([support_of(target, i) for i in range(2)], 3, 8, [0, 1], torch.device("cpu"))
    inputs = FreshViews(target).training([0, 1], draws)
    first = inputs(0)
    assert first.shape == (2, 8, 64) and torch.equal(first, inputs(0))
    generator = torch.Generator().manual_seed(0)
    from oodml.training.seeds import reseed

    views = target.images.train_view(draws.positions[0, 1], reseed(generator, 1, "augmentation", 0))
    expected = target.trained.embedder.backbone(views).mean((2, 3))
    torch.testing.assert_close(first[1], expected, rtol=1e-4, atol=1e-5)
    found = few_shot(run, shots=2, exact=True, **{**QUICK, "steps": 3, "episodes": 2})
    alone = few_shot(run, shots=2, exact=True, batched=False, **{**QUICK, "steps": 3, "episodes": 2})
    assert found["few"]["map@1000"].per_episode == pytest.approx(alone["few"]["map@1000"].per_episode, abs=1e-6)
    assert found.about["exact"] and found.about["views"] == 0


def test_heads_trained_on_cached_features_start_from_their_own_boundary(head_run):
    target = read_target(head_run)
    assert start_boundary(target.trained.method) == pytest.approx(0.6)  # R-margin's
    source = cached_views(target, [], 2, quiet=True)
    assert len(source.table) == 3 * len(target.data)  # the run's own cache, of the whole set
    few_shot(head_run, shots=2, **QUICK)


def test_every_head_of_the_test_embedding_is_adapted():
    from oodml.models import make_backbone
    from oodml.models.embedder import Embedder
    from oodml.models.heads import Head

    heads = {"a": Head(8), "b": Head(4, layers=2, hidden=16), "c": Head(64, layers=0)}
    names = set(last_layers(Embedder(make_backbone("tiny"), heads, 64)))
    assert names == {"heads.a.weight", "heads.a.bias", "heads.b.2.weight", "heads.b.2.bias"}
    with pytest.raises(OodmlError, match="no linear layer to fine-tune"):
        last_layers(Embedder(make_backbone("tiny"), {"c": Head(64, layers=0)}, 64))


def test_results_are_stored_in_the_run_on_request_only(run, tmp_path):
    assert load_few_shot(run) == {}
    two = FewShot({"recall@1": EpisodeScore(0.5, math.nan, (0.5,))}, {"recall@1": EpisodeScore(0.6, 0.1, (0.55, 0.65))},
                  {"shots": 2, "notes": []})  # fmt: skip
    five = FewShot(two["zero"], two["few"], {"shots": 5, "notes": ["a note"]})
    save_few_shot(tmp_path, five)
    path = save_few_shot(tmp_path, two)
    assert list(json.loads(path.read_text())) == ["2", "5"]
    found = load_few_shot(tmp_path)
    assert found[2]["few"] == two["few"] and found[5].notes == ["a note"]
    assert math.isnan(found[2]["zero"]["recall@1"].half_width)
    path.write_text("{")
    with pytest.raises(OodmlError, match="cannot be read as few-shot results"):
        load_few_shot(tmp_path)
    with pytest.raises(OodmlError, match="no run folder"):
        save_few_shot(tmp_path / "nowhere", two)


def test_what_cannot_be_done_is_said(run, tmp_path):
    data = oodml.load_dataset("patterns")
    split = replace(data.default_split, name="mine")
    with pytest.raises(OodmlError, match=r"8 shots need at least 9 images .*'class-08' \(8\)"):
        few_shot(run, shots=8, **QUICK)
    with pytest.raises(OodmlError, match="has 1 episodes of 2 shots and 3 were asked for"):
        few_shot(run, oodml.make_episodes(split, data, shots=2, episodes=1), shots=2, **QUICK)
    with pytest.raises(OodmlError, match="trained on 'patterns', and the test classes of split 'mine' are of 'cub200'"):
        few_shot(run, replace(split, dataset="cub200"), shots=2, **QUICK)
    with pytest.raises(OodmlError, match="are of 'cub200', not of dataset='patterns'"):
        few_shot(run, replace(split, dataset="cub200"), shots=2, dataset="patterns", **QUICK)
    with pytest.raises(OodmlError, match="was trained on classes that split 'mine' tests: 'class-00'"):
        few_shot(run, Split(data.default_split.test, data.default_split.train, name="mine"), shots=2, **QUICK)
    with pytest.raises(OodmlError, match="holds no finished run"):
        few_shot(tmp_path, shots=2, **QUICK)
    with pytest.raises(OodmlError, match="shots must be at least 1"):
        few_shot(run, shots=0, **QUICK)
    with pytest.raises(OodmlError, match="Unknown metric"):
        few_shot(run, shots=2, metrics=["recal@1"], **QUICK)
    with pytest.raises(OodmlError, match="lower the learning rate"):
        few_shot(run, shots=2, **{**QUICK, "lr": 1e38})


def test_all_numbers_of_shots_are_checked_before_a_feature_is_computed(run, others, monkeypatch):
    def too_early(*_args, **_options):
        raise AssertionError("features were asked for before all shots were checked")

    monkeypatch.setattr("oodml.adaptation.episodes.extract_features", too_early)
    with pytest.raises(OodmlError, match="8 shots need at least 9 images"):
        few_shots(run, None, [2, 8], **QUICK)
    with pytest.raises(OodmlError, match="shots must be at least 1, got 0"):
        few_shots(run, None, [2, 0], **QUICK)
    with pytest.raises(OodmlError, match="8 shots need at least 9 images"):
        transfer(run, "others", shots=[2, 8], device="cpu", quiet=True)


def test_several_numbers_of_shots_give_what_each_gives_alone(run):
    together = few_shots(run, None, [3, 2], **QUICK)
    assert [each.about["shots"] for each in together] == [3, 2]
    alone = few_shot(run, shots=2, **QUICK)
    assert dict(together[1]) == dict(alone) and together[1].notes == alone.notes


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"views": -1}, "views must be at least 0, got -1"),
        ({"views": 2, "exact": True}, "give one or the other"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch_size": 3}, "batch_size must be at least 4"),
    ],
)
def test_options_without_a_meaning_are_refused_before_the_run_is_read(options, match):
    with pytest.raises(OodmlError, match=match):
        few_shot("nowhere", **options)


def test_a_run_that_saw_the_validation_classes_is_labelled(run, settings):
    result = train(settings(steps=4, selection="last"))
    assert any(
        "validation classes too (selection='last')" in note for note in few_shot(result.path, shots=2, **QUICK).notes
    )
    assert not any("validation classes" in note for note in few_shot(run, shots=2, **QUICK).notes)


@pytest.fixture
def others():
    from oodml.data import register_dataset

    def make():
        made = oodml.load_dataset("patterns", seed=1)
        return replace(made, name="others", fingerprint="others" + made.fingerprint)

    register_dataset("others", make, replace=True, summary="Other patterns for the tests.")
    return make()


def test_adapting_to_another_dataset(run, others):
    found = few_shot(run, dataset="others", shots=2, **QUICK)
    assert found.about["trained_on"] == "patterns" and found.about["dataset"] == "others"
    assert found["zero"]["recall@1"].mean > 0


@pytest.mark.parametrize("depth", ["all", "head"])
def test_transfer_scores_the_run_on_another_dataset(run, head_run, others, depth):
    which = run if depth == "all" else head_run
    found = transfer(
        which,
        "others",
        shots=[2],
        episodes=2,
        steps=3,
        metrics=["recall@1"],
        fid_backbone="tiny",
        device="cpu",
        quiet=True,
    )
    expected = evaluate_run(which, "others", "default", ["recall@1"])
    assert found["scores"] == pytest.approx(dict(expected))
    home = oodml.load_dataset("patterns")
    features = [oodml.extract_features(d, "tiny", quiet=True) for d in (home, others)]
    sides = [(home, home.default_split.train, features[0]), (others, others.default_split.test, features[1])]
    means = [np.stack([f[d.indices_of([name])].mean(0) for name in names]) for d, names, f in sides]
    assert found["fid"] == pytest.approx(oodml.fid(*means), rel=1e-4)
    assert found["few"][2].about["dataset"] == "others" and 0 < found["untrained"]["recall@1"] <= 1


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), 0.0, "fast"])
def test_an_invalid_rate_is_refused(rate: float | str) -> None:
    with pytest.raises(OodmlError, match="learning rate above 0"):
        few_shot("nowhere", lr=rate)
