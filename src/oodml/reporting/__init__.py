"""The page people look at; this room reads a study and writes nothing but its own files."""

from oodml.reporting.page import write_page

__all__ = ["write_page"]
