"""The page people look at; this room reads a study and writes nothing but its own files."""

from oodml.reporting.study_page import report

__all__ = ["report"]
