"""The report: one page with charts, and its tables as CSV files."""
