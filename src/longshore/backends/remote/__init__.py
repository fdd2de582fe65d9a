"""A store behind a server: the same contract over HTTP."""
