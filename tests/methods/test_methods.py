"""Methods: specs, plain and its regularisers, rho and the papers' p_switch, registration from outside."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import oodml
from oodml import OodmlError
from oodml.methods import Batch, Context, Method, make_method, method_record, method_spec, register_method
from oodml.methods.objective import expand
from oodml.models import freeze_batchnorm, make_backbone
from oodml.models.embedder import Embedder
from oodml.models.heads import Head


def prepared(method, dim=8, classes=4, seed=0):
    """The method set up, an embedder for it, and a batch of random images."""
    generator = torch.Generator().manual_seed(seed)
    backbone = freeze_batchnorm(make_backbone("tiny", seed=1))
    method.setup(Context(classes, dim, backbone.feature_dim, total_steps=10, generator=generator))
    torch.manual_seed(0)
    embedder = Embedder(backbone, method.heads(backbone.feature_dim), backbone.feature_dim)
    images = torch.rand(16, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(16) // 4
    batch = Batch(images, labels, np.arange(16), 0, lambda: images)
    return embedder, batch


def test_names_and_dicts_say_the_same():
    assert method_spec("margin") == {"name": "plain", "loss": "margin"}
    assert method_spec({"name": "margin", "beta": 0.6}) == {"name": "plain", "loss": {"name": "margin", "beta": 0.6}}
    assert method_spec("rho", base="triplet") == {"name": "rho", "base": "triplet"}
    assert method_spec({"name": "plain", "loss": "margin"}) == {"name": "plain", "loss": "margin"}
    assert {"plain", "rho"} <= set(oodml.list_methods())
    with pytest.raises(OodmlError, match="Did you mean 'plain'"):
        make_method("plian")


@pytest.mark.parametrize("name", oodml.list_losses())
def test_every_loss_works_as_a_method(name):
    method = make_method(name)
    embedder, batch = prepared(method)
    loss = method.loss(batch, embedder, 0)
    loss.backward()
    assert torch.isfinite(loss)
    embedding = method.test_embedding(embedder(batch.inputs))
    assert embedding.shape == (16, 8)
    lengths = embedding.norm(dim=1)
    on_sphere = name not in ("genlifted", "npair", "angular")
    assert torch.allclose(lengths, torch.ones(16), atol=1e-5) == on_sphere
    named = {id(p) for group in method.param_groups(1e-3) for p in group["params"]}
    assert named == {id(p) for p in method.parameters() if p.requires_grad}


def test_plain_is_the_loss_on_the_head():
    method = make_method("multisimilarity")
    embedder, batch = prepared(method)
    expected = oodml.make_loss("multisimilarity", num_classes=4, embedding_dim=8)
    embeddings = embedder(batch.inputs).heads["embedding"]
    assert method.loss(batch, embedder, 0).item() == pytest.approx(expected(embeddings, batch.labels).item())


@pytest.mark.parametrize(("given", "expected"), [({}, 2e-3), ({"lr": 5e-4}, 5e-4)])
def test_proxies_learn_at_least_as_fast_as_the_model_unless_a_rate_is_given(given, expected):
    method = make_method({"name": "arcface", **given})
    prepared(method)
    assert [group["lr"] for group in method.param_groups(2e-3)] == [expected]
    assert [group["lr"] for group in method.param_groups(1e-5)] == [5e-4]


@pytest.mark.parametrize("regulariser", ["dropout", "input_noise", "output_noise"])
def test_regularisers_disturb_training_from_the_given_generator_only(regulariser):
    method = make_method("plain", loss="multisimilarity", **{regulariser: 0.3})
    embedder, batch = prepared(method)
    calm = make_method("multisimilarity")
    calm_embedder, _ = prepared(calm)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    values = []
    for seed in (1, 1, 2):
        method.context.generator.manual_seed(seed)
        values.append(method.loss(batch, embedder, 0).item())
    assert torch.equal(state, torch.get_rng_state())
    assert values[0] == values[1] != values[2]
    assert values[0] != calm.loss(batch, calm_embedder, 0).item()
    one, two = (m.test_embedding(e(batch.inputs)) for m, e in ((method, embedder), (calm, calm_embedder)))
    torch.testing.assert_close(one, two)  # nothing is disturbed at test time


def test_dropout_keeps_the_expected_value():
    method = make_method("plain", loss="margin", dropout=0.25)
    prepared(method)
    ones = torch.ones(200, 500)
    dropped = method._drop(ones)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert dropped.mean().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("base", ["contrastive", "margin", {"name": "margin", "beta": 1.2}, "triplet", "snr"])
def test_rho_has_one_plain_p_switch(base):
    """The papers' numbers by dataset: tests/recipes."""
    method = make_method("rho", base=base)
    prepared(method)
    assert method.objective.miner.p_switch == 0.3
    assert type(method.objective.miner.base).__name__.lower().startswith("distance")


def test_rho_margin_starts_at_its_own_boundary_and_options_win():
    assert expand({"name": "rho"})["beta"] == 0.6
    assert expand({"name": "rho", "base": {"name": "margin", "beta": 0.9}})["beta"] == 0.9
    method = make_method("rho", base={"name": "triplet", "miner": "semihard"}, p_switch=0.7)
    prepared(method)
    assert method.objective.miner.p_switch == 0.7
    assert type(method.objective.miner.base).__name__.lower() == "semihard"


def test_rho_without_switching_is_plain():
    for base in ("contrastive", "triplet", "snr"):
        plain, rho = make_method(base), make_method("rho", base=base, p_switch=0.0)
        embedder, batch = prepared(plain)
        prepared(rho)
        drawn = []
        for method in (plain, rho):
            values = []
            for seed in range(30):
                method.context.generator.manual_seed(seed)
                values.append(method.loss(batch, embedder, 0).item())
            drawn.append(np.mean(values))
        assert drawn[0] == pytest.approx(drawn[1], rel=0.05), base


def test_a_method_from_outside_and_a_foreign_loss():
    class Centres(Method):
        """Pull embeddings to their class's mean."""

        batches_per_step = 2

        def __init__(self, weight: float = 1.0) -> None:
            super().__init__()
            self.weight = weight

        def heads(self, feature_dim):
            return {"one": Head(self.context.embedding_dim // 2), "two": Head(self.context.embedding_dim // 2)}

        def check(self, embedding_dim, train):
            super().check(embedding_dim, train)
            if embedding_dim % 2:
                raise OodmlError(f"centres splits the embedding in two: {embedding_dim} is odd.")

        def loss(self, batch, embedder, step):
            rows = torch.cat(list(embedder(batch.inputs).heads.values()), 1)
            means = torch.stack([rows[batch.labels == c].mean(0) for c in range(self.context.num_classes)])
            return self.weight * (rows - means[batch.labels]).square().mean()

        def test_embedding(self, outputs):
            return F.normalize(torch.cat(list(outputs.heads.values()), 1), dim=1)

    register_method("centres-test", Centres, replace=True)
    assert method_record("centres-test").summary == "Pull embeddings to their class's mean."
    method = make_method("centres-test", weight=2.0)
    embedder, batch = prepared(method)
    assert method.loss(batch, embedder, 0).item() > 0
    with pytest.raises(OodmlError, match="7 is odd"):
        oodml.RunConfig(method="centres-test", embedding_dim=7)

    class Foreign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, embeddings, labels):
            return self.scale * embeddings.square().mean()

    oodml.register_loss("foreign-test", Foreign, replace=True)
    foreign = make_method("foreign-test")
    embedder, batch = prepared(foreign)
    foreign.loss(batch, embedder, 0).backward()
    (group,) = foreign.param_groups(0.01)
    assert group["lr"] == 0.01 and len(group["params"]) == 1


def test_classes_are_found_in_a_fresh_process():
    program = "import oodml; print(oodml.methods.S2SD(base='margin').spec['name'], oodml.data.samplers.SPC.__name__)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout == "margin SPC\n", shown.stderr


@pytest.mark.parametrize("name", oodml.list_methods())
def test_every_method_is_a_class_of_the_package(name):
    factory = method_record(name).factory
    if factory.__module__.startswith("oodml."):
        assert getattr(oodml.methods, factory.__name__) is factory
