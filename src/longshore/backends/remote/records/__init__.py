"""The records of the contract as JSON, both ways and exact."""
