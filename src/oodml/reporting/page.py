"""One self-contained HTML page of a study: the answer in words, the curves, the tables."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from oodml._files import atomic_file
from oodml.reporting.figures import ags_bars, inline_svg, score_against_shift
from oodml.study.table import StudyTable

STYLE = """
:root { color-scheme: light dark; --line: #8884; --muted: #808891; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.answer { font-size: 1.1rem; border-left: 4px solid #0072B2; padding-left: 1rem; }
.muted { color: var(--muted); } .scroll { overflow-x: auto; } .figure { width: 100%; height: auto; }
table { border-collapse: collapse; } th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); }
td { text-align: right; font-variant-numeric: tabular-nums; } td:first-child, th:first-child { text-align: left; }
"""


def write_page(table: StudyTable, out: Path, title: str, metrics: list[str], how: dict[str, str]) -> Path:
    """Write the page of a study to `out`; `how` says in a few lines how the results were made."""
    sections = [f"<h1>{escape(title)}</h1>", f'<p class="answer">{escape(answer(table, metrics[-1]))}</p>']
    for metric in metrics:
        sections.append(f"<h2>{escape(metric)} against the shift</h2>")
        sections.append(inline_svg(score_against_shift(table, metric)))
        sections.append(score_table(table, metric))
    sections.append(f"<h2>Summed up over all splits: AGS of {escape(metrics[-1])}</h2>")
    sections.append(inline_svg(ags_bars(table, metrics[-1])))
    facts = "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in how.items())
    sections.append(f'<h2>How it was made</h2><div class="scroll"><table>{facts}</table></div>')
    html = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f"<body>{''.join(sections)}</body></html>\n"
    )
    with atomic_file(out) as temporary:
        temporary.write_text(html, encoding="utf-8")
    return out


def answer(table: StudyTable, metric: str) -> str:
    """The first lines of the page: who generalises best, by how much, and whether that can be told from noise."""
    ranking = list(table.ags(metric).items())
    if not ranking:
        return "No method has finished on every split yet, so none can be ranked."
    best, score = ranking[0]
    interval = f" ± {100 * score.half_width:.1f}" if score.n > 1 else ""
    text = f"{best} generalises best: AGS {100 * score.mean:.1f}{interval} ({metric})."
    if len(ranking) > 1:
        text += " " + table.compare(metric, best, ranking[1][0]).sentence
    return text


def score_table(table: StudyTable, metric: str) -> str:
    """Methods down, splits across, AGS at the end; the untrained backbone as the last row."""
    head = "".join(f"<th>{escape(s)}<br>FID {f:.1f}</th>" for s, f in zip(table.splits, table.fids, strict=True))
    ranking, rows = table.ags(metric), []
    for method in table.methods:
        cells = [table.cell(metric, method, split) for split in table.splits]
        values = "".join(f"<td>{100 * c.mean:.1f}</td>" if c else "<td>–</td>" for c in cells)
        total = f"{100 * ranking[method].mean:.1f}" if method in ranking else "–"
        rows.append(f"<tr><td>{escape(method)}</td>{values}<td><b>{total}</b></td></tr>")
    untrained = table.untrained(metric)
    if not np.isnan(untrained).any():
        values = "".join(f"<td>{100 * v:.1f}</td>" for v in untrained)
        rows.append(f'<tr class="muted"><td>untrained</td>{values}<td></td></tr>')
    return (
        f'<div class="scroll"><table><thead><tr><th>method</th>{head}<th>AGS</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
