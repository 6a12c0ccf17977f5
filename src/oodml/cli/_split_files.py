"""Read a split file, open its dataset, and extract the features that the splits were made with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml._errors import OodmlError
from oodml.cli._inputs import BACKBONE, Described, describe, note, open_dataset

if TYPE_CHECKING:
    from oodml.data import Dataset
    from oodml.shift import SplitDistances, Splits

FILE = typer.Argument(help="Split file; FILE#NAME takes one split of a series.")


def counted_splits(series: Splits) -> str:
    return f"{len(series)} split{'s' * (len(series) != 1)}"


def describe_for(
    series: Splits, dataset: str | None, root: Path | None, backbone: str | None, weights: Path | None
) -> Described:
    """The dataset that the splits name, with features of the network that they were built with."""
    ds = open_for(series, dataset, root)
    _check_classes(series, ds)
    built_with = series[0].provenance.get("backbone")
    chosen = backbone or (built_with if built_with and "fingerprint" in series[0].provenance else BACKBONE)
    data = describe(ds, chosen, weights)
    for split in series:
        # Splits are made from the readable images, so those are compared.
        if split.provenance.get("fingerprint", data.ds.fingerprint) != data.ds.fingerprint:
            note(f"{split.name} was made from another copy of {ds.name}: distances may differ.")
    return data


def open_for(series: Splits, dataset: str | None, root: Path | None) -> Dataset:
    """The requested dataset, else the one that the splits name."""
    spec = settings_for(series, dataset, root)
    return open_dataset(spec["name"], spec.get("root"))


def settings_for(series: Splits, dataset: str | None, root: Path | str | None) -> dict[str, Any]:
    """That dataset as in settings; a folder with the path it had when the splits were made."""
    from oodml.data import dataset_spec

    name = dataset or series[0].dataset
    if not name:
        raise OodmlError("The splits do not name their dataset: pass --dataset.")
    if name == "folder" and root is None:
        was = series[0].provenance.get("root")
        if was is None or not Path(was).exists():
            gone = f"which is no longer at {was}" if was else "and do not say which"
            raise OodmlError(f"The splits are of images in a folder, {gone}: give it with --root.")
        root = was
    return dataset_spec(name, root)


def _check_classes(series: Splits, ds: Dataset) -> None:
    for split in series:
        ds.class_ids(split.train)
        if split.test_dataset is None:
            ds.class_ids(split.test)
        missing = len(set(ds.classes) - set(split.train) - set(split.test))
        if missing and split.test_dataset is None and split.provenance.get("stage") not in ("removal", None):
            note(f"{split.name} leaves out {missing} classes of {ds.name}.")


def distances_for(series: Splits, data: Described, test_root: Path | None, weights: Path | None) -> SplitDistances:
    from oodml.shift import SplitDistances

    other = series[0].test_dataset
    test = describe(open_dataset(other, test_root), data.backbone, weights).labelled if other else None
    return SplitDistances(*data.labelled, test=test)
