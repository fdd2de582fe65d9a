"""What every command of the pipeline is told in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Url = Annotated[str, typer.Option("--url", envvar="LONGSHORE_URL", help="Where the jobs are, like sqlite:///jobs.db.")]
LakePath = Annotated[
    str, typer.Option("--lake", envvar="LONGSHORE_LAKE", help="The folder of the lake, like /data/lake or s3a://….")
]
Schema = Annotated[str | None, typer.Option(help="On PostgreSQL, the schema of the queue.")]
Master = Annotated[
    str | None,
    typer.Option(help="The Spark to run on; this machine if left out, and under spark-submit whatever that was told."),
]
Conf = Annotated[list[str] | None, typer.Option(help="A setting of Spark, as name=value; may be given many times.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def spark_session(master: str | None, conf: Sequence[str] | None) -> Iterator[SparkSession]:
    """A session for one command, ended with it; what is missing is told in one line."""
    settings = dict(_setting(given) for given in conf or ())
    from longshore.spark.environment import refuse_what_spark_cannot_use

    refuse_what_spark_cannot_use()
    from longshore.spark.pipeline_session import pipeline_session

    spark = pipeline_session(master, settings)
    try:
        yield spark
    finally:
        spark.stop()


def _setting(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise InvalidArgument("conf", f"must be name=value, like spark.driver.memory=2g, not {given!r}")
    return name, value


def day(name: str, given: str | None) -> date | None:
    """A date, or None if none was given."""
    if given is None:
        return None
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise InvalidArgument(name, f"must be a date like 2026-05-01, not {given!r}") from None
