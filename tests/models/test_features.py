"""Features: the right numbers in the right order, computed once, made anew exactly when what they depend on changes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import oodml
from oodml import OodmlError
from oodml.data import ArraySource, Dataset, FileSource, Transforms, build_dataset, load_images
from oodml.models import Backbone, engines, extract_features, features, make_backbone
from oodml.models.engines import OpenVinoEngine, TorchEngine, make_engine

openvino = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("openvino") is None, reason="OpenVINO (extra cpu) is not installed"
)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OODML_WEIGHTS", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images went through a network, call by call."""
    counts: list[int] = []
    original = features.make_engine

    def counting(*arguments: object) -> object:
        engine = original(*arguments)

        class Counting:
            name = engine.name

            def __call__(self, images: Tensor) -> Tensor:
                counts.append(len(images))
                return engine(images)

        return Counting()

    monkeypatch.setattr(features, "make_engine", counting)
    return counts


def small_set(n: int = 10, size: int = 64, seed: int = 0) -> Dataset:
    pixels = np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)
    names = [f"{i:03}.png" for i in range(n)]
    transforms = Transforms(size=size, short_side=size)
    return build_dataset("small", ArraySource(pixels, names), [f"c{i % 3}" for i in range(n)], transforms=transforms)


def reference(ds: Dataset, backbone: Backbone, size: int, pooling: str = "avg") -> np.ndarray:
    """One image at a time, float64."""
    images, backbone = load_images(ds, quiet=True), backbone.double().eval()
    rows = []
    with torch.no_grad():
        for i in range(len(ds)):
            cells = backbone(images.eval_view([i], size=size).double())[0].flatten(1)  # (C, cells)
            average, maximum = cells.sum(1) / cells.shape[1], cells.max(1).values
            rows.append(average if pooling == "avg" else torch.cat([average, maximum]))
    return torch.stack(rows).numpy()


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(("name", "pooling"), [("tiny", "avg"), ("tiny", "avg+max"), ("tf_efficientnet_lite0", "avg")])
def test_features_are_those_of_one_image_at_a_time(name: str, pooling: str) -> None:
    ds = small_set(7)
    found = extract_features(ds, name, batch_size=3, pooling=pooling, quiet=True)
    expected = reference(ds, make_backbone(name), 64, pooling)
    assert found.dtype == np.float32 and found.shape == expected.shape == (7, expected.shape[1])
    assert relative(found, expected) < 1e-4


def test_small_images_are_seen_at_64_pixels() -> None:
    ds = small_set(4, size=32)
    found = extract_features(ds, "tiny", quiet=True)
    assert relative(found, reference(ds, make_backbone("tiny"), 64)) < 1e-4
    np.testing.assert_array_equal(found, extract_features(ds, "tiny", size=64, cache=False, quiet=True))
    assert relative(extract_features(ds, "tiny", size=32, quiet=True), found) > 1e-3


def test_views_start_with_evaluation_and_each_is_drawn_for_itself() -> None:
    ds = small_set(6)
    plain = extract_features(ds, "tiny", quiet=True)
    three = extract_features(ds, "tiny", views=3, quiet=True)
    two = extract_features(ds, "tiny", views=2, cache=False, quiet=True)
    assert three.shape == (4, 6, 64)
    np.testing.assert_array_equal(three[0], plain)
    np.testing.assert_array_equal(three[:3], two)  # a view does not depend on how many there are, nor on the cache
    different = [relative(a, b) for i, a in enumerate(three) for b in three[:i]]
    assert min(different) > 1e-3
    assert relative(extract_features(ds, "tiny", views=1, seed=1, quiet=True)[1], three[1]) > 1e-3
    assert relative(extract_features(ds, "tiny", views=1, crop_scale=(0.9, 1.0), quiet=True)[1], three[1]) > 1e-3


def test_a_second_call_computes_nothing_and_more_views_compute_only_those(computed: list[int]) -> None:
    ds = small_set(5)
    extract_features(ds, "tiny", quiet=True)
    assert sum(computed) == 5
    extract_features(ds, "tiny", quiet=True)
    assert sum(computed) == 5
    extract_features(ds, "tiny", views=2, quiet=True)
    assert sum(computed) == 15
    extract_features(ds, "tiny", views=1, quiet=True)
    assert sum(computed) == 15
    extract_features(ds, "tiny", cache=False, quiet=True)
    assert sum(computed) == 20


def test_whatever_the_numbers_depend_on_makes_them_anew(computed: list[int], tmp_path: Path) -> None:
    ds = small_set(5)
    save_file(make_backbone("tiny", seed=4).body.state_dict(), tmp_path / "other.safetensors")
    narrower = replace(ds, transforms=replace(ds.transforms, size=48))
    changes: list[tuple[Dataset, dict[str, object]]] = [
        (ds, {}),
        (small_set(5, seed=1), {}),  # other pixels, same names
        (ds.subset([4, 3, 2, 1, 0]), {}),  # same images in another order
        (ds, {"weights": tmp_path / "other.safetensors"}),
        (narrower, {"size": 64}),
        (ds, {"size": 72}),
        (ds, {"pooling": "avg+max"}),
        (ds, {"backbone": "tf_efficientnet_lite0"}),
    ]
    for number, (data, options) in enumerate(changes, 1):
        extract_features(data, **{"backbone": "tiny", **options}, quiet=True)
        assert sum(computed) == 5 * number, (data, options)


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "foreign"])
def test_a_damaged_cache_is_made_anew(damage: str, computed: list[int], own_cache: Path) -> None:
    ds = small_set(5)
    expected = extract_features(ds, "tiny", quiet=True)
    (file,) = (own_cache / "features").glob("*.safetensors")
    content = file.read_bytes()
    damaged = {
        "cut": content[:-100],
        "flipped": content[:-4] + bytes([content[-4] ^ 64]) + content[-3:],
        "emptied": b"",
        "foreign": b"these are no features",
    }
    file.write_bytes(damaged[damage])
    np.testing.assert_array_equal(extract_features(ds, "tiny", quiet=True), expected)
    assert sum(computed) == 10
    np.testing.assert_array_equal(extract_features(ds, "tiny", quiet=True), expected)
    assert sum(computed) == 10  # repaired
    assert not list((own_cache / "features").glob("*.part"))


def test_a_cache_that_cannot_be_written_is_one_sentence(own_cache: Path) -> None:
    ds = small_set(3)
    load_images(ds, quiet=True)
    (own_cache / "features").write_text("a file where the folder should be")
    with pytest.raises(OodmlError, match=r"features.*Nothing half-written"):
        extract_features(ds, "tiny", quiet=True)


def test_finished_features_serve_from_a_read_only_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = small_set(3)
    expected = extract_features(ds, "tiny", views=1, quiet=True)
    monkeypatch.setattr(features, "exclusive", lambda path: pytest.fail("asked for a lock"))
    np.testing.assert_array_equal(extract_features(ds, "tiny", views=1, quiet=True), expected)
    np.testing.assert_array_equal(extract_features(ds, "tiny", quiet=True), expected[0])


def test_a_given_backbone_is_used_and_left_as_it_was() -> None:
    backbone = make_backbone("tiny", seed=8).train()
    before, ds = backbone.weights_id, small_set(4)
    found = extract_features(ds, backbone, quiet=True)
    assert backbone.training and backbone.weights_id == before
    assert relative(found, reference(ds, backbone, 64)) < 1e-4


def test_the_global_random_state_stays(own_cache: Path) -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    extract_features(small_set(4), "tiny", views=1, quiet=True)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"views": -1}, "views"),
        ({"batch_size": 0}, "batch_size"),
        ({"size": 2}, "size"),
        ({"pooling": "avgmax"}, r"Did you mean 'avg\+max'"),
        ({"device": "meta"}, "device='meta' cannot compute here"),
        ({"size": 100_000}, "8 to 1,024; got 100000"),
        ({"device": "gpu"}, "device='gpu' is not a device of torch"),
        ({"backbone": "tinny"}, "tiny"),
        ({"crop_scale": (0.9, 0.2), "views": 1}, "crop_scale"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(OodmlError, match=message):
        extract_features(small_set(3), **{"backbone": "tiny", **options}, quiet=True)


def test_images_that_cannot_be_read_are_not_passed_over(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        Image.new("RGB", (64, 64), (name[0] == "a" and "red") or "blue").save(tmp_path / name)
    (tmp_path / "b.png").write_bytes(b"not an image")
    source = FileSource(tmp_path, ["a.png", "b.png", "c.png"])
    ds = build_dataset("broken", source, ["x", "x", "y"], transforms=Transforms(64, 64))
    with pytest.warns(UserWarning, match=r"b\.png"), pytest.raises(OodmlError, match="1 images of 'broken'"):
        extract_features(ds, "tiny", quiet=True)
    with pytest.warns(UserWarning, match=r"b\.png"):
        readable = load_images(ds, quiet=True).dataset
    assert extract_features(readable, "tiny", quiet=True).shape == (2, 64)


@openvino
@pytest.mark.parametrize(
    "name",
    [
        "tiny",
        "tf_efficientnet_lite0",
        pytest.param("resnet50_v1", marks=pytest.mark.long),
        pytest.param("vit_tiny_patch16_224", marks=pytest.mark.long),
    ],
)
def test_openvino_equals_torch(name: str) -> None:
    pretrained = name.startswith(("tiny", "tf_"))
    network = features._Pooled(make_backbone(name, pretrained=pretrained), "avg+max").eval()
    size = network.backbone.input_size if name.startswith("vit") else 64
    images = torch.rand(5, 3, size, size, generator=torch.Generator().manual_seed(3))
    expected = TorchEngine(network, CPU)(images).numpy()
    engine = OpenVinoEngine(network, size)
    engine._piece = 2  # an uneven number of requests
    assert relative(engine(images).numpy(), expected) < 1e-4


@openvino
def test_openvino_is_chosen_on_a_cpu_and_never_reports_home() -> None:
    program = (
        "import sys, torch\n"
        "from oodml.models import make_backbone, features, engines\n"
        "network = features._Pooled(make_backbone('tiny'), 'avg')\n"
        "print(engines.make_engine(network, torch.device('cpu'), 32).name)\n"
        "print([m for m, v in sys.modules.items() if m.startswith('openvino_telemetry') and v is not None])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["OpenVINO", "[]"], done.stderr


class LooksAtTheBatchSize(nn.Module):
    """What tracing cannot see: the converted network would keep the branch it was traced on."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) * (2 if len(images) > 2 else 1)


@openvino
def test_a_network_that_openvino_gets_wrong_is_left_to_torch(capsys: pytest.CaptureFixture[str]) -> None:
    engine = make_engine(LooksAtTheBatchSize(), CPU, 16)
    assert engine.name == "torch, cpu"
    assert "differs from torch's" in capsys.readouterr().err


def test_without_openvino_torch_computes_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    engines._note_once.cache_clear()
    network = features._Pooled(make_backbone("tiny"), "avg")
    assert make_engine(network, CPU, 32).name == "torch, cpu"
    assert "pip install openvino" in capsys.readouterr().err
    assert make_engine(network, CPU, 32).name == "torch, cpu"
    assert capsys.readouterr().err == ""  # said once is enough
    assert make_engine(network, CPU, 32, quiet=True).name == "torch, cpu"
    assert capsys.readouterr().err == ""


def test_the_command_writes_features_labels_and_classes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(3):
            pixels = generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / name / f"{i}.png")
    command = [
        "features",
        "folder",
        "--root",
        "set",
        "--backbone",
        "tiny",
        "--images-per-class",
        "2",
        "--views",
        "1",
        "-o",
        "f",
    ]
    program = "import sys, oodml.cli; sys.argv[0] = 'oodml'; oodml.cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "2 × 4 × 64 features of tiny" in done.stdout
    with np.load(tmp_path / "f.npz") as written:
        assert written["embeddings"].shape == (2, 4, 64)
        assert written["labels"].tolist() == [0, 0, 1, 1] and written["classes"].tolist() == ["ant", "bee"]


def test_the_public_name_is_this_function() -> None:
    assert oodml.extract_features is extract_features


def test_weights_beside_a_backbone_that_has_its_own_are_refused():
    ds = oodml.load_dataset("glyphs").subset([0, 1])
    told = r"weights='/nonexistent' would not be read: the backbone 'tiny' is given with its weights"
    with pytest.raises(OodmlError, match=told):
        extract_features(ds, make_backbone("tiny"), weights="/nonexistent")
    with pytest.raises(OodmlError, match=told):
        oodml.evaluate_pretrained(ds, backbones=[{"name": make_backbone("tiny"), "weights": "/nonexistent"}])
