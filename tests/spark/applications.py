"""Spark applications that the tests run as jobs, each in a separate process and Java."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from longshore import Harbor
from longshore.runtime.running_job import current_job
from tests.spark.conftest import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

harbor = Harbor("memory://")
harbor.use_spark(master="local[2]", config=QUICK)


@harbor.spark_task(queue="applications", max_crashes=2)
def summed(spark: SparkSession, upto: int, deaths: list[str]) -> dict[str, Any]:
    """Die a given number of times, and resume from the checkpoint."""
    job = current_job()
    job.log(f"java {_java(spark)}")
    done = job.checkpoint or []
    if len(done) < len(deaths):
        job.save_checkpoint([*done, spark.range(upto).count()])
        os.kill(_java(spark) if deaths[len(done)] == "java" else os.getpid(), signal.SIGKILL)
    slept(spark, tasks=8, milliseconds=600)
    return {"before": done, "now": spark.range(upto).count()}


@harbor.spark_task(queue="applications")
def endless(spark: SparkSession) -> None:
    """Sleep in tasks, in Java, until cancelled."""
    current_job().log(f"java {_java(spark)}")
    slept(spark, tasks=2, milliseconds=600_000)


@harbor.spark_task
def counted(spark: Any, upto: int, *, step: int = 1) -> int:
    """One that is tried without a worker."""
    return int(spark.range(0, upto, step).count())


nowhere = Harbor("memory://")
nowhere.use_spark(master="spark://127.0.0.1:1")


@nowhere.spark_task
def unreachable(spark: SparkSession) -> None:
    """Have no cluster to run on."""


def slept(spark: SparkSession, *, tasks: int, milliseconds: int) -> None:
    """A Spark job whose tasks do nothing else."""
    sleeps = f"java_method('java.lang.Thread', 'sleep', {milliseconds}L) AS slept"
    spark.range(0, tasks, 1, tasks).selectExpr(sleeps).write.format("noop").mode("overwrite").save()


def _java(spark: SparkSession) -> int:
    gateway: Any = spark.sparkContext._gateway
    pid: int = gateway.proc.pid
    return pid
