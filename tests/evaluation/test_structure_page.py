"""The examples of docs/metrics.md run."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_examples_of_the_page_run_in_order():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 3
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert 0 <= names["scores"]["nmi"] <= 1
    assert set(names["shape"]) == {"pi_intra", "pi_inter", "pi_ratio", "rho", "uniformity", "alignment"}
    assert names["deep"] > 0
    assert next(iter(names["rates"])) == "fnmr@fmr=1e-1"
    assert names["drift"]["other_fmr"] > names["drift"]["fmr"]
