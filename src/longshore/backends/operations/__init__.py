"""The operations of the contract, written once as plain functions over a write transaction."""
