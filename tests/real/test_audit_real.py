"""The audit of a real folder: 600 images of 20 kinds of birds."""

import tarfile
from pathlib import Path

import pytest

import oodml

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def take(archive: Path, folder: Path, classes: int, per_class: int) -> Path:
    """A folder with the first images of `classes` classes of a tar, at equal distances in their order."""
    with tarfile.open(archive) as tar:
        by_class: dict[str, list[tarfile.TarInfo]] = {}
        for member in tar:
            if member.isfile() and member.name.endswith(".webp"):
                by_class.setdefault(member.name.split("/")[-2], []).append(member)
        names = sorted(by_class)
        for name in names[:: len(names) // classes][:classes]:
            (folder / name).mkdir(parents=True)
            for member in sorted(by_class[name], key=lambda each: each.name)[:per_class]:
                content = tar.extractfile(member)
                assert content is not None
                (folder / name / Path(member.name).name).write_bytes(content.read())
    return folder


@pytest.mark.real
@pytest.mark.long
def test_birds_are_audited_with_the_small_budget(tmp_path, monkeypatch):
    if not (DATA / "cub200.tar").exists():
        pytest.skip(f"the audit of real images needs {DATA / 'cub200.tar'}")
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "cache"))
    birds = take(DATA / "cub200.tar", tmp_path / "birds", 20, 30)
    assert len(list(birds.glob("*/*.webp"))) == 600
    found = oodml.audit(birds, out=tmp_path / "audit", quiet=True)
    table = found.table
    untrained = table.means("recall@1")[table.methods.index("untrained tf_efficientnet_lite0")]
    assert 0.7 < untrained.min() <= untrained.max() < 0.99
    assert untrained[0] > untrained[-1], "less shift should be easier"
    assert (found.blocks, len(table.trained)) == (3, 3)
    assert 0.7 < found.expected["unlike"].recall < found.expected["like"].recall < 1
    assert any("unseen classes unlike yours" in sentence for sentence in found.answer)
