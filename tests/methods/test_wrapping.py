"""Methods around methods: one backbone pass, every part of the inner method kept, clear refusals."""

import itertools

import numpy as np
import pytest
import torch

import oodml
from oodml import OodmlError
from oodml.methods import Batch, Context, Method, register_method
from oodml.models import freeze_batchnorm, make_backbone
from oodml.models.embedder import Embedder
from oodml.models.heads import Head

INNER = ("margin", "rho", {"name": "s2sd", "targets": [16]}, "sharing", "diva", {"name": "plain", "dropout": 0.2})


class Counted(torch.nn.Module):
    """A backbone that counts its passes."""

    def __init__(self):
        super().__init__()
        self.body, self.passes = freeze_batchnorm(make_backbone("tiny", seed=1)), 0

    def forward(self, images):
        self.passes += 1
        return self.body(images)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [pair for pair in itertools.product(("uniform_prior", "mixup"), INNER) if pair != ("mixup", "diva")],
)
def test_wrapper_and_wrapped_share_one_pass_of_the_backbone(outer, inner):
    method = oodml.make_method(outer, base=inner)
    method.setup(Context(4, 8, 64, 10, batch_size=16, num_images=16, generator=torch.Generator()))
    backbone = Counted()
    embedder = Embedder(backbone, method.heads(64), 64)
    method.connect(embedder)
    images, labels = torch.rand(16, 3, 16, 16), torch.arange(16) // 4
    for turn in range(method.batches_per_step):
        before = backbone.passes
        loss = method.loss(Batch(images, labels, np.arange(16), turn, lambda: images), embedder, 0)
        assert backbone.passes == before + 1  # DiVA's slow copy is a network of its own
        loss.backward()
    method.after_step(embedder, 0)
    assert torch.isfinite(loss)
    assert method.test_embedding(embedder(images)).shape == (16, 8)
    own = {id(p) for group in method.param_groups(1e-3) for p in group["params"]}
    extra = {id(p) for optimiser in method.extra_optimisers() for g in optimiser.param_groups for p in g["params"]}
    assert own | extra == {id(p) for p in method.parameters() if p.requires_grad}
    assert not own & extra


def test_the_prior_around_rho_trains_rho(prepared):
    run = prepared("uniform_prior", base={"name": "rho", "base": "triplet", "p_switch": 0.7}, weight=0.0)
    inner = run.method.inner
    assert inner.objective.miner.p_switch == 0.7
    alone = prepared("rho", base="triplet", p_switch=0.7)
    alone.embedder.load_state_dict(run.embedder.state_dict())
    assert run.loss(seed=3).item() == pytest.approx(alone.loss(seed=3).item())


def test_input_noise_survives_a_wrapper():
    method = oodml.make_method("uniform_prior", base={"name": "plain", "loss": "margin", "input_noise": 0.5})
    with pytest.raises(OodmlError, match="input_noise acts on images"):
        method.check(64, "head")
    generator = torch.Generator().manual_seed(0)
    method.setup(Context(4, 8, 64, 10, generator=generator))
    images = torch.rand(16, 3, 16, 16)
    batch = Batch(images, torch.arange(16) // 4, np.arange(16), 0, lambda: images)
    assert not torch.equal(method.inputs(batch, 0), images)


def test_wrappers_nest(prepared):
    run = prepared("uniform_prior", base={"name": "mixup", "base": {"name": "sharing", "base": "rho"}})
    run.train_step(0)
    run.train_step(1)
    assert run.method.batches_per_step == 2


def test_a_method_that_keeps_its_pass_to_itself_is_refused():
    class Alone(Method):
        """Has a loss of its own."""

        def heads(self, feature_dim):
            return {"embedding": Head(self.context.embedding_dim)}

        def loss(self, batch, embedder, step):
            return embedder(batch.inputs).heads["embedding"].square().mean()

    register_method("alone-test", Alone, replace=True)
    for outer in ("uniform_prior", "mixup"):
        with pytest.raises(OodmlError, match="'alone-test' cannot be wrapped"):
            oodml.make_method(outer, base="alone-test")


@pytest.mark.parametrize("outer", ["sharing", "diva"])
@pytest.mark.parametrize("inner", ["s2sd", "uniform_prior", "plain"])
def test_methods_with_encoders_of_their_own_are_no_base_of_encoders(outer, inner):
    with pytest.raises(OodmlError, match=f"{outer} needs a loss .*{inner!r} is a method"):
        oodml.make_method(outer, base=inner)


def test_an_unknown_base_names_the_nearest():
    with pytest.raises(OodmlError, match="Did you mean 'margin'"):
        oodml.make_method("uniform_prior", base="margni")
    with pytest.raises(OodmlError, match="Did you mean 'margin'"):
        oodml.make_method("sharing", base="margni")


def test_protocols_reach_the_base_of_every_method_and_its_batches():
    def resolved(protocol, **method):
        return oodml.RunConfig(protocol=protocol, method=method, backbone="tiny").resolved()

    for name in ("sharing", "diva", "uniform_prior", "mixup"):
        assert resolved("revisiting", name=name).method["base"]["normaliser"] == "triplets"
    inner = resolved("oodml", name="uniform_prior", base="rho").method["base"]["base"]
    assert inner["normaliser"] == "triplets"
    diva = resolved("oodml", name="diva")
    assert diva.method["weighting"] == "batch" and diva.method["sharing"] == diva.method["intra"] == "permuted"
    assert diva.batch_size == 108
    assert [resolved("sharing", name="sharing", base=b).samples_per_class for b in ("margin", "proxynca", "npair")] == [
        4, 1, 2,
    ]  # fmt: skip
    chosen = oodml.RunConfig(protocol="sharing", method={"name": "sharing", "base": "npair"}, samples_per_class=7)
    assert chosen.resolved().samples_per_class == 7
