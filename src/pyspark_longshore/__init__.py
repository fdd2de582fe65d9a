"""Spark looks for packages called `pyspark_…`: through this one it finds the data source `longshore` by itself."""

from longshore.spark.source import LongshoreSource as DefaultSource

__all__ = ["DefaultSource"]
