# Written by docs/build_stubs.py from the registered miners. Do not edit.
# ruff: noqa
# fmt: off
from collections.abc import Callable
from typing import Any, Literal, overload

import torch

from oodml._registry import Record, Registry
from oodml.miners.base import Miner as Miner, Pairs as Pairs, Partners as Partners, Triplets as Triplets
from oodml.miners.base import PairMiner as PairMiner, PartnerMiner as PartnerMiner, TripletMiner as TripletMiner
from oodml.miners.registry import REGISTRY as REGISTRY, build_miner as build_miner, list_miners as list_miners
from oodml.miners.registry import miner_record as miner_record, miner_records as miner_records
from oodml.miners.registry import register_miner as register_miner

from oodml.miners.all import All as All
from oodml.miners.distance import DistanceWeighted as DistanceWeighted
from oodml.miners.easy_positive import EasyPositive as EasyPositive
from oodml.miners.hard import Hard as Hard
from oodml.miners.intra import Intra as Intra
from oodml.miners.lifted import Lifted as Lifted
from oodml.miners.multisimilarity import MultiSimilarity as MultiSimilarity
from oodml.miners.npair import NPair as NPair
from oodml.miners.random import Random as Random
from oodml.miners.rho import Rho as Rho
from oodml.miners.semihard import Semihard as Semihard
from oodml.miners.shared import Shared as Shared
from oodml.miners.softhard import Softhard as Softhard

@overload
def make_miner(name: Literal['all'], *, generator: torch.Generator | None = None) -> All: ...
@overload
def make_miner(name: Literal['distance'], *, generator: torch.Generator | None = None, lower: float = 0.5, upper: float | None = 1.4) -> DistanceWeighted: ...
@overload
def make_miner(name: Literal['easy-positive'], *, generator: torch.Generator | None = None) -> EasyPositive: ...
@overload
def make_miner(name: Literal['hard'], *, generator: torch.Generator | None = None) -> Hard: ...
@overload
def make_miner(name: Literal['intra'], *, generator: torch.Generator | None = None, distinct: bool = True) -> Intra: ...
@overload
def make_miner(name: Literal['lifted'], *, generator: torch.Generator | None = None) -> Lifted: ...
@overload
def make_miner(name: Literal['multisimilarity'], *, generator: torch.Generator | None = None, epsilon: float = 0.1) -> MultiSimilarity: ...
@overload
def make_miner(name: Literal['npair'], *, generator: torch.Generator | None = None) -> NPair: ...
@overload
def make_miner(name: Literal['random'], *, generator: torch.Generator | None = None) -> Random: ...
@overload
def make_miner(name: Literal['rho'], *, generator: torch.Generator | None = None, base: str | dict[str, Any] | Miner = 'distance', p_switch: float = 0.35) -> Rho: ...
@overload
def make_miner(name: Literal['semihard'], *, generator: torch.Generator | None = None, margin: float | None = None) -> Semihard: ...
@overload
def make_miner(name: Literal['shared'], *, generator: torch.Generator | None = None, mode: Literal['full', 'standard', 'permuted'] = 'full', lower: float = 0.5, upper: float | None = 1.4) -> Shared: ...
@overload
def make_miner(name: Literal['softhard'], *, generator: torch.Generator | None = None) -> Softhard: ...
@overload
def make_miner(name: str, *, generator: torch.Generator | None = None, **options: Any) -> Miner: ...
