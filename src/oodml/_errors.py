"""The one exception of the package.

Every message says what is wrong, what is accepted and what to do; the command line prints it without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OodmlError(ValueError):
    """An error that the user can correct: a name, a value, a file, a folder."""


def unknown_name(kind: str, name: object, valid: Iterable[str]) -> OodmlError:
    """The error for a name that is not registered: the nearest match first, then every valid name."""
    names = sorted(set(valid))
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return OodmlError(f"Unknown {kind} {name!r}.{hint} Valid names: {', '.join(names) or '(none)'}.")
