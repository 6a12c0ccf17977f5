"""Finished studies, read from their folders alone: the table of all runs, recall at one size of test set, the standing
of the methods, and files for other programs."""

from oodml.study.results.leaderboard import as_markdown, leaderboard, percent, ranking, standing_words
from oodml.study.results.load import known_splits, load_study, spaces_table
from oodml.study.results.matched import METRIC, smallest_test_set
from oodml.study.results.scored import scored_as, scored_file, scored_labels, scored_on, valid_scores

__all__ = [
    "METRIC",
    "as_markdown",
    "known_splits",
    "leaderboard",
    "load_study",
    "percent",
    "ranking",
    "scored_as",
    "scored_file",
    "scored_labels",
    "scored_on",
    "smallest_test_set",
    "spaces_table",
    "standing_words",
    "valid_scores",
]
