"""The history lake: events as tables that can be queried for years, changed only as a whole."""
