"""The operations of the contract for a caller whose token is bound to some queues."""
