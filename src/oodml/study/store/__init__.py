"""Where the runs of a study live: one folder a run, named by the hash of its settings.

A store is a folder, or any URL that fsspec knows (s3://, gs://, …), so that machines need no common disk. A run is done
when its result.json stands there, which is written last and whole; whoever works on a run holds a claim on it.
"""

from oodml.study.store.folder import AUDITED, EMBEDDINGS, FAILED, FEW_SHOT, RESULT, TRANSFER, Store
from oodml.study.store.identities import IDENTITIES, Identities
from oodml.study.store.open import open_store

__all__ = [
    "AUDITED",
    "EMBEDDINGS",
    "FAILED",
    "FEW_SHOT",
    "IDENTITIES",
    "RESULT",
    "TRANSFER",
    "Identities",
    "Store",
    "open_store",
]
