"""The table that connects runs of an earlier version with what they are called now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

IDENTITIES = "identities.json"


@dataclass(frozen=True)
class Identities:
    """For each run of an earlier version its new names, or why it is stale: its settings compute another result now."""

    renamed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stale: Mapping[str, str] = field(default_factory=dict)
    _folders: Mapping[str, str] = field(init=False, repr=False)  # new name -> folder

    def __post_init__(self) -> None:
        folders = {new: old for old, names in self.renamed.items() for new in names}
        object.__setattr__(self, "_folders", folders)

    def folder(self, run_id: str) -> str:
        """The name of the folder of a run."""
        return self._folders.get(run_id, run_id)

    @property
    def known(self) -> set[str]:
        return {*self.renamed, *self.stale}

    def to_json(self) -> dict[str, Any]:
        return {"renamed": {old: list(names) for old, names in self.renamed.items()}, "stale": dict(self.stale)}

    @classmethod
    def from_json(cls, held: Any) -> Identities:
        if held is None:
            return cls()
        return cls({old: tuple(names) for old, names in held["renamed"].items()}, held["stale"])
