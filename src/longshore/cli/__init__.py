"""The `longshore` command."""
