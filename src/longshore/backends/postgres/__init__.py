"""The store for many machines: one PostgreSQL schema, any number of processes."""
