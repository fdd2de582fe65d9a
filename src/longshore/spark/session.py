"""One way to a Spark session: the one that is there, or one that starts on this machine or on a cluster."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from longshore.spark.environment import (
    SparkUnavailable,
    refuse_what_spark_cannot_use,
    settle_java,
    settle_loopback,
    settle_python,
    started_by_spark_submit,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkUnavailable", "session"]

_EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",  # times are shown as they are stored
    "spark.sql.python.filterPushdown.enabled": "true",  # the data source reads only what a filter asks for
}
_ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_ANSWERS_WITHIN = 5.0


def session(
    app: str = "longshore", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """The session that is active in this process, or a new one.

    Under `spark-submit` the master and everything else it was given stand. Otherwise `master` is `local[*]` unless
    named. `config` adds to what is set here, and wins over it. SparkUnavailable says in one line what is missing.
    """
    refuse_what_spark_cannot_use()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    with suppress(PySparkRuntimeError):  # there is none; the one of another thread is one
        return SparkSession.active()
    settle_python()
    builder = SparkSession.builder.appName(app)
    settings = dict(_EVERYWHERE)
    if not started_by_spark_submit():
        master = master or "local[*]"
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
        if master.startswith("local"):
            settings |= _ON_THIS_MACHINE
            settle_loopback()
        else:
            _refuse_unreachable(master)
        if not master.startswith("sc://"):
            settle_java()
    for name, value in {**settings, **(config or {})}.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:  # the reasons are as many as there are clusters; Spark's own come as pages of Java
        raise SparkUnavailable(f"Spark did not start with master {master}: {_first_line(error)}") from error


def _refuse_unreachable(master: str) -> None:
    """A cluster that nobody listens for is told of at once; Spark would take a minute, and pages."""
    addresses = urlsplit(master)
    if addresses.scheme not in ("spark", "sc"):
        return
    refusals = []
    for address in addresses.netloc.split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_ANSWERS_WITHIN).close()
        except (OSError, ValueError) as error:
            refusals.append(f"{address} ({error})")
        else:
            return
    raise SparkUnavailable(
        f"no Spark answers at {', '.join(refusals)}: start the cluster, look at the address, or leave the master out "
        "to run on this machine"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
