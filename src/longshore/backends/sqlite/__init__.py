"""The embedded store: one SQLite file, durable to the power cord, shared by the processes of one machine."""
