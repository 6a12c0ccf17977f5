"""Training heads on cached features, warm-up, gradient caching in a run, methods of several batches, load_embedder."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional as F

import oodml
from oodml import OodmlError
from oodml.adaptation import evaluate_run
from oodml.methods import Method, register_method
from oodml.models.heads import Head
from oodml.training import load_embedder, train
from oodml.training.data import FeatureSource
from oodml.training.distributed import Processes
from oodml.training.embedder import starting_backbone
from oodml.training.job import build_job, prepare_images


def job_for(config, tmp_path):
    dataset = oodml.load_dataset("patterns")
    return build_job(
        config,
        tmp_path,
        prepare_images(config, dataset, Processes()),
        starting_backbone(config),
        Processes(),
        stop_at=None,
    )


def test_head_mode_trains_heads_on_cached_features_and_leaves_the_backbone(settings, tmp_path):
    config = settings(train="head", views=2, lr=1e-2, steps=60)
    job = job_for(config.resolved(), tmp_path)
    assert isinstance(job.source, FeatureSource) and job.source.features.shape[:2] == (3, 128)
    fit = job.source.features[:, job.sets.fit]
    assert job.embedder.feature_scale.item() == pytest.approx(fit.std().item())
    trained = {id(p) for group in job.optimiser.param_groups for p in group["params"]}
    assert not trained & {id(p) for p in job.embedder.backbone.parameters()}
    result = train(config)
    assert result.history[-1]["loss"] < 0.7 * result.history[0]["loss"]
    assert not any(key.startswith("backbone.") for key in load_file(result.path / "embedder.safetensors"))


def test_head_mode_draws_every_view_and_evaluates_the_first():
    features = torch.arange(3 * 5 * 2, dtype=torch.float32).view(3, 5, 2)
    source = FeatureSource(features, torch.device("cpu"))
    positions = np.repeat(np.arange(5), 200)
    drawn = source.train(positions, torch.Generator().manual_seed(0))
    views = (drawn[:, 0] // 10).long()
    assert (torch.bincount(views, minlength=3) > 250).all()
    assert torch.equal((drawn[:, 0] % 10 // 2).long(), torch.from_numpy(positions))
    assert torch.equal(source.evaluate(np.array([4, 0])), features[0, [4, 0]])


@pytest.mark.parametrize("kill_at", [3, 8])
def test_head_mode_resumes_exactly_too(settings, tmp_path, killed_after, facts, kill_at):
    whole = train(settings(out=str(tmp_path / "whole"), train="head", views=2, checkpoint_every=2, eval_every=5))
    killed = settings(out=str(tmp_path / "killed"), train="head", views=2, checkpoint_every=2, eval_every=5)
    with killed_after(kill_at), pytest.raises(RuntimeError, match="killed"):
        train(killed)
    assert facts(train(killed)) == facts(whole)


def test_maxima_are_cached_for_a_method_that_asks(settings, tmp_path):
    config = settings(
        train="head", views=1, method={"name": "s2sd", "targets": [16], "pooling": "avg+max"}, steps=4
    ).resolved()
    job = job_for(config, tmp_path)
    assert job.source.features.shape[-1] == 2 * job.embedder.feature_dim
    assert job.embedder(job.source.evaluate(np.arange(3))).features.max is not None
    train(config)


def test_what_head_mode_cannot_do_is_refused_in_one_sentence():
    with pytest.raises(OodmlError, match="input_noise acts on images"):
        oodml.RunConfig(train="head", method={"name": "plain", "loss": "margin", "input_noise": 0.1})


def test_warmup_leaves_the_backbone_alone(settings, tmp_path):
    config = settings(warmup=1, steps=None, epochs=1, selection="last", frozen_bn=True).resolved()
    job = job_for(config, tmp_path)
    before = {name: value.clone() for name, value in job.embedder.state_dict().items()}
    result = train(config)
    after = load_file(result.path / "embedder.safetensors")
    for name, value in after.items():
        assert torch.equal(value, before[name]) == name.startswith(("backbone.", "feature_scale")), name


def test_gradient_caching_in_a_run_changes_nothing_but_memory(settings, tmp_path):
    # supcon couples the whole batch and draws nothing: a drawn tuple may tip over by the rounding that chunks change.
    plain = train(settings(out=str(tmp_path / "plain"), method="supcon", frozen_bn=True))
    cached = train(settings(out=str(tmp_path / "cached"), method="supcon", frozen_bn=True, grad_cache=5))
    for one, two in zip(plain.history, cached.history, strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)
    with pytest.raises(OodmlError, match="frozen_bn=True"):
        train(settings(out=str(tmp_path / "refused"), grad_cache=5))


class Alternating(Method):
    """Two encoders on batches of their own, an extra optimiser and a momentum copy: what later methods need."""

    batches_per_step = 2

    def heads(self, feature_dim):
        half = self.context.embedding_dim // 2
        return {"first": Head(half), "second": Head(half), "helper": Head(4, layers=2, test=False)}

    def setup(self, context):
        super().setup(context)
        self.objectives = torch.nn.ModuleList(
            oodml.make_loss("margin", num_classes=context.num_classes, generator=context.generator) for _ in range(2)
        )
        self.critic = torch.nn.Linear(context.feature_dim, 1)
        self.critic_optimiser = torch.optim.Adam(self.critic.parameters(), lr=1e-2)
        self.register_buffer("momentum", torch.zeros(context.embedding_dim // 2, context.feature_dim))
        self.epochs_seen = []

    def on_epoch_start(self, epoch, embedder, features):
        pooled, labels = features()
        assert pooled.avg.shape == (len(labels), embedder.feature_dim)
        self.epochs_seen.append(epoch)

    def loss(self, batch, embedder, step):
        name = ("first", "second")[batch.turn]
        pooled = embedder.pool(batch.inputs)
        self.features = pooled.avg.detach()
        assert not torch.equal(batch.another_view(), batch.inputs)
        return self.objectives[batch.turn](embedder.apply_heads(pooled, [name]).heads[name], batch.labels)

    def after_step(self, embedder, step):
        self.critic_optimiser.zero_grad()
        self.critic(self.features).square().mean().backward()
        self.critic_optimiser.step()
        self.momentum.lerp_(embedder.heads["first"].weight.detach(), 0.1)

    def extra_optimisers(self):
        return [self.critic_optimiser]

    def param_groups(self, base_lr):
        return [group for objective in self.objectives for group in objective.param_groups(base_lr)]

    def test_embedding(self, outputs):
        return F.normalize(torch.cat([outputs.heads["first"], outputs.heads["second"]], 1), dim=1)


register_method("alternating-test", Alternating, replace=True)


def test_a_method_of_several_batches_heads_and_optimisers_needs_nothing_of_the_loop(
    settings, tmp_path, killed_after, facts
):
    options = {"method": "alternating-test", "checkpoint_every": 2, "eval_every": 4, "steps": 8}
    whole = train(settings(out=str(tmp_path / "whole"), **options))
    assert whole.data["steps_per_epoch"] == 48 // 16
    with killed_after(5), pytest.raises(RuntimeError, match="killed"):
        train(settings(out=str(tmp_path / "killed"), **options))
    resumed = train(settings(out=str(tmp_path / "killed"), **options))
    assert facts(resumed) == facts(whole)
    one, two = (torch.load(run.path / "checkpoint.pt", weights_only=True) for run in (whole, resumed))
    for key in one["method"]:
        assert torch.equal(one["method"][key], two["method"][key]), key
    kept = load_file(whole.path / "embedder.safetensors")
    assert not any("helper" in key for key in kept)


@pytest.mark.parametrize("depth", ["all", "head"])
def test_a_loaded_embedder_gives_the_embeddings_of_the_run(settings, tmp_path, depth):
    result = train(settings(train=depth, views=1))
    saved = load_file(result.path / "embeddings.safetensors")
    embed = oodml.load_embedder(result.path)
    ds = oodml.load_dataset("patterns")
    images = [ds.image(i) for i in saved["indices"][:20].tolist()]
    rows = embed(images)
    assert rows.shape == (20, 8) and embed.dim == 8
    torch.testing.assert_close(rows, saved["embeddings"][:20].float(), atol=5e-3, rtol=0)
    image = images[0]
    image.save(tmp_path / "one.png")
    array = np.asarray(image)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    for form in (image, str(tmp_path / "one.png"), tmp_path / "one.png", array, tensor, tensor.float() / 255):
        torch.testing.assert_close(embed(form), rows[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(embed(tensor[None]), rows[:1], atol=1e-5, rtol=0)
    assert embed([]).shape == (0, 8)
    assert embed(Image.new("L", (40, 23))).shape == (8,)


def test_invalid_images_are_refused(settings, tmp_path):
    embed = load_embedder(train(settings(steps=2)).path)
    (tmp_path / "text.png").write_text("not an image")
    for wrong in (tmp_path / "text.png", np.zeros((4, 4)), torch.zeros(1, 4, 4), tmp_path / "missing.png"):
        with pytest.raises(OodmlError):
            embed(wrong)
    with pytest.raises(OodmlError, match=r"no trained embedder .*: train it to the end first"):
        load_embedder(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(OodmlError, match="give one of the study's runs"):
        load_embedder(tmp_path)


def test_evaluating_a_run_again_gives_its_scores(settings):
    result = train(settings())
    again = evaluate_run(result.path, metrics=["recall@1", "map@r"])
    assert dict(again) == pytest.approx(result.scores, abs=1e-6)


@pytest.mark.parametrize(
    ("protocol", "method"),
    [
        ("revisiting", "multisimilarity"),
        ("oodml", "rho"),
        ("s2sd", None),
        ("oodml", "proxyanchor"),
        ("revisiting", "snr"),
    ],
)
def test_each_protocol_builds_and_runs_a_step(settings, protocol, method):
    config = settings(
        protocol=protocol, method=method, backbone="resnet18", pretrained=False, steps=1, embedding_dim=None
    )
    result = train(config)
    assert result.data["selection"] == "test" and result.data["sets"]["fit"]["classes"] == 8
    assert result.data["config"]["lr"] == 1e-5


def test_a_foreign_loss_trains(settings):
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    oodml.register_loss("pml-triplet-test", lambda: losses.TripletMarginLoss(), summary="A peer's loss.", replace=True)
    result = train(settings(method="pml-triplet-test", steps=6))
    assert np.isfinite(result.history[-1]["loss"])


def test_bf16_trains_close_to_fp32(settings, tmp_path):
    full = train(settings(out=str(tmp_path / "full"), precision="fp32"))
    half = train(settings(out=str(tmp_path / "half"), precision="bf16"))
    assert half.history[-1]["loss"] == pytest.approx(full.history[-1]["loss"], rel=0.2)
    assert half.history[-1]["loss"] != full.history[-1]["loss"]
