"""What the product costs beside bare SQL that writes the same rows: run `python -m benchmarks`."""
