"""The front door: Harbor and @task."""
