"""`oodml features`: compute and keep the features of a dataset."""

from __future__ import annotations

from pathlib import Path

import typer

from oodml._errors import OodmlError
from oodml.cli._app import app, out
from oodml.cli._inputs import DATASET, ROOT_OPTION, open_dataset, quietly, readable


@app.command()
def features(
    dataset: str = DATASET,
    root: Path = ROOT_OPTION,
    backbone: str = typer.Option("tf_efficientnet_lite0", help="A registered backbone or any timm model."),
    weights: Path = typer.Option(None, help="A weights file (.pth, .safetensors) instead of the published weights."),
    views: int = typer.Option(0, min=0, help="How many augmented copies to add to the evaluation view."),
    per_class: int = typer.Option(None, min=1, help="At most so many images per class; enough for measuring shift."),
    size: int = typer.Option(None, help="Side of the images in pixels; default: the dataset's, at least 64."),
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    seed: int = typer.Option(0, min=0, help="Seed of the augmented views and of --per-class."),
    output: Path = typer.Option(None, "--output", "-o", help="Write embeddings, labels and classes to this .npz file."),
) -> None:
    """Compute pooled features of every image of DATASET.

    They are cached: a second call is instant.
    """
    import numpy as np

    import oodml
    from oodml._files import atomic_file

    if output and output.suffix not in (".npz", ""):
        raise OodmlError(f"-o {output}: features are written as .npz.")
    ds = readable(open_dataset(dataset, root))
    if per_class:
        ds = ds.sample(per_class, seed=seed)
    options = {"weights": weights, "views": views, "size": size, "device": device, "seed": seed}
    found = quietly(oodml.extract_features, ds, backbone, **options)
    shape = " × ".join(f"{n:,}" for n in found.shape)
    out.print(f"{ds.name}: {shape} features of {backbone} ({len(ds.classes)} classes)", highlight=False)
    if output:
        target = output.with_suffix(".npz")
        with atomic_file(target) as temporary, temporary.open("wb") as file:
            np.savez(file, embeddings=found, labels=ds.labels, classes=np.array(ds.classes))
        out.print(f"written to {target}", highlight=False, soft_wrap=True)
