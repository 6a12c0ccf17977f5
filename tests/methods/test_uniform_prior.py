"""Uniform prior: hand-computed losses of both players, whose parameters each moves, the papers' numbers."""

import math

import pytest
import torch

import oodml
from oodml import OodmlError
from oodml.methods.uniform_prior import discriminator_loss, generator_loss


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_both_losses_equal_the_binary_cross_entropies_by_hand():
    uniform, judged = [0.3, -2.0, 1.5], [1.0, -0.7]
    by_hand = -sum(math.log(sigmoid(x)) for x in judged) / 2
    assert generator_loss(torch.tensor(judged)).item() == pytest.approx(by_hand, rel=1e-6)
    by_hand = -sum(math.log(sigmoid(x)) for x in uniform) / 3 - sum(math.log(1 - sigmoid(x)) for x in judged) / 2
    assert discriminator_loss(torch.tensor(uniform), torch.tensor(judged)).item() == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("on", ["features", "embedding"])
def test_the_loss_is_the_base_plus_the_prior(prepared, on):
    prior = prepared("uniform_prior", base="multisimilarity", on=on, weight=0.7, row=4)
    plain = prepared("multisimilarity")
    plain.embedder.load_state_dict(prior.embedder.state_dict())
    batch = prior.batch()
    rows = batch.inputs if on == "features" else prior.embedder.heads["embedding"](batch.inputs)
    judged = prior.method.discriminator(rows.reshape(-1, 4))
    by_hand = plain.loss().item() + 0.7 * -judged.sigmoid().log().mean().item()
    assert prior.loss().item() == pytest.approx(by_hand, rel=1e-5)


def test_the_discriminator_learns_from_its_own_loss_alone_and_only_every_so_often(prepared):
    run = prepared("uniform_prior", base="multisimilarity", every=3, on="embedding")
    weights = lambda: [p.clone() for p in run.method.discriminator.parameters()]  # noqa: E731
    for step in range(5):
        run.generator.manual_seed(step)
        before, batch = weights(), run.batch(step)
        heads = {k: v.clone() for k, v in run.embedder.state_dict().items()}
        run.loss(batch, step, seed=step).backward()
        gradient = run.embedder.heads["embedding"].weight.grad.clone()
        rows = run.method.seen
        assert not rows.requires_grad
        state = run.generator.get_state()
        run.method.after_step(run.embedder, step)
        changed = any(not torch.equal(a, b) for a, b in zip(before, weights(), strict=True))
        assert changed == (step % 3 == 0)
        torch.testing.assert_close(run.embedder.heads["embedding"].weight.grad, gradient)  # only D has moved
        torch.testing.assert_close(run.embedder.state_dict(), heads)
        if step == 0:  # Adam's first step is lr · sign(gradient)
            noise = torch.rand(rows.shape, generator=torch.Generator().set_state(state)) * 2 - 1
            fresh = prepared("uniform_prior", base="multisimilarity", every=3, on="embedding").method.discriminator
            for p, value in zip(fresh.parameters(), before, strict=True):
                p.data.copy_(value)
            (-fresh(noise).sigmoid().log().mean() - (1 - fresh(rows).sigmoid()).log().mean()).backward()
            moved = weights()[0] - before[0]
            sure = fresh[0].weight.grad.abs() > 1e-5
            torch.testing.assert_close(moved[sure], -1e-2 * fresh[0].weight.grad.sign()[sure], rtol=1e-2, atol=1e-4)


def test_the_prior_makes_a_frozen_discriminators_features_more_uniform(prepared):
    """Gradient descent on the prior alone raises D's opinion of the features."""
    run = prepared("uniform_prior", base="multisimilarity", weight=100.0, every=10**6, on="embedding")
    rows = lambda: run.method.rows(run.embedder.pool(run.batch().inputs), run.embedder)  # noqa: E731
    before = run.method.discriminator(rows()).mean()
    for _ in range(20):
        run.loss().backward()
        run.optimiser.step()
        run.optimiser.zero_grad()
    assert run.method.discriminator(rows()).mean() > before + 0.1


def test_the_numbers_are_those_of_cub_and_cars_unless_given(prepared):
    method = prepared("uniform_prior").method
    assert (method.weight, method.every, method.discriminator[0].out_features) == (0.2, 10, 100)
    method = prepared("uniform_prior", weight=1.0, every=7, hidden=9).method
    assert (method.weight, method.every, method.discriminator[0].out_features) == (1.0, 7, 9)


def test_rows_divide_features_of_any_size(prepared):
    assert prepared("uniform_prior", on="features").method.width == 12
    assert prepared("uniform_prior", on="features", row=8).method.width == 6
    assert prepared("uniform_prior").method.on == "embedding"  # train="head"


def test_what_cannot_work_is_refused():
    with pytest.raises(OodmlError, match="whole numbers"):
        oodml.make_method("uniform_prior", every=2.5)
    with pytest.raises(OodmlError, match="whole numbers"):
        oodml.make_method("diva", queue=2.5)
    with pytest.raises(OodmlError, match="the features are fixed"):
        oodml.make_method("uniform_prior", on="features").check(64, "head")
    with pytest.raises(OodmlError, match="Did you mean 'features'"):
        oodml.make_method("uniform_prior", on="feature")
    with pytest.raises(OodmlError, match="weight >= 0"):
        oodml.make_method("uniform_prior", weight=-1.0)


@pytest.mark.long
def test_it_learns(gain_on_glyphs):
    """Measured: +.093 (plain margin +.087)."""
    assert gain_on_glyphs("uniform_prior").gain["recall@1"] > 0.05
