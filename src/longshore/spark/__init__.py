"""The data pipeline on Spark: a session that starts anywhere, and jobs, events and logs as DataFrames."""
