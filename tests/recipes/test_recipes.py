"""Recipes: which numbers of a paper a run takes, by dataset and backbone, and where they are written out."""

import json
import warnings

import pytest

import oodml
from oodml import OodmlError, RunConfig
from oodml.config.protocol import written_out
from oodml.methods import register_method
from oodml.methods.wrapper import Wrapper
from oodml.recipes import Setup, grids, recipe, recipes, tables

RESNET = "resnet50.tv_in1k"
NAMES = ["revisiting", "revisiting-printed", "s2sd", "s2sd-printed", "oodml", "oodml-printed", "sharing"]


def resolved(method, protocol="oodml", dataset="cub200", **settings):
    return RunConfig(dataset=dataset, protocol=protocol, method=method, **settings).resolved()


def test_the_protocols_by_name():
    assert recipes() == NAMES
    with pytest.raises(OodmlError, match="Did you mean 'revisiting-printed'"):
        recipe("revisiting-print")


def test_every_number_that_a_recipe_fills_in_is_written_out():
    rho = resolved("rho").method
    assert rho["p_switch"] == 0.4
    diva = resolved("diva").method
    assert (diva["alpha"], diva["decorrelation"], diva["queue"], diva["weights"]) == (0.3, 1500.0, 30, [0.75, 1.25])
    assert resolved("s2sd", "s2sd").method["gamma"] == 50.0
    assert resolved("sharing", "sharing").method["gamma"] == 2000.0
    assert resolved({"name": "sharing", "triplets": "groups"}, "sharing", "cars196").method["groups"] == 150
    prior = resolved("uniform_prior").method
    assert (prior["weight"], prior["every"], prior["hidden"]) == (0.2, 10, 100)
    chosen = {"name": "diva", "alpha": 0.1, "weights": [1, 1], "decorrelation": 2.0, "queue": 3}
    assert chosen.items() <= resolved(chosen).method.items()


@pytest.mark.parametrize("method", ["rho", "diva", "s2sd", "sharing", "uniform_prior"])
def test_without_a_protocol_nothing_hangs_on_the_datasets_name(method):
    settings = {"method": method, "embedding_dim": 64}
    glyphs = RunConfig(dataset="glyphs", **settings).resolved().as_dict() | {"dataset": None}
    assert RunConfig(dataset="cub200", **settings).resolved().as_dict() | {"dataset": None} == glyphs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["rho", "diva", "s2sd", "sharing", "uniform_prior", "histogram"])
def test_numbers_may_be_named(name, method, tmp_path):
    """A folder with the same images takes the numbers of the dataset that it names."""
    folder = {"name": "folder", "root": str(tmp_path)}
    for numbers in ("cub200", "cars196"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            named = resolved(method, {"name": name, "numbers": numbers}, folder)
        assert named.as_dict() | {"dataset": numbers} == resolved(method, name, numbers).as_dict()
    assert resolved("rho", {"name": "oodml", "numbers": "sop"}, "cub200").epochs == 150, "what is named wins"


def test_a_dataset_without_numbers_takes_the_plain_defaults_and_says_so():
    with pytest.warns(
        UserWarning, match=r"'oodml' has no numbers for the dataset 'glyphs'.*\"numbers\": \"cub200\""
    ) as said:
        found = resolved("diva", dataset="glyphs")
    assert len(said) == 1
    assert not found.method.keys() & {"alpha", "decorrelation", "queue", "weights"}
    with pytest.warns(UserWarning):
        assert "p_switch" not in resolved("rho", dataset="glyphs").method


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ({"name": "oodm"}, "Did you mean 'oodml'"),
        ({"name": "oodml", "numbers": "cub"}, "Did you mean 'cub200'"),
        ({"name": "oodml", "number": "cub200"}, "a mapping with 'name' and 'numbers'"),
        ({"numbers": "cub200"}, "a mapping with 'name' and 'numbers'"),
    ],
)
def test_a_wrong_protocol_is_named(protocol, message):
    with pytest.raises(OodmlError) as error:
        RunConfig(dataset="cub200", protocol=protocol)
    assert message in str(error.value)


def test_the_protocol_is_no_part_of_the_identity():
    by_name = RunConfig(dataset="cub200", protocol="oodml", method="diva")
    explicit = RunConfig(dataset="cub200", protocol={"name": "oodml", "numbers": "cub200"}, method="diva")
    assert by_name.hash() == explicit.hash() == by_name.resolved().hash()


@pytest.mark.parametrize(
    ("backbone", "expected"),
    [
        (RESNET, (0.4, 0.35, 0.15)),  # S2SD, supplement B: ResNet
        ("resnet18.tv_in1k", (0.4, 0.35, 0.15)),
        ("bninception", (0.15, 0.15, 0.3)),  # S2SD, supplement B: Inception
        ("inception_v3.tv_in1k", (0.15, 0.15, 0.3)),
        ("googlenet", (0.15, 0.15, 0.3)),
    ],
)
def test_p_switch_depends_on_dataset_and_backbone(backbone, expected):
    for dataset, value in zip(("cub200", "cars196", "sop"), expected, strict=True):
        alone = written_out("rho", recipe("revisiting"), Setup(dataset, backbone, 128))
        inside = written_out({"name": "s2sd", "base": "rho"}, recipe("s2sd"), Setup(dataset, backbone, 128))
        assert alone["p_switch"] == inside["base"]["p_switch"] == value


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("contrastive", 0.4),
        ("margin", 0.4),
        ({"name": "margin", "beta": 0.6}, 0.4),
        ({"name": "margin", "beta": 1.2}, 0.35),
        ("triplet", 0.4),
        ("snr", 0.3),
    ],
)
def test_p_switch_of_each_base_on_cub(base, expected):
    assert resolved({"name": "rho", "base": base}, "revisiting").method["p_switch"] == expected
    assert resolved({"name": "rho", "base": base}, "revisiting", "cars196").method["p_switch"] == 0.35


@pytest.fixture
def wrapper():
    """A method registered by a user, around any other one."""

    class Mine(Wrapper):
        """A wrapper of a user's own."""

        def __init__(self, base="margin", strength: float = 1.0) -> None:
            super().__init__(base)
            self.strength = strength

    register_method("mine-test", Mine, replace=True)
    return "mine-test"


def test_a_registered_wrapper_has_the_published_forms_of_its_base(wrapper):
    built_in = resolved({"name": "uniform_prior", "base": "margin"}, "revisiting").method["base"]
    assert built_in["normaliser"] == "triplets"
    assert resolved(wrapper, "revisiting").method["base"] == built_in
    for base in ("snr", {"name": "margin", "beta": 0.6}, "rho", "s2sd", {"name": "plain", "loss": "triplet"}):
        ours = resolved({"name": wrapper, "base": base, "strength": 2.0}).method
        theirs = resolved({"name": "uniform_prior", "base": base}).method
        assert ours["base"] == theirs["base"] and ours["strength"] == 2.0


def test_a_wrapper_that_hands_on_all_its_options_has_them_too():
    class Loose(Wrapper):
        """Takes any option."""

        def __init__(self, **options) -> None:
            super().__init__(options["base"])

    register_method("loose-test", Loose, replace=True)
    found = resolved({"name": "loose-test", "base": "quadruplet"}, "revisiting").method
    assert found["base"]["fourth"] == "position"


PRINTED = {
    "quadruplet": {"margin": 1.0, "margin2": 0.5, "miner": {"name": "distance", "upper": 1.4}},  # below eq. 14, eq. 24
    "snr": {"lam": 0.005, "miner": {"name": "distance", "upper": 1.4}},  # below eq. 15
    "proxynca": {"squared": False, "radius": 1.0},  # eq. 13
    "triplet": {"squared": False, "miner": {"name": "distance", "upper": 1.4}},  # eq. 2
    "multisimilarity": {},
}
CODED = {
    "quadruplet": {"margin": 0.2, "margin2": 0.2, "fourth": "position", "miner": {"name": "distance", "upper": None}},
    "snr": {"lam": 0.0, "miner": {"name": "distance", "upper": None}},
    "proxynca": {},
    "triplet": {"squared": True, "miner": {"name": "distance", "upper": None}},
    "multisimilarity": {"qualifying_only": True},
}


@pytest.mark.parametrize("paper", ["revisiting", "s2sd", "oodml"])
@pytest.mark.parametrize("loss", PRINTED)
def test_the_printed_form_and_the_coded_form(paper, loss):
    for name, forms in ((paper, CODED), (f"{paper}-printed", PRINTED)):
        found = resolved(loss, name).method["loss"]
        found = {"name": found} if isinstance(found, str) else found
        assert found == {"name": loss, **forms[loss]}


def test_the_weight_decays():
    """S2SD 4.2: 4e-5; S2SD, supplement A.2, and ooDML, supplement B: 3e-4; all code: 4e-4."""
    found = {name: recipe(name).run("cub200")["weight_decay"] for name in recipes()}
    coded = dict.fromkeys(("revisiting", "s2sd", "oodml", "sharing"), 4e-4)
    assert found == {**coded, "revisiting-printed": 3e-4, "s2sd-printed": 4e-5, "oodml-printed": 3e-4}


def test_boundaries_in_s2sd_learn_at_the_printed_rate_where_printed():
    """S2SD, supplement B: "We set the learning rate for the class boundaries as 5e-4"; in the code 1e-5."""
    rates = {name: resolved({"name": "s2sd", "base": "margin"}, name).method["nested_lr"] for name in NAMES[2:6]}
    assert rates == {"s2sd": "base", "s2sd-printed": "own", "oodml": "base", "oodml-printed": "own"}


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("margin", "base"),
        ({"name": "margin", "beta": 0.6}, "base"),
        ("rho", "base"),
        ({"name": "rho", "base": "margin"}, "base"),
        ({"name": "rho", "base": "triplet"}, None),
        ("multisimilarity", None),
        ("proxyanchor", None),  # its proxies learn at 0.02 in S2SD, as in its baseline
        (None, None),
    ],
)
def test_only_boundaries_learn_at_the_base_rate_in_s2sd(base, expected):
    method = {"name": "s2sd", "variant": "dsd", **({"base": base} if base else {})}
    assert resolved(method, "s2sd").method.get("nested_lr") == expected
    assert resolved({**method, "nested_lr": "own"}, "s2sd").method["nested_lr"] == "own"


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        (None, ([1024, 1536, 2048], "avg+max")),
        ("dsd", (None, None)),
        ("dsda", (None, None)),
        ("msd", ([1024, 1536, 2048], None)),
        ("msdfa", ([1024, 1536, 2048], None)),
    ],
)
def test_a_variant_that_is_named_keeps_its_targets_and_its_pooling(variant, expected):
    """`oodml` has three targets and the pooling avg+max (SPEC), which no other variant gets by another's name."""
    found = resolved({"name": "s2sd", **({"variant": variant} if variant else {})}, "oodml").method
    assert (found.get("targets"), found.get("pooling")) == expected
    chosen = {"targets": [600], "pooling": "avg"}
    assert chosen.items() <= resolved({"name": "s2sd", "variant": variant or "msdf", **chosen}, "oodml").method.items()


@pytest.mark.parametrize("size", [64, 128, 512, 2048])
def test_s2sd_has_its_four_targets_at_every_size(size):
    """Section 4.2 and table 8; one target where the variant has one."""
    for variant in ("msd", "msda", "msdf", "msdfa"):
        found = resolved({"name": "s2sd", "variant": variant}, "s2sd", embedding_dim=size).method
        assert found["targets"] == [512, 1024, 1536, 2048]
    assert "targets" not in resolved({"name": "s2sd", "variant": "dsda"}, "s2sd", embedding_dim=size).method


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("base", ["margin", "triplet", {"name": "triplet", "miner": "semihard"}, "npair", "proxynca"])
def test_the_shared_task_has_the_cut_of_the_protocol(name, base):
    """The code has none; the print has 1.4 (Revisiting, below eq. 24)."""
    upper = 1.4 if name.endswith("-printed") else None
    assert resolved({"name": "sharing", "base": base}, name).method["upper"] == upper
    assert resolved({"name": "sharing", "base": base, "upper": 1.2}, name).method["upper"] == 1.2


def test_the_shared_task_follows_a_cut_that_the_base_chooses():
    base = {"name": "margin", "miner": {"name": "distance", "upper": 1.2}}
    assert "upper" not in resolved({"name": "sharing", "base": base}, "sharing").method  # "base", by default


def test_crops_are_cut_from_the_original_image():
    """At 512 pixels of the short side at most (docs/fidelity.md); Sharing Matters resizes the image first."""
    for name in recipes():
        found = resolved("margin", name)
        assert (found.cache_side, found.transform) == (512, "crop" if name == "sharing" else None)
        assert resolved("margin", name, cache_side=300).cache_side == 300


def test_diva_as_printed_has_no_permuted_labels():
    assert resolved("diva", "oodml").method["sharing"] == "permuted"
    assert not resolved("diva", "oodml-printed").method.keys() & {"weighting", "sharing", "intra"}


def test_the_weights_of_decorrelation_follow_the_size_of_the_embedding():
    """As without a protocol: (D/128)² times that of 128 dimensions."""
    from oodml.methods.decorrelation import scaled_weight

    assert resolved("sharing", "sharing", embedding_dim=64).method["gamma"] == scaled_weight(2000, 32)
    assert resolved("diva", embedding_dim=64).method["decorrelation"] == scaled_weight(1500, 16)
    assert "gamma" not in resolved({"name": "sharing", "variant": "both"}, "sharing").method


def test_grids_and_tables_are_those_of_the_papers():
    assert {"zero-shot", "objectives", "s2sd-variants", "sharing-losses"} <= grids().keys()
    assert {key.partition("-")[0] for key in tables()["tables"]} == {"oodml", "revisiting", "s2sd", "sharing"}
    assert tables()["fids"]["cars196"][0] == 8.59  # ooDML, supplement, table 1: 8.6


def test_a_run_of_an_earlier_version_keeps_its_weights(tmp_path):
    """DiVA's weights at test time hung on the dataset's name in the file."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    run = oodml.train(
        RunConfig(dataset="glyphs", method="diva", steps=1, batch_size=16, samples_per_class=4, embedding_dim=8,
                  device="cpu", quiet=True, selection="last", metrics=("recall@1",), out=str(tmp_path / "run"))
    )  # fmt: skip
    file = run.path / "embedder.safetensors"
    assert oodml.load_embedder(run.path).method.weights == (1.0, 1.0)
    for dataset, expected in (("cub200", [0.75, 1.25]), ("glyphs", (1.0, 1.0))):
        with safe_open(file, framework="pt") as saved:
            about = dict(saved.metadata())
            weights = {key: saved.get_tensor(key).clone() for key in saved.keys()}  # noqa: SIM118
        about["context"] = json.dumps({**json.loads(about["context"]), "dataset": dataset})
        save_file(weights, file, metadata=about)
        assert oodml.load_embedder(run.path).method.weights == expected
