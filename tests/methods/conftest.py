"""A method on random cached features, and what must hold for every method in a run."""

import pytest
import torch

import oodml
from oodml.methods import Batch, Context
from oodml.models.embedder import Embedder

FEATURES, CLASSES, BATCH, DIM = 12, 4, 16, 8


class Prepared:
    """A method set up on cached features: batches, losses and optimiser steps as the loop makes them."""

    def __init__(self, name, dim=DIM, seed=0, dtype=torch.float32, classes=CLASSES, **options):
        torch.manual_seed(seed)
        self.method = oodml.make_method(name, **options)
        self.generator = torch.Generator().manual_seed(seed)
        self.context = Context(classes, dim, FEATURES, 100, "head", 1e-2, BATCH, 4 * BATCH, generator=self.generator)
        self.method.setup(self.context)
        self.embedder = Embedder(None, self.method.heads(FEATURES), FEATURES)
        self.method.connect(self.embedder)
        self.method.to(dtype)
        self.embedder.to(dtype)
        self.dtype, self.classes = dtype, classes
        groups = [{"params": list(self.embedder.heads.parameters()), "lr": 1e-2}, *self.method.param_groups(1e-2)]
        self.optimiser = torch.optim.SGD(groups)

    def batch(self, seed=0, turn=0):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(BATCH, FEATURES, generator=generator, dtype=self.dtype)
        view = inputs + 0.1 * torch.randn(BATCH, FEATURES, generator=generator, dtype=self.dtype)
        labels = torch.arange(BATCH) % self.classes
        indices = torch.randperm(4 * BATCH, generator=generator)[:BATCH].numpy()
        return Batch(inputs.requires_grad_(), labels, indices, turn, lambda: view)

    def loss(self, batch=None, step=0, seed=0):
        self.generator.manual_seed(seed)
        return self.method.loss(batch or self.batch(), self.embedder, step)

    def train_step(self, step):
        """What the loop does in a step; the batches of its turns."""
        batches = [self.batch(100 * step + turn, turn) for turn in range(self.method.batches_per_step)]
        for batch in batches:
            self.loss(batch, step, seed=step).backward()
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
        self.method.after_step(self.embedder, step)
        return batches


@pytest.fixture
def prepared():
    """`prepared("rho", base="triplet")`: the method on an embedder of cached features."""
    return Prepared


@pytest.fixture(scope="session")
def glyphs():
    return oodml.load_dataset("glyphs")


@pytest.fixture
def gain_on_glyphs(glyphs, tmp_path):
    """A run of 40 steps of 56 glyphs on one seed; its `gain` is that over the untrained features on unseen scripts."""

    def train(method, **settings):
        values = {"embedding_dim": 64, "steps": 40, "eval_every": 40, "selection": "last", "metrics": ("recall@1",)}
        values |= {"batch_size": 56}
        values |= {"device": "cpu", "quiet": True, "out": str(tmp_path / "run")}
        return oodml.train(oodml.RunConfig(dataset="glyphs", method=method, **{**values, **settings}), dataset=glyphs)

    return train
