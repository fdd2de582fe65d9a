"""Benchmarks: the product compared with bare SQL that writes the same rows. Run `python -m benchmarks`."""
