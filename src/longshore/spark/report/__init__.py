"""The report: one page with plots that people can read, and its tables as CSV."""
