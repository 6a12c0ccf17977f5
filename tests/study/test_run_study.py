"""A study from settings to table: the grid, what is re-used, what fails, what is refused before anything runs."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import yaml
from PIL import Image

import oodml
from oodml import OodmlError
from oodml.adaptation import EpisodeScore, FewShot, transfer
from oodml.data import ArraySource, build_dataset, register_dataset
from oodml.encoders import PUBLISHED
from oodml.shift import Split, load_splits, save_splits
from oodml.study import load, load_study
from oodml.study.encoders import matched_recall
from oodml.study.engines import execute as study_execute
from oodml.study.grid import load_plan, load_settings, plan, saved_match
from oodml.study.load import few_shot_table, transfer_table
from oodml.study.presets import load_preset_or_file
from oodml.study.run import prepare
from oodml.study.settings import StudyConfig
from oodml.study.splits import split_features
from oodml.study.store import Store


def test_a_study_is_trained_scored_and_summed_up(trained):
    table = load_study(trained)
    assert table.methods == ["margin", "contrastive", "untrained tiny"]
    assert table.scores("recall@1").shape == (3, 2, 1)
    assert set(table.ags("recall@1")) == {"margin", "contrastive", "untrained tiny"}
    assert set(table.ags("recall@1:matched")) == {"margin", "contrastive"}
    assert not np.isnan(table.scores("recall@1:matched")[:2]).any()
    assert not np.isnan(table.gain("recall@1")[:2]).any()
    assert {path.name for path in trained.iterdir()} >= {"study.yaml", "plan.json", "splits.json", "runs"}


def test_recall_at_one_size_is_part_of_a_result(trained):
    """It was computed while a study was loaded, which wrote files."""
    table, match = load_study(trained), saved_match(Store(trained))
    for row in (row for row in table.rows if row.kind == "trained"):
        held = json.loads((row.path / "result.json").read_text())["matched"]
        assert held["match"] == list(match)
        assert row.scores["recall@1:matched"] == held["recall@1:matched"] == matched_recall(row.path, match)
    assert not list(trained.glob("runs/*/matched.json"))


def test_loading_writes_nothing_and_parses_every_result_once(trained, tmp_path, monkeypatch):
    """Also a store of before, whose results have no recall at one size: it is computed once per process."""
    folder = tmp_path / "study"
    shutil.copytree(trained, folder)
    for file in folder.glob("runs/*/result.json"):
        held = json.loads(file.read_text())
        del held["matched"]
        file.write_text(json.dumps(held))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    real_read, real_match, parsed, computed = Store.read_json, load.matched_recall, [], []
    monkeypatch.setattr(Store, "read_json", lambda self, name: parsed.append(name) or real_read(self, name))
    monkeypatch.setattr(load, "matched_recall", lambda *given: computed.append(given) or real_match(*given))
    first, again = load_study(folder), load_study(folder)
    assert sum(name == "result.json" for name in parsed) == len(computed) == 4
    for table in (first, again):
        np.testing.assert_array_equal(table.scores("recall@1:matched"), load_study(trained).scores("recall@1:matched"))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_what_is_done_is_re_used(replay, study, trained, tmp_path):
    folder = tmp_path / "study"
    oodml.run_study(study(methods=["margin"]), folder, quiet=True)
    assert replay == ["margin", "margin"]
    table = oodml.run_study(study(), folder, quiet=True)
    assert replay == ["margin", "margin", "contrastive", "contrastive"]
    np.testing.assert_array_equal(table.scores("recall@1"), load_study(trained).scores("recall@1"))
    assert oodml.run_study(study(methods=["contrastive"]), folder, quiet=True).trained == ["contrastive"]
    assert len(replay) == 4


def test_results_of_pictures_that_have_changed_are_kept_and_told_once(replay, study, tmp_path, noise):
    folder = tmp_path / "study"
    oodml.run_study(study(methods=["margin"]), folder, quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        oodml.run_study(study(methods=["margin"]), folder, quiet=True)
    register_dataset("noise", lambda: replace(noise, fingerprint="of others"), replace=True)
    with pytest.warns(UserWarning, match="'noise' have changed since 2 of the 2 finished runs in .* Remove") as told:
        oodml.run_study(study(), folder, quiet=True)
    assert len(told) == 1 and told[0].filename == __file__
    assert replay == ["margin", "margin", "contrastive", "contrastive"]


def test_a_folder_of_another_data_set_is_refused_and_left_as_it_is(replay, study, tmp_path):
    folder = tmp_path / "study"
    oodml.run_study(study(methods=["margin"]), folder, quiet=True)
    before = {path: path.read_bytes() for path in folder.glob("[a-z]*.*")}
    with pytest.raises(oodml.OodmlError, match=r"holds the study 'study' of dataset noise; give --out another folder"):
        oodml.run_study(study(dataset="glyphs", splits="default"), folder, quiet=True)
    assert before == {path: path.read_bytes() for path in folder.glob("[a-z]*.*")}
    again = study(dataset={"name": "noise"}, methods=["contrastive"], seeds=[0], name="renamed")
    prepare(again, Store(folder), quiet=True)  # the same data set, written in another way
    assert yaml.safe_load((folder / "study.yaml").read_text())["name"] == "renamed"


def test_the_folder_of_an_audit_that_had_not_planned_yet_is_refused(noise, study, tmp_path):
    Store(tmp_path).write_json("data.json", {"root": "/my/pictures", "fingerprint": "cafe"})
    with pytest.raises(oodml.OodmlError, match=r"holds an audit of /my/pictures, .*; give --out another folder"):
        oodml.run_study(study(), tmp_path, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["data.json"]


def test_a_folder_that_holds_something_else_is_left_alone(noise, study, tmp_path):
    (tmp_path / "mine" / "class0").mkdir(parents=True)
    for out in ("mine", "paper.tex"):
        if out == "paper.tex":
            (tmp_path / out).write_text("precious")
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(oodml.OodmlError, match=r"no study \(class0\)|is a file; give a folder\."):
            oodml.run_study(study(), tmp_path / out, quiet=True)
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"test": ["class9", "nope"]}, "'easy' is not one of this dataset. Unknown class of dataset 'noise': 'nope'"),
        ({"train": ["class0", "klass1"]}, r"Unknown class .* 'klass1'. Did you mean 'class1'"),
        ({"test_dataset": "glyphs"}, "'easy' tests on another dataset"),
    ],
)
def test_a_split_of_another_data_set_is_refused_before_anything_is_written(
    noise, study, splits, tmp_path, changes, told
):
    save_splits(tmp_path / "splits.json", [replace(load_splits(splits)[0], **changes)])
    with pytest.raises(oodml.OodmlError, match=told):
        oodml.run_study(study(splits=str(tmp_path / "splits.json")), tmp_path / "study", quiet=True)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    "second, told",
    [
        ({"name": "a", "fid": 4.0}, "need different names; 'a' occurs more than once"),
        ({"name": "b"}, "'b' has no FID and 'a' has one"),
    ],
)
def test_splits_that_the_table_would_mix_up_are_refused(noise, study, tmp_path, second, told):
    classes = noise.classes
    Split(classes[:6], classes[6:], name="a", fid=1.0, dataset="noise").save(tmp_path / "one.json")
    Split(classes[6:], classes[:6], dataset="noise", **second).save(tmp_path / "two.json")
    files = [str(tmp_path / name) for name in ("one.json", "two.json")]
    with pytest.raises(oodml.OodmlError, match=told):
        oodml.run_study(study(splits=files), tmp_path / "study", quiet=True)
    with pytest.raises(oodml.OodmlError, match="`splits` is an empty list"):
        oodml.run_study(study(splits=[]), tmp_path / "study", quiet=True)
    assert not (tmp_path / "study").exists()


def test_the_default_split_may_stand_in_a_list(noise, study, tmp_path):
    Split(noise.classes[:5], noise.classes[5:], name="own", dataset="noise").save(tmp_path / "own.json")
    planned = prepare(study(splits=["default", str(tmp_path / "own.json")]), Store(tmp_path / "study"), quiet=True)
    assert [run.split.name for run in planned if run.method == "margin"] == ["default", "own"]


def test_a_wrong_option_of_the_engine_leaves_no_plan_behind(noise, study, tmp_path):
    with pytest.raises(oodml.OodmlError, match="workers must be at least 1"):
        oodml.run_study(study(), tmp_path / "study", quiet=True, workers=0)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("settings", "told"), [({"seeds": [0, 1, 0]}, "seeds: 0"), ({"embedding_dims": [8, 8]}, "embedding_dims: 8")]
)
def test_what_is_listed_twice_is_named(study, settings, told):
    with pytest.raises(oodml.OodmlError, match=f"^{told} is listed more than once"):
        study(**settings)


def test_a_failing_run_is_recorded_and_stops_no_other(replay, study, tmp_path, monkeypatch):
    replayed = study_execute.train

    def sometimes(config, dataset):
        if config.method == "margin":
            raise MemoryError("no memory left")
        return replayed(config, dataset)

    monkeypatch.setattr(study_execute, "train", sometimes)
    table = oodml.run_study(study(), tmp_path / "study", quiet=True)
    assert table.trained == ["contrastive"]
    failures = list((tmp_path / "study" / "runs").glob("*/failed.json"))
    assert len(failures) == 2
    assert "no memory left" in json.loads(failures[0].read_text())["traceback"]

    monkeypatch.setattr(study_execute, "train", replayed)
    assert oodml.run_study(study(), tmp_path / "study", quiet=True).trained == ["margin", "contrastive"]
    assert not list((tmp_path / "study" / "runs").glob("*/failed.json"))


def test_a_table_knows_what_of_its_plan_is_missing(trained, tmp_path):
    assert load_study(trained).unfinished == ""
    folder = shutil.copytree(trained, tmp_path / "study")
    gone = [each for each in json.loads((folder / "plan.json").read_text())["runs"] if each["method"] == "margin"]
    for each in gone:
        shutil.rmtree(folder / "runs" / each["id"])
    table = load_study(folder)
    assert table.missing == {each["id"]: "margin" for each in gone}
    assert table.unfinished == "Unfinished: 2 of 4 runs are missing (margin)."


def test_when_all_runs_fail_the_reason_is_given(noise, study, tmp_path, monkeypatch):
    def fail(config, dataset):
        raise MemoryError("no memory left")

    monkeypatch.setattr(study_execute, "train", fail)
    with pytest.raises(oodml.OodmlError, match="no memory left"):
        oodml.run_study(study(), tmp_path / "study", quiet=True)


def test_ids_depend_on_what_is_computed_and_on_nothing_else(noise, study, splits):
    loaded = list(load_splits(splits))
    first, second = plan(study(), loaded), plan(study(name="other"), loaded)
    assert [run.id for run in first] == [run.id for run in second]
    assert len({run.id for run in first}) == 4
    longer = plan(study(run=study().run | {"steps": 3}), loaded)
    assert not {run.id for run in first} & {run.id for run in longer}


def test_ids_are_the_same_in_another_process_and_whatever_the_order_of_keys():
    """A study that goes on tomorrow, or on another machine, must find its runs."""
    code = (
        "from oodml.study.settings import StudyConfig; from oodml.study.grid import plan;"
        "from oodml.shift import Split; import sys, json;"
        "study = StudyConfig(**json.loads(sys.argv[1]));"
        "print([run.id for run in plan(study, [Split(['b', 'a'], ['d', 'c'], name='any', fid=3.0)])])"
    )
    settings = {
        "dataset": "glyphs",
        "methods": {"R": {"name": "rho", "base": {"name": "margin", "beta": 0.6}}, "M": "margin"},
        "run": {"steps": 5, "backbone": "tiny"},
    }
    turned = {key: settings[key] for key in reversed(settings)}
    turned["methods"] = {"R": {"base": {"beta": 0.6, "name": "margin"}, "name": "rho"}, "M": "margin"}
    turned["run"] = {"backbone": "tiny", "steps": 5}
    command = [sys.executable, "-c", code, json.dumps(turned)]
    elsewhere = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True)
    here = [run.id for run in plan(StudyConfig(**settings), [Split(["a", "b"], ["c", "d"], name="else", fid=1.0)])]
    assert elsewhere.stdout.strip() == str(here), elsewhere.stderr


def test_further_axes_name_the_rows(noise, study, splits):
    loaded = list(load_splits(splits))
    labels = {run.method for run in plan(study(embedding_dims=[8, 16]), loaded)}
    assert labels == {"margin · d8", "margin · d16", "contrastive · d8", "contrastive · d16"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metods": []}, "Did you mean 'methods'"),
        ({"run": {"stepz": 3}}, "Did you mean 'steps'"),
        ({"run": {"seed": 3}}, "the study sets it"),
        ({"run": {"seed": 3}, "settings": {"a": {"lrr": 1.0}}}, "Did you mean 'lr'"),
        ({"methods": {"a": {"name": "margin", "run": {"stepz": 3}}}}, "Did you mean 'steps'"),
        ({"splits": {"n_split": 3}}, "Did you mean 'n_splits'"),
        ({"splits": {"official": "x.json", "id": [1]}}, "Did you mean 'ids'"),
        ({"few_shot": {"step": 3}}, "Did you mean 'steps'"),
        ({"methods": {}}, "needs `methods`"),
        ({"seeds": []}, "seeds"),
    ],
)
def test_a_typo_is_found_before_anything_runs(noise, study, changes, message):
    with pytest.raises(oodml.OodmlError, match=message):
        study(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": {"selection_metric": "recal@1"}}, "Unknown metric 'recal@1'"),
        ({"run": {"metrics": ["recal@1"]}}, "Unknown metric 'recal@1'"),
        ({"methods": ["margni"]}, "Did you mean 'margin'"),
        ({"shots": [0]}, "shots must be at least 1"),
        ({"shots": [2], "few_shot": {"lr": -1}}, "lr is a learning rate above 0"),
        ({"shots": [2], "few_shot": {"lr": [1e-4]}}, "lr is a learning rate above 0"),
        ({"shots": [2], "few_shot": {"steps": "many"}}, "steps must be at least 1, got 'many'"),
        ({"transfer": ["cup200"]}, "Did you mean 'cub200'"),
        ({"transfer": ["folder"]}, "needs a root"),
        ({"generic": ["tinny"]}, "Did you mean 'tiny'"),
    ],
)
def test_what_would_fail_after_training_is_refused_before(replay, noise, study, tmp_path, changes, message):
    with pytest.raises(oodml.OodmlError, match=message):
        oodml.run_study(study(**changes), tmp_path / "study", quiet=True)
    assert not replay and not (tmp_path / "study").exists()


def test_an_unknown_method_is_found_before_anything_runs(noise, study, splits):
    with pytest.raises(oodml.OodmlError, match="Did you mean 'margin'"):
        plan(study(methods=["margn"]), list(load_splits(splits)))


def test_two_labels_for_one_run_are_refused(noise, study, splits):
    twice = study(methods={"a": "margin", "b": {"name": "plain", "loss": "margin"}})
    with pytest.raises(oodml.OodmlError, match="'a' and 'b' are the same run"):
        plan(twice, list(load_splits(splits)))


def test_settings_and_methods_make_axes_with_their_own_settings(noise, study, splits):
    wide = study(
        methods={"plain": "margin", "wide": {"name": "margin", "run": {"embedding_dim": 16}}},
        settings={"short": {}, "long": {"steps": 4}},
    )
    runs = {run.method: run.config for run in plan(wide, list(load_splits(splits)))}
    assert {label: (c.embedding_dim, c.steps) for label, c in runs.items()} == {
        "plain · short": (8, 2),
        "plain · long": (8, 4),
        "wide · short": (16, 2),
        "wide · long": (16, 4),
    }


def test_a_folder_is_read_without_its_data_set(trained, monkeypatch):
    table = load_study(trained)
    monkeypatch.setattr("oodml.data.load.REGISTRY", None)  # whoever asks for a data set now fails
    again = load_study(trained)
    assert again.splits == table.splits == ["easy", "hard"]
    np.testing.assert_array_equal(again.scores("recall@1:matched"), table.scores("recall@1:matched"))


def test_the_written_settings_are_a_study_file(study, trained):
    assert StudyConfig.load(trained / "study.yaml") == study()
    assert load_preset_or_file(str(trained / "study.yaml")) == study()
    assert yaml.safe_load((trained / "study.yaml").read_text())["methods"] == {
        "margin": "margin",
        "contrastive": "contrastive",
    }


@pytest.fixture
def others(noise):
    """Another data set than the study's: the same pictures, upside down and under other names."""
    pixels = np.stack([np.asarray(noise.image(i))[::-1] for i in range(72)])
    flipped = ArraySource(pixels, [f"o{i}.png" for i in range(72)])
    names = [f"other{label}" for label in noise.labels]
    made = build_dataset("others", flipped, names, transforms=noise.transforms)
    register_dataset("others", lambda: made, replace=True, summary="Other noise for a test.")
    return made


def test_what_follows_a_run_can_be_asked_for_later(others, study, trained, tmp_path, monkeypatch):
    """Few-shot adaptation and tests on other sets do not change a run's identity: nothing is trained again."""
    folder = tmp_path / "study"
    shutil.copytree(trained, folder)
    monkeypatch.setattr(study_execute, "train", lambda *given: pytest.fail("trained again"))
    more = {"shots": [2], "episodes": 2, "few_shot": {"steps": 2, "batch_size": 8, "views": 0}, "transfer": ["others"]}
    oodml.run_study(study(methods=["margin"], **more), folder, quiet=True)
    adapted = few_shot_table(folder)
    assert adapted.methods == ["margin · 2 shots · zero", "margin · 2 shots · few"]
    assert adapted.splits == ["easy", "hard"]
    elsewhere = transfer_table(folder)
    assert set(elsewhere.splits) == {"others (easy)", "others (hard)"}
    assert elsewhere.methods == ["margin", *adapted.methods, "untrained tiny"]
    for row in elsewhere.rows:
        place = next(each for each in load_plan(Store(folder)) if f"others ({each.split})" == row.split)
        held = json.loads((folder / "runs" / place.id / "transfer.json").read_text())["others"]
        assert row.fid == held["fid"] and (row.method != "margin" or row.scores == held["scores"])
    for run in sorted((folder / "runs").iterdir()):
        if (run / "transfer.json").exists():
            (held,) = json.loads((run / "transfer.json").read_text()).values()
            found = transfer(run, others, metrics=["recall@1"], device="cpu", quiet=True)
            assert held["fid"] == pytest.approx(found["fid"]) and held["few"]["2"]["about"]["dataset"] == "others"
            for side in ("scores", "untrained"):
                assert held[side]["recall@1"] == pytest.approx(found[side]["recall@1"])


@pytest.fixture
def followed(study, trained, splits, tmp_path, monkeypatch):
    """What follows a run, without computing it: gives what was asked for, and a function that follows with settings."""
    folder, asked = tmp_path / "study", []
    shutil.copytree(trained, folder)

    def adapted(shots):
        score = {"recall@1": EpisodeScore(0.5, 0.1, (0.5,))}
        return FewShot(score, score, {"shots": shots, "notes": []})

    def few_shot(run, split, shots, episodes, **options):
        asked.append(shots)
        return adapted(shots)

    def transfer(run, data, shots, **options):
        asked.append(data)
        scores = {"recall@1": float(len(str(data)))}
        return {"scores": scores, "untrained": scores, "fid": 1.0, "few": {n: adapted(n) for n in shots}, "notes": []}

    monkeypatch.setattr("oodml.adaptation.few_shot", few_shot)
    monkeypatch.setattr(sys.modules["oodml.adaptation.cross_dataset"], "transfer", transfer)
    monkeypatch.setattr(study_execute, "shared_dataset", lambda spec: spec)

    def follow(**changes):
        (run, _) = plan(study(methods=["margin"], **changes), list(load_splits(splits)))
        asked.clear()
        study_execute.adapt(run, Store(folder), "cpu")
        return list(asked), Store(folder).read_json(f"runs/{run.id}/transfer.json")

    return follow


def test_two_folders_to_transfer_to_are_kept_apart(noise, followed):
    first, second = {"name": "folder", "root": "a"}, {"name": "folder", "root": "bcd"}
    assert list(followed(transfer=[first])[1]) == ["folder"]
    assert followed(transfer=[first])[0] == []
    asked, held = followed(transfer=[second])
    assert asked == [second] and held["folder"]["scores"]["recall@1"] == len(str(second)), "of the other folder"
    asked, held = followed(transfer=[first, second, "glyphs"])
    assert asked == [first, second, "glyphs"]
    assert held["folder (root=a)"]["scores"] != held["folder (root=bcd)"]["scores"]
    assert "glyphs" in held
    assert followed(transfer=[first, second, {"name": "glyphs", "root": "elsewhere"}])[0] == []


def test_other_options_of_adaptation_are_computed_anew(noise, followed):
    assert followed(shots=[2, 5], transfer=["glyphs"])[0] == [2, 5, "glyphs"]
    assert followed(shots=[5], transfer=["glyphs"])[0] == []
    assert followed(shots=[2, 5], transfer=["glyphs"], few_shot={"lr": 1e-4})[0] == [2, 5, "glyphs"]
    assert followed(shots=[2, 5], transfer=["glyphs"], few_shot={"lr": 1e-4})[0] == []
    assert followed(shots=[2], episodes=3, few_shot={"lr": 1e-4})[0] == [2]


def test_transfer_to_classes_a_run_was_trained_on_fails_that_run(noise, study, trained, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(trained, folder)
    oodml.run_study(study(methods=["margin"], transfer=["noise"]), folder, quiet=True)
    failures = [json.loads(path.read_text())["traceback"] for path in folder.glob("runs/*/failed.json")]
    assert failures and all("was trained on classes that split 'default' tests" in each for each in failures)


def test_a_table_of_what_nobody_asked_for_is_refused(trained):
    with pytest.raises(oodml.OodmlError, match="give the study `shots`"):
        few_shot_table(trained)
    with pytest.raises(oodml.OodmlError, match="give the study `transfer`"):
        transfer_table(trained)


def test_generic_encoders_stand_beside_the_methods(replay, study, tmp_path):
    settings = study(methods=["margin"], generic=["tf_efficientnet_lite0"])
    table = oodml.run_study(settings, tmp_path / "study", quiet=True)
    assert table.kinds == {"margin": "trained", "untrained tiny": "untrained", "tf_efficientnet_lite0": "external"}
    assert set(table.ags("recall@1:matched")) == {"margin", "tf_efficientnet_lite0"}
    assert set(table.ags("recall@1")) == set(table.methods)


def test_generic_encoders_are_scored_again_when_the_splits_change_under_their_names(noise, study, splits, tmp_path):
    settings, file = {"methods": {}, "generic": ["tf_efficientnet_lite0"]}, tmp_path / "other.json"
    before = oodml.run_study(study(**settings), tmp_path / "study", quiet=True)
    written = (tmp_path / "study/scored/tf_efficientnet_lite0.json").stat().st_mtime_ns
    oodml.run_study(study(**settings), tmp_path / "study", quiet=True)
    assert (tmp_path / "study/scored/tf_efficientnet_lite0.json").stat().st_mtime_ns == written, "scored twice"
    easy, hard = load_splits(splits)
    save_splits(file, [replace(easy, train=easy.test, test=easy.train), replace(hard, test=hard.test[:3])])
    changed = oodml.run_study(study(**settings, splits=str(file)), tmp_path / "study", quiet=True)
    fresh = oodml.run_study(study(**settings, splits=str(file)), tmp_path / "fresh", quiet=True)
    for metric in ("recall@1", "recall@1:matched", "nmi"):
        np.testing.assert_array_equal(changed.scores(metric), fresh.scores(metric))
    assert not np.array_equal(changed.scores("nmi"), before.scores("nmi"))


def test_a_generic_encoder_is_scored_again_when_its_name_stands_for_another_network(
    noise, study, tmp_path, monkeypatch
):
    settings = study(methods=[], generic=["short"])
    monkeypatch.setitem(PUBLISHED, "short", "tf_efficientnet_lite0")
    oodml.run_study(settings, tmp_path / "study", quiet=True)
    monkeypatch.setitem(PUBLISHED, "short", "tiny")
    oodml.run_study(settings, tmp_path / "study", quiet=True)
    assert json.loads((tmp_path / "study/scored/short.json").read_text())["backbone"] == "tiny"


@pytest.fixture
def photographs(tmp_path):
    """A folder of eight classes of three pictures, none of which can be read in the last class and one in the first."""
    rng = np.random.default_rng(0)
    for label in range(8):
        folder = tmp_path / "photographs" / f"class{label}"
        folder.mkdir(parents=True)
        for i in range(3):
            pixels = np.clip(rng.integers(40, 215, 3) + rng.integers(-30, 30, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    for broken in ("class0/0.png", *(f"class7/{i}.png" for i in range(3))):
        (tmp_path / "photographs" / broken).write_bytes(b"no picture")
    return {"name": "folder", "root": str(tmp_path / "photographs")}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("chosen", ["default", {"n_splits": 2, "backbone": "tiny"}])
def test_a_study_goes_on_without_pictures_that_cannot_be_read(noise, study, photographs, tmp_path, chosen):
    run = {"backbone": "tiny", "embedding_dim": 8, "steps": 1, "batch_size": 4, "samples_per_class": 2}
    settings = study(dataset=photographs, splits=chosen, methods=["margin"], run=run | {"selection": "last"})
    table = oodml.run_study(settings, tmp_path / "study", quiet=True)
    assert not np.isnan(table.scores("recall@1:matched")[0]).any(), "its size was that of classes without pictures"
    assert load_settings(tmp_path / "study")["dataset"] == photographs
    if chosen != "default":
        recipe = load_splits(tmp_path / "study/splits.json")[0].provenance["recipe"]
        features, sample = split_features(recipe, oodml.load_dataset(photographs))
        assert len(features) == len(sample) == 20 and sample.fingerprint == recipe["data"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("side", "found"), [("test", 0), ("train", 1)])
def test_a_split_without_readable_classes_is_refused_before_anything_is_trained(
    noise, study, photographs, tmp_path, side, found
):
    """One such split made the results of all the others unreadable."""
    for i in range(3):
        (tmp_path / "photographs" / "class6" / f"{i}.png").write_bytes(b"no picture")
    broken = ["class6", "class7"]
    names = {"train": ["class0", "class1"], "test": ["class2", "class3"]}
    names[side] = broken if side == "test" else [*broken, "class0"]
    save_splits(tmp_path / "splits.json", [Split(name="dead", fid=1.0, **names)])
    settings = study(dataset=photographs, splits=str(tmp_path / "splits.json"), methods=["margin"])
    with pytest.raises(OodmlError, match=f"{side} classes of the split 'dead' {found} can be read from"):
        oodml.run_study(settings, tmp_path / "study", quiet=True)
    assert not (tmp_path / "study" / "runs").exists()
