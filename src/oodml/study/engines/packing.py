"""Which GPU a run goes to: as many small runs side by side as its memory holds, by what such runs were seen to need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oodml.study.plan import PlannedRun

SHARE = 0.9  # of a GPU's memory that runs may fill
CONTEXT = 600 << 20  # bytes that CUDA itself takes for each process

Size = tuple[str | int | None, ...]


def size_of(run: PlannedRun) -> Size:
    """What a run's memory depends on: runs that agree in it need the same."""
    settings = run.config.resolved()
    method = settings.method or ""
    name = method if isinstance(method, str) else method["name"]
    return settings.backbone, settings.train, settings.batch_size, settings.embedding_dim, settings.grad_cache, name


@dataclass
class Packing:
    """Memory by GPU (bytes), and what runs of each size needed at their peak, learnt as they end."""

    memory: Mapping[str, int]
    needs: dict[Size, int] = field(default_factory=dict)

    def place(self, size: Size, tenants: Sequence[tuple[str, Size]]) -> str | None:
        """The GPU with most room for a run among its `tenants` (device, size); None: wait.

        A run of a size never seen goes to an empty GPU and has it alone, until its need is known.
        """
        best: tuple[int, str] | None = None
        for device, memory in self.memory.items():
            there = [each for where, each in tenants if where == device]
            if there and (size not in self.needs or any(each not in self.needs for each in there)):
                continue
            room = int(SHARE * memory) - sum(self.needs[each] for each in there)
            if (not there or self.needs[size] <= room) and (best is None or room > best[0]):
                best = room, device
        return best[1] if best else None

    def learn(self, size: Size, peak: int) -> None:
        """Note the peak of a run that ended (bytes of tensors and cached blocks)."""
        self.needs[size] = max(self.needs.get(size, 0), peak + CONTEXT)
