"""Registered datasets; each module registers its own."""
