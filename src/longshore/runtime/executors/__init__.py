"""Where a processor runs: on the event loop, in a thread, in a process of its own. One behaviour for all."""
