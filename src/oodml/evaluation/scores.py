"""The result of `evaluate`: a dict of fractions, with the neighbours found and notes on what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from oodml._errors import OodmlError, unknown_name
from oodml.evaluation.estimate import class_means, group_means, interval_over_classes
from oodml.evaluation.neighbours import Neighbours


class Scores(dict[str, float]):
    """Metric name → score, a fraction in [0, 1]; a plain dict to `json.dumps` and `==`.

    Attributes:
        neighbours: the neighbours each query was ranked by; None when no requested metric needed a search.
        notes: what was excluded or approximated, by topic ("singletons", "approximate", …).
        per_query: retrieval metric → (Q,) float64, NaN where the query is left out.
    """

    def __init__(
        self,
        values: Mapping[str, float],
        *,
        neighbours: Neighbours | None = None,
        notes: Mapping[str, Any] | None = None,
        per_query: Mapping[str, Tensor] | None = None,
        ids: Tensor | None = None,
        class_names: list | None = None,
        superclasses: Mapping[Any, str] | None = None,
    ) -> None:
        super().__init__(values)
        self.neighbours = neighbours
        self.notes: dict[str, Any] = dict(notes or {})
        self.per_query: dict[str, Tensor] = dict(per_query or {})
        self._ids, self._class_names, self._superclasses = ids, class_names, superclasses

    def per_class(self, metric: str = "recall@1") -> dict[Any, float]:
        """Mean of `metric` over the queries of each class; classes without such queries are left out."""
        return class_means(self._values_of(metric), *self._classes())

    def per_superclass(
        self, metric: str = "recall@1", superclasses: Mapping[Any, str] | None = None
    ) -> dict[str, float]:
        """Mean of `metric` over the queries of each superclass; `superclasses` maps a label to its name."""
        return group_means(self._values_of(metric), *self._classes(), superclasses or self._superclasses)

    def interval(
        self, metric: str = "recall@1", level: float = 0.95, draws: int = 1000, seed: int = 0
    ) -> tuple[float, float]:
        """Bootstrap interval of `metric` over classes: its variation with other classes of the same kind."""
        return interval_over_classes(self._values_of(metric), self._classes()[0], level, draws, seed)

    def _values_of(self, metric: str) -> Tensor:
        if metric not in self.per_query:
            raise unknown_name("metric with one value per query:", metric, self.per_query)
        return self.per_query[metric]

    def _classes(self) -> tuple[Tensor, list]:
        if self._ids is None or self._class_names is None:
            raise OodmlError("These scores have no classes: evaluate with one label per row to get scores by class.")
        return self._ids, self._class_names
