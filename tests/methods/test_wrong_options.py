"""Options of another kind or out of range are refused in a sentence, before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest

from oodml import OodmlError, make_method


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("s2sd", {"targets": 2048}, "not iterable"),
        ("s2sd", {"targets": [-1]}, "widths"),
        ("s2sd", {"targets": "big"}, "widths"),
        ("s2sd", {"gamma": "a"}, "oodml methods s2sd"),
        ("s2sd", {"layers": 1.5}, "0 to 4 layers"),
        ("s2sd", {"feature_start": -1}, "at least 0"),
        ("s2sd", {"feature_windows": [2]}, "height, width"),
        ("s2sd", {"feature_windows": 3}, "cannot be made"),
        ("s2sd", {"feature_windows": [3, 3], "variant": "msd"}, "feature_distill=True"),
        ("s2sd", {"setup": "joint", "topology": "nested"}, "has no distillation"),
        ("s2sd", {"setup": "concurrent", "distillation": "cosine"}, "has no distillation"),
        ("s2sd", {"detach": "no"}, "True or False"),
        ("s2sd", {"temperature": float("nan")}, "temperature > 0"),
        ("mixup", {"alpha": "x"}, "cannot be made"),
        ("mixup", {"layers": 3}, "cannot be made"),
        ("sharing", {"groups": 10}, "triplets='groups'"),
        ("uniform_prior", {"every": 0}, "every"),
        ("uniform_prior", {"hidden": 0}, "hidden"),
        ("distil", {}, "teacher"),
    ],
)
def test_a_wrong_option_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OodmlError, match=said):
        make_method(name, **options)
