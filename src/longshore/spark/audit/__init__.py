"""The audit: replays every job's history against the table of legal transitions, on Spark."""
