"""The data sets, one a file; every file registers its own."""
