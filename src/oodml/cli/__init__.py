"""The command line, one file per command group, found by scanning this folder: parse, call the library, print."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import NoReturn

from oodml._errors import OodmlError
from oodml._progress import console, tell
from oodml.cli._app import app


def main() -> None:
    """Run `oodml`; an error of the user is printed as one sentence, without a traceback."""
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")
    try:
        app()
    except OodmlError as error:
        _fail(str(error))
    except KeyboardInterrupt as stopped:
        console.print("stopped")
        sys.exit(getattr(stopped, "exit_code", 130))
    except (MemoryError, RuntimeError) as error:  # torch raises a RuntimeError when memory is short
        if not _is_out_of_memory(error):
            raise
        _fail(f"There is not enough memory ({error}). Use a smaller batch, fewer images or smaller ones.")


def _fail(message: str) -> NoReturn:
    tell("error", message, "bold red")
    sys.exit(2)


def _is_out_of_memory(error: Exception) -> bool:
    words = ("allocate memory", "out of memory", "not enough memory")
    return isinstance(error, MemoryError) or any(each in str(error) for each in words)


__all__ = ["app", "main"]
