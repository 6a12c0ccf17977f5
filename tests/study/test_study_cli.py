"""`oodml study`: list, plan, run, status, show, export, compare."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import oodml
from oodml._files import cache_root
from oodml.cli import evaluate, methods, study_show  # noqa: F401 - they register their commands
from oodml.cli import study as study_cli
from oodml.cli._app import app
from oodml.cli._app import out as console
from oodml.shift import load_splits
from oodml.study import load_study
from oodml.study import status as study_status
from oodml.study.encoders import scored_on
from oodml.study.engines import execute as study_execute
from oodml.study.export import export_rows
from oodml.study.grid import plan
from oodml.study.presets import load_preset_or_file
from oodml.study.run import prepare
from oodml.study.settings import StudyConfig
from oodml.study.store import Store


@pytest.fixture
def call(monkeypatch):
    monkeypatch.setattr(console, "_width", 200)

    def run(*words):
        result = CliRunner().invoke(app, ["study", *map(str, words)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return run


@pytest.fixture
def file(study, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(study().to_yaml(), encoding="utf-8")
    return path


def test_a_study_is_planned_run_and_shown(call, file, replay, tmp_path):
    folder = tmp_path / "study"
    planned = call("plan", file, "--out", folder)
    assert "study: 4 runs" in planned
    assert "0 done · 0 running · 0 failed · 4 waiting" in planned
    assert "Missing: 8 updates on 64 images, 4 evaluations on 240 images." in planned
    assert "of work" in planned and "measured elsewhere" in planned and "--measure" in planned
    shown = call("run", file, "--out", folder, "--quiet")
    assert "recall@1:matched" in shown
    assert "4 done · 0 running" in call("status", folder)
    assert "About" not in call("plan", file, "--out", folder)
    assert call("show", folder) in shown


def test_a_path_will_do_where_the_name_of_a_data_set_does(call, file, tmp_path):
    for place in [tmp_path / "pics" / name / f"{i}.png" for name in "abcd" for i in range(2)]:
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(place)
    words = ("plan", file, "--set", "splits=default", "--out", tmp_path / "study")
    assert "2 runs" in call(*words, "--dataset", tmp_path / "pics"), "the first one decodes the pictures too"
    shown = call(*words, "--dataset", tmp_path / "pics")
    assert call(*words, "--dataset", "folder", "--root", tmp_path / "pics") == shown


def test_a_plan_names_what_is_computed_beside_training(call, file, replay, splits, tmp_path):
    extra = ["--set", "shots=[2, 5]", "--set", "transfer=[noise, {name: glyphs}]", "--set", "generic=[tiny, clip]"]
    held = {"label": "tiny", "kind": "external", **scored_on(load_splits(splits), (4, 6))}
    held["splits"] = {"easy": {"recall@1": 0.5}, "hard": {"recall@1": 0.5}}
    Store(tmp_path / "study").write_json("scored/tiny.json", held)
    told = call("plan", file, "--out", tmp_path / "study", *extra)
    assert "After each run: adaptation with 2, 5 shots, 10 episodes each." in told
    assert "After each run: tests on the classes of noise, glyphs." in told
    assert "0 of 4 runs have that already." in told
    assert "Without training, on every split: tiny, clip (1 of 2 done)." in told
    plain = call("plan", file, "--out", tmp_path / "plain")
    assert "After each run" not in plain and "Without training" not in plain
    generic = call("plan", file, "--out", tmp_path / "generic", "--set", "methods={}", "--set", "generic=[tiny]")
    assert "(0 of 1 done)" in generic and "0 runs" not in generic


def test_planning_other_settings_leaves_the_study_as_it_is(call, file, trained, noise, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(trained, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    told = call("plan", file, "--out", folder, "--set", "methods=[triplet]", "--set", "splits=default")
    assert "study: 1 runs" in told
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    call("plan", file, "--out", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_plan_takes_the_splits_that_the_study_has_built(call, file, noise, tmp_path, monkeypatch):
    built = {"n_splits": 2, "backbone": "tiny"}
    prepare(StudyConfig.load(file, splits=built), Store(tmp_path / "study"), quiet=True)
    monkeypatch.setattr("oodml.study.splits.build_splits", lambda *_, **__: pytest.fail("built again"))
    call("plan", file, "--out", tmp_path / "study", "--set", "splits={n_splits: 2, backbone: tiny}")


def test_a_plan_reads_no_image_and_trains_nothing(call, file, noise, tmp_path, monkeypatch):
    for name in ("run.load_images", "splits.build_splits", "status.train"):
        monkeypatch.setattr(f"oodml.study.{name}", lambda *_, **__: pytest.fail("slow work for a plan"))
    told = call("plan", file, "--out", tmp_path / "study", "--set", "splits={n_splits: 3}", "--set", "seeds=[0, 1]")
    assert "study: 12 runs" in told and "12 waiting" in told
    head = ("--set", "run.train=head", "--set", "run.backbone=tf_efficientnet_lite0")
    assert "About" in call("plan", file, "--out", tmp_path / "study", *head)
    unknown = call("plan", file, "--out", tmp_path / "study", "--set", "run.backbone=efficientnet_b0")
    assert "the speed of this backbone is not known; --measure measures it" in unknown


def test_a_part_of_a_setting_is_changed_by_its_dotted_name(call, file, noise, tmp_path):
    words = ("--set", "run.steps=7", "--set", "methods.margin.beta=0.6")
    settings = load_preset_or_file(str(file), **study_cli.parse_settings(words[1::2]))
    assert settings.run["steps"] == 7 and settings.run["backbone"] == "tiny"
    assert settings.methods == {"margin": {"name": "margin", "beta": 0.6}, "contrastive": "contrastive"}
    assert "Missing: 28 updates" in call("plan", file, "--out", tmp_path / "study", *words)
    with pytest.raises(oodml.OodmlError, match=r"Unknown method of the study: 'margni'\. Did you mean 'margin'"):
        call("plan", file, "--set", "methods.margni.beta=0.6")
    with pytest.raises(oodml.OodmlError, match=r"Unknown setting of run: 'beta'.*set methods\.margin\.beta instead"):
        call("plan", file, "--set", "run.beta=0.6")


def test_a_part_of_a_presets_name_shows_those_that_match_and_no_others(call):
    with pytest.raises(oodml.OodmlError) as error:
        call("plan", "zero-shot")
    assert "these match it: zero-shot-{cub200,cars196,sop,glyphs,head}." in str(error.value)
    assert "oodml study list zero-shot" in str(error.value)
    with pytest.raises(oodml.OodmlError, match=r"Did you mean 's2sd-small-glyphs'"):
        call("run", "s2sd-small")
    with pytest.raises(oodml.OodmlError, match=r"Did you mean 'zero-shot-glyphs'"):
        call("plan", "zreo-shot-glyphs")
    listed = call("list", "s2sd")
    assert "s2sd-variants-glyphs" in listed and "zero-shot" not in listed
    with pytest.raises(oodml.OodmlError, match="There is no preset"):
        call("list", "nothing-like-it")


def test_what_is_done_tells_how_long_the_rest_takes(call, file, replay, study, tmp_path):
    call("run", file, "--out", tmp_path / "study", "--quiet")
    more = call("plan", file, "--out", tmp_path / "study", "--set", "seeds=[0, 1]")
    assert "4 done · 0 running · 0 failed · 4 waiting" in more
    assert "of work" in more and "from the finished runs of this study" in more


def test_calibration_estimates_a_run_that_was_never_done(call, file, noise, tmp_path):
    told = call("plan", file, "--out", tmp_path / "study", "--set", "methods=[margin]", "--measure")
    assert "of work" in told and "from a few steps here" in told
    assert not list((tmp_path / "study").glob("runs/*/result.json")), "a calibration is no run of the study"


def test_a_step_of_several_batches_costs_as_many(noise, study, splits, monkeypatch):
    """`images_per_second` counts the images of all batches of a step."""
    tried = {"seconds": 1.0, "train_seconds": 1.0, "images_per_second": 8.0, "steps_per_epoch": 2}
    monkeypatch.setattr(study_status, "try_run", lambda *_: tried)
    planned = plan(study(methods=["margin", "sharing"]), list(load_splits(splits)))
    seconds = {run.method: study_status.calibration(run) for run in planned}
    assert seconds == {"margin": 2.0, "sharing": 4.0}


def test_features_of_frozen_backbones_count_for_no_run(noise, study, splits, monkeypatch):
    """They are computed before the first trial, with a bar of their own, and kept for all runs."""
    kept = cache_root() / "features"
    assert not any(kept.glob("*.safetensors"))
    found = []

    def tried(config, dataset, steps):
        found.append((steps, any(kept.glob("*.safetensors"))))
        return {"seconds": 1.0, "train_seconds": 1.0, "images_per_second": 8.0, "steps_per_epoch": 2}

    monkeypatch.setattr(study_status, "try_run", tried)
    run = {"train": "head", "steps": 2, "batch_size": 8, "embedding_dim": 8, "backbone": "tf_efficientnet_lite0"}
    planned = plan(study(methods=["margin"], run=run | {"views": 1}), list(load_splits(splits)))
    statuses = [study_status.RunStatus(run, "waiting") for run in planned]
    assert study_status.measured_seconds(statuses, planned) == 2.0 * len(planned)
    assert found == [(study_status.CALIBRATION_STEPS, True)]


def test_failures_are_shown_with_their_reason(call, file, noise, trained, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(trained, folder)
    run = next((folder / "runs").iterdir())
    shutil.rmtree(run)
    Store(folder).record_failure(run.name, "Traceback ...\nMemoryError: no memory left\n")
    told = call("status", folder, "--all")
    assert "3 done · 0 running · 1 failed · 0 waiting" in told
    assert "MemoryError: no memory left" in told
    assert run.name in told


def test_a_run_that_fails_shows_in_the_exit_status(file, replay, tmp_path, monkeypatch):
    replayed = study_execute.train

    def sometimes(config, dataset):
        if config.method == "margin":
            raise MemoryError("no memory left")
        replayed(config, dataset)

    monkeypatch.setattr(study_execute, "train", sometimes)
    words = ["study", "run", str(file), "--out", str(tmp_path / "study"), "--quiet"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 1
    assert "contrastive" in result.output
    assert "no memory left" in result.output


def test_a_failure_after_training_shows_until_it_is_no_longer_asked_for(call, file, noise, trained, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(trained, folder)
    words = ["run", str(file), "--out", str(folder), "--quiet"]
    result = CliRunner().invoke(app, ["study", *words, "--set", "transfer=[noise]"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "4 failed; run again to retry" in result.output
    assert "0 done · 0 running · 4 failed · 0 waiting" in call("status", folder)
    planned = call("plan", file, "--out", folder)
    assert "0 done · 0 running · 4 failed · 0 waiting" in planned
    assert "About" not in planned, "all of them are trained"
    call(*words)
    assert "4 done · 0 running · 0 failed" in call("status", folder)


def test_a_run_that_ends_after_the_table_was_read_is_not_exported_yet(trained, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(trained, folder)
    result = next(folder.glob("runs/*/result.json"))
    early = load_study(shutil.copytree(folder, tmp_path / "early", ignore=lambda *_: [result.parent.name]))
    assert len(export_rows(folder, early)) == len(early.rows) == len(load_study(folder).rows) - 1


def test_export_has_a_row_a_run(call, trained, tmp_path):
    call("export", trained, tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["kind"], row["split"]) for row in rows] == [
        ("margin", "trained", "easy"),
        ("margin", "trained", "hard"),
        ("contrastive", "trained", "easy"),
        ("contrastive", "trained", "hard"),
        ("untrained tiny", "untrained", "easy"),
        ("untrained tiny", "untrained", "hard"),
    ]
    assert float(rows[4]["recall@1"]) == float(rows[0]["untrained/recall@1"])
    result = json.loads((trained / "runs" / rows[1]["run"] / "result.json").read_text())
    assert float(rows[1]["recall@1"]) == result["selected"]["scores"]["recall@1"]
    assert float(rows[1]["untrained/recall@1"]) == result["untrained"]["recall@1"]
    assert float(rows[1]["structure.train/rho"]) == result["structure"]["train"]["rho"]
    assert rows[0]["embedding_dim"] == "8"


def test_parquet_holds_the_same(call, trained, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet is an extra: pip install 'oodml[parquet]'")
    call("export", trained, tmp_path / "runs.parquet")
    table = parquet.read_table(tmp_path / "runs.parquet")
    assert table.num_rows == 6
    assert table.column("method").to_pylist()[:4] == ["margin", "margin", "contrastive", "contrastive"]


def test_other_formats_are_refused(call, trained, tmp_path):
    with pytest.raises(oodml.OodmlError, match=r"\.csv or \.parquet"):
        call("export", trained, tmp_path / "runs.xlsx")


def test_presets_are_listed_with_what_they_need(call):
    told = call("list")
    assert "zero-shot-glyphs" in told
    assert "needs backbone 'bninception'" in told
    one = call("list", "zero-shot-cars196")
    assert "AGS 67.7" in one
    assert "official: oodml_official_splits.json" in one


def test_compare_refuses_a_study_without_a_published_counterpart(call, trained):
    with pytest.raises(oodml.OodmlError, match="No published table"):
        call("compare", trained)


def test_compare_prints_ours_theirs_and_the_difference(call, trained, tmp_path):
    """The study of noise, dressed up as one of CARS196: what counts is that its numbers stand beside the table's."""
    folder = tmp_path / "study"
    shutil.copytree(trained, folder)
    for name in ("plan.json", "splits.json", "study.yaml"):
        text = (folder / name).read_text().replace('"easy"', '"official-1"').replace('"hard"', '"official-8"')
        (folder / name).write_text(text.replace("dataset: noise", "dataset: cars196"))
    told = call("compare", folder)
    assert "supplement, table 5" in told
    assert "83.89" in told
    assert "64.77" in told
    assert "No interval where there is one seed" in told
    assert "not the same" in told.lower() and "Selection here: last." in told


def test_retrieval_time_is_measured_next_to_the_published_one(monkeypatch):
    monkeypatch.setattr(console, "_width", 200)
    words = ["retrieval-time", "--images", "2000", "--dims", "32,64"]
    told = CliRunner().invoke(app, words, catch_exceptions=False).output
    assert "Nearest neighbour of 2,000 embeddings on cpu" in told
    assert "1.98" in told  # table 3 at 64 dimensions


def test_search_prints_the_method_to_use(noise, tmp_path, monkeypatch):
    pytest.importorskip("optuna", reason="the search is an extra: pip install 'oodml[search]'")
    words = ["backbone=tiny", "embedding_dim=8", "steps=2", "batch_size=8", "dataset=noise", "eval_every=2"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_width", 200)
    words = ["tune", "triplet", "--trials", "2", *(w for s in words for w in ("--set", s))]
    told = CliRunner().invoke(app, words, catch_exceptions=False).output
    assert (tmp_path / "search" / "triplet" / "search.db").exists()
    assert "loss.margin" in told
    assert "name: plain" in told


def test_an_option_of_a_search_may_be_a_word():
    assert [methods._option(value) for value in (0.123456, 3, "full")] == ["0.1235", "3", "full"]


def test_structure_is_shown_as_such_and_as_a_change(call, trained):
    table = oodml.study.load_study(trained)
    method = table.trained[0]
    assert f"{np.nanmean(table.structure('pi_ratio')[0]):.4g}" in call("structure", trained)
    told = call("structure", trained, "--base", method).splitlines()
    assert set(next(line for line in told if line.split()[:1] == [method]).split()) == {method, "+0.0"}
    with pytest.raises(oodml.OodmlError, match="trained method of the study"):
        call("structure", trained, "--base", "nobody")
    with pytest.raises(oodml.OodmlError, match="side with structure"):
        call("structure", trained, "--side", "left")
