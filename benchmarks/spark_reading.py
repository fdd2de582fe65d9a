"""A process that reads the event log into Spark, alternately with our data source and with Spark's JDBC.

Run as `python -m benchmarks.spark_reading URL ROUNDS`; it prints one line of JSON. The JDBC side needs the
driver's jar: `--jar FILE`, or the place where Debian's libpostgresql-jdbc-java and libxerial-sqlite-jdbc-java put it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from pyspark.sql import DataFrame, SparkSession

from benchmarks.measuring import Sample, alternate
from longshore.backends.export import COLUMNS, Kind
from longshore.core.validation import new_id
from longshore.spark.options import Address
from longshore.spark.spark_session import session

PARTS = 4
_DEBIAN = Path("/usr/share/java")
_JARS = {"postgresql": _DEBIAN / "postgresql.jar", "sqlite": _DEBIAN / "sqlite-jdbc.jar"}
_JNI = "/usr/lib/x86_64-linux-gnu/jni:/usr/lib/aarch64-linux-gnu/jni:/usr/lib/jni"
"""Where Debian installs the native part of SQLite's driver."""
_FETCHED_AT_ONCE = "10000"
_STORED_AS = {"postgresql": {"xid": "xid::text::bigint", "number": "n"}, "sqlite": {"number": "n"}}


def main(url: str, rounds: int, jar: Path | None) -> None:
    """Time both sides alternately, or only ours without a driver."""
    kind = url.partition(":")[0]
    jar = jar or _JARS[kind]
    spark = _session(jar if jar.exists() else None)
    expected = _last_number(url)
    sides: list[Callable[[], DataFrame]] = [partial(_by_the_source, spark, url)]
    if jar.exists():
        sides.append(partial(_by_jdbc, spark, url, kind, expected))
    for side in sides:
        assert side().count() == expected, f"{side().count()} events were read of {expected}"
    found = alternate(rounds, *(partial(_timed, side, expected) for side in sides))
    spark.stop()
    print(json.dumps({"events": expected, "sides": [[sample.seconds for sample in side] for side in found]}))


def _session(jar: Path | None) -> SparkSession:
    settings = {"spark.driver.memory": "2g", "spark.log.level": "ERROR"}
    if jar is not None:
        paths = next((path for path in _JNI.split(":") if (Path(path) / "libsqlitejdbc.so").exists()), "")
        native = f"-Dorg.sqlite.lib.path={paths} -Dorg.sqlite.lib.name=libsqlitejdbc.so" if paths else ""
        settings |= {"spark.jars": str(jar), "spark.driver.extraClassPath": str(jar)}
        settings |= {"spark.driver.extraJavaOptions": native} if native else {}
    return session(f"reading {new_id()}", master="local[2]", config=settings)


def _last_number(url: str) -> int:
    with Address(url, {}).reading() as store:
        return store.log_ends().last & (1 << 63) - 1


def _timed(read: Callable[[], DataFrame], events: int) -> Sample:
    began = perf_counter()
    read().write.format("noop").mode("overwrite").save()
    return Sample(perf_counter() - began, 0, 0, events)


def _by_the_source(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("longshore").options(url=url, partitions=str(PARTS)).load("events")


def _by_jdbc(spark: SparkSession, url: str, kind: str, last: int) -> DataFrame:
    """The same columns in equal partitions."""
    names = [
        name for name in COLUMNS["events"] if kind == "postgresql" or name != "xid"
    ]  # events in SQLite have no xid
    columns = ", ".join(f"{_STORED_AS[kind].get(name, name)} AS {name}" for name in names)
    numbers = [name for name in names if COLUMNS["events"][name] in (Kind.INTEGER, Kind.MOMENT)]
    table = "longshore.job_events" if kind == "postgresql" else "job_events"
    options = {
        "url": _jdbc_address(url, kind),
        "driver": {"postgresql": "org.postgresql.Driver", "sqlite": "org.sqlite.JDBC"}[kind],
        "dbtable": f"(SELECT {columns} FROM {table}) AS events",
        "partitionColumn": "number",
        "lowerBound": "1",
        "upperBound": str(last),
        "numPartitions": str(PARTS),
        "fetchsize": _FETCHED_AT_ONCE,
        "customSchema": ", ".join(f"{name} BIGINT" for name in numbers),  # SQLite's driver reads them as 32 bits
    }
    return spark.read.format("jdbc").options(**options).load()


def _jdbc_address(url: str, kind: str) -> str:
    if kind == "sqlite":
        return f"jdbc:sqlite:{url.removeprefix('sqlite:///')}"
    from psycopg.conninfo import conninfo_to_dict

    known = conninfo_to_dict(url)
    address = f"jdbc:postgresql://{known['host']}:{known['port']}/{known['dbname']}?user={known['user']}"
    return f"{address}&password={known['password']}" if known.get("password") else address


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--jar", type=Path)
    arguments = parser.parse_args()
    main(arguments.url, arguments.rounds, arguments.jar)
