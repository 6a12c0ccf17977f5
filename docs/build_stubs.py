"""Write the typed stubs of `oodml.losses` and `oodml.miners` from their registries: `python docs/build_stubs.py`.

Editors and type checkers then know the classes (`oodml.losses.Margin`) and, for every name, the options of
`oodml.make_loss` and `oodml.make_miner`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from pathlib import Path
from typing import get_type_hints

import oodml
from oodml._registry import Record
from oodml.losses import loss_records
from oodml.miners import miner_records

PACKAGE = Path(oodml.__file__).parent
HEAD = """# Written by docs/build_stubs.py from the registered {kind}. Do not edit.
# ruff: noqa
# fmt: off
from collections.abc import Callable
from typing import Any, Literal, overload

import torch

from oodml._registry import Record, Registry
"""
LOSSES = """from oodml.losses.base import Loss as Loss
from oodml.losses.proxies import PaperRate as PaperRate, ProxyLoss as ProxyLoss
from oodml.losses.registry import REGISTRY as REGISTRY, list_losses as list_losses, loss_record as loss_record
from oodml.losses.registry import loss_records as loss_records, register_loss as register_loss
from oodml.losses.tuples import PairLoss as PairLoss, PairMaskLoss as PairMaskLoss, TupleLoss as TupleLoss
from oodml.miners import Miner
"""
MINERS = """from oodml.miners.base import Miner as Miner, Pairs as Pairs, Partners as Partners, Triplets as Triplets
from oodml.miners.base import PairMiner as PairMiner, PartnerMiner as PartnerMiner, TripletMiner as TripletMiner
from oodml.miners.registry import REGISTRY as REGISTRY, build_miner as build_miner, list_miners as list_miners
from oodml.miners.registry import miner_record as miner_record, miner_records as miner_records
from oodml.miners.registry import register_miner as register_miner
"""
CONTEXT = {
    "num_classes": "int | None = None",
    "embedding_dim": "int | None = None",
    "miner": "str | dict[str, Any] | Miner | Callable[..., Any] | None = None",
    "generator": "torch.Generator | None = None",
}


def stub(kind: str, records: list[Record], names: Collection[str] | None = None) -> str:
    """The stub of a package; `names`: of these records alone."""
    ours = [r for r in records if r.factory.__module__.startswith(f"oodml.{'losses' if kind == 'loss' else 'miners'}.")]
    chosen = [r for r in ours if names is None or r.name in names]
    imports = [f"from {r.factory.__module__} import {r.factory.__name__} as {r.factory.__name__}" for r in chosen]
    parts = [HEAD.format(kind={"loss": "losses", "miner": "miners"}[kind]) + (LOSSES if kind == "loss" else MINERS)]
    parts += ["\n".join(imports), "", *(overload(kind, record) for record in chosen), overload(kind, None)]
    return "\n".join(parts) + "\n"


def overload(kind: str, record: Record | None) -> str:
    """`make_loss` or `make_miner` for one name; None: for any other name."""
    given = CONTEXT if kind == "loss" else {"generator": CONTEXT["generator"]}
    wanted = inspect.signature(record.factory).parameters if record else given
    arguments = [f"{name}: {kind}" for name, kind in given.items() if name != "miner" or name in wanted]
    if record is None:
        return (
            f"@overload\ndef make_{kind}(name: str, *, {', '.join(arguments)}, **options: Any) -> {kind.title()}: ..."
        )
    hints = get_type_hints(record.factory.__init__)
    arguments += [f"{name}: {shown(hints[name])} = {default!r}" for name, default in record.defaults.items()]
    names = ", ".join(repr(name) for name in (record.name, *record.aliases))
    made = record.factory.__name__
    return f"@overload\ndef make_{kind}(name: Literal[{names}], *, {', '.join(arguments)}) -> {made}: ..."


def shown(hint: object) -> str:
    text = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    return re.sub(r"(typing|oodml\.miners\.base)\.", "", text)


STUBS = {
    PACKAGE / "losses/__init__.pyi": ("loss", loss_records),
    PACKAGE / "miners/__init__.pyi": ("miner", miner_records),
}

if __name__ == "__main__":
    for path, (kind, records) in STUBS.items():
        path.write_text(stub(kind, records()), encoding="utf-8")
