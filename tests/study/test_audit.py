"""The audit: sized to its time, honest about what it left out, kind about what cannot be audited."""

import json
import time
from dataclasses import replace
from html import escape

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

import oodml
from oodml.cli._inputs import open_images
from oodml.data import load_images
from oodml.models import make_backbone
from oodml.models.engines import TorchEngine
from oodml.shift import Placement, Split, Spread, load_splits, shared_images
from oodml.study.audit import answer as audit_room
from oodml.study.audit import audit, forecast_target
from oodml.study.audit import runs as audit_runs
from oodml.study.audit.pictures import describe, open_folder
from oodml.study.audit.sizing import METHODS, Clock, Cost, Size
from oodml.study.audit.target import by_rising_shift
from oodml.study.encoders import scored_on, valid_scores
from oodml.study.engines import local
from oodml.study.leaderboard import METRIC
from oodml.study.run import preview
from oodml.study.store import Store


def write_pictures(folder, classes=8, per_class=6, seed=0, offset=0):
    """Class folders of coloured blots; neighbouring classes have similar colours."""
    rng = np.random.default_rng(seed)
    for c in range(classes):
        base = np.array([30 + 24 * c, 200 - 20 * c, 90 + offset]) % 256
        place = folder / f"class{c:02d}"
        place.mkdir(parents=True)
        for i in range(per_class):
            blots = np.kron(rng.normal(0, 40, (5, 5, 3)), np.ones((8, 8, 1)))
            Image.fromarray(np.clip(base + blots, 0, 255).astype(np.uint8)).save(place / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A small backbone with weights of its own, and audits of a few steps; the sizes below are tested by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OODML_CACHE", str(tmp_path_factory.mktemp("cache")))
        weights = tmp_path_factory.mktemp("weights")
        save_file(make_backbone("tiny").body.state_dict(), weights / "tiny.safetensors")
        patch.setenv("OODML_WEIGHTS", str(weights))
        patch.setattr("oodml.models.features.make_engine", lambda net, device, *_: TorchEngine(net.eval(), device))
        patch.setattr(audit_room, "LADDER", (Size(2, 3, 5),))
        patch.setattr("oodml.study.audit.sizing.LADDER", (Size(2, 3, 5),))
        patch.setattr("oodml.study.audit.sizing.MOST_VIEWS", 1)
        patch.setattr(audit_runs, "METHODS", dict(list(METHODS.items())[:2]))
        patch.setattr(audit_runs, "SEEDS", 2)
        yield patch


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = write_pictures(tmp_path_factory.mktemp("mine"))
    (folder / "class00" / "broken.png").write_bytes(b"no picture")
    (folder / "class01" / "notes.txt").write_text("no picture either")
    write_pictures(folder / "tiny", 0)
    (folder / "lonely").mkdir()
    Image.new("RGB", (40, 40), "red").save(folder / "lonely" / "one.png")
    return folder


@pytest.fixture(scope="module")
def audited(cache, pictures, tmp_path_factory):
    """One audit with a target of loose pictures, shared by the tests that read it."""
    loose = tmp_path_factory.mktemp("loose")
    rng = np.random.default_rng(5)
    for i in range(12):
        pixels = np.clip(np.array([100, 120, 90]) + rng.normal(0, 30, (40, 40, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(loose / f"{i}.png")
    (loose / "broken.jpg").write_bytes(b"no picture")
    out = tmp_path_factory.mktemp("out") / "audit"
    began = time.monotonic()
    found = audit(pictures, open_images(str(loose)), 3, out, quiet=True, backbone="tiny", workers=1)
    return found, out, time.monotonic() - began


def test_an_audit_answers_inside_its_time(audited):
    found, out, seconds = audited
    assert seconds < 180
    assert found.use in found.table.methods
    named = "the untrained backbone" if found.use.startswith("untrained") else found.use
    assert found.answer[0].startswith(f"Use {named}: ")
    assert any("unseen classes like yours" in each for each in found.answer)
    assert any("unseen classes unlike yours" in each for each in found.answer)
    assert json.loads((out / "audit.json").read_text())["answer"] == found.answer


def test_what_was_left_out_is_said(audited):
    told = " ".join(audited[0].notes)
    assert "1 of 50 pictures cannot be read and were left out; `oodml datasets FOLDER --check` names them." in told
    assert "Left out for having fewer than 4 readable pictures: 1 class." in told
    assert "in a class folder: 1." in told
    assert "1 of the target's pictures cannot be read" in told
    assert "The target has 12 pictures, and all distances are measured between at most half as many" in told
    assert "Not tried in the time given: proxyanchor" in told


def test_its_folder_is_a_study_with_all_methods_on_all_splits(audited):
    found, out, _ = audited
    table = oodml.study.load_study(out)
    assert set(table.trained) == {"multisimilarity", "margin"}
    assert table.kinds["untrained tiny"] == "untrained"
    assert set(table.ags(METRIC)) == set(table.methods)
    assert table.seeds == [0, 1]
    splits = load_splits(out / "splits.json")
    assert {split.fid_mode for split in splits} == {"images"}
    assert not any("lonely" in [*split.train, *split.test] for split in splits)
    assert [row.method for row in table.rows] == [row.method for row in found.table.rows]
    assert np.isfinite(table.structure("rho")[:2]).all()


def test_splits_are_named_in_the_order_of_the_shift_that_is_shown(audited):
    splits = load_splits(audited[1] / "splits.json")
    assert [split.name for split in splits] == [f"shift-{i + 1}" for i in range(len(splits))]
    assert [split.fid for split in splits] == sorted(split.fid for split in splits)
    assert audited[0].table.splits == [split.name for split in splits]
    steps = json.loads((audited[1] / "progression.json").read_text())
    assert len({step["fid"] for step in steps if step["chosen"]}) == len(splits)
    assert steps[0]["step"] < 0 < steps[-1]["step"]  # an audit builds easier splits too


def test_splits_measured_in_another_order_change_names_and_keep_their_classes():
    built = [Split([f"a{i}", "x"], [f"b{i}", "y"], name=f"shift-{i + 1}", fid=10.0 * i) for i in range(3)]
    measured = {"shift-1": 158.4, "shift-2": 154.8, "shift-3": 170.0, "target": 160.0}
    *spreads, target = [Spread(name, np.array([fid])) for name, fid in measured.items()]
    named, placed = by_rising_shift(built, Placement(5, spreads, target))
    assert [(split.name, split.fid, split.train[0]) for split in named] == [
        ("shift-1", 154.8, "a1"),
        ("shift-2", 158.4, "a0"),
        ("shift-3", 170.0, "a2"),
    ]
    assert placed.fids == {"shift-1": 154.8, "shift-2": 158.4, "shift-3": 170.0}
    assert placed.target.mean == 160.0


def test_scores_follow_a_split_that_was_renamed():
    """An encoder scored on an audit keeps its scores when the audit, gone on with, measures another order."""
    one, two = (Split([f"a{i}", "x"], [f"b{i}", "y"], name=f"shift-{i}", fid=1.0) for i in (1, 2))
    held = {"splits": {"shift-1": {"recall@1": 0.1}, "shift-2": {"recall@1": 0.2}}, **scored_on([one, two], (2, 4))}
    renamed = [replace(one, name="shift-2"), replace(two, name="shift-1")]
    assert valid_scores(held, renamed, (2, 4)) == {"shift-2": {"recall@1": 0.1}, "shift-1": {"recall@1": 0.2}}
    assert valid_scores(held, [replace(one, test=["new", "y"])], (2, 4)) == {}


def test_the_untrained_backbone_is_what_the_runs_call_untrained(audited):
    table = audited[0].table
    np.testing.assert_allclose(
        table.means("recall@1")[table.methods.index("untrained tiny")], table.untrained("recall@1"), atol=1e-6
    )


def test_the_forecast_file_holds_the_contract(audited):
    held = json.loads((audited[1] / "forecast.json").read_text())
    assert {"metric", "curve", "target", "leave_one_out_error", "gallery"} <= set(held)
    assert [set(point) for point in held["curve"]] == [{"split", "fid", "value", "low", "high"}] * len(held["curve"])
    if held["target"] is not None:
        assert {"name", "fid", "value", "low", "high", "inside"} <= set(held["target"])


def test_started_again_nothing_is_trained_again(audited, pictures, monkeypatch):
    def refuse(*_):
        raise AssertionError("a finished run was started again")

    monkeypatch.setattr("oodml.study.engines.execute._work", refuse)
    # The machine is busier now: sized anew, there would be fewer methods and no views, so other runs.
    monkeypatch.setattr(audit_room, "measure_costs", lambda *_: [Cost(60.0, 60.0)])
    monkeypatch.setattr("oodml.study.audit.pictures.affordable_views", lambda *_: 0)
    again = audit(pictures, None, 3, audited[1], quiet=True, backbone="tiny", workers=1)
    assert [row.scores for row in again.table.rows] == [row.scores for row in audited[0].table.rows]


def test_a_view_costs_what_it_costs_though_its_features_are_on_disk(cache, tmp_path, monkeypatch):
    """Read from disk a view takes no time; a second audit must not take that for the price of eight more."""
    opened = open_folder(write_pictures(tmp_path / "mine", classes=10, per_class=12, seed=9), Clock(3), quiet=True)
    computed, plain = [], TorchEngine.__call__

    def slowly(engine, images):
        time.sleep(0.004 * len(images))
        computed.append(len(images))
        return plain(engine, images)

    monkeypatch.setattr(TorchEngine, "__call__", slowly)
    monkeypatch.setattr("oodml.study.audit.pictures.affordable_views", lambda *_: 0)
    first = describe(opened, "tiny", Clock(3), quiet=True)
    assert sum(computed) == len(opened.dataset) == 120
    again = describe(opened, "tiny", Clock(3), quiet=True)
    assert sum(computed) == 120 + 8 + 72
    np.testing.assert_array_equal(again.features, first.features)
    assert 0.4 < again.seconds_a_view < 5 * first.seconds_a_view


@pytest.mark.parametrize("same", [True, False])
def test_a_study_does_not_take_over_its_folder(audited, pictures, same):
    """Not even one of the same pictures: the answer would stand beside the runs of something else."""
    dataset = {"name": "folder", "root": str(pictures)} if same else "glyphs"
    study = oodml.study.StudyConfig(dataset=dataset, splits="default", methods=["margin"])
    before = {path: path.read_bytes() for path in audited[1].glob("[a-z]*.*")}
    with pytest.raises(oodml.OodmlError, match=r"holds an audit of .*; give --out a folder of its own"):
        oodml.run_study(study, audited[1], quiet=True)
    with pytest.raises(oodml.OodmlError, match="holds an audit of"), preview(study, Store(audited[1])):
        pass
    assert {path: path.read_bytes() for path in audited[1].glob("[a-z]*.*")} == before


def test_the_command_prints_the_answer_and_writes_the_page(audited, pictures, monkeypatch):
    from typer.testing import CliRunner

    from oodml.cli import app
    from oodml.cli import audit as command

    monkeypatch.setattr(audit_room, "measure_costs", lambda *_: [Cost(0.1, 0.01)] * 2)
    options = ["--minutes", "3", "--out", str(audited[1]), "--backbone", "tiny", "--workers", "1", "--quiet"]
    done = CliRunner().invoke(app, ["audit", str(pictures), *options], catch_exceptions=False)
    assert command.__name__ == "oodml.cli.audit"
    assert done.exit_code == 0
    told = " ".join(done.output.split())
    assert "unseen classes like yours" in told
    assert "untrained tiny" in told
    page = (audited[1] / "report.html").read_text(encoding="utf-8")
    assert f"Audit of {pictures.name}" in page
    assert all(escape(sentence) in page for sentence in json.loads((audited[1] / "audit.json").read_text())["answer"])


def test_a_target_of_one_picture_is_refused_and_leaves_nothing(cache, pictures, tmp_path):
    (tmp_path / "target").mkdir()
    Image.new("RGB", (40, 40), "red").save(tmp_path / "target" / "one.png")
    with pytest.raises(oodml.OodmlError, match="target has 1 that can be read: give at least 3"):
        audit(pictures, open_images(str(tmp_path / "target")), 3, tmp_path / "out", quiet=True, backbone="tiny")
    assert not (tmp_path / "out").exists()


def test_any_study_forecasts_for_other_pictures(audited, pictures, tmp_path):
    target = write_pictures(tmp_path / "target", 3, 5, seed=4, offset=20)
    before = (audited[1] / "forecast.json").read_text()
    placed, held = forecast_target(audited[1], open_images(str(target)), "new", "tiny", "margin", quiet=True)
    (audited[1] / "forecast.json").write_text(before)
    table = audited[0].table
    assert held["method"] == "margin"
    assert [p["value"] for p in held["curve"]] == pytest.approx(
        table.means(METRIC)[table.methods.index("margin")].tolist()
    )
    assert [p["fid"] for p in held["curve"]] == [placed.fids[split] for split in table.splits]
    assert held["target"]["name"] == "new"
    assert held["target"]["inside"] == (min(placed.fids.values()) <= placed.target.mean <= max(placed.fids.values()))
    with pytest.raises(oodml.OodmlError, match="Did you mean 'margin'"):
        forecast_target(audited[1], open_images(str(target)), backbone="tiny", method="margn", quiet=True)


def test_pictures_that_changed_are_not_mixed_with_old_runs(audited, pictures, tmp_path):
    other = write_pictures(tmp_path / "other", seed=3)
    with pytest.raises(oodml.OodmlError, match="other pictures"):
        audit(other, None, 1, audited[1], quiet=True, backbone="tiny", workers=1)


def test_when_time_is_up_what_is_not_done_is_said(cache, pictures, tmp_path, monkeypatch):
    real, runs = local.execute, []

    def slow(run, store):
        runs.append(run)
        if len(runs) > 4:  # the splits of one method, and one more: then nothing ends any more
            time.sleep(60)
        return real(run, store)

    monkeypatch.setattr(local, "execute", slow)
    monkeypatch.setattr(audit_room, "measure_costs", lambda *_: [Cost(0.1, 0.01)] * 2)
    monkeypatch.setattr("oodml.study.audit.sizing.FEWEST_SECONDS", 24.0)
    began = time.monotonic()
    found = audit(pictures, None, 0.6, tmp_path / "short", quiet=True, backbone="tiny", workers=1)
    assert time.monotonic() - began < 36
    assert found.table.trained == ["multisimilarity"]
    assert found.table.seeds == [0]
    assert "Not finished on every split in the time given, and so not ranked: margin." in found.notes


def test_shared_pictures_are_counted(cache, pictures, tmp_path):
    """Copies of three pictures under other names and in another format, among new ones."""
    target = write_pictures(tmp_path / "target", 2, 3, seed=9)
    for i in range(3):
        Image.open(pictures / "class03" / f"{i}.png").save(target / "class00" / f"copy{i}.bmp")
    sets = [load_images(open_images(str(each)), quiet=True).dataset for each in (pictures, target)]
    features = [oodml.extract_features(each, "tiny", quiet=True) for each in sets]

    def shared(i, j):
        found = shared_images(sets[i].source, features[i], sets[j].source, features[j])
        return Placement(3, [], shared=found).shared_targets

    assert shared(0, 1) == 3
    assert shared(0, 0) == len(sets[0])


@pytest.mark.parametrize(
    "case",
    ["empty", "missing", "three classes", "only lonely", "loose", "short", "endless", "taken", "named alike", "typo"],
)
def test_what_cannot_be_audited_is_refused_with_what_to_do(cache, tmp_path, case):
    folder, out, minutes, backbone = tmp_path / "folder", tmp_path / "out", 1.0, "tiny"
    message = {
        "empty": "No pictures",
        "missing": "No folder",
        "three classes": "has 3 with two",
        "only lonely": "has 0 with two",
        "loose": "no class folder",
        "short": "at least 0.5 minutes",
        "endless": "not endlessly many; got inf",
        "taken": r"is no audit \(thesis.tex\)",
        "named alike": r"is no audit \(data.json\)",
        "typo": "Did you mean 'tiny'",
    }[case]
    if case == "empty":
        folder.mkdir()
    elif case == "three classes":
        write_pictures(folder, 3)
    elif case == "only lonely":
        write_pictures(folder, 6, 1)
    elif case == "loose":
        folder.mkdir()
        Image.new("RGB", (40, 40)).save(folder / "a.png")
    elif case != "missing":
        write_pictures(folder, 4, 2)
    if case == "short":
        minutes = 0.1
    if case == "endless":
        minutes = float("inf")
    if case == "typo":
        backbone = "tinny"
    if case == "taken":
        out.mkdir()
        (out / "thesis.tex").write_text("precious")
    if case == "named alike":
        out.mkdir()
        (out / "data.json").write_text("[1, 2]")
    with pytest.raises(oodml.OodmlError, match=message):
        audit(folder, None, minutes, out, quiet=True, backbone=backbone, workers=1)
    assert Store(out).audited() is None
    assert out.exists() == (case in ("taken", "named alike"))


def test_an_audit_that_fails_before_it_has_described_the_pictures_takes_no_folder(cache, tmp_path, monkeypatch):
    """Weights that cannot be had, say: other pictures may be audited there afterwards."""
    monkeypatch.setattr(audit_room, "describe", lambda *_: (_ for _ in ()).throw(oodml.OodmlError("no weights")))
    with pytest.raises(oodml.OodmlError, match="no weights"):
        audit(write_pictures(tmp_path / "p", 4, 4), None, 1, tmp_path / "o", quiet=True, backbone="tiny", workers=1)
    assert not (tmp_path / "o").exists()


def test_a_method_that_fails_is_named_and_stops_no_other(cache, tmp_path, monkeypatch):
    broken = {"multisimilarity": {"name": "s2sd", "targets": [600]}, "margin": "margin"}
    monkeypatch.setattr(audit_runs, "METHODS", broken)
    real = oodml.training.run.build_job

    def build(config, *rest):
        if config.method["name"] == "s2sd":
            raise oodml.OodmlError("no luck today")
        return real(config, *rest)

    monkeypatch.setattr("oodml.training.run.build_job", build)
    found = audit(write_pictures(tmp_path / "p", 4, 5), None, 3, tmp_path / "o", True, backbone="tiny", workers=1)
    assert found.table.trained == ["margin"]
    assert any("multisimilarity failed" in each and "no luck today" in each for each in found.notes)


def test_encoders_scored_on_other_splits_are_dropped(audited, pictures, monkeypatch):
    out = audited[1]
    held = json.loads((out / "scored" / "untrained-tiny.json").read_text())
    mine = out / "scored" / "mine.json"
    mine.write_text(json.dumps({**held, "label": "mine", "kind": "own"}))
    monkeypatch.setattr(audit_room, "measure_costs", lambda *_: [Cost(0.1, 0.01)] * 2)
    options = {"quiet": True, "backbone": "tiny", "workers": 1}
    assert "mine" in audit(pictures, None, 3, out, **options).table.methods, "the splits are the same"
    mine.write_text(json.dumps({**held, "label": "mine", "kind": "own", "on": dict.fromkeys(held["on"], "others")}))
    with pytest.warns(UserWarning, match="'mine' was scored on"):
        assert "mine" not in audit(pictures, None, 3, out, **options).table.methods
    mine.unlink()


def test_a_folder_too_large_for_its_time_is_reduced_and_said_so(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_room, "measure_costs", lambda *_: [Cost(0.1, 0.01)])
    monkeypatch.setattr("oodml.study.audit.sizing.PICTURES_A_MINUTE", 48)
    folder = write_pictures(tmp_path / "many", 10, 10)
    found = audit(folder, None, 1, tmp_path / "o", quiet=True, backbone="tiny", workers=1)
    assert "To fit the time, 48 of 100 pictures were used, of 6 of 10 classes." in found.notes
    assert len({name for split in load_splits(tmp_path / "o" / "splits.json") for name in split.test}) <= 6


@pytest.mark.parametrize("minutes", [0.7, 3])
def test_with_other_minutes_it_goes_on_with_the_pictures_it_was_begun_with(cache, tmp_path, monkeypatch, minutes):
    monkeypatch.setattr(audit_room, "measure_costs", lambda *_: [Cost(0.1, 0.01)])
    monkeypatch.setattr("oodml.study.audit.sizing.PICTURES_A_MINUTE", 48)
    folder, options = write_pictures(tmp_path / "many", 10, 10), {"quiet": True, "backbone": "tiny", "workers": 1}
    audit(folder, None, 1, tmp_path / "o", **options)
    begun = json.loads((tmp_path / "o" / "data.json").read_text())
    again = audit(folder, None, minutes, tmp_path / "o", **options)
    assert any(
        each.startswith("As this audit was begun, whatever the time now, 48 of 100 pictures") for each in again.notes
    )
    assert json.loads((tmp_path / "o" / "data.json").read_text()) == begun


def test_an_audit_of_all_pictures_goes_on_with_all_of_them_in_less_time(cache, tmp_path, monkeypatch):
    monkeypatch.setattr("oodml.study.audit.sizing.PICTURES_A_MINUTE", 48)
    opened = open_folder(write_pictures(tmp_path / "many", 10, 10), Clock(1), quiet=True, begun_with={})
    assert len(opened.dataset) == 100
    assert "whatever the time now, 100 of 100 pictures were used" in opened.notes[0]


def test_four_tiny_classes_are_enough_for_an_answer(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_room, "measure_costs", lambda *_: [Cost(0.1, 0.01)])
    found = audit(
        write_pictures(tmp_path / "few", 4, 3), None, 1, tmp_path / "o", quiet=True, backbone="tiny", workers=1
    )
    assert any("test classes are few" in each for each in found.answer)
