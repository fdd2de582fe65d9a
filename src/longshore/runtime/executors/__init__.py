"""Executors run jobs on the event loop, in threads or in child processes, with the same behaviour."""
