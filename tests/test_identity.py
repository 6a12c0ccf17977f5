"""What identifies a run: content, not paths; a part's revision; and nothing that renames the runs of today."""

import json

import pytest
import torch

from oodml import RunConfig
from oodml.config.identity import run_identity
from oodml.losses import register_loss
from oodml.losses.margin import Margin
from oodml.models import make_backbone


@pytest.fixture
def weights(tmp_path):
    """`weights("a.pth", seed)`: a file of weights of `tiny`."""

    def make(name: str, seed: int = 0, half: bool = False) -> str:
        state = make_backbone("tiny", pretrained=False, seed=seed).body.state_dict()
        path = tmp_path / name
        torch.save({key: each.half() if half else each for key, each in state.items()}, path)
        return str(path)

    return make


def named(path: str) -> str:
    return RunConfig(backbone="tiny", weights=path).hash()


def test_weights_count_by_their_content(weights):
    first, copy, other = weights("a.pth"), weights("copy.pth"), weights("b.pth", seed=1)
    assert named(first) == named(copy) != named(other)
    assert len({named(first), RunConfig(backbone="tiny").hash(), named(other)}) == 3


def test_another_file_at_the_same_path_is_another_run(weights):
    before = named(weights("a.pth"))
    assert named(weights("a.pth", seed=1)) != before
    assert named(weights("a.pth")) == before


def test_the_precision_of_a_file_does_not_count(tmp_path):
    state = {"stem.weight": torch.tensor([0.5, 2.0]), "steps": torch.tensor(3)}
    torch.save(state, tmp_path / "a.pth")
    torch.save({**state, "stem.weight": state["stem.weight"].half()}, tmp_path / "b.pth")
    assert named(str(tmp_path / "a.pth")) == named(str(tmp_path / "b.pth"))


def test_weights_found_in_the_folder_of_weights_count_too(weights, monkeypatch, tmp_path):
    before = RunConfig(backbone="tiny").hash()
    path = weights("tiny.pth")
    monkeypatch.setenv("OODML_WEIGHTS", str(tmp_path))
    assert RunConfig(backbone="tiny").hash() == named(path) != before
    assert RunConfig(backbone="tiny", pretrained=False).hash() not in (before, named(path))


def test_a_raised_revision_names_another_run():
    hashes = []
    for revision in (1, 2):
        register_loss("revised", Margin, revision=revision, default_miner="distance", replace=True)
        hashes.append(
            [RunConfig(method=m).hash() for m in ("revised", {"name": "s2sd", "base": {"name": "revised"}}, "margin")]
        )
    first, second = hashes
    assert first[0] != second[0] and first[1] != second[1] and first[2] == second[2]
    assert run_identity(RunConfig(method="revised"))["revisions"] == {"loss revised": 2}


def test_a_teacher_counts_by_its_run_and_not_by_its_folder(tmp_path):
    def student(folder: str, run: str) -> str:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "result.json").write_text(json.dumps({"config_hash": run}))
        (tmp_path / folder / "embedder.safetensors").touch()
        return RunConfig(method={"name": "distil", "teacher": str(tmp_path / folder)}).hash()

    assert student("here", "a") == student("there", "a") != student("other", "b")
    by_id = RunConfig(method={"name": "distil", "teacher": {"run": "a"}})
    assert by_id.hash() == RunConfig(method={"name": "distil", "teacher": str(tmp_path / "here")}).hash()


# Hashes of version 1. A change here renames the runs of every study: raise a revision instead, and add to version1.py.
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "7ddd71087fa1c54e"),
        ({"method": "margin", "train": "head"}, "309c7718bd572d9c"),
        (
            {"dataset": "cub200", "method": "multisimilarity", "backbone": "resnet50", "embedding_dim": 512, "seed": 1},
            "b1ccc07698eadab1",
        ),
    ],
)
def test_runs_keep_their_names(settings, expected):
    assert RunConfig(**settings).hash() == expected
