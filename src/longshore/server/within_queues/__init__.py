"""The verbs of the contract for a caller who is bound to some queues: nothing of others is touched or even seen."""
