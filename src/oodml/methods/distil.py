"""Two-stage distillation: a student learns from a teacher that was trained before (what S2SD is compared with)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from oodml._checks import require_choice
from oodml._errors import OodmlError
from oodml.methods.base import Batch, Context, Teacher
from oodml.methods.distillation import DISTILLATIONS, GAMMA, check_strength, relations
from oodml.methods.objective import Spec
from oodml.methods.plain import HEAD, Plain
from oodml.methods.registry import register_method
from oodml.models.embedder import Embedder, Pooled


@register_method(
    "distil",
    paper="Roth et al. 2021, S2SD, table 7 (Distill Student)",
    search={"gamma": (1.0, 250.0)},
    revision=2,
)
class Distil(Plain):
    """The base loss, and the relations of a finished run's embedding as a target.

        L = L_base(f) + γ · KD(f ← teacher)

    `teacher` is a finished run, usually one of a larger `embedding_dim`: its folder, or {"run": ID} for the run of
    that ID in the folder next to this run's. In a study it is {"method": LABEL}: the run of that label with the same
    split, seed and settings, which the study trains first. The teacher is given the same views and is not trained.
    KD, `distillation`, `temperature` and the default `gamma` are those of S2SD.
    """

    mixable = False  # the teacher is given views that are not mixed

    def __init__(
        self,
        teacher: str | Mapping[str, str],
        base: Spec = "multisimilarity",
        gamma: float = GAMMA,
        temperature: float = 1.0,
        distillation: str = "r-kl",
    ) -> None:
        super().__init__(base)
        require_choice("distil", DISTILLATIONS, distillation=distillation)
        check_strength(gamma, temperature)
        self.teacher, self.gamma, self.temperature = _checked(teacher), gamma, temperature
        self.distil = DISTILLATIONS[distillation]

    def check(self, embedding_dim: int, train: str) -> None:
        super().check(embedding_dim, train)
        if isinstance(self.teacher, str) and not (Path(self.teacher) / "embedder.safetensors").is_file():
            raise OodmlError(f"teacher={self.teacher!r} is not a finished run: train it first, then give its folder.")

    def setup(self, context: Context) -> None:
        super().setup(context)
        # The teacher is needed for training only.
        self.teach = context.load_teacher(self.teacher) if context.load_teacher else None

    def features_loss(self, pooled: Pooled, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        assert self.teach is not None
        embeddings = embedder.apply_heads(pooled, [HEAD]).heads[HEAD]
        target = self.teach(batch.inputs)
        if embedder.gather is not None:
            target = embedder.gather(target)
        distance = self.distil(relations(embeddings), relations(target.detach()), self.temperature)
        return self.objective(embeddings, batch.labels) + self.gamma * distance


def _checked(teacher: object) -> Teacher:
    """The teacher, if it is a folder or {"run": ID}."""
    if isinstance(teacher, str | Path):
        return str(teacher)
    if isinstance(teacher, Mapping) and teacher.keys() == {"run"} and isinstance(teacher["run"], str):
        return dict(teacher)
    raise OodmlError(
        f'teacher is the folder of a finished run, {{"run": ID}}, or in a study {{"method": LABEL}}, got {teacher!r}.'
    )
