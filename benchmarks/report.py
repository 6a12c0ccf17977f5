"""Time and size of a report of 360 runs: 8 methods × 9 splits × 5 seeds, made up, with galleries and maps.

    python benchmarks/report.py [--dataset glyphs] [--root FOLDER_OR_TAR]

Wanted: under 20 s and 15 MB on two cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from pathlib import Path
from types import ModuleType

from oodml.reporting import report

METHODS = ["margin", "multisimilarity", "arcface", "proxyanchor", "R-margin", "uniform-prior", "s2sd", "diva"]


def study_maker() -> ModuleType:
    """The module of the tests that writes a study's folder as runs would."""
    path = Path(__file__).parents[1] / "tests" / "reporting" / "conftest.py"
    spec = importlib.util.spec_from_file_location("reporting_conftest", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="glyphs")
    parser.add_argument("--root")
    options = parser.parse_args()
    data = {"name": options.dataset, "root": options.root} if options.root else options.dataset
    levels = {name: 0.55 + 0.02 * i for i, name in enumerate(METHODS)}
    with tempfile.TemporaryDirectory() as folder:
        study = study_maker().write_study(Path(folder) / "study", data, levels, 9, 5, dim=128)
        wall, work = time.perf_counter(), time.process_time()
        page = report(study.table, Path(folder) / "report.html")
        wall, work = time.perf_counter() - wall, time.process_time() - work
        size = page.stat().st_size / 1e6
    print(f"360 runs on {options.dataset}: {wall:.1f} s ({work:.1f} s of processor time), {size:.1f} MB")


if __name__ == "__main__":
    main()
