"""How the labels of a study meet the rows of a published table that are called otherwise.

A paper prints one run under several names: the two layers of S2SD's table 10 are R-KL of its table 9. A study does such
a run once. So a row lists the labels that stand for it, after its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

UNTRAINED = "ImageNet"  # what the papers call the backbone before training

# Tables 4 and 9 of Sharing Matters: the two parts of the embedding, and both together.
_PARTS: Mapping[str, Sequence[str]] = {
    "Margin · class": ("Sharing · discriminative",),
    "Margin · shared": ("Sharing · shared",),
    "Margin · class + shared": ("Sharing",),
    **{
        f"{loss} · class": (f"{loss} · class + shared · discriminative",)
        for loss in ("Triplet (S)", "NPair", "ProxyNCA")
    },
    **{f"{loss} · shared": (f"{loss} · class + shared · shared",) for loss in ("Triplet (S)", "NPair", "ProxyNCA")},
}
LABELS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "revisiting-s3": {"Margin": ("Margin β=1.2",)},
    "s2sd-10": {"2 Layers": ("R-KL",)},
    "s2sd-13": {"DSDA, TD=2048": ("R-KL",), "MSDA, #B=4": ("Straight",)},
    "s2sd-14": {"MSDA": ("Straight",)},
    "s2sd-15": {"DSDA, Detached": ("R-KL",), "MSDA, Detached": ("Straight",)},
    "sharing-4": {"Margin · baseline d256": ("Margin d256",), **_PARTS},
    "sharing-5": {"Margin · class": ("Margin · baseline d128",), "Sharing · class": ("Sharing · discriminative",)},
    "sharing-7": {"γ=0": ("both+sep",), "γ=500": ("both+sep+decor",), "both": ("Sharing (both)",)},
    "sharing-8": {
        "Base": ("discr. only",),
        "Sharing": ("both+sep+decor",),
        "Sharing · distance": ("both+sep+decor",),
    },
    "sharing-9": _PARTS,
}


def plain(label: str) -> str:
    """A label whatever its case and spaces."""
    return "".join(label.lower().split())


def own_label(table: str, row: str, labels: Sequence[str], about: Mapping[str, Any]) -> str | None:
    """The label of a study that stands for a row of a published table; None where there is none.

    A label may carry what the whole table is about, such as `ArcFace · resnet50` in one of ResNet50.
    """
    found = {plain(_without(label, about)): label for label in labels} | {plain(label): label for label in labels}
    return next(
        (found[key] for each in (row, *LABELS.get(table, {}).get(row, ())) if (key := plain(each)) in found), None
    )


def _without(label: str, about: Mapping[str, Any]) -> str:
    """The label without the parts that repeat the conditions of a table."""
    backbone = about.get("backbone")
    repeated = {f"d{about.get('embedding_dim')}", backbone, f"{backbone}.tv_in1k"}
    return " · ".join(part for part in label.split(" · ") if part not in repeated)
