"""The pure core: jobs, the transition table, and decisions without I/O."""
