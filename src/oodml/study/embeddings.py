"""Embeddings of a study's test images: computed by a function, or read from files."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from oodml._errors import OodmlError
from oodml._progress import stage
from oodml.data import Dataset
from oodml.shift import Split

MANY_FUNCTIONS = 5  # of a module, too many to list them all
Encoder = Callable[[list[Image.Image]], Any]


def find_encoder(address: str) -> Encoder:
    """The function at "module:function"; modules of the current folder are found too."""
    module, _, name = address.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise OodmlError(
            f"The module {module!r} of the encoder {address!r} cannot be imported ({error}). Give module:function, of "
            "an installed module or one in the current folder."
        ) from error
    except Exception as error:
        raise OodmlError(
            f"The module {module!r} of the encoder {address!r} fails when it is imported: {_text(error)}. Correct "
            f'it first; python -c "import {module}" shows where.'
        ) from error
    encoder = getattr(found, name, None)
    if not callable(encoder):
        there = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
        shown = difflib.get_close_matches(name, there, n=1) or (there if len(there) < MANY_FUNCTIONS else [])
        hint = f" Did you mean {' or '.join(f'{module}:{each}' for each in shown)}?" if shown else ""
        raise OodmlError(f"The module {module!r} has no function {name!r}. Give module:function.{hint}")
    return encoder


def _text(error: Exception) -> str:
    """The kind of an error and its message."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _encode(encoder: Encoder, images: list[Image.Image]) -> Any:
    """Call the user's function; its errors are reported as errors of the encoder."""
    try:
        return encoder(images)
    except OodmlError:
        raise
    except Exception as error:
        name = getattr(encoder, "__qualname__", type(encoder).__qualname__)
        raise OodmlError(
            f"The encoder {encoder.__module__}:{name} failed on {len(images)} images: {_text(error)}. It is given "
            "a list of PIL images (RGB, of any size) and must return one vector for each."
        ) from error


def embed_images(
    encoder: Encoder, dataset: Dataset, splits: Sequence[Split], batch_size: int = 64, quiet: bool = False
) -> dict[str, np.ndarray]:
    """Embeddings of every split's test images; each image is embedded once, however many splits test on it."""
    tests = {split.name: dataset.indices_of(split.test) for split in splits}
    wanted = np.unique(np.concatenate(list(tests.values())))
    parts: list[np.ndarray] = []
    with stage("Embedding", len(wanted), quiet) as advance:
        for start in range(0, len(wanted), batch_size):
            rows = wanted[start : start + batch_size]
            parts.append(_vectors(_encode(encoder, [dataset.image(i) for i in rows]), len(rows), "The encoder"))
            advance(len(rows))
    widths = {part.shape[1] for part in parts}
    if len(widths) > 1:
        raise OodmlError(f"The encoder gave vectors of different lengths: {sorted(widths)}.")
    every = np.concatenate(parts)
    return {name: every[np.searchsorted(wanted, rows)] for name, rows in tests.items()}


def read_embeddings(path: Path, dataset: Dataset, splits: Sequence[Split]) -> dict[str, np.ndarray]:
    """Embeddings of every split's test images from a folder of SPLIT.npz, or from one .npz for the whole dataset.

    An .npz holds `embeddings` (n, d) and, unless its rows are the images in the dataset's order (of the test classes
    for a SPLIT.npz), `indices` (positions in the dataset) or `paths` (names below its root). `labels` are optional and
    must be those of the dataset, as a check of the order.
    """
    if path.is_file():
        every = _read_rows(path, dataset, np.arange(len(dataset)))
        return {split.name: every[dataset.indices_of(split.test)] for split in splits}
    missing = [split.name for split in splits if not (path / f"{split.name}.npz").is_file()]
    if missing:
        raise OodmlError(
            f"{path} lacks {', '.join(f'{name}.npz' for name in missing)}: give a folder with one .npz per split "
            f"({', '.join(split.name for split in splits)}), or one .npz with the embeddings of all images."
        )
    return {s.name: _read_rows(path / f"{s.name}.npz", dataset, dataset.indices_of(s.test)) for s in splits}


def _read_rows(file: Path, dataset: Dataset, wanted: np.ndarray) -> np.ndarray:
    """The rows of a file that belong to the images `wanted`, in their order."""
    try:
        with np.load(file, allow_pickle=False) as held:
            arrays = dict(held)
    except (OSError, ValueError, EOFError) as error:
        raise OodmlError(f"{file} cannot be read as .npz ({error}).") from error
    if "embeddings" not in arrays:
        raise OodmlError(f"{file} holds {', '.join(arrays) or 'nothing'}; expected `embeddings` (n, d).")
    vectors = _vectors(arrays["embeddings"], len(arrays["embeddings"]), str(file))
    positions = _positions(file, arrays, dataset, wanted)
    if len(positions) != len(vectors):
        raise OodmlError(
            f"{file} has {len(vectors)} embeddings and {len(positions)} names of images; give one for each."
        )
    if "labels" in arrays and not np.array_equal(arrays["labels"], dataset.labels[positions]):
        raise OodmlError(f"The labels in {file} are not those of {dataset.name!r}: are its rows in another order?")
    row_of = np.full(len(dataset), -1)
    row_of[positions] = np.arange(len(positions))
    rows = row_of[wanted]
    if (rows < 0).any():
        first = dataset.path(int(wanted[np.flatnonzero(rows < 0)[0]]))
        raise OodmlError(f"{file} lacks {int((rows < 0).sum())} of {len(wanted)} images, the first is {first}.")
    return vectors[rows]


def _positions(file: Path, arrays: Mapping[str, np.ndarray], dataset: Dataset, wanted: np.ndarray) -> np.ndarray:
    if "indices" in arrays:
        positions = arrays["indices"].astype(np.int64)
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(dataset):
            raise OodmlError(f"{file}: indices are positions in the dataset, 0 to {len(dataset) - 1}.")
        return positions
    if "paths" in arrays:
        place = {dataset.path(i): i for i in range(len(dataset))}
        unknown = [name for name in arrays["paths"].tolist() if name not in place]
        if unknown:
            raise OodmlError(f"{file}: {unknown[0]!r} is not an image of {dataset.name!r} (e.g. {dataset.path(0)!r}).")
        return np.array([place[name] for name in arrays["paths"].tolist()], dtype=np.int64)
    if len(arrays["embeddings"]) != len(wanted):
        raise OodmlError(
            f"{file} has {len(arrays['embeddings'])} embeddings for {len(wanted)} images. Give one per image in the "
            "dataset's order, or name the images with `indices` or `paths`."
        )
    return wanted


def _vectors(values: Any, count: int, origin: str) -> np.ndarray:
    """(count, d) finite float32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()  # NumPy has no bfloat16
    vectors = np.asarray(values)
    if vectors.ndim != 2 or len(vectors) != count or not np.issubdtype(vectors.dtype, np.number):
        raise OodmlError(
            f"{origin} must give numbers (n, d), one row per image: {count} rows expected, got shape {vectors.shape} "
            f"of {vectors.dtype}."
        )
    vectors = vectors.astype(np.float32)
    if not np.isfinite(vectors).all():
        raise OodmlError(f"{origin} gave NaN or infinite numbers; look at the images it was given.")
    return vectors
