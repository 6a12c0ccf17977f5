"""The audit of a real folder, 600 pictures of 20 kinds of birds, inside the time it was given."""

import tarfile
import time
from pathlib import Path

import pytest

from oodml.study.audit import audit

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def take(archive: Path, folder: Path, classes: int, per_class: int) -> Path:
    """A folder with the first pictures of every so manieth class of a tar."""
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
def test_birds_are_audited_inside_the_time(tmp_path, monkeypatch):
    if not (DATA / "cub200.tar").exists():
        pytest.skip(f"the audit of real pictures needs {DATA / 'cub200.tar'}")
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "cache"))
    birds = take(DATA / "cub200.tar", tmp_path / "birds", 20, 30)
    assert len(list(birds.glob("*/*.webp"))) == 600
    began = time.monotonic()
    found = audit(birds, None, 3, tmp_path / "audit", quiet=True)
    assert time.monotonic() - began < 180
    table = found.table
    untrained = table.means("recall@1")[table.methods.index("untrained tf_efficientnet_lite0")]
    assert 0.7 < untrained.min() <= untrained.max() < 0.99
    assert untrained[0] > untrained[-1], "less shift should be easier"
    assert table.trained, "three minutes suffice for one method at least"
    assert any("unseen classes unlike yours" in sentence for sentence in found.answer)
