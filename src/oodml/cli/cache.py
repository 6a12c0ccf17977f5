"""`oodml cache`: how large the cache is, and what of it can go."""

from __future__ import annotations

import time

import typer

from oodml.cli._app import app, out, print_table

DAY = 24 * 3600


@app.command()
def cache(
    clear: bool = typer.Option(False, "--clear", help="Remove what is listed; it is made again when it is needed."),
    unused_for: float = typer.Option(0, help="Only what was not used for so many days.", min=0),
) -> None:
    """Show what is kept between commands, or remove it.

    Decoded pictures and features: how large they are, and when they were used.
    """
    from oodml._files import CACHE_KINDS, cache_entries, cache_root, remove_cached

    now = time.time()
    entries = [entry for entry in cache_entries() if now - entry.used >= unused_for * DAY]
    rows = [[e.path.name, _size(e.size), _ago(now - e.used), e.place] for e in entries if e.kind == "images"]
    for kind in CACHE_KINDS[1:]:  # many small ones: a line for all
        if some := [entry for entry in entries if entry.kind == kind]:
            last = _ago(now - max(entry.used for entry in some))
            rows.append([f"{kind} ({len(some)})", _size(sum(entry.size for entry in some)), last, ""])
    total = _size(sum(entry.size for entry in entries))
    if rows:
        print_table(str(cache_root()), ["what", "size", "last used", "made from"], rows)
    if clear:
        remove_cached(entries)
    out.print(f"{total} {'removed' if clear else 'in all'}", highlight=False)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _ago(seconds: float) -> str:
    return "today" if seconds < DAY else f"{seconds / DAY:.0f} days ago"
