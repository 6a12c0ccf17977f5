"""Settings are checked before any data is read, with messages that help."""

import pytest

import oodml
from oodml import OodmlError, RunConfig
from oodml.config.protocol import written_out
from oodml.recipes import Setup, recipe
from oodml.shift import Split


@pytest.fixture(autouse=True)
def no_data_is_read(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("settings must be checked without reading data")

    monkeypatch.setattr("oodml.data.load_dataset", refuse)
    monkeypatch.setattr("oodml.data.load.load_dataset", refuse)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"methd": "margin"}, "Unknown setting 'methd'. Did you mean 'method'"),
        ({"method": "margn"}, "Did you mean 'margin'"),
        ({"method": {"name": "rho", "bse": "margin"}}, "Did you mean 'base'"),
        ({"method": {"name": "rho", "base": "arcface"}}, "rho needs a loss over mined triplets"),
        ({"method": {"name": "rho", "p_switch": 1.5}}, "probability"),
        ({"method": {"name": "plain", "loss": "margin", "dropout": 1.0}}, "dropout is a share"),
        ({"method": {"name": "plain", "loss": {"name": "margin", "bta": 1.0}}}, "Did you mean 'beta'"),
        ({"method": {"name": "plain", "loss": "arcface", "miner": "distance"}}, "mines no tuples"),
        ({"method": {"name": "plain", "loss": "margin", "miner": "distanc"}}, "Did you mean 'distance'"),
        ({"method": {"loss": "margin"}}, "a dict with 'name'"),
        ({"embedding_dim": 10**8}, "embedding_dim: input should be less than or equal to 65536"),
        ({"backbone": "tyni"}, "Did you mean 'tiny'"),
        ({"dataset": "glyph"}, "Did you mean 'glyphs'"),
        ({"split": "nowhere.json"}, "nowhere.json"),
        ({"split": {"train": ["a"], "test": ["a"]}}, "both sides"),
        ({"train": "heads"}, "train: input should be 'all' or 'head', got 'heads'"),
        ({"epochs": 3, "steps": 5}, "not both"),
        ({"epochs": 0}, "epochs"),
        ({"lr": -1.0}, "lr"),
        ({"warmup": float("inf")}, "warmup: input should be a finite number"),
        ({"metrics": []}, "metrics: tuple should have at least 1 item"),
        ({"batch_size": 10, "samples_per_class": 4}, "does not divide batch_size=10"),
        ({"sampler": "spcc"}, "Did you mean 'spc'"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"schedule": {"name": "step"}}, "needs its epochs"),
        ({"schedule": {"name": "step", "epochs": ["a"]}}, "needs its epochs"),
        ({"schedule": {"name": "step", "epochs": [3], "factor": "x"}}, "needs its epochs"),
        ({"sampler": {"name": "spc", "foo": 1}}, "Unknown option of batch sampler 'spc': 'foo'"),
        ({"samples_per_class": 112}, "holds one class, so no negatives"),
        ({"crop_scale": (1.0, 0.2)}, "0 < low <= high <= 1"),
        ({"train": "head", "grad_cache": 8}, "grad_cache saves memory of the backbone's pass"),
        ({"protocol": "revisitin"}, "Did you mean 'revisiting'"),
        ({"train": "head", "method": {"name": "plain", "input_noise": 0.1}}, "input_noise acts on images"),
        ({"embedding_dim": 0}, "embedding_dim"),
        ({"train": "head", "views": -1}, "views: input should be greater than or equal to 0, got -1."),
        ({"logger": "tensorbord"}, "Did you mean 'tensorboard'"),
        ({"backbone": "resnet5O"}, "resnet50"),
    ],
)
def test_bad_settings_are_named_with_a_way_out(values, message):
    with pytest.raises(OodmlError) as error:
        RunConfig(**values)
    assert message in str(error.value)


def test_metrics_may_be_one_string():
    assert RunConfig(metrics="recall@1, nmi").metrics == ("recall@1", "nmi")


def test_processes_that_cannot_share_a_batch(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(OodmlError, match="3 processes cannot share a batch of 112"):
        RunConfig()


def test_defaults_belong_to_backbone_and_depth():
    tiny = RunConfig().resolved()
    assert (tiny.backbone, tiny.lr, tiny.schedule, tiny.samples_per_class) == ("tiny", 2e-3, "cosine", 4)
    head = RunConfig(backbone="tf_efficientnet_lite0", train="head").resolved()
    assert (head.lr, head.schedule, head.views, head.crop_scale) == (1e-4, "cosine", 8, (0.35, 1.0))
    assert RunConfig(backbone="tf_efficientnet_lite0").resolved().lr == 1e-4
    assert RunConfig(backbone="resnet50").resolved().lr == 1e-5
    assert RunConfig().resolved().backbone == "tiny"
    assert RunConfig(train="head").resolved().backbone == "tf_efficientnet_lite0"  # what stands still must have learnt
    assert RunConfig(lr=3e-4).resolved().lr == 3e-4
    assert RunConfig(steps=7).resolved().epochs is None and RunConfig(epochs=7).resolved().steps is None


@pytest.mark.parametrize(
    ("protocol", "dataset", "dim", "epochs"),
    [
        ("revisiting", "cub200", 128, 150),
        ("oodml", "cars196", 512, 200),
        ("oodml", "cub200", 512, 200),
        ("revisiting", "glyphs", 128, 150),
    ],
)
def test_protocols_set_the_papers_numbers(protocol, dataset, dim, epochs):
    found = RunConfig(dataset=dataset, protocol=protocol, method="margin").resolved()
    assert (found.embedding_dim, found.epochs, found.lr, found.weight_decay) == (dim, epochs, 1e-5, 4e-4)
    assert (found.batch_size, found.samples_per_class, found.selection, found.schedule) == (112, 2, "test", "constant")
    assert found.backbone == "resnet50.tv_in1k" and found.frozen_bn is True
    assert found.method == {
        "name": "plain",
        "loss": {"name": "margin", "normaliser": "triplets", "miner": {"name": "distance", "upper": None}},
    }


def test_a_protocol_yields_to_the_user_and_chooses_published_forms():
    found = RunConfig(
        protocol="revisiting", method={"name": "multisimilarity", "alpha": 3.0}, epochs=5, backbone="resnet50_v1"
    ).resolved()
    assert (found.epochs, found.backbone) == (5, "resnet50_v1")
    assert found.method["loss"] == {"name": "multisimilarity", "alpha": 3.0, "qualifying_only": True}
    rho = RunConfig(dataset="cub200", protocol="oodml", method="rho").resolved().method
    assert rho["base"] == {"name": "margin", "normaliser": "triplets", "miner": {"name": "distance", "upper": None}}
    snr = RunConfig(protocol="oodml", method={"name": "rho", "base": "snr"}).resolved().method
    assert (
        snr["base"]["lam"] == 0.005 and RunConfig(protocol="oodml", method="snr").resolved().method["loss"]["lam"] == 0
    )


@pytest.mark.parametrize(
    ("method", "miner", "lam"),
    [
        ({"name": "snr", "miner": "distance"}, {"name": "distance", "upper": None}, 0.0),
        ({"name": "plain", "loss": "snr", "miner": "distance"}, {"name": "distance", "upper": None}, 0.0),
        (
            {"name": "snr", "miner": {"name": "distance", "lower": 0.4}},
            {"name": "distance", "upper": None, "lower": 0.4},
            0.0,
        ),
        ({"name": "snr", "miner": {"name": "distance", "upper": 1.2}}, {"name": "distance", "upper": 1.2}, 0.0),
        ({"name": "snr", "miner": "semihard"}, {"name": "semihard", "margin": 0.2}, None),
        ({"name": "plain", "loss": "snr", "miner": "random"}, {"name": "random"}, None),
        ({"name": "snr", "miner": "rho"}, {"name": "rho", "base": {"name": "distance", "upper": None}}, None),
        (
            {"name": "snr", "miner": {"name": "rho", "base": "semihard"}},
            {"name": "rho", "base": {"name": "semihard", "margin": 0.2}},
            None,
        ),
    ],
)
def test_a_miner_that_the_user_names_has_its_published_form_too(method, miner, lam):
    """SPEC.md D, E: no cut in distance mining, a margin in semihard; SNR has no penalty with `distance` alone."""
    loss = RunConfig(dataset="cub200", protocol="revisiting", method=method).resolved().method["loss"]
    assert loss["miner"] == miner and loss.get("lam") == lam


def test_what_wraps_a_loss_has_it_in_the_published_form():
    published = {"name": "margin", "normaliser": "triplets", "miner": {"name": "distance", "upper": None}}
    teacher = {"name": "distil", "teacher": "run", "base": "margin"}
    on_cub = Setup("cub200", "resnet50.tv_in1k", 128)
    assert written_out(teacher, recipe("s2sd"), on_cub) == {**teacher, "gamma": 50.0, "base": published}
    for memory in ({"base": "margin"}, {"base": "margin", "miner": "distance"}):
        found = written_out({"name": "crossbatch", "warmup": 7, **memory}, recipe("revisiting"), on_cub)
        assert found == {"name": "crossbatch", "warmup": 7, "base": published}


def test_s2sd_under_the_protocols_is_the_published_one():
    ours = RunConfig(dataset="cub200", protocol="s2sd").resolved().method
    assert ours == {
        "name": "s2sd",
        "base": {"name": "multisimilarity", "qualifying_only": True},
        "feature_start": 1000,
        "gamma": 50.0,
        "targets": [512, 1024, 1536, 2048],
    }
    cars = RunConfig(dataset="cars196", protocol="oodml", method="s2sd").resolved().method
    assert cars["base"]["name"] == "rho" and cars["base"]["p_switch"] == 0.3
    assert cars["base"]["base"]["normaliser"] == "triplets" and cars["targets"] == [1024, 1536, 2048]
    assert (cars["pooling"], cars["feature_start"]) == ("avg+max", 0)
    chosen = RunConfig(protocol="oodml", method={"name": "s2sd", "base": "arcface"}).resolved().method
    assert chosen["base"] == {"name": "arcface", "clamp_negative": True}


def test_resolving_twice_changes_nothing():
    for config in (
        RunConfig(),
        RunConfig(protocol="oodml", method="rho"),
        RunConfig(train="head", backbone="resnet18"),
    ):
        once = config.resolved()
        assert once.resolved() == once
        assert once.hash() == config.hash()


def test_the_hash_is_about_results_only():
    base = RunConfig()
    assert base.hash() == RunConfig(out="elsewhere", device="cpu", workers=3, quiet=True).hash()
    here, there = ({"name": "cub200", "root": root} for root in ("a", "b"))
    assert RunConfig(dataset=here).hash() == RunConfig(dataset=there).hash()
    mine, yours = ({"name": "folder", "root": root} for root in ("a", "b"))
    assert RunConfig(dataset=mine).hash() != RunConfig(dataset=yours).hash()
    assert base.hash() == RunConfig(lr=2e-3, steps=200).hash(), "a default written out is the same run"
    assert base.hash() == RunConfig(method={"name": "plain", "loss": "margin"}).hash()
    assert base.hash() == RunConfig(method={"name": "plain", "loss": {"name": "margin"}}).hash()
    others = [RunConfig(seed=1), RunConfig(lr=1e-3), RunConfig(method="rho"), RunConfig(steps=100)]
    assert len({base.hash(), *(each.hash() for each in others)}) == 5


def test_a_split_counts_by_its_content(tmp_path):
    split = Split(train=["a", "b"], test=["c", "d"], name="mine")
    split.save(tmp_path / "one.json")
    split.save(tmp_path / "two.json")
    hashes = {RunConfig(split=each).hash() for each in (split, str(tmp_path / "one.json"), tmp_path / "two.json")}
    assert len(hashes) == 1
    assert RunConfig(split=Split(train=["a", "b", "e"], test=["c", "d"])).hash() not in hashes
    assert RunConfig().hash() not in hashes


def test_yaml_there_and_back(tmp_path):
    config = RunConfig(
        method={"name": "rho", "base": "triplet"}, split=Split(train=["a", "b"], test=["c"]), crop_scale=(0.5, 1)
    )
    config.save(tmp_path / "config.yaml")
    loaded = RunConfig.load(tmp_path / "config.yaml")
    assert loaded.hash() == config.hash()
    assert RunConfig.load(tmp_path / "config.yaml", seed=5).seed == 5
    with pytest.raises(OodmlError, match="Could not read"):
        RunConfig.load(tmp_path / "missing.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(OodmlError, match="key: value"):
        RunConfig.load(tmp_path / "list.yaml")


def test_the_public_name_is_the_class():
    assert oodml.RunConfig is RunConfig


def test_the_rules_of_a_sampler_from_elsewhere_are_known_before_data_is_read():
    from oodml.data import register_batch_sampler
    from oodml.data.samplers.spc import SPC

    class Fussy(SPC):
        """A sampler of a plug-in, with a rule of its own."""

        def __init__(self, labels, batch_size=112, samples_per_class=2, seed=0, rank=0, world_size=1, share=0.5):
            super().__init__(labels, batch_size, samples_per_class, seed, rank, world_size)
            if not 0 < share <= 1:
                raise OodmlError(f"share is between 0 and 1, got {share}.")

    register_batch_sampler("fussy-test", Fussy, replace=True)
    RunConfig(sampler={"name": "fussy-test", "share": 1})
    with pytest.raises(OodmlError, match="share is between 0 and 1, got 2"):
        RunConfig(sampler={"name": "fussy-test", "share": 2})


def test_a_settings_file_that_is_no_yaml_is_refused_in_one_line_that_says_where(tmp_path):
    (tmp_path / "run.yaml").write_text("dataset: glyphs\nsteps: [\n")
    with pytest.raises(OodmlError) as error:
        RunConfig.load(tmp_path / "run.yaml")
    assert "line 3" in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(OodmlError, match=r"Could not read the settings .*nowhere.yaml: No such file or directory"):
        RunConfig.load(tmp_path / "nowhere.yaml")
