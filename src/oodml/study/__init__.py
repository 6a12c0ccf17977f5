"""Studies: many runs over splits of rising shift, summed up."""

from oodml.study.ags import ags

__all__ = ["ags"]
