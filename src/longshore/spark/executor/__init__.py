"""Jobs on Spark: many small jobs as rows of a batch, or one job that is a Spark application."""
