"""Jobs on Spark: many small ones as the rows of a batch, or one that is a Spark application by itself."""
