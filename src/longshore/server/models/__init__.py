"""Models of requests and responses."""
