"""Everything that people look at: the page of a study, figures, tables and sentences. It reads studies only."""

from oodml.reporting.study_page import report

__all__ = ["report"]
