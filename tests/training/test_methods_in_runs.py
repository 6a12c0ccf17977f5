"""The methods of the papers inside runs: both depths, killed and resumed to the last bit, loaded again, logged."""

import pytest
import torch
from safetensors.torch import load_file

from oodml.adaptation import embed_run
from oodml.training import train

METHODS = {
    "uniform_prior": {"name": "uniform_prior", "every": 2, "base": {"name": "rho"}},
    "sharing": {"name": "sharing"},
    "sharing-groups": {"name": "sharing", "triplets": "groups", "groups": 4, "regroup_every": 2},
    "diva": {"name": "diva", "queue": 3},
    "mixup": {"name": "mixup", "base": "triplet"},
}
ON_PICTURES = {**METHODS, "mixup-stages": {"name": "mixup", "layers": ["input", "stages", "features"]}}


@pytest.mark.parametrize("name", ON_PICTURES)
def test_a_killed_run_resumes_to_the_same_bits(name, settings, killed_after, facts, tmp_path):
    shared = {"method": ON_PICTURES[name], "steps": 5, "checkpoint_every": 1, "eval_every": 5, "metrics": ("recall@1",)}
    whole = train(settings(out=str(tmp_path / "whole"), **shared))
    with killed_after(4), pytest.raises(RuntimeError, match="killed"):
        train(settings(out=str(tmp_path / "killed"), **shared))
    resumed = train(settings(out=str(tmp_path / "killed"), **shared))
    assert facts(resumed) == facts(whole)
    rows, _ = embed_run(whole.path)
    saved = load_file(whole.path / "embeddings.safetensors")["embeddings"].float()
    torch.testing.assert_close(rows, saved, atol=2e-3, rtol=0)  # what is kept is enough to embed again


@pytest.mark.parametrize("name", METHODS)
def test_cached_features_are_enough(name, settings):
    result = train(settings(method=METHODS[name], train="head", steps=2, views=1, metrics=("recall@1",)))
    assert 0 <= result.scores["recall@1"] <= 1


def test_spaces_and_facts_are_in_the_history(settings):
    result = train(settings(method=METHODS["sharing-groups"], steps=2, eval_every=1))
    for row in result.history:
        assert set(row["watched"]) == {"discriminative", "shared"}
        assert set(row["watched"]["shared"]) == {"recall@1"}
        assert 1 <= row["facts"]["classes_per_group"] <= 12
    plain = train(settings(method="margin", steps=2, out=str(result.path.parent / "plain")))
    assert not {"watched", "facts"} & plain.history[-1].keys()
