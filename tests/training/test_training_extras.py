"""Loggers, samplers that look at embeddings, schedules, seeds; on a GPU: no step waits for the device."""

import contextlib
import math
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import oodml
from oodml import OodmlError
from oodml.data import register_batch_sampler
from oodml.data.samplers.spc import SPC
from oodml.models.embedder import BACKBONE
from oodml.training import loggers, train
from oodml.training.distributed import join
from oodml.training.embedder import starting_backbone
from oodml.training.job import build_job, prepare_images
from oodml.training.loop import take_step
from oodml.training.optimiser import make_schedule, set_learning_rates
from oodml.training.seeds import child_seed, reseed
from oodml.training.stopping import LossMonitor


def test_loggers_get_every_number_and_are_closed(settings, monkeypatch):
    seen, closed = [], []

    class Notebook:
        def __init__(self, out, config):
            assert config["dataset"] == "patterns"

        def log(self, step, values):
            seen.append((step, dict(values)))

        def close(self):
            closed.append(True)

    monkeypatch.setitem(loggers._LOGGERS, "wandb", Notebook)
    result = train(settings(logger="wandb", eval_every=6, log_every=2))
    assert closed == [True]
    steps = [step for step, values in seen if "images_per_second" in values]
    assert steps == [2, 3, 5, 6, 8, 9, 11, 12]  # every two, and at the ends of epochs
    evaluated = {step: values for step, values in seen if "val/recall@1" in values}
    assert {step: values["val/recall@1"] for step, values in evaluated.items()} == {
        row["step"]: row["val"]["recall@1"] for row in result.history
    }


class Service(types.ModuleType):
    """Stands in for wandb and mlflow, whose packages the tests do not need: notes the name each run goes by."""

    def __init__(self):
        super().__init__("service")
        self.names, self.numbers, self.info = [], {}, types.SimpleNamespace(run_id="made by mlflow")

    def init(self, id, resume, **options):
        assert resume == "allow"
        self.names.append(id)
        return self

    def start_run(self, run_name=None, run_id=None):
        if run_id is not None:
            self.names.append(run_id)
        return contextlib.nullcontext(self)

    def log(self, values, step):
        self.numbers[step] = values

    def log_metrics(self, values, step):
        assert not any(set(name) & set("@:") for name in values)  # MLflow refuses them
        self.numbers[step] = values

    def log_params(self, values):
        assert values["dataset"] == "patterns"

    def finish(self):
        self.closed = True

    end_run = finish


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_resumed_run_is_the_same_run_for_a_service(settings, monkeypatch, killed_after, name):
    service = Service()
    monkeypatch.setitem(sys.modules, name, service)
    with killed_after(7), pytest.raises(RuntimeError, match="killed"):
        train(settings(logger=name))
    train(settings(logger=name))
    first, second = service.names
    assert first == second != ""
    assert service.closed and 12 in service.numbers


@pytest.mark.parametrize("wrong", [{"batch_size": 9000}, {"lr": 1e30}])
def test_a_run_that_came_to_nothing_leaves_no_name_for_a_service(settings, monkeypatch, wrong):
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)
    config = settings(logger="wandb", selection="last", **wrong)
    with pytest.raises(OodmlError):
        train(config)
    assert not Path(config.out).exists()
    assert bool(service.names) == ("lr" in wrong) == getattr(service, "closed", False)  # refused: never opened


def test_loggers_that_are_open_are_closed_where_another_cannot_be(settings, monkeypatch):
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)
    monkeypatch.setattr(service, "log_params", lambda values: 1 / 0)
    monkeypatch.setitem(sys.modules, "mlflow", service)
    config = settings(logger=("wandb", "mlflow"))
    with pytest.raises(ZeroDivisionError):
        train(config)
    assert service.closed and not Path(config.out).exists()


def test_a_logger_that_is_not_installed_says_what_to_install(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(OodmlError, match="pip install mlflow"):
        train(settings(logger="mlflow"))


def test_a_sampler_that_looks_at_embeddings_gets_them_every_epoch(settings):
    updates = []

    class Watching(SPC):
        """Like spc, but it remembers what it is shown."""

        uses_embeddings = True

        def update(self, indices, embeddings):
            updates.append((len(indices), embeddings.shape))

        def draw(self, rng):
            updates.append("draw")
            return super().draw(rng)

    register_batch_sampler("watching-test", Watching, replace=True)
    train(settings(sampler="watching-test", steps=None, epochs=2, selection="last"))
    assert updates == [(64, (64, 8)), *["draw"] * 4] * 2  # before the first batch of an epoch is drawn


@pytest.mark.parametrize("name", ["gc", "ddm", "frd"])
def test_runs_whose_sampler_chooses_by_embeddings_resume_exactly(settings, tmp_path, killed_after, facts, name):
    wanted = {"sampler": {"name": name, "pool": 32}, "checkpoint_every": 1, "steps": None, "epochs": 3}
    whole = train(settings(out=str(tmp_path / "whole"), **wanted))
    killed = settings(out=str(tmp_path / "killed"), **wanted)
    with killed_after(6), pytest.raises(RuntimeError, match="killed"):  # in the middle of an epoch of four steps
        train(killed)
    assert facts(train(killed)) == facts(whole)


def test_schedules():
    constant, cosine = make_schedule("constant", 100, 10), make_schedule("cosine", 100, 10)
    assert [constant.factor(s) for s in (0, 50, 99)] == [1, 1, 1]
    assert cosine.factor(0) == 1 and cosine.factor(50) == pytest.approx(0.5) and cosine.factor(99) < 0.001
    assert cosine.factor(25) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    steps = make_schedule({"name": "step", "epochs": [2, 5], "factor": 0.1}, 100, 10)
    assert [steps.factor(s) for s in (0, 19, 20, 49, 50)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_the_backbone_rises_after_the_frozen_epochs():
    schedule = make_schedule({"name": "cosine", "rise": 2}, 100, 10, frozen_epochs=1)
    assert [schedule.rise(s) for s in (0, 9, 10, 19, 29, 30, 99)] == pytest.approx([0, 0, 0.05, 0.5, 1, 1, 1])
    assert schedule.factor(0) == 1
    backbone, head = nn.Linear(2, 2), nn.Linear(2, 2)
    optimiser = torch.optim.Adam([{"params": backbone.parameters(), "part": BACKBONE}, {"params": head.parameters()}])
    for group, rate in zip(optimiser.param_groups, (1e-4, 1e-3), strict=True):
        group["initial_lr"] = rate
    set_learning_rates(optimiser, schedule, 19)
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx(
        [1e-4 * 0.5 * schedule.factor(19), 1e-3 * schedule.factor(19)]
    )


def test_child_seeds_are_stable_and_unrelated():
    assert child_seed(0, "init") == child_seed(0, "init")
    names = ("init", "mining", "augmentation", "data order", "backbone")
    seeds = {child_seed(seed, name, step) for seed in range(3) for name in names for step in range(10)}
    assert len(seeds) == 150 and all(0 <= seed < 2**63 for seed in seeds)
    generator = torch.Generator()
    one = torch.rand(3, generator=reseed(generator, 0, "mining", 4))
    torch.rand(7, generator=generator)
    assert torch.equal(one, torch.rand(3, generator=reseed(generator, 0, "mining", 4)))


@pytest.mark.long
def test_a_compiled_run_learns_what_an_eager_one_learns(settings, tmp_path):
    eager = train(settings(out=str(tmp_path / "eager"), method="rho"))
    compiled = train(settings(out=str(tmp_path / "compiled"), method="rho", compile=True))
    for one, two in zip(eager.history, compiled.history, strict=True):
        drawn_alike = one["step"] <= 4  # later a drawn tuple may tip over by what the two round differently
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-3 if drawn_alike else 0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: host synchronisation exists only there")
@pytest.mark.parametrize("method", ["margin", "rho", "triplet", "proxyanchor", "arcface"])
def test_no_step_waits_for_the_gpu(settings, tmp_path, method):
    config = settings(device="cuda", method=method, compile=False, steps=100).resolved()
    processes = join("cuda")
    images = prepare_images(config, oodml.load_dataset("patterns"), processes)
    job = build_job(config, tmp_path, images, starting_backbone(config), processes, stop_at=None)
    watch = LossMonitor(20, processes.device)
    steps = job.steps(0)

    def take_steps(count):
        for _ in range(count):
            step, _, batches = next(steps)
            take_step(job, step, batches, watch, "")

    take_steps(3)  # first calls set up libraries and may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        take_steps(5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert np.isfinite(watch.read("")).all()
