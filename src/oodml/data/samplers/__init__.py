"""The batch samplers, one a file; every file registers its own."""
