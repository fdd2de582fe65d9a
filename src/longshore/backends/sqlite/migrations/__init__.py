"""Numbered SQL files; each is applied in one transaction with the version it leads to."""
