# Written by docs/build_stubs.py from the registered losses. Do not edit.
# ruff: noqa
# fmt: off
from collections.abc import Callable
from typing import Any, Literal, overload

import torch

from oodml._registry import Record, Registry
from oodml.losses.base import Loss as Loss
from oodml.losses.proxies import PaperRate as PaperRate, ProxyLoss as ProxyLoss
from oodml.losses.registry import REGISTRY as REGISTRY, list_losses as list_losses, loss_record as loss_record
from oodml.losses.registry import loss_records as loss_records, register_loss as register_loss
from oodml.losses.tuples import PairLoss as PairLoss, PairMaskLoss as PairMaskLoss, TupleLoss as TupleLoss
from oodml.miners import Miner

from oodml.losses.angular import Angular as Angular
from oodml.losses.arcface import ArcFace as ArcFace
from oodml.losses.circle import Circle as Circle
from oodml.losses.contrastive import Contrastive as Contrastive
from oodml.losses.cosface import CosFace as CosFace
from oodml.losses.crossbatch import CrossBatch as CrossBatch
from oodml.losses.genlifted import GenLifted as GenLifted
from oodml.losses.histogram import Histogram as Histogram
from oodml.losses.margin import Margin as Margin
from oodml.losses.multisimilarity import MultiSimilarity as MultiSimilarity
from oodml.losses.normsoftmax import NormSoftmax as NormSoftmax
from oodml.losses.npair import NPair as NPair
from oodml.losses.ntxent import NTXent as NTXent
from oodml.losses.proxyanchor import ProxyAnchor as ProxyAnchor
from oodml.losses.proxynca import ProxyNCA as ProxyNCA
from oodml.losses.proxynca_plus import ProxyNCAPlus as ProxyNCAPlus
from oodml.losses.quadruplet import Quadruplet as Quadruplet
from oodml.losses.smoothap import SmoothAP as SmoothAP
from oodml.losses.snr import SNR as SNR
from oodml.losses.softtriple import SoftTriple as SoftTriple
from oodml.losses.supcon import SupCon as SupCon
from oodml.losses.triplet import Triplet as Triplet

@overload
def make_loss(name: Literal['angular'], *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, alpha: float = 45.0, weight: float = 2.0, nu: float = 0.005, one_positive: bool = False, squared_norm: bool = True, clamp: float | None = None) -> Angular: ...
@overload
def make_loss(name: Literal['arcface'], *, num_classes: int | None = None, embedding_dim: int | None = None, generator: torch.Generator | None = None, scale: float = 16.0, margin: float = 0.5, clamp_negative: bool = False, lr: float = 0.0005) -> ArcFace: ...
@overload
def make_loss(name: Literal['circle'], *, num_classes: int | None = None, embedding_dim: int | None = None, generator: torch.Generator | None = None, margin: float = 0.4, gamma: float = 80.0) -> Circle: ...
@overload
def make_loss(name: Literal['contrastive'], *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, margin: float = 1.0) -> Contrastive: ...
@overload
def make_loss(name: Literal['cosface'], *, num_classes: int | None = None, embedding_dim: int | None = None, generator: torch.Generator | None = None, scale: float = 64.0, margin: float = 0.35, lr: float = 0.0005) -> CosFace: ...
@overload
def make_loss(name: Literal['crossbatch'], *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, base: str | dict[str, Any] = 'contrastive', memory_size: int = 1024, warmup: int = 0) -> CrossBatch: ...
@overload
def make_loss(name: Literal['genlifted'], *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, margin: float = 1.0, nu: float = 0.005, squared_norm: bool = True) -> GenLifted: ...
@overload
def make_loss(name: Literal['histogram'], *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, bins: int = 65) -> Histogram: ...
@overload
def make_loss(name: Literal['margin'], *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, margin: float = 0.2, beta: float = 1.2, beta_lr: float = 0.0005, learn_beta: bool = True, per_class: bool = True, normaliser: Literal['terms', 'triplets'] = 'terms') -> Margin: ...
@overload
def make_loss(name: Literal['multisimilarity'], *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, alpha: float = 2.0, beta: float = 40.0, lam: float = 0.5, epsilon: float | None = None, qualifying_only: bool = False) -> MultiSimilarity: ...
@overload
def make_loss(name: Literal['normsoftmax'], *, num_classes: int | None = None, embedding_dim: int | None = None, generator: torch.Generator | None = None, temperature: float = 0.05, lr: float = 1e-05) -> NormSoftmax: ...
@overload
def make_loss(name: Literal['npair'], *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, nu: float = 0.005, one_positive: bool = False, squared_norm: bool = True) -> NPair: ...
@overload
def make_loss(name: Literal['ntxent', 'infonce'], *, num_classes: int | None = None, embedding_dim: int | None = None, generator: torch.Generator | None = None, temperature: float = 0.07) -> NTXent: ...
@overload
def make_loss(name: Literal['proxyanchor'], *, num_classes: int | None = None, embedding_dim: int | None = None, generator: torch.Generator | None = None, alpha: float = 32.0, delta: float = 0.1, init: Literal['uniform', 'normal', 'kaiming'] = 'kaiming', lr: float = 0.02) -> ProxyAnchor: ...
@overload
def make_loss(name: Literal['proxynca'], *, num_classes: int | None = None, embedding_dim: int | None = None, generator: torch.Generator | None = None, radius: float = 3.0, squared: bool = True, lr: float = 0.0005) -> ProxyNCA: ...
@overload
def make_loss(name: Literal['proxynca++'], *, num_classes: int | None = None, embedding_dim: int | None = None, generator: torch.Generator | None = None, temperature: float = 0.1111111111111111, lr: float = 0.0005) -> ProxyNCAPlus: ...
@overload
def make_loss(name: Literal['quadruplet'], *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, margin: float = 1.0, margin2: float = 0.5, fourth: Literal['class', 'position'] = 'class') -> Quadruplet: ...
@overload
def make_loss(name: Literal['smoothap'], *, num_classes: int | None = None, embedding_dim: int | None = None, generator: torch.Generator | None = None, temperature: float = 0.01, include_anchor: bool = False) -> SmoothAP: ...
@overload
def make_loss(name: Literal['snr'], *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, margin: float = 0.2, lam: float = 0.005) -> SNR: ...
@overload
def make_loss(name: Literal['softtriple'], *, num_classes: int | None = None, embedding_dim: int | None = None, generator: torch.Generator | None = None, centres: int = 2, scale: float = 8.0, gamma: float = 0.1, margin: float = 0.01, tau: float = 0.2, lr: float = 1e-05) -> SoftTriple: ...
@overload
def make_loss(name: Literal['supcon'], *, num_classes: int | None = None, embedding_dim: int | None = None, generator: torch.Generator | None = None, temperature: float = 0.1) -> SupCon: ...
@overload
def make_loss(name: Literal['triplet'], *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, margin: float = 0.2, squared: bool = False) -> Triplet: ...
@overload
def make_loss(name: str, *, num_classes: int | None = None, embedding_dim: int | None = None, miner: str | dict[str, Any] | Miner | Callable[..., Any] | None = None, generator: torch.Generator | None = None, **options: Any) -> Loss: ...
