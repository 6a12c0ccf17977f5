"""Two processes see the batch one process would see: the same loss and gradients, the same scores within noise."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import oodml
from oodml.training import distributed, train
from oodml.training.distributed import Processes
from oodml.training.embedder import starting_backbone
from oodml.training.job import build_job, prepare_images

HERE = Path(__file__).parent
METHODS = {
    "margin": "margin",
    "rho": "rho",
    "proxyanchor": "proxyanchor",
    "dropout": {"name": "plain", "loss": "multisimilarity", "dropout": 0.2},
    "s2sd": {"name": "s2sd", "base": "margin", "targets": [16, 24]},
    "uniform_prior": "uniform_prior",
    "sharing": "sharing",
    "diva": {"name": "diva", "queue": 2},
    "mixup": "mixup",
}


def gradients(config, processes, out):
    """Loss and gradients of every parameter for the batches of a step, the images in their evaluation view."""
    dataset = oodml.load_dataset("patterns")
    job = build_job(
        config,
        Path(out),
        prepare_images(config, dataset, processes),
        starting_backbone(config),
        processes,
        stop_at=None,
    )
    job.source.train = lambda positions, generator: job.source.evaluate(positions)  # no augmentation to differ in
    _, _, batches = next(job.steps(0))
    loss = sum(job.method.loss(job.batch(each, 0, turn), job.embedder, 0) for turn, each in enumerate(batches))
    loss.backward()
    distributed.sum_gradients(job.embedder.backbone)
    found = {f"embedder.{n}": p.grad for n, p in job.embedder.named_parameters()}
    found |= {f"method.{n}": p.grad for n, p in job.method.named_parameters()}
    return loss.item(), {name: grad for name, grad in found.items() if grad is not None}


def launch(config, tmp_path, count=2):
    config.save(tmp_path / "config.yaml")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command += [str(HERE / "two_processes.py"), str(tmp_path)]
    env = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    done = subprocess.run(command, env={**env, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]


def test_two_processes_compute_what_one_does(settings, tmp_path):
    shared = {"frozen_bn": True, "selection": "last", "steps": 30}
    launch(settings(out=str(tmp_path / "two"), **shared), tmp_path)

    for name, method in METHODS.items():
        one_loss, one = gradients(settings(method=method, **shared).resolved(), Processes(), tmp_path)
        for rank in range(2):
            saved = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True)
            assert saved["loss"] == pytest.approx(one_loss, rel=1e-5)
            assert saved["gradients"].keys() == one.keys()
            for key, value in one.items():
                scale = value.abs().max().clamp_min(1e-6)
                assert ((saved["gradients"][key] - value).abs().max() / scale) < 1e-4, (name, rank, key)

    single = train(settings(out=str(tmp_path / "one"), **shared))
    two = json.loads((tmp_path / "two" / "result.json").read_text())
    assert two["processes"] == 2
    assert two["config_hash"] == single.data["config_hash"]
    assert two["untrained"] == pytest.approx(single.untrained, abs=1e-6)  # evaluation is sharded and exact
    assert two["selected"]["scores"]["recall@1"] == pytest.approx(single.scores["recall@1"], abs=0.15)


def test_shares_cover_everything_once():
    items = np.arange(11)
    parts = [Processes(rank, 3).share(items) for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), items)
