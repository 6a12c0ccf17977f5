"""Open a dataset: by its name, by the path of a folder or tar, or by settings that hold one of the two."""

from __future__ import annotations

import difflib
import inspect
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oodml._errors import OodmlError, unknown_name
from oodml._registry import Record, Registry
from oodml.data.dataset import Dataset, build_dataset
from oodml.data.sources import all_images

REGISTRY = Registry("dataset", "oodml.data.sets", "oodml.datasets", context=("root", "strict"))
register_dataset = REGISTRY.register
list_datasets = REGISTRY.names
dataset_records = REGISTRY.records


def load_dataset(
    dataset: str | Path | Mapping[str, Any] | Dataset,
    root: str | Path | None = None,
    strict: bool = False,
    **options: Any,
) -> Dataset:
    """Open a dataset. Nothing is ever downloaded.

    dataset  a registered name (`list_datasets()`), the path of a folder of class folders or of a tar of one, or a
             mapping with this as "name" and with options: `{"name": "folder", "root": ..., "images_per_class": 20}`
    root     where the images of a named dataset are; for `cub200` and `cars196` by default `$OODML_DATA/NAME`, else
             `./data/NAME`
    strict   raise if the copy is incomplete; otherwise that is a warning

    Classes of a single image give a warning.
    """
    if isinstance(dataset, Dataset):
        return dataset
    spec = {"strict": strict, **options, **dataset_spec(dataset, root)}
    record = REGISTRY[spec.pop("name")]
    taken = inspect.signature(record.factory).parameters
    context = {"root": spec.pop("root", None), "strict": spec.pop("strict")}
    if context["root"] is not None and "root" not in taken and not record.takes_any_keyword:
        raise OodmlError(f"The dataset {record.name!r} comes with the package and takes no root; leave it out.")
    _check_options(record, spec)
    ds = REGISTRY.make(record.name, context=context, **spec)
    if not isinstance(ds, Dataset):
        raise OodmlError(
            f"The dataset {record.name!r} must be an oodml Dataset, but its factory made {type(ds).__name__}."
        )
    for problem in ds.warnings:
        warnings.warn(f"{ds.name}: {problem}", stacklevel=2)
    return ds


def load_unlabelled(dataset: str | Path, root: str | Path | None = None) -> Dataset:
    """Every image of a folder or tar, at any depth, as one class; a registered name gives that dataset."""
    path = Path(dataset).expanduser()
    if root is not None or dataset in REGISTRY or not path.exists():
        return load_dataset(dataset, root)
    source = all_images(path)
    return build_dataset("folder", source, ["images"] * len(source))


def dataset_spec(dataset: str | Path | Mapping[str, Any], root: str | Path | None = None) -> dict[str, Any]:
    """What a name, a path or a mapping says, as settings: the registered name, "root" where one is given, options.

    A registered name is preferred to a folder of that name in the working directory; `./NAME` is the folder.
    """
    if isinstance(dataset, Mapping):
        if "name" not in dataset:
            raise OodmlError(f"A dataset given as a mapping needs the key 'name', got {dict(dataset)!r}.")
        return {**dataset, **dataset_spec(dataset["name"], dataset.get("root", root))}
    if isinstance(dataset, str) and dataset in REGISTRY:
        spec = {"name": REGISTRY[dataset].name}
    elif isinstance(dataset, Path) or (isinstance(dataset, str) and (os.sep in dataset or Path(dataset).exists())):
        spec = _spec_of_path(Path(dataset))
    else:
        raise _unknown_dataset(dataset)
    return spec if root is None else {**spec, "root": str(root)}


def dataset_setting(dataset: str | Path | Mapping[str, Any]) -> str | dict[str, Any]:
    """`dataset_spec` in its short form: a name without further settings is that name."""
    spec = dataset_spec(dataset)
    return spec if len(spec) > 1 else spec["name"]


def _spec_of_path(path: Path) -> dict[str, Any]:
    """The registered dataset that reads what is at `path`. A new format of files is recognised here."""
    return {"name": "folder", "root": str(path)}


def _unknown_dataset(name: object) -> OodmlError:
    known = [each for record in dataset_records() for each in (record.name, *record.aliases)]
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "Check the path."
    return OodmlError(f"{name!r} is not a dataset ({', '.join(known)}) and not a folder or tar. {hint}")


def _check_options(record: Record, options: Mapping[str, Any]) -> None:
    """Raise for an option that a dataset does not take; to a user its root is an option like the others."""
    taken = set(inspect.signature(record.factory).parameters)
    for key in options:
        if key not in taken and not record.takes_any_keyword:
            raise unknown_name(f"option of dataset {record.name!r}:", key, taken)
