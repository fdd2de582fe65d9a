"""The routes, one file for each thing a client speaks of."""
