"""The lake: the history of a store as tables, with atomic versions."""
