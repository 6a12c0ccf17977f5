"""Whole runs: what they write, what they report, how they resume after being stopped."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import oodml
from oodml import OodmlError
from oodml.training import Interrupted, load_result, train
from oodml.training import loop as loop_module
from oodml.training.checkpoint import load_checkpoint


def test_a_run_directory_holds_everything_and_reports_honestly(settings):
    result = train(settings())
    data = json.loads((result.path / "result.json").read_text())
    assert {"config.yaml", "metrics.jsonl", "checkpoint.pt", "result.json", "embedder.safetensors"} <= {
        p.name for p in result.path.iterdir()
    }
    assert data["format"] == 1
    assert result.scores == data["selected"]["scores"]
    assert set(result.scores) == {"recall@1", "map@r"} == set(result.untrained)
    for name, gain in result.gain.items():
        assert gain == pytest.approx(result.scores[name] - result.untrained[name])
    best = max(result.history, key=lambda row: row["val"]["recall@1"])
    assert data["selected"]["step"] == best["step"], "the selected step must be the best one on validation classes"
    best_test = max(row["test"]["recall@1"] for row in result.history)
    assert data["best_on_test"]["scores"]["recall@1"] == pytest.approx(best_test)
    assert data["last"]["step"] == 12 == result.history[-1]["step"]
    assert set(data["structure"]) == {"train", "test"}
    assert {"versions", "seed", "config_hash", "seconds", "images_per_second", "git_commit"} <= set(data)
    assert data["sets"] == {
        "fit": {"classes": 6, "images": 48},
        "val": {"classes": 2, "images": 16},
        "test": {"classes": 8, "images": 64},
    }


def test_saved_test_embeddings_give_the_reported_scores(settings):
    result = train(settings())
    saved = load_file(result.path / "embeddings.safetensors")
    ds = oodml.load_dataset("patterns")
    assert saved["embeddings"].dtype == torch.float16
    np.testing.assert_array_equal(saved["labels"].numpy(), ds.labels[saved["indices"].numpy()])
    found = oodml.evaluate(saved["embeddings"].float(), saved["labels"], metrics=["recall@1"])
    assert found["recall@1"] == pytest.approx(result.scores["recall@1"], abs=0.02)  # float16


def test_the_same_settings_give_the_same_bits_and_another_seed_does_not(settings, tmp_path, facts):
    one, two = train(settings(out=str(tmp_path / "1"))), train(settings(out=str(tmp_path / "2")))
    other = train(settings(out=str(tmp_path / "3"), seed=1))
    assert facts(one) == facts(two)
    assert facts(one)[1] != facts(other)[1]


def test_a_run_never_touches_the_global_generators(settings):
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002 - the global generator is what is watched
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    train(settings(method={"name": "plain", "loss": "proxyanchor", "dropout": 0.2, "output_noise": 0.1}))
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(before_numpy, np.random.get_state()[1])  # noqa: NPY002


def test_a_finished_run_is_read_and_a_changed_one_refused(settings):
    first = train(settings())
    stamp = (first.path / "result.json").stat().st_mtime_ns
    again = train(settings())
    assert again.scores == first.scores
    assert (first.path / "result.json").stat().st_mtime_ns == stamp
    with pytest.raises(OodmlError, match="other settings"):
        train(settings(lr=1e-3))


@pytest.mark.parametrize("wrong", [{"metrics": ["recal@1"]}, {"selection_metric": "recal@1"}])
def test_an_unknown_metric_is_found_before_data_is_read(settings, monkeypatch, wrong):
    monkeypatch.setattr("oodml.training.run.load_dataset", None)
    with pytest.raises(OodmlError, match="Did you mean 'recall@1'"):
        train(settings(**wrong))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"device": "gpu"}, "not a device of torch"),
        ({"weights": "nowhere.pth"}, "No weights file at .*nowhere.pth"),
        ({"grad_cache": 8}, "use frozen_bn=True"),
        ({"out": "a file/run"}, "a file is a file"),
    ],
)
def test_settings_that_cannot_start_are_found_before_an_image_is_read(settings, monkeypatch, tmp_path, wrong, message):
    monkeypatch.chdir(tmp_path)
    Path("a file").touch()
    monkeypatch.setattr("oodml.training.run.prepare_images", None)
    with pytest.raises(OodmlError, match=message):
        train(settings(**wrong))
    assert [each.name for each in tmp_path.iterdir()] == ["a file"], "nothing is left behind"


@pytest.mark.parametrize("method", ["margin", {"name": "plain", "loss": "proxyanchor", "dropout": 0.3}])
@pytest.mark.parametrize("kills", [(1,), (5,), (7, 2, 3)])
def test_a_killed_run_resumes_to_the_same_bits(settings, tmp_path, killed_after, facts, method, kills):
    whole = train(settings(out=str(tmp_path / "whole"), method=method, checkpoint_every=2, eval_every=5))
    interrupted = settings(out=str(tmp_path / "killed"), method=method, checkpoint_every=2, eval_every=5)
    for steps in kills:
        with killed_after(steps), pytest.raises(RuntimeError, match="killed"):
            train(interrupted)
    assert not (tmp_path / "killed" / "result.json").exists()
    resumed = train(interrupted)
    assert facts(resumed) == facts(whole)
    for name in ("embedder.safetensors", "embeddings.safetensors"):
        one, two = load_file(whole.path / name), load_file(resumed.path / name)
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_resume_starts_from_the_checkpoint_and_not_from_the_beginning(settings, tmp_path, killed_after):
    config = settings(checkpoint_every=2, eval_every=5)
    with killed_after(7), pytest.raises(RuntimeError, match="killed"):
        train(config)
    assert load_checkpoint(tmp_path / "run" / "checkpoint.pt")["progress"]["step"] == 6
    with killed_after(6):  # 12 - 6 steps are left: the seventh is never asked for
        train(config)


def test_a_damaged_checkpoint_is_an_error_and_not_a_fresh_start(settings, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoint.pt").write_bytes(b"half a file")
    with pytest.raises(OodmlError, match="cannot be read"):
        train(settings())


def test_a_signal_saves_and_leaves(settings, tmp_path, monkeypatch, facts):
    real = loop_module.set_learning_rates
    calls = 0

    def raise_signal(*args):
        nonlocal calls
        calls += 1
        if calls == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        real(*args)

    monkeypatch.setattr(loop_module, "set_learning_rates", raise_signal)
    before = signal.getsignal(signal.SIGTERM)
    config = settings(eval_every=6)
    with pytest.raises(Interrupted, match="SIGTERM after step 5") as stopped:
        train(config)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert load_checkpoint(tmp_path / "run" / "checkpoint.pt")["progress"]["step"] == 5
    resumed, whole = train(config), train(settings(eval_every=6, out=str(tmp_path / "whole")))
    assert facts(resumed) == facts(whole)


def test_a_loss_that_is_not_finite_names_step_images_and_checkpoint(settings, monkeypatch):
    from oodml.methods.plain import Plain

    real = Plain.loss

    def poisoned(self, batch, embedder, step):
        value = real(self, batch, embedder, step)
        self.seen = getattr(self, "seen", {}) | {step: batch.indices.tolist()}
        type(self).last_seen = self.seen
        return value * float("nan") if step == 7 else value

    monkeypatch.setattr(Plain, "loss", poisoned)
    with pytest.raises(OodmlError, match="became nan at step 7") as error:
        train(settings(checkpoint_every=3, log_every=4, eval_every=6))
    message, first = str(error.value), Plain.last_seen[7][:5]
    assert f"the images {', '.join(map(str, first))} and 11 more" in message
    assert message.index("Lower the learning rate") < message.index("the images")  # what to do before a row of numbers
    assert "checkpoint.pt, after step 6" in str(error.value)


@pytest.mark.parametrize("selection", ["last", "test", "val-then-full"])
def test_every_way_of_selection(settings, selection):
    result = train(settings(selection=selection))
    data = result.data
    assert data["selection"] == selection
    if selection == "val-then-full":
        search = load_result(result.path / "search")
        assert data["steps"] == search.data["selected"]["step"]
        assert data["sets"]["fit"]["classes"] == 8 and search.data["sets"]["fit"]["classes"] == 6
    else:
        assert data["sets"]["val"]["images"] == 0
    if selection == "last":
        assert data["selected"]["scores"] == data["last"]["scores"]
    if selection == "test":
        assert data["selected"]["scores"] == data["best_on_test"]["scores"]


def test_selection_on_the_test_classes_scores_the_maximum_of_each_metric(settings):
    """Also where recall@1, by which the model is chosen, is none of the metrics asked for."""
    result = train(settings(selection="test", metrics=("nmi", "map@r"), lr=0.02))
    tested = [row["test"] for row in result.history]
    best = max(tested, key=lambda row: row["recall@1"])
    assert result.data["selected"]["scores"] == best
    assert result.scores == {name: max(row[name] for row in tested) for name in best}
    assert result.scores != best, "some metric has its maximum elsewhere"
    assert result.gain == {name: result.scores[name] - result.untrained[name] for name in ("nmi", "map@r")}
    assert result.data["gain"] == result.gain
    older = {name: value for name, value in result.data.items() if name != "maxima"}
    (result.path / "result.json").write_text(json.dumps(older))
    assert load_result(result.path).scores == best


def test_a_run_in_epochs_evaluates_after_each(settings):
    result = train(settings(steps=None, epochs=3, selection="last"))
    assert [row["epoch"] for row in result.history] == [1, 2, 3]
    assert result.data["steps"] == 3 * result.data["steps_per_epoch"] == 3 * (64 // 16)


def test_ten_even_evaluations_of_a_run_in_steps(settings):
    result = train(settings(steps=20))
    assert [row["step"] for row in result.history] == list(range(2, 21, 2))


def test_a_split_with_its_own_validation_classes_is_obeyed(settings):
    names = oodml.load_dataset("patterns").classes
    split = oodml.Split(train=names[:6], val=names[:2], test=names[10:14], name="mine", fid=3.5)
    result = train(settings(split=split))
    data = result.data
    assert {side: each["classes"] for side, each in data["sets"].items()} == {"fit": 4, "val": 2, "test": 4}
    assert data["split"] == {"name": "mine", "fid": 3.5}
    assert oodml.RunConfig.load(result.path / "config.yaml").hash() == data["config_hash"]
    unknown = oodml.Split(train=["class-00", "class-01", "nobody", "class-02"], test=["class-05"])
    with pytest.raises(OodmlError, match="nobody"):
        train(settings(split=unknown, selection="last", out=str(result.path) + "-2"))


def test_config_yaml_reads_back_to_the_same_run(settings):
    config = settings()
    result = train(config)
    loaded = oodml.RunConfig.load(result.path / "config.yaml")
    assert loaded.hash() == config.hash() == result.data["config_hash"]
    assert yaml.safe_load((result.path / "config.yaml").read_text())["lr"] == 2e-3


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.long)])
def test_a_process_killed_from_outside_resumes(settings, tmp_path, facts, kills):
    """The real thing: SIGKILL from outside, while files are being written, then the same command again."""
    whole = train(settings(out=str(tmp_path / "whole"), steps=60, checkpoint_every=1, log_every=1))
    script = textwrap.dedent(f"""
        import sys, torch
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import conftest, oodml
        torch.set_num_threads({torch.get_num_threads()})
        config = oodml.RunConfig.load({str(whole.path / "config.yaml")!r}, out={str(tmp_path / "killed")!r})
        oodml.train(config)
    """)
    checkpoint = tmp_path / "killed" / "checkpoint.pt"
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ})
        began = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while process.poll() is None and not (checkpoint.exists() and checkpoint.stat().st_mtime_ns > began):
            time.sleep(0.001)
        process.kill()
        process.wait()
    assert checkpoint.exists()
    resumed = train(settings(out=str(tmp_path / "killed"), steps=60, checkpoint_every=1, log_every=1))
    assert facts(resumed) == facts(whole)
