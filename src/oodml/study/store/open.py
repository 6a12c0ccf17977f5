"""Which store an address means."""

from __future__ import annotations

from pathlib import Path

from oodml.study.store.folder import Store


def open_store(root: str | Path | Store) -> Store:
    """The store at a path or at a URL."""
    if isinstance(root, Store):
        return root
    if "://" in str(root):
        from oodml.study.store.remote import RemoteStore

        return RemoteStore(str(root))
    return Store(root)
