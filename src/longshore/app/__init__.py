"""Harbor, tasks, flows and results: the API that most applications use."""
