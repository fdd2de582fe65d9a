"""Numbered SQL files; each is applied in one transaction with its number, under a lock."""
