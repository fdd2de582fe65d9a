"""Gold: what people ask of the history, one room for each table."""
