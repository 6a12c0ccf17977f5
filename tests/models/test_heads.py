"""Heads: their sizes, depths and refusals."""

import pytest
import torch
from torch import nn

from oodml import OodmlError
from oodml.models.heads import Head, make_head


@pytest.mark.parametrize(
    ("head", "widths"),
    [
        (Head(8), [(20, 8)]),
        (Head(8, layers=2), [(20, 8), (8, 8)]),
        (Head(8, layers=3, hidden=16), [(20, 16), (16, 16), (16, 8)]),
    ],
)
def test_layers_and_widths(head, widths):
    module = make_head(head, 20)
    linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == widths
    assert sum(isinstance(m, nn.ReLU) for m in module.modules()) == len(widths) - 1
    assert module(torch.zeros(3, 20)).shape == (3, 8)


def test_no_layers_give_the_features_themselves():
    features = torch.randn(3, 20)
    assert make_head(Head(20, layers=0), 20)(features) is features
    with pytest.raises(OodmlError, match="dim=20"):
        make_head(Head(8, layers=0), 20)


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"dim": 4, "layers": -1}, {"dim": 4, "pooling": "max"}])
def test_impossible_heads_are_refused(wrong):
    with pytest.raises(OodmlError):
        Head(**wrong)
