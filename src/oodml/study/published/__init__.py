"""The published numbers of the four papers, and a study of one's own beside them."""

from oodml.study.published.beside import (
    SideBySide,
    comparable_tables,
    compare_with_published,
    matching_tables,
    reading_notes,
)
from oodml.study.published.tables import Published, published, published_fids, published_tables

__all__ = [
    "Published",
    "SideBySide",
    "comparable_tables",
    "compare_with_published",
    "matching_tables",
    "published",
    "published_fids",
    "published_tables",
    "reading_notes",
]
