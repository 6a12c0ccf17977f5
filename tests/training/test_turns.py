"""Batches of a method with several per step: how many an epoch has, how they are composed, and resume."""

import numpy as np
import pytest
import torch

import oodml
from oodml import OodmlError
from oodml.training.data import make_sampler
from oodml.training.distributed import Processes
from oodml.training.embedder import starting_backbone
from oodml.training.job import build_job, prepare_images

IMAGES, BATCH = 48, 16  # of the fit set: 6 classes of 8


@pytest.fixture
def job(settings, tmp_path):
    """`job(method="sharing")`: a run laid out."""

    def make(**values):
        config, processes = settings(**values).resolved(), Processes()
        images = prepare_images(config, oodml.load_dataset("patterns"), processes)
        return build_job(config, tmp_path, images, starting_backbone(config), processes, stop_at=None)

    return make


def drawn(job, start=0):
    return [batches for _, _, batches in job.steps(start)]


def grouped(job, number):
    """Other groups in every epoch, as `begin_epoch` makes them, none of them a class."""
    return lambda epoch: job.method.group_of.copy_(torch.arange(IMAGES).roll(epoch) % number)


@pytest.mark.parametrize("method", ["sharing", {"name": "uniform_prior", "base": "sharing"}])
def test_an_epoch_shows_every_image_to_each_task(job, method):
    base = job(method="margin", epochs=4, steps=None)
    both = job(method=method, epochs=4, steps=None)
    assert both.steps_per_epoch == base.steps_per_epoch == IMAGES // BATCH
    assert both.total_steps == base.total_steps  # of two updates, one of each task
    turns = list(zip(*drawn(both), strict=True))
    assert [len(batches) for batches in turns] == [base.total_steps] * 2
    assert not any(np.array_equal(*pair) for pair in zip(*turns, strict=True))


def test_a_run_given_in_steps_keeps_its_updates_and_its_batches(job):
    """The two turns take the batches of the sampler one after the other, over the ends of its passes."""
    run = job(method="sharing", steps=6)
    assert run.total_steps == 6
    sampler, batches = make_sampler(run.config, run.sets), []
    while len(batches) < 12:
        batches += list(sampler)
    np.testing.assert_array_equal(np.concatenate(drawn(run)), np.stack(batches))


@pytest.mark.parametrize("variant", ["both+sep+decor", "shared"])
@pytest.mark.parametrize("samples_per_class", [1, 4])
def test_in_batches_by_group_every_anchor_has_a_positive(job, variant, samples_per_class):
    method = {"name": "sharing", "triplets": "groups", "groups": 8, "variant": variant}
    run = job(method=method, steps=9, samples_per_class=samples_per_class)
    labels, per_label = run.sets.fit_labels, max(2, samples_per_class)
    seen = set()
    for step, epoch, batches in run.steps(0, grouped(run, 8)):
        groups = np.roll(np.arange(IMAGES), epoch) % 8
        found, counts = np.unique(groups[batches[-1]], return_counts=True)
        assert len(found) == min(8, BATCH // per_label), step
        assert (counts == per_label).all(), step
        seen.add(batches[-1].tobytes())
        if variant != "shared":  # the task of classes has batches by class, as always
            assert (np.unique(labels[batches[0]], return_counts=True)[1] >= samples_per_class).all()
    assert len(seen) == 9


@pytest.mark.parametrize("options", [{}, {"triplets": "groups", "groups": 5}, {"variant": "shared"}])
@pytest.mark.parametrize("stop", [1, 2, 3, 4, 6, 7])
def test_a_resumed_run_draws_what_it_would_have_drawn(job, options, stop):
    """Stopped inside an epoch of 3 steps, at its end, and in either pass of the sampler."""
    values = {"method": {"name": "sharing", **options}, "steps": 9}
    whole, killed, resumed = job(**values), job(**values), job(**values)
    expected = [np.stack(batches) for _, _, batches in whole.steps(0, grouped(whole, 5))]
    walk = killed.steps(0, grouped(killed, 5))
    for _ in range(stop):
        next(walk)
    resumed.sampler.load_state_dict(killed.sampler.state_dict())
    resumed.method.load_state_dict(killed.method.state_dict())
    found = [np.stack(batches) for _, _, batches in resumed.steps(stop, grouped(resumed, 5))]
    np.testing.assert_array_equal(np.stack(found), np.stack(expected[stop:]))


def test_a_batch_that_no_group_fits_is_refused(job):
    run = job(method={"name": "sharing", "triplets": "groups", "groups": 4}, samples_per_class=1, batch_size=15)
    with pytest.raises(OodmlError, match="samples_per_class=2 does not divide batch_size=15"):
        next(run.steps(0, grouped(run, 4)))
