"""The command line: one file a command group, found by scanning this folder; thin: parse, call the library, print."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from rich.markup import escape

from oodml._errors import OodmlError
from oodml._progress import console
from oodml.cli._app import app


def main() -> None:
    """Run `oodml`: an error the user can put right is one sentence, without a traceback."""
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")
    try:
        app()
    except OodmlError as error:
        console.print(f"[bold red]error[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)


__all__ = ["app", "main"]
