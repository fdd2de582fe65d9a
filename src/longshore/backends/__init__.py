"""Stores for jobs: the contract they share, and the ones that ship with Longshore."""
