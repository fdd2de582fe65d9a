"""What makes stored jobs run: queues that push, workers, executors, heartbeats and sweeps, on any backend."""
