"""Which run a folder holds, and of which images: what is repeated, resumed and refused."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from oodml import OodmlError
from oodml.adaptation import embed_run
from oodml.config import RunConfig
from oodml.data import ArraySource, Transforms, build_dataset, load_dataset, load_images, view_one
from oodml.losses import register_loss
from oodml.shift import Split, make_episodes
from oodml.training import result as results
from oodml.training import train
from oodml.training.distributed import Processes
from oodml.training.embedder import load_embedder
from oodml.training.scoring import embed


@pytest.fixture
def image_folder(tmp_path):
    """`image_folder("name", seed)`: a folder of eight classes of four images each."""

    def make(name: str, seed: int) -> dict[str, str]:
        root = tmp_path / name
        for i, pixels in enumerate(np.random.default_rng(seed).integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)):
            (root / f"class-{i // 4}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / f"class-{i // 4}" / f"{i}.png")
        return {"name": "folder", "root": str(root)}

    return make


def short(settings, **values) -> RunConfig:
    return settings(**{"steps": 4, "batch_size": 8, "samples_per_class": 2, "selection": "last", **values})


def test_other_settings_leave_an_unfinished_run_as_it_was(settings, killed_after):
    config = settings(checkpoint_every=1)
    with killed_after(5), pytest.raises(RuntimeError, match="killed"):
        train(config)
    file = Path(config.out) / "config.yaml"
    before = file.read_bytes()
    with pytest.raises(OodmlError, match=r"other settings \(method: .*'margin'} there, .*'triplet'} here\)"):
        train(settings(method="triplet"))
    assert file.read_bytes() == before
    assert train(config).data["steps"] == 12


def test_a_folder_of_something_else_is_refused_and_not_changed(settings, image_folder):
    root = image_folder("mine", 0)["root"]
    with pytest.raises(OodmlError, match=r"is not empty and holds no run \(class-0, class-1, class-2 and 5 more\)"):
        train(short(settings, out=root))
    assert sorted(each.name for each in Path(root).iterdir()) == [f"class-{i}" for i in range(8)]


def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing(settings):
    config = short(settings, lr=1e30)
    with pytest.raises(OodmlError, match="learning rate"):
        train(config)
    assert not Path(config.out).exists()


def test_a_large_batch_of_the_same_images_is_refused(settings):
    with pytest.raises(OodmlError, match=r"batch_size=9,000 would hold each of the 64 training images 140 times"):
        train(short(settings, batch_size=9000))


def test_a_run_of_two_passes_is_repeated_from_its_own_settings(settings):
    found = train(settings(selection="val-then-full"))
    saved = RunConfig.load(found.path / "config.yaml")
    assert saved.selection == found.data["selection"] == found.data["config"]["selection"] == "val-then-full"
    assert train(saved).data == found.data


def test_changed_images_are_noticed(settings, killed_after, image_folder):
    folder = image_folder("mine", 0)
    finished = short(settings, dataset=folder)
    begun = short(settings, dataset=folder, out=finished.out + "-begun", seed=1, checkpoint_every=1)
    old = train(finished)
    with killed_after(2), pytest.raises(RuntimeError, match="killed"):
        train(begun)
    Image.new("RGB", (16, 16)).save(Path(folder["root"]) / "class-0" / "new.png")
    with pytest.warns(UserWarning, match="have changed since the run"):
        assert train(finished).data == old.data
    with pytest.raises(OodmlError, match="have changed since the run"):
        train(begun)


def test_a_result_is_read_without_its_images(settings, image_folder):
    folder = image_folder("mine", 0)
    config = short(settings, dataset=folder)
    found = train(config)
    Path(folder["root"]).rename(folder["root"] + "-elsewhere")
    assert train(config).data == found.data


def test_a_run_is_used_from_anywhere_and_without_its_split_file(settings, image_folder, tmp_path, monkeypatch):
    image_folder("mine", 0)
    monkeypatch.chdir(tmp_path)
    dataset = load_dataset("folder", root="mine")
    split = make_episodes(Split(dataset.classes[:4], dataset.classes[4:], name="mine"), dataset, shots=2, episodes=3)
    split.save("mysplit.json")
    config = short(settings, dataset={"name": "folder", "root": "mine"}, split="mysplit.json", out="run")
    found = train(config)
    assert train(config).data == found.data
    rows, _ = embed_run("run")
    with pytest.raises(OodmlError, match=r"other settings \(seed: 0 there, 1 here\)"):
        train(config.model_copy(update={"seed": 1}))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    Path("../mysplit.json").unlink()
    saved = RunConfig.load("../run/config.yaml")
    assert saved.hash() == found.data["config_hash"]
    assert saved.split.episodes == split.episodes
    assert torch.equal(embed_run("../run")[0], rows)
    assert found.data["config"]["dataset"]["root"] == str(tmp_path / "mine")
    assert train(saved.model_copy(update={"out": "../run"})).data == found.data


def test_names_that_are_not_utf8_are_accepted(settings, image_folder):
    folder = image_folder("mine", 0)
    root = Path(folder["root"])
    (root / "class-0").rename(root / os.fsdecode(b"class-\xff"))
    (root / "class-1" / "4.png").rename(root / "class-1" / os.fsdecode(b"\xe9.png"))
    (root / "class-1" / os.fsdecode(b"\xe8.png")).write_bytes(b"broken")
    names = load_dataset(folder).classes
    split = Split(names[:3] + names[-1:], names[3:-1], name="odd")
    with pytest.warns(UserWarning, match="cannot be read"):
        found = train(short(settings, dataset=folder, split=split, selection="val"))
        assert len(embed_run(found.path)[1]) == 16
    assert found.data["config"]["split"]["train"] == split.train
    assert RunConfig.load(found.path / "config.yaml").split.train == split.train


def test_another_folder_is_embedded_whole_and_the_own_one_by_its_split(settings, image_folder):
    own, other = image_folder("mine", 0), image_folder("other", 1)
    run = train(short(settings, dataset=own)).path
    assert [len(embed_run(run, each)[1]) for each in (None, own)] == [16, 16]
    warning = r"4 of the 8 classes were trained on \(class-0, class-1, class-2 and 1 more\)"
    with pytest.warns(UserWarning, match=warning):
        assert len(embed_run(run, other)[1]) == 32
    with pytest.warns(UserWarning, match=r"2 of the 3 classes were trained on \(class-0, class-3\)"):
        embed_run(run, own, Split(["class-1", "class-2"], ["class-0", "class-3", "class-5"]))
    Image.new("RGB", (16, 16)).save(Path(own["root"]) / "class-7" / "new.png")
    assert len(embed_run(run, own)[1]) == 17  # the same folder: still only the classes that were not trained on


def test_the_way_of_cropping_counts_for_frozen_backbones_too(settings, tmp_path):
    heads = []
    for transform in ("resized-crop", "crop"):
        out = str(tmp_path / transform)
        train(short(settings, train="head", views=1, transform=transform, out=out, steps=2))
        heads.append(load_embedder(out).embedder.heads["embedding"].weight)
    assert not torch.equal(*heads)


def test_one_validation_class_is_refused(settings):
    names = [f"class-{i:02d}" for i in range(8)]
    split = {"name": "few", "train": names[:4], "val": names[:1], "test": names[4:]}
    with pytest.raises(OodmlError, match="one validation class"):
        train(short(settings, split=split, selection="val"))


@pytest.mark.parametrize("readable", [0, 1])
def test_validation_classes_without_images_do_not_count(settings, image_folder, readable):
    folder = image_folder("mine", 0)
    names = [f"class-{i}" for i in range(8)]
    for name in names[readable:2]:
        for file in (Path(folder["root"]) / name).iterdir():
            file.write_bytes(b"broken")
    split = {"name": "few", "train": names[:5], "val": names[:2], "test": names[5:]}
    config = short(settings, dataset=folder, split=split, selection="val")
    message = f"Of the 2 validation classes of the split 'few' {readable} can be read"
    with pytest.warns(UserWarning, match="cannot be read"), pytest.raises(OodmlError, match=message):
        train(config)
    assert not Path(config.out).exists()


@pytest.mark.parametrize(
    ("mode", "value", "seen"), [("RGBA", (0, 0, 0, 0), 1.0), ("I;16", 40_000, 156 / 255), ("LA", (0, 0), 1.0)]
)
def test_an_embedder_sees_images_as_training_does(settings, tmp_path, mode, value, seen):
    trained = load_embedder(train(short(settings)).path)
    image = Image.new(mode, (16, 16), value)
    image.save(tmp_path / "one.png")
    for given in (image, tmp_path / "one.png"):
        torch.testing.assert_close(trained.prepare(given), torch.full((3, 16, 16), seen))


def _photographs(root: Path) -> None:
    """Eight classes of two JPEGs: odd sizes, landscape and portrait, smaller and larger than the view; one turned."""
    rng = np.random.default_rng(0)
    sizes = [(301, 467), (467, 301), (259, 257), (131, 97), (257, 1031), (1301, 1183), (255, 333), (70, 111)]
    for i, size in enumerate(sizes * 2):
        folder = root / f"class-{i // 2}"
        folder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 9, 3), dtype=np.uint8))
        exif = Image.Exif()
        if i == 15:
            exif[0x0112] = 6
        coarse.resize(size, Image.Resampling.BICUBIC).save(folder / f"{i}.jpg", exif=exif)


@pytest.mark.parametrize("depth", ["all", "head"])
def test_files_are_embedded_as_the_run_embedded_them(settings, tmp_path, depth):
    _photographs(tmp_path / "images")
    spec = {"name": "folder", "root": str(tmp_path / "images")}
    run = train(short(settings, dataset=spec, train=depth, steps=1, batch_size=4, views=0)).path
    trained, saved = load_embedder(run), load_file(run / "embeddings.safetensors")
    indices = saved["indices"].tolist()
    images = load_images(load_dataset(spec), quiet=True)
    files = [tmp_path / "images" / images.dataset.path(i) for i in indices]
    assert torch.equal(torch.stack([trained.prepare(file) for file in files]), images.eval_view(indices))
    # Stored in half precision.
    torch.testing.assert_close(trained(files), saved["embeddings"].float(), atol=5e-4, rtol=1e-3)


def test_small_images_on_cached_features_are_seen_as_in_the_run():
    """Features are of at least 64 pixels: the image is enlarged once, not cut and then enlarged."""
    small = Transforms(size=16, short_side=20)
    rng = np.random.default_rng(0)
    for shape in ((16, 16), (23, 31), (70, 41)):
        image = Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8))
        source = ArraySource(np.asarray(image)[None], ["one.png"])
        images = load_images(build_dataset("small", source, ["one"], transforms=small), quiet=True)
        torch.testing.assert_close(view_one(image, small, 64), images.eval_view([0], 64)[0], atol=1e-5, rtol=0)


def test_an_image_rotated_by_its_exif_tag_is_not_changed(settings):
    trained = load_embedder(train(short(settings)).path)
    image = Image.new("RGB", (16, 32), "white")
    image.getexif()[0x0112] = 6
    trained.prepare(image)
    assert image.size == (16, 32)


def test_a_process_without_images_has_rows_of_the_right_width(settings):
    trained = load_embedder(train(short(settings)).path)

    class Ones:
        def evaluate(self, positions):
            return torch.ones(len(positions), 3, 16, 16)

    nobody = Processes(rank=3, count=4)
    rows = embed(trained.embedder, trained.method.test_embedding, Ones(), np.arange(5), nobody, 4)
    assert rows.shape == (0, 8)


class Breaking(nn.Module):
    """A loss whose value is finite and whose gradient is not, in one batch."""

    calls = 0

    def forward(self, embeddings, labels):
        type(self).calls += 1
        broken = (embeddings * 0).sum().sqrt() if self.calls == 8 else 0.0  # 0, with an infinite slope
        return embeddings.square().mean() + broken


def test_weights_that_are_no_longer_finite_take_no_checkpoints_place(settings):
    register_loss("breaking-test", lambda: Breaking(), replace=True)
    config = settings(method={"name": "plain", "loss": "breaking-test"}, checkpoint_every=2, eval_every=100)
    for calls in (0, 6):  # from the beginning, and resumed: the eighth batch each time
        Breaking.calls = calls
        with pytest.raises(OodmlError, match=r"no longer finite after step 8.*checkpoint\.pt, after step 6"):
            train(config)
        state = torch.load(Path(config.out) / "checkpoint.pt", weights_only=True)
        assert state["progress"]["step"] == 6
        assert all(torch.isfinite(each).all() for each in state["embedder"].values())
    Breaking.calls = 100
    assert train(config).data["steps"] == 12


def test_seconds_are_those_of_all_starts(settings, killed_after):
    config = settings(checkpoint_every=1)
    with killed_after(6), pytest.raises(RuntimeError, match="killed"):
        train(config)
    before = torch.load(Path(config.out) / "checkpoint.pt", weights_only=True)["progress"]["seconds"]
    found = train(config)
    assert before > 0 and found.data["seconds"] > before
    both = train(settings(selection="val-then-full", out=config.out + "-both"))
    assert both.data["seconds"] > results.load_result(both.path / "search").data["seconds"]


def test_a_repository_around_the_package_is_not_its_own(tmp_path, monkeypatch):
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    git("init", "-q")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "theirs")
    package = tmp_path / "site-packages" / "result.py"
    package.parent.mkdir()
    package.write_text("")
    monkeypatch.setattr(results, "__file__", str(package))
    assert results.git_commit() is None
    git("add", "-A")
    assert results.git_commit() is not None


def test_a_registered_dataset_is_the_same_wherever_it_is():
    here, there, named = ({"name": "patterns", "root": "/a"}, {"name": "patterns", "root": "/b"}, "patterns")
    assert len({RunConfig(dataset=each).hash() for each in (here, there, named)}) == 1


def test_a_folder_is_the_same_however_its_path_is_written(tmp_path, monkeypatch):
    (tmp_path / "pics").mkdir()
    (tmp_path / "link").symlink_to("pics")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    written = ["pics", "./pics", "pics/../pics/", "~/pics", "link", tmp_path / "pics", str(tmp_path / "pics")]
    hashes = {RunConfig(dataset={"name": "folder", "root": each}).hash() for each in written}
    assert len(hashes) == 1
    assert RunConfig(dataset={"name": "folder", "root": "other"}).hash() not in hashes


def test_a_sampler_without_class_groups_takes_any_batch():
    assert RunConfig(sampler="spc-r", batch_size=113).batch_size == 113
    with pytest.raises(OodmlError, match="does not divide"):
        RunConfig(sampler="spc", batch_size=113)
