"""The HTTP platform: the API, live events, health, metrics and the status page."""
