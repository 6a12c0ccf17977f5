"""Studies that come with the package."""

from __future__ import annotations

from oodml.study.config import BuildSplits, StudyConfig

THREE_METHODS = {
    "margin": "margin",
    "multisimilarity": "multisimilarity",
    "R-margin": {"name": "rho", "base": "margin"},
}


def demo_study(small: bool = False) -> StudyConfig:
    """Three methods over five splits of `glyphs`, a minute or two on two CPU cores; `small`: a few seconds."""
    return StudyConfig(
        name="glyphs",
        dataset="glyphs",
        splits=BuildSplits(n_splits=5, images_per_class=2 if small else 6),
        methods=THREE_METHODS,
        run={"backbone": "tiny", "embedding_dim": 64, "steps": 10 if small else 120, "eval_every": 10 if small else 40},
    )
