"""The audit: complete blocks of a fixed grid, an answer in numbers and in sentences, and notes on what is left out."""

import json
from dataclasses import replace
from html import escape
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

import oodml
from oodml.auditing import audit, budget, forecast_target
from oodml.auditing import run as audit_run
from oodml.auditing.budget import Budget
from oodml.auditing.forecast import by_rising_shift
from oodml.auditing.images import open_folder
from oodml.cli._inputs import open_images
from oodml.data import load_images
from oodml.models import make_backbone
from oodml.models.engines import TorchEngine
from oodml.shift import Placement, Split, Spread, load_splits, shared_images
from oodml.study.encoders import scored_on, valid_scores
from oodml.study.engines import local
from oodml.study.leaderboard import METRIC
from oodml.study.run import preview
from oodml.study.store import Store


def write_images(folder, classes=8, per_class=6, seed=0, offset=0):
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
    """A small backbone with weights of its own, and audits of a few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OODML_CACHE", str(tmp_path_factory.mktemp("cache")))
        weights = tmp_path_factory.mktemp("weights")
        save_file(make_backbone("tiny").body.state_dict(), weights / "tiny.safetensors")
        patch.setenv("OODML_WEIGHTS", str(weights))
        patch.setattr("oodml.models.features.make_engine", lambda net, device, *_: TorchEngine(net.eval(), device))
        patch.setattr(budget, "STEPS", 5)
        for module in (budget, audit_run):
            patch.setattr(module, "VIEWS", 1)
        patch.setitem(budget.BUDGETS, "small", Budget("small", 2, 3, 2, 2_000))
        patch.setitem(budget.BUDGETS, "medium", Budget("medium", 2, 5, 2, 2_000))
        patch.setitem(budget.BUDGETS, "tiny", Budget("tiny", 1, 3, 1, 48))
        yield patch


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = write_images(tmp_path_factory.mktemp("mine"))
    (folder / "class00" / "broken.png").write_bytes(b"not an image")
    (folder / "class01" / "notes.txt").write_text("not an image either")
    write_images(folder / "tiny", 0)
    (folder / "lonely").mkdir()
    Image.new("RGB", (40, 40), "red").save(folder / "lonely" / "one.png")
    return folder


@pytest.fixture(scope="module")
def audited(cache, images, tmp_path_factory):
    """One audit with a target of loose images, shared by the tests that read it."""
    loose = tmp_path_factory.mktemp("loose")
    rng = np.random.default_rng(5)
    for i in range(12):
        pixels = np.clip(np.array([100, 120, 90]) + rng.normal(0, 30, (40, 40, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(loose / f"{i}.png")
    (loose / "broken.jpg").write_bytes(b"not an image")
    out = tmp_path_factory.mktemp("out") / "audit"
    return audit(images, loose, out=out, quiet=True, backbone="tiny", workers=1), out


def test_an_audit_answers_in_numbers_and_in_sentences(audited):
    found, out = audited
    assert found.use in found.table.methods
    named = "the untrained backbone" if found.use.startswith("untrained") else found.use
    assert found.answer[0].startswith(f"Use {named}: ")
    assert any("unseen classes like yours" in each for each in found.answer)
    assert any("unseen classes unlike yours" in each for each in found.answer)
    held = json.loads((out / "audit.json").read_text())
    assert (held["answer"], held["notes"], held["use"]) == (found.answer, found.notes, found.use)
    assert (held["blocks"], found.blocks) == (2, 2)
    for key, split in (("like", found.table.splits[0]), ("unlike", found.table.splits[-1])):
        expected = found.expected[key]
        assert expected.split == split
        for value, metric in ((expected.recall, "recall@1"), (expected.matched, METRIC)):
            means = found.table.means(metric)[found.table.methods.index(found.use)]
            assert value == pytest.approx(means[found.table.splits.index(split)])
        assert held["expected"][key]["recall"] == expected.recall
        assert f"{100 * expected.recall:.1f} % of the time" in " ".join(found.answer)
    lead = found.advice.comparison
    assert held["advice"]["comparison"]["by_seed"] == pytest.approx(list(lead.by_seed))
    assert f"{100 * abs(lead.difference):.1f} points of AGS" in found.answer[0]
    assert held["target"]["fid"] == found.placement.target.mean
    assert held["target"]["images"] == 12


def test_what_was_left_out_is_in_the_notes(audited):
    notes = " ".join(audited[0].notes)
    assert "1 of 50 images cannot be read and were left out; `oodml datasets FOLDER --check` lists them." in notes
    assert "Left out because they have fewer than 4 readable images: 1 class." in notes
    assert "in a class folder: 1." in notes
    assert "1 of the target's images cannot be read" in notes
    assert "The target has 12 images, and every distance is measured between at most half as many" in notes
    assert "Budget small: 2 methods × 3 levels of shift × 2 draws" in notes
    assert "Not in this budget: proxyanchor, R-margin, S2SD." in notes


def test_its_folder_is_a_study_with_all_methods_on_all_splits(audited):
    found, out = audited
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


def test_the_untrained_backbone_scores_what_the_runs_report_of_it(audited):
    table = audited[0].table
    assert table.kinds["untrained tiny"] == "untrained"
    for row in table.rows:
        if row.untrained:
            split = table.splits.index(row.split)
            measured = table.means("recall@1")[table.methods.index("untrained tiny"), split]
            assert row.untrained["recall@1"] == pytest.approx(measured, abs=1e-6)


def test_the_forecast_file_holds_the_contract(audited):
    held = json.loads((audited[1] / "forecast.json").read_text())
    assert {"metric", "curve", "target", "leave_one_out_error", "gallery"} <= set(held)
    assert [set(point) for point in held["curve"]] == [{"split", "fid", "value", "low", "high"}] * len(held["curve"])
    if held["target"] is not None:
        assert {"name", "fid", "value", "low", "high", "inside"} <= set(held["target"])


def refuse_to_train(*_):
    raise AssertionError("a finished run was trained again")


def test_started_again_nothing_is_trained_again(audited, images, monkeypatch):
    monkeypatch.setattr("oodml.study.engines.execute._train", refuse_to_train)
    again = audit(images, out=audited[1], quiet=True, backbone="tiny", workers=1)
    assert [row.scores for row in again.table.rows] == [row.scores for row in audited[0].table.rows]


def count_runs(monkeypatch):
    """The runs that are trained from here on, in their order."""
    trained, real = [], local.execute
    monkeypatch.setattr(local, "execute", lambda run, store: trained.append(run) or real(run, store))
    return trained


def test_a_larger_budget_in_the_same_folder_adds_what_is_missing(cache, tmp_path, monkeypatch):
    images = write_images(tmp_path / "many", 12, 4)
    options = {"out": tmp_path / "o", "quiet": True, "backbone": "tiny", "workers": 1}
    small = audit(images, budget="tiny", **options)
    before = {path.name for path in (tmp_path / "o" / "runs").iterdir()}
    trained = count_runs(monkeypatch)
    medium = audit(images, budget="medium", **options)
    assert len(before) == 1 * 3 * 1
    assert len(medium.table.splits) > 3
    assert len(trained) == 2 * len(medium.table.splits) * 2 - len(before), "all earlier runs count"
    assert {run.id for run in trained}.isdisjoint(before)
    assert (small.blocks, medium.blocks) == (1, 2)
    old, new = (
        {row.path.name: row.scores["recall@1"] for row in found.table.rows if row.path} for found in (small, medium)
    )
    assert old == {run: new[run] for run in before}


def test_minutes_start_no_block_that_would_pass_them_and_change_none(cache, images, tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(audit_run, "time", SimpleNamespace(monotonic=lambda: now[0]))
    trained, real = [], local.execute

    def slow(run, store):
        trained.append((run.seed, run.method, run.split.name))
        now[0] += 60.0
        return real(run, store)

    monkeypatch.setattr(local, "execute", slow)
    options = {"out": tmp_path / "o", "quiet": True, "backbone": "tiny", "workers": 1}
    found = audit(images, minutes=10, **options)  # 6 minutes a block
    assert len(trained) == 6
    assert {seed for seed, _, _ in trained} == {0}
    assert (found.blocks, found.table.seeds) == (1, [0])
    assert found.table.trained == ["multisimilarity", "margin"]
    assert any(note.startswith("1 of 2 blocks are complete, and the answer uses only these.") for note in found.notes)
    again = audit(images, minutes=6.5, **options)  # the finished runs report what a block takes: seconds
    assert (again.blocks, len(trained)) == (2, 12)
    assert {seed for seed, _, _ in trained[6:]} == {1}


def test_the_first_block_is_run_however_few_the_minutes(cache, images, tmp_path):
    found = audit(images, budget="tiny", minutes=1e-6, out=tmp_path / "o", quiet=True, backbone="tiny", workers=1)
    assert found.blocks == 1
    assert found.table.trained == ["multisimilarity"]


def test_on_a_second_start_the_first_new_block_must_fit_too(cache, images, tmp_path, monkeypatch):
    """It is estimated from what the finished runs took."""
    options = {"out": tmp_path / "o", "quiet": True, "backbone": "tiny", "workers": 1}
    audit(images, minutes=1e-6, **options)
    trained = count_runs(monkeypatch)
    assert audit(images, minutes=1e-6, **options).blocks == 1
    assert trained == []


@pytest.mark.parametrize("same", [True, False])
def test_a_study_does_not_take_over_its_folder(audited, images, same):
    """Not even one of the same pictures: the answer would stand next to the runs of something else."""
    dataset = {"name": "folder", "root": str(images)} if same else "glyphs"
    study = oodml.study.StudyConfig(dataset=dataset, splits="default", methods=["margin"])
    before = {path: path.read_bytes() for path in audited[1].glob("[a-z]*.*")}
    with pytest.raises(oodml.OodmlError, match=r"holds an audit of .*; give --out another folder"):
        oodml.run_study(study, audited[1], quiet=True)
    with pytest.raises(oodml.OodmlError, match="holds an audit of"), preview(study, Store(audited[1])):
        pass
    assert {path: path.read_bytes() for path in audited[1].glob("[a-z]*.*")} == before


def test_the_command_prints_the_answer_and_writes_the_page(audited, images, monkeypatch):
    from typer.testing import CliRunner

    from oodml.cli import app
    from oodml.cli import audit as command

    options = ["--out", str(audited[1]), "--backbone", "tiny", "--workers", "1", "--quiet"]
    done = CliRunner().invoke(app, ["audit", str(images), *options], catch_exceptions=False)
    assert command.__name__ == "oodml.cli.audit"
    assert done.exit_code == 0
    told = " ".join(done.output.split())
    assert "unseen classes like yours" in told
    assert "untrained tiny" in told
    page = (audited[1] / "report.html").read_text(encoding="utf-8")
    assert f"Audit of {images.name}" in page
    assert all(escape(sentence) in page for sentence in json.loads((audited[1] / "audit.json").read_text())["answer"])


def test_a_target_of_one_image_is_refused_and_leaves_nothing(cache, images, tmp_path):
    (tmp_path / "target").mkdir()
    Image.new("RGB", (40, 40), "red").save(tmp_path / "target" / "one.png")
    with pytest.raises(oodml.OodmlError, match=r"target has 1 that can be read\. Give at least 3"):
        audit(images, tmp_path / "target", out=tmp_path / "out", quiet=True, backbone="tiny")
    assert not (tmp_path / "out").exists()


def test_any_study_forecasts_for_other_images(audited, images, tmp_path):
    target = write_images(tmp_path / "target", 3, 5, seed=4, offset=20)
    before = (audited[1] / "forecast.json").read_text()
    placed, held = forecast_target(audited[1], target, "new", "tiny", "margin", quiet=True)
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
        forecast_target(audited[1], target, backbone="tiny", method="margn", quiet=True)


def test_images_that_changed_are_not_mixed_with_old_runs(audited, tmp_path):
    other = write_images(tmp_path / "other", seed=3)
    with pytest.raises(oodml.OodmlError, match="other images"):
        audit(other, out=audited[1], quiet=True, backbone="tiny", workers=1)


def test_shared_images_are_counted(cache, images, tmp_path):
    """Copies of three images under other names and in another format, among new ones."""
    target = write_images(tmp_path / "target", 2, 3, seed=9)
    for i in range(3):
        Image.open(images / "class03" / f"{i}.png").save(target / "class00" / f"copy{i}.bmp")
    sets = [load_images(open_images(str(each)), quiet=True).dataset for each in (images, target)]
    features = [oodml.extract_features(each, "tiny", quiet=True) for each in sets]

    def shared(i, j):
        found = shared_images(sets[i].source, features[i], sets[j].source, features[j])
        return Placement(3, [], shared=found).shared_targets

    assert shared(0, 1) == 3
    assert shared(0, 0) == len(sets[0])


@pytest.mark.parametrize(
    "case",
    [
        "empty",
        "missing",
        "three classes",
        "only lonely",
        "loose",
        "no budget",
        "no minutes",
        "endless",
        "taken",
        "named alike",
        "typo",
    ],
)
def test_what_cannot_be_audited_is_refused_with_what_to_do(cache, tmp_path, case):
    folder, out = tmp_path / "folder", tmp_path / "out"
    options = {
        "no budget": {"budget": "smal"},
        "no minutes": {"minutes": 0},
        "endless": {"minutes": float("inf")},
        "typo": {"backbone": "tinny"},
    }.get(case, {})
    message = {
        "empty": "No images found",
        "missing": "No folder",
        "three classes": "has 3 of them in 3 class folders",
        "only lonely": "has 0 of them in 6 class folders",
        "loose": "are not in class folders",
        "no budget": "Did you mean 'small'",
        "no minutes": "minutes must be a positive number, .*; got 0",
        "endless": "minutes must be a positive number, .*; got inf",
        "taken": r"is not empty and holds no audit \(thesis.tex\)",
        "named alike": r"is not empty and holds no audit \(data.json\)",
        "typo": "Did you mean 'tiny'",
    }[case]
    if case == "empty":
        folder.mkdir()
    elif case == "three classes":
        write_images(folder, 3)
    elif case == "only lonely":
        write_images(folder, 6, 1)
    elif case == "loose":
        folder.mkdir()
        Image.new("RGB", (40, 40)).save(folder / "a.png")
    elif case != "missing":
        write_images(folder, 4, 2)
    if case == "taken":
        out.mkdir()
        (out / "thesis.tex").write_text("precious")
    if case == "named alike":
        out.mkdir()
        (out / "data.json").write_text("[1, 2]")
    with pytest.raises(oodml.OodmlError, match=message):
        audit(folder, out=out, quiet=True, **{"backbone": "tiny", "workers": 1, **options})
    assert Store(out).audited() is None
    assert out.exists() == (case in ("taken", "named alike"))


def test_an_audit_that_fails_before_it_has_features_leaves_the_folder_free(cache, tmp_path, monkeypatch):
    """With missing weights, for example: other images may be audited there afterwards."""

    def fail(*_, **__):
        raise oodml.OodmlError("no weights")

    monkeypatch.setattr(audit_run, "extract_features", fail)
    with pytest.raises(oodml.OodmlError, match="no weights"):
        audit(write_images(tmp_path / "p", 4, 4), out=tmp_path / "o", quiet=True, backbone="tiny", workers=1)
    assert not (tmp_path / "o").exists()


def test_a_method_that_fails_is_named_and_left_out_of_all_blocks(cache, tmp_path, monkeypatch):
    broken = {"multisimilarity": {"name": "s2sd", "targets": [600]}, "margin": "margin"}
    monkeypatch.setattr(budget, "METHODS", broken)
    real = oodml.training.run.build_job

    def build(config, *rest):
        if config.method["name"] == "s2sd":
            raise oodml.OodmlError("it does not work")
        return real(config, *rest)

    monkeypatch.setattr("oodml.training.run.build_job", build)
    folder = write_images(tmp_path / "p", 4, 5)
    found = audit(folder, out=tmp_path / "o", quiet=True, backbone="tiny", workers=1)
    assert found.table.trained == ["margin"]
    assert found.blocks == 2
    (note,) = (each for each in found.notes if "failed" in each)
    assert note == "multisimilarity failed and is left out: oodml._errors.OodmlError: it does not work"


def test_encoders_scored_on_other_splits_are_dropped(audited, images):
    out = audited[1]
    held = json.loads((out / "scored" / "untrained-tiny.json").read_text())
    mine = out / "scored" / "mine.json"
    mine.write_text(json.dumps({**held, "label": "mine", "kind": "external"}))
    options = {"out": out, "quiet": True, "backbone": "tiny", "workers": 1}
    assert "mine" in audit(images, **options).table.methods, "the splits are the same"
    mine.write_text(
        json.dumps({**held, "label": "mine", "kind": "external", "on": dict.fromkeys(held["on"], "others")})
    )
    with pytest.warns(UserWarning, match="'mine' was scored on"):
        assert "mine" not in audit(images, **options).table.methods
    mine.unlink()


def test_a_folder_too_large_for_its_budget_is_reduced_and_resumed_with_the_same_images(cache, tmp_path):
    folder = write_images(tmp_path / "many", 10, 10)
    options = {"out": tmp_path / "o", "quiet": True, "backbone": "tiny", "workers": 1}
    found = audit(folder, budget="tiny", **options)
    reduced = "48 of 100 images were used, of 6 of 10 classes"
    assert f"{reduced} (at most 48 with this budget)." in found.notes
    assert len({name for split in load_splits(tmp_path / "o" / "splits.json") for name in split.test}) <= 6
    started = json.loads((tmp_path / "o" / "data.json").read_text())
    again = audit(folder, budget="small", **options)
    assert f"{reduced} (as when this audit was started)." in again.notes
    assert json.loads((tmp_path / "o" / "data.json").read_text()) == started


def test_an_audit_of_all_images_is_resumed_with_all_of_them(cache, tmp_path):
    opened = open_folder(write_images(tmp_path / "many", 10, 10), 48, started_with={}, quiet=True)
    assert len(opened.dataset) == 100
    assert "100 of 100 images were used, of 10 of 10 classes (as when this audit was started)." in opened.notes


def test_four_tiny_classes_are_enough_for_an_answer(cache, tmp_path):
    folder = write_images(tmp_path / "few", 4, 3)
    found = audit(folder, budget="tiny", out=tmp_path / "o", quiet=True, backbone="tiny", workers=1)
    assert any("test classes are few" in each for each in found.answer)
