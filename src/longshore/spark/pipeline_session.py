"""The session of a pipeline: modest on one machine, and exactly as told under `spark-submit` or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from longshore.spark.environment import started_by_spark_submit
from longshore.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ON_ONE_MACHINE = {
    "spark.driver.memory": "896m",  # with all else that a Java needs it stays below 2 GB
    "spark.sql.shuffle.partitions": "16",  # more than a few only makes small files of the work of two cores
    "spark.log.level": "ERROR",
    # on a disk of this machine Hadoop would start a program for every file to set its permissions, and once more for
    # a checksum beside it; Parquet has checksums of its own
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


def pipeline_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or one on this machine, or on the cluster that `master` names."""
    alone = not started_by_spark_submit() and (master is None or master.startswith("local"))
    settings = {**(_ON_ONE_MACHINE if alone else {}), **(conf or {})}
    return session("longshore pipeline", master=master, config=settings)
