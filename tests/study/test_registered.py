"""Workers of a study: the caller's script is not theirs to run, what its modules have registered is theirs to use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import oodml
from oodml.losses import loss_record, make_loss
from oodml.study.engines.registered import register_all, registrations
from oodml.study.store import Store

MODULE = """
import numpy as np, torch, oodml
from oodml.data import ArraySource, Transforms, build_dataset

@oodml.register_dataset("blots")
def blots():
    pixels = np.random.default_rng(0).integers(0, 255, (48, 16, 16, 3)).astype(np.uint8)
    source, labels = ArraySource(pixels, [f"{i}.png" for i in range(48)]), [f"class{i // 6}" for i in range(48)]
    return build_dataset("blots", source, labels, transforms=Transforms(size=16, short_side=16))

@oodml.register_metric("norm")
def mean_norm(embeddings, labels):
    return embeddings.norm(dim=1).mean()

@oodml.register_loss("spread")
class Spread(torch.nn.Module):
    def forward(self, embeddings, labels):
        return -torch.pdist(embeddings).mean()
"""
SCRIPT = """
import mine, oodml
print("top", flush=True)

@oodml.register_loss("here")
class Here(mine.Spread):
    def __init__(self, weight=1.0):
        super().__init__()

run = {"backbone": "tiny", "embedding_dim": 8, "steps": 1, "eval_every": 1, "batch_size": 8, "selection": "last",
       "metrics": ["recall@1", "norm"]}
methods = {"spread": "spread", "here": {"name": "here", "weight": 2.0}}
study = oodml.StudyConfig(dataset="blots", splits="default", methods=methods, run=run)
table = oodml.run_study(study, "study", quiet=True, workers=2)
print(table.trained, table.means("norm")[:1].round(3).tolist())
"""


def test_a_script_without_a_guard_runs_once_and_its_modules_reach_the_workers(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(Path(oodml.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths, "OODML_CACHE": str(tmp_path / "cache"), "PYTHONWARNINGS": "ignore"}
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = ended.stdout.splitlines()
    assert (told[0], told[-1], told.count("top")) == ("top", "['spread'] [[1.0]]", 1)
    store = Store(tmp_path / "study")
    (failed,) = (reason for run_id in store.names("runs") if (reason := store.failure(run_id)))
    assert (
        "The loss 'here' cannot be sent to the worker processes of the study, which do not import your script."
        in failed
    )
    assert failed.strip().endswith("or give it an entry point, or pass workers=1.")


def test_a_name_that_was_replaced_where_no_worker_can_see_it_is_not_mistaken_for_the_packages():
    before = loss_record("margin")
    facts = {"aliases": before.aliases, "default_miner": before.default_miner}
    try:
        oodml.register_loss("margin", lambda miner, beta=1.0: None, replace=True, **facts)
        carried = registrations()
        oodml.register_loss("margin", before.factory, replace=True, **facts)  # as a worker has it
        register_all(carried)
        assert loss_record("margin").default_miner == before.default_miner
        with pytest.raises(oodml.OodmlError, match="'margin' cannot be sent to the worker processes"):
            make_loss("margin", beta=2.0)
    finally:
        facts |= {"paper": before.paper, "search": before.search, "has_parameters": before.has_parameters}
        oodml.register_loss("margin", before.factory, replace=True, summary=before.summary, **facts)
