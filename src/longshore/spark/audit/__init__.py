"""The audit: every job's history, replayed against the table of legal transitions by as many machines as there are."""
