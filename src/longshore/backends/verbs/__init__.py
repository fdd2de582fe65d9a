"""The verbs of the contract, written once as plain functions over the `Transaction` port."""
