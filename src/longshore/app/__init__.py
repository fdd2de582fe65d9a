"""Harbor, tasks, flows and results: what most applications use."""
