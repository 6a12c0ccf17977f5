from __future__ import annotations

import errno
import pickle
import tarfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import oodml
from oodml import OodmlError
from oodml.data import IMAGE_EXTENSIONS, build_dataset, load_dataset, load_images
from oodml.data.sources import FileSource, TarSource


def tar_of(folder: Path, target: Path, prefix: str = "") -> Path:
    with tarfile.open(target, "w") as archive:
        archive.add(folder, arcname=prefix or ".")
    return target


def test_class_folders_give_sorted_classes_and_half_of_them_for_training(birds: Path):
    ds = load_dataset("folder", root=birds)
    assert ds.classes == ["crow", "gull", "jay", "wren"]
    assert ds.labels.dtype == np.int64 and np.bincount(ds.labels).tolist() == [3, 4, 5, 6]
    assert ds.default_split == oodml.Split(["crow", "gull"], ["jay", "wren"], name="default", dataset="folder")
    assert ds.superclasses is None and ds.warnings == () and ds.image_size == 224
    assert ds.path(0) == "crow/0.png" and ds.image(0).mode == "RGB" and ds.image(0).size == (30, 50)


def test_a_data_set_may_be_named_by_a_mapping(birds: Path):
    assert len(oodml.load_dataset({"name": "folder", "root": birds})) == 18


def test_a_tar_of_the_folder_is_the_same_data_set(birds: Path, tmp_path: Path):
    folder = load_dataset("folder", root=birds)
    for prefix in ("", "birds"):  # a tar of the folder's content, and of the folder itself
        ds = load_dataset("folder", root=tar_of(birds, tmp_path / f"x{prefix}.tar", prefix))
        assert ds.classes == folder.classes and ds.labels.tolist() == folder.labels.tolist()
        for i in (0, 7, 17):
            assert np.array_equal(np.asarray(ds.image(i)), np.asarray(folder.image(i)))


def test_a_tar_is_read_by_several_processes_at_once(birds: Path, tmp_path: Path):
    ds = load_dataset("folder", root=tar_of(birds, tmp_path / "x.tar"))
    here = [np.asarray(ds.image(i)) for i in range(len(ds))]  # also opens the file before the fork
    assert len(pickle.loads(pickle.dumps(ds.source))) == len(ds)
    with ProcessPoolExecutor(3, mp_context=get_context("fork")) as pool:
        there = list(pool.map(ds.source.image, [*range(len(ds))] * 5))
    assert all(np.array_equal(np.asarray(a), here[i % len(ds)]) for i, a in enumerate(there))


def test_two_levels_are_super_class_and_class(birds: Path, tmp_path: Path):
    root = tmp_path / "zoo"
    (root / "corvids").mkdir(parents=True)
    (root / "others").mkdir()
    for name, family in {"crow": "corvids", "jay": "corvids", "gull": "others", "wren": "others"}.items():
        (birds / name).rename(root / family / name)
    ds = load_dataset("folder", root=root)
    assert ds.classes == ["crow", "gull", "jay", "wren"]
    assert ds.superclasses == ["corvids", "others", "corvids", "others"]
    (root / "others" / "jay").mkdir()  # the same word in two families names two classes
    Image.new("RGB", (4, 4)).save(root / "others" / "jay" / "x.png")
    (root / "others" / "jay" / "y.png").write_bytes((root / "others" / "jay" / "x.png").read_bytes())
    ds = load_dataset("folder", root=root)
    assert {"corvids/jay", "others/jay"} <= set(ds.classes)
    assert ds.superclasses[ds.classes.index("others/jay")] == "others"


def test_other_and_hidden_files_are_no_images(birds: Path):
    (birds / "crow" / ".hidden.png").write_bytes(b"x")
    (birds / "crow" / "readme.txt").write_text("x")
    (birds / "loose.png").write_bytes(b"x")
    ds = load_dataset("folder", root=birds)
    assert len(ds) == 18
    assert any(note.startswith("Files ignored") and note.endswith(": 2.") for note in ds.notes)


def test_files_with_an_extension_of_an_image_are_images(tmp_path: Path):
    (tmp_path / "a").mkdir()
    for ending in IMAGE_EXTENSIONS:
        Image.new("RGB", (4, 4)).save(tmp_path / "a" / f"image{ending.upper()}")
    Image.new("RGB", (4, 4)).save(tmp_path / "a" / "image.gif")
    assert len(load_dataset("folder", root=tmp_path)) == len(IMAGE_EXTENSIONS)


def test_fingerprint_follows_the_source(birds: Path):
    first = load_dataset("folder", root=birds).fingerprint
    assert load_dataset("folder", root=birds).fingerprint == first
    Image.new("RGB", (9, 9)).save(birds / "crow" / "0.png")
    second = load_dataset("folder", root=birds).fingerprint
    (birds / "crow" / "0.png").unlink()
    third = load_dataset("folder", root=birds).fingerprint
    (birds / "crow").rename(birds / "raven")
    assert len({first, second, third, load_dataset("folder", root=birds).fingerprint}) == 4


def test_subset_keeps_labels_and_remembers_where_it_came_from(birds: Path):
    ds = load_dataset("folder", root=birds)
    part = ds.subset([17, 0, 5]).subset([2, 0])
    assert part.labels.tolist() == ds.labels[[5, 17]].tolist() and part.classes == ds.classes
    assert part.path(1) == ds.path(17)
    assert part.parent[0] is ds and part.parent[1].tolist() == [5, 17]
    assert part.fingerprint != ds.subset([17, 5]).fingerprint == ds.subset([17, 5]).fingerprint
    with pytest.raises(OodmlError, match="between 0 and 17"):
        ds.subset([18])


def test_sample_takes_a_seeded_few_of_each_class(birds: Path):
    ds = load_dataset("folder", root=birds)
    few = ds.sample(4, seed=1)
    assert np.bincount(few.labels).tolist() == [3, 4, 4, 4]
    assert (np.diff(few.parent[1]) > 0).all()
    assert few.fingerprint == ds.sample(4, seed=1).fingerprint != ds.sample(4, seed=2).fingerprint
    drawn = {tuple(ds.sample(1, seed=s).parent[1]) for s in range(30)}
    assert len(drawn) > 10  # not always the same image of a class


def test_a_folder_is_reduced_to_the_same_few_classes_and_images_every_time(birds: Path):
    ds = load_dataset("folder", root=birds, images_per_class=2, most_classes=3)
    assert sorted(np.bincount(ds.labels, minlength=4).tolist()) == [0, 2, 2, 2]
    assert ds.classes == load_dataset("folder", root=birds).classes  # numbers of classes mean the same
    again = load_dataset({"name": "folder", "root": birds, "images_per_class": 2, "most_classes": 3})
    assert again.fingerprint == ds.fingerprint != load_dataset("folder", root=birds, images_per_class=2).fingerprint
    left = [ds.classes[label] for label in np.unique(ds.labels)]
    assert (ds.default_split.train, ds.default_split.test) == (left[:1], left[1:])


@pytest.mark.parametrize("option", [{"images_per_class": 0}, {"most_classes": 1}, {"most_classes": -1}])
def test_a_folder_is_not_reduced_to_nothing(birds: Path, option: dict[str, int]):
    with pytest.raises(OodmlError, match=f"{next(iter(option))} must be at least"):
        load_dataset("folder", root=birds, **option)


def test_links_that_lead_back_are_not_walked(birds: Path, tmp_path: Path):
    expected = load_dataset("folder", root=birds)
    (birds / "crow" / "self").symlink_to(".")
    (birds / "gull" / "parent").symlink_to("..")
    (birds / "jay" / "above").symlink_to(birds.parent)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other").symlink_to(birds / "wren")  # round a corner
    (birds / "wren" / "more").symlink_to(tmp_path / "more")
    ds = load_dataset("folder", root=birds)
    assert [ds.path(i) for i in range(len(ds))] == [expected.path(i) for i in range(len(expected))]
    assert ds.notes == ("Files ignored, not an image (.jpg, .jpeg, .png, .webp, .bmp) in a class folder: 4.",)


def test_a_link_to_images_elsewhere_is_walked(birds: Path, tmp_path: Path):
    (tmp_path / "linked").mkdir()
    for name in ("crow", "gull"):
        (tmp_path / "linked" / name).symlink_to(birds / name)
    assert len(load_dataset("folder", root=tmp_path / "linked")) == 7


def test_a_link_to_no_image_is_one_that_cannot_be_read(birds: Path, cache: Path):
    for name, target in (("gone.jpg", "nowhere.jpg"), ("self.jpg", "self.jpg")):
        (birds / "crow" / name).symlink_to(target)
    ds = load_dataset("folder", root=birds)
    with pytest.warns(UserWarning, match=r"2 of 20 images .* cannot be read: crow/gone\.jpg .*; crow/self\.jpg "):
        assert len(load_images(ds, quiet=True).dataset) == 18


def test_indices_of_classes(birds: Path):
    ds = load_dataset("folder", root=birds)
    assert ds.indices_of(["gull", "crow"]).tolist() == list(range(7))
    with pytest.raises(OodmlError, match="Did you mean 'gull'"):
        ds.indices_of(["gul"])


def test_a_class_of_one_image_is_kept_and_named(birds: Path):
    (birds / "owl").mkdir()
    Image.new("RGB", (9, 9)).save(birds / "owl" / "a.png")
    with pytest.warns(UserWarning, match=r"positive pair: 'owl'\. Such images are kept as negatives"):
        ds = load_dataset("folder", root=birds)
    assert "owl" in ds.classes


def test_bad_roots_say_what_is_expected(tmp_path: Path, image):
    with pytest.raises(OodmlError, match=r"needs a root \(--root\)"):
        load_dataset("folder")
    with pytest.raises(OodmlError, match=r"Unknown option of dataset 'folder': 'rot'. Did you mean 'root'"):
        load_dataset({"name": "folder", "rot": tmp_path})
    with pytest.raises(OodmlError, match=r"No folder or tar at .*nowhere: check the path"):
        load_dataset("folder", root=tmp_path / "nowhere")
    with pytest.raises(OodmlError, match="No images found"):
        load_dataset("folder", root=tmp_path)
    image().save(tmp_path / "a.png")
    with pytest.raises(OodmlError, match="are not in class folders"):
        load_dataset("folder", root=tmp_path)
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    image().save(deep / "a.png")
    (tmp_path / "z").mkdir()
    image().save(tmp_path / "z" / "a.png")
    with pytest.raises(OodmlError, match="at different depths, or too deep"):
        load_dataset("folder", root=tmp_path)


def test_bad_tars_are_one_sentence(birds: Path, tmp_path: Path):
    good = tar_of(birds, tmp_path / "good.tar")
    cut = tmp_path / "cut.tar"
    cut.write_bytes(good.read_bytes()[:-20_000])
    with pytest.raises(OodmlError, match=r"cut\.tar"):
        load_dataset("folder", root=cut)
    text = tmp_path / "text.tar"
    text.write_text("no tar")
    with pytest.raises(OodmlError, match="cannot be read as an uncompressed tar"):
        load_dataset("folder", root=text)
    with pytest.raises(OodmlError, match="Unpack it"):
        load_dataset("folder", root=_touch(tmp_path / "x.tgz"))


def _touch(path: Path) -> Path:
    path.touch()
    return path


def test_names_and_options_are_checked(birds: Path):
    with pytest.raises(OodmlError, match="Did you mean 'folder'"):
        load_dataset("foldr", root=birds)
    with pytest.raises(OodmlError, match="Unknown option of dataset 'folder': 'rot'"):
        load_dataset("folder", rot=birds)
    with pytest.raises(OodmlError, match="takes no root"):
        load_dataset("glyphs", root=birds)
    with pytest.raises(OodmlError, match="needs the key 'name'"):
        load_dataset({"root": birds})


def test_a_user_registers_a_data_set(birds: Path):
    from oodml.data.load import REGISTRY as DATASETS

    @oodml.register_dataset("my-birds")
    def mine(root: Path, letters: str = "cg"):
        """Birds of mine."""
        names = sorted(p.relative_to(root).as_posix() for p in Path(root).rglob("*.*") if p.parent.name[0] in letters)
        return build_dataset("my-birds", FileSource(root, names), [n.split("/")[0] for n in names])

    oodml.register_dataset("wrong", lambda: 3)
    try:
        assert "my-birds" in oodml.list_datasets()
        assert load_dataset("my-birds", root=birds).classes == ["crow", "gull"]
        assert load_dataset("my-birds", root=birds, letters="w").classes == ["wren"]
        with pytest.raises(OodmlError, match="must be an oodml Dataset, but its factory made int"):
            load_dataset("wrong")
    finally:
        for name in ("my-birds", "wrong"):
            del DATASETS._records[name]


def test_tar_source_reads_exactly_its_member(tmp_path: Path):
    path = tmp_path / "raw"
    Image.new("RGB", (3, 2), "red").save(tmp_path / "a.bmp")
    content = (tmp_path / "a.bmp").read_bytes()
    path.write_bytes(b"junk" + content + b"junk")
    source = TarSource(path, ["a.bmp"], np.array([4]), np.array([len(content)]))
    assert source.image(0).getpixel((0, 0)) == (255, 0, 0)


def test_a_passing_fault_of_the_disk_is_not_taken_for_another_image(birds: Path, monkeypatch):
    """It would have changed the fingerprint: everything decoded again, and runs told that images have changed."""

    def failing(path):
        raise OSError(errno.EIO, "Input/output error")

    source = FileSource(birds, ["crow/0.png"])
    monkeypatch.setattr("oodml.data.sources.os.stat", failing)
    with pytest.raises(OSError, match="Input/output error"):
        source.fingerprint()
