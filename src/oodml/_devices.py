"""Where to compute: the one place where the name of a device becomes a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oodml._errors import OodmlError

if TYPE_CHECKING:
    import torch


def pick_device(device: str | torch.device) -> torch.device:
    """The device of this name ("auto": a GPU where there is one), or an error that says what can be used here."""
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise OodmlError(
            f"device={str(device)!r} is none torch knows: use 'auto', 'cpu', 'cuda' or 'cuda:1'."
        ) from None
    if chosen.type == "cuda":
        _check_cuda(chosen)
    elif chosen.type != "cpu" and not _computes(chosen):
        raise OodmlError(f"device={str(device)!r} cannot compute here: use 'auto', 'cpu', 'cuda' or 'cuda:1'.")
    return chosen


def _check_cuda(chosen: torch.device) -> None:
    import torch

    if not torch.cuda.is_available():
        raise OodmlError(
            f"device={str(chosen)!r} was asked for, but torch finds no CUDA device here. Use device='cpu' or 'auto'."
        )
    if (chosen.index or 0) >= torch.cuda.device_count():
        raise OodmlError(
            f"device={str(chosen)!r} was asked for, and this machine has {torch.cuda.device_count()} (from 0)."
        )


def _computes(chosen: torch.device) -> bool:
    """Whether a number can be put there and read back; `meta` has shapes alone, others may need a driver."""
    import torch

    try:
        return float(torch.zeros(1, device=chosen)) == 0
    except Exception:  # every backend that is not there says so in an exception of its own
        return False
