"""The optimiser's step, called directly on a CPU: torch's own to the bit."""

import copy

import pytest
import torch
from torch import nn

from oodml.training.optimiser import update


def groups_of(parts: nn.ModuleList) -> list[dict]:
    return [
        {"params": [*parts[0].parameters()], "lr": 1e-2, "weight_decay": 4e-4},
        {"params": [*parts[1].parameters()], "lr": 5e-4, "weight_decay": 0.0},
    ]


@pytest.mark.parametrize("exact", [False, True])
def test_an_update_is_a_step_of_torch(exact: bool):
    """Over groups of their own rates, parameters that join late or rest, and a state that was saved and loaded."""
    torch.manual_seed(0)
    ours = nn.ModuleList([nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20)), nn.Linear(20, 3)])
    if exact:
        ours[1].double()  # two kinds of numbers in one optimiser: left to torch
    theirs = copy.deepcopy(ours)
    left, right = (torch.optim.Adam(groups_of(parts), fused=True) for parts in (ours, theirs))
    whole_steps = []
    step = torch.optim.Adam.step
    for turn in range(12):
        for group in (*left.param_groups, *right.param_groups):
            group["lr"] *= 0.9
        for number, (a, b) in enumerate(zip(ours.parameters(), theirs.parameters(), strict=True)):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
            if (number == 2 and turn < 3) or (number >= 4 and turn in (5, 6)):
                a.grad = b.grad = None
        step(right)
        left.step = lambda: (whole_steps.append(turn), step(left))  # noqa: B023 - called at once
        update(left)
        assert all(parameter.grad is None for parameter in ours.parameters())
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
        if turn == 8:
            saved = copy.deepcopy(left.state_dict())
            left = torch.optim.Adam(groups_of(ours), fused=True)
            left.load_state_dict(saved)
    # torch makes the states: of all at first, of the third where it joins; otherwise the kernel is called directly.
    assert whole_steps == ([t for t in range(12) if t not in (5, 6)] if exact else [0, 3])
    for a, b in zip(left.state.values(), right.state.values(), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in ("step", "exp_avg", "exp_avg_sq"))
