"""The presets: every one is complete, plans, or says what it needs."""

import re
from collections import Counter

import pytest
import yaml

import oodml
from oodml.recipes import grids
from oodml.shift import Split, save_splits
from oodml.study.engines.local import CONTEXT, SHARE, Packing, size_of
from oodml.study.grid import load_plan, plan
from oodml.study.presets import HEADER, load_preset, needs, presets
from oodml.study.published import published_tables
from oodml.study.store import Store
from oodml.study.table import EXTERNAL, TRAINED
from oodml.training.data import choose_split

TWO = [Split(["a", "b"], ["c", "d"], name="one")]


@pytest.mark.parametrize("name", presets())
def test_a_preset_has_its_header_and_plans_or_is_refused(name):
    preset = presets()[name]
    assert all(preset.header.get(key) for key in HEADER)
    if preset.needs:
        with pytest.raises(oodml.OodmlError, match=f"needs {preset.needs[0]}"):
            load_preset(name)
        return
    study = load_preset(name, seeds=[0])
    runs = plan(study, TWO)
    assert len(runs) == len(study.methods) * len(study.settings or [0]) * len(study.backbones or [0]) * len(
        study.embedding_dims or [0]
    )


def test_every_experiment_has_a_small_version():
    experiments = {name.rsplit("-", 1)[0] for name in presets() if name.endswith(("-cub200", "-cars196"))}
    for experiment in experiments - {"transfer-cub200"}:
        assert f"{experiment}-glyphs" in presets()
        assert presets()[f"{experiment}-glyphs"].settings["dataset"] == "glyphs"


# preset -> published table whose methods it has
COUNTERPARTS = {
    "zero-shot-cars196": "oodml-s5",
    "objectives-cub200": "revisiting-s4",
    "samplers-cars196": "revisiting-s8",
    "s2sd-variants-cub200": "s2sd-4",
    "s2sd-proxyanchor-cub200": "s2sd-6",
    "s2sd-dimensions-cub200": "s2sd-8",
    "s2sd-weight-cub200": "s2sd-12",
    "sharing-regularisers-cars196": "sharing-6",
}


@pytest.mark.parametrize(("preset", "table"), COUNTERPARTS.items())
def test_labels_are_those_of_the_published_table(preset, table):
    """So that `oodml study compare` finds every number; what needs no training (ImageNet) aside."""
    settings = presets()[preset].settings
    labels = set(settings["methods"])
    for axis in (settings.get("settings"), [f"d{size}" for size in settings.get("embedding_dims", ())]):
        labels = {f"{label} · {name}" for label in labels for name in axis} if axis else labels
    assert {cell[2] for cell in published_tables()[table]["cells"]} - {"ImageNet"} <= labels


def test_a_typo_in_the_name_is_answered():
    with pytest.raises(oodml.OodmlError, match="Did you mean 'zero-shot-glyphs'"):
        load_preset("zero-shot-glyph")


def test_backbones_may_have_labels():
    """The labels of ooDML's figure 5 stay, whatever weights stand behind them; a list is short for {name: name}."""
    study = load_preset("capacity-cars196", seeds=[0], methods={"ArcFace": "arcface"})
    runs = plan(study, TWO)
    assert [run.method for run in runs] == ["ArcFace · resnet18", "ArcFace · resnet50", "ArcFace · resnet101"]
    assert [run.config.backbone for run in runs] == [f"resnet{n}.tv_in1k" for n in (18, 50, 101)]
    listed = load_preset("capacity-glyphs", backbones=["tiny", "resnet10t"])
    assert listed.backbones == {"tiny": "tiny", "resnet10t": "resnet10t"}
    assert listed == oodml.StudyConfig(**yaml.safe_load(listed.to_yaml()))
    with pytest.raises(oodml.OodmlError, match="backbones: tiny is listed more than once"):
        load_preset("capacity-glyphs", backbones=["tiny", "tiny"])
    other = {"dataset": "glyphs", "methods": ["margin"], "backbones": {"A": "resnet50.tv_in1k", "B": "no-such-net"}}
    assert needs(other) == ["backbone 'no-such-net'"]


def test_no_paper_starts_from_a_default_tag_of_timm():
    """torchvision's weights are named wherever a ResNet is (ooDML, supplement B)."""
    for name, text in grids().items():
        assert not re.findall(r"backbone: resnet(?:18|50|101)\b(?!\.tv_in1k)", text), name


# -- packing of runs on GPUs -----------------------------------------------------------------------------------------

GIB = 1 << 30
SMALL, LARGE = ("tiny",), ("resnet50",)


def test_a_run_of_unknown_size_has_a_gpu_alone():
    packing = Packing({"cuda:0": 80 * GIB, "cuda:1": 80 * GIB})
    assert packing.choose_device(SMALL, []) in ("cuda:0", "cuda:1")
    assert packing.choose_device(SMALL, [("cuda:0", SMALL)]) == "cuda:1"
    assert packing.choose_device(SMALL, [("cuda:0", SMALL), ("cuda:1", LARGE)]) is None


def test_known_runs_are_packed_until_the_memory_is_full():
    packing = Packing({"cuda:0": 80 * GIB})
    packing.record(SMALL, 10 * GIB)
    tenants = []
    while (device := packing.choose_device(SMALL, tenants)) is not None:
        tenants.append((device, SMALL))
    assert len(tenants) == int(SHARE * 80 * GIB // (10 * GIB + CONTEXT)) == 6
    packing.record(SMALL, 30 * GIB)  # one needed more: fewer fit from now on
    assert packing.choose_device(SMALL, tenants[:2]) is None


def test_the_emptier_gpu_is_taken_and_strangers_are_not_joined():
    packing = Packing({"cuda:0": 40 * GIB, "cuda:1": 80 * GIB})
    packing.record(SMALL, 10 * GIB)
    assert packing.choose_device(SMALL, []) == "cuda:1"
    assert packing.choose_device(SMALL, [("cuda:1", LARGE)]) == "cuda:0"
    assert packing.choose_device(LARGE, [("cuda:0", SMALL)]) == "cuda:1"


def test_a_run_larger_than_any_gpu_still_gets_one_alone():
    packing = Packing({"cuda:0": 10 * GIB})
    packing.record(LARGE, 20 * GIB)
    assert packing.choose_device(LARGE, []) == "cuda:0"
    assert packing.choose_device(LARGE, [("cuda:0", LARGE)]) is None


def test_runs_of_one_size_agree_in_it():
    runs = plan(load_preset("demo-glyphs", methods=["margin", "contrastive"], seeds=[0, 1]), TWO)
    assert len({size_of(run) for run in runs}) == 1
    wider = plan(load_preset("demo-glyphs", methods=["margin"], embedding_dims=[8, 16]), TWO)
    assert len({size_of(run) for run in wider}) == 2


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in presets() if name.endswith("-glyphs")])
def test_the_small_version_of_an_experiment_runs(name, tmp_path):
    """Every method of every preset for two steps on a few characters: it trains, is scored and enters the table."""
    if presets()[name].needs:
        pytest.skip(f"{name} needs {', '.join(presets()[name].needs)}")
    default = choose_split(oodml.load_dataset("glyphs"), "default")  # transfer tests the classes that it tests
    few = Split(default.train[::3][:40], default.test[::3][:20], name="few", fid=1.0, dataset="glyphs")
    save_splits(tmp_path / "splits.json", [few])
    given = presets()[name].settings
    run = {**given["run"], "steps": 2, "eval_every": 2, "batch_size": 16, "device": "cpu"}
    run |= {"samples_per_class": 4} if "samples_per_class" not in str(given.get("settings", "")) else {}
    small = {"splits": str(tmp_path / "splits.json"), "run": run, "episodes": 2}
    if "shots" in given:
        small["few_shot"] = {"steps": 2, "views": 0, "batch_size": 40}
    study = load_preset(name, **small)
    table = oodml.run_study(study, tmp_path / "study", quiet=True, workers=1)
    failures = [Store(tmp_path / "study").failure(place.id) for place in load_plan(Store(tmp_path / "study"))]
    assert not any(failures), next(filter(None, failures))
    kinds = Counter(row.kind for row in table.rows)
    assert kinds[TRAINED] == len(plan(study, TWO)) and kinds[EXTERNAL] == len(study.generic or ())
