"""One Spark for all tests of a process, and stores with jobs in them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import PROVING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 1_800 if PROVING else 300
"""Seconds for one test: the first of a process starts Java; a long form takes its time."""

QUICK = {
    # the capacity for code that one level of its compiler gets by default is full after three runs of the pipeline;
    # from there on everything would be interpreted
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC "
    "-XX:MetaspaceSize=256m",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}
# over a few rows a plan is carried out in less time than it is compiled; long forms compile as users do
if not PROVING:
    QUICK |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("spark")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(PATIENCE))
            if item.get_closest_marker("cluster") is not None:
                item.add_marker("prove")
    left_out = [] if PROVING else [item for item in items if item.get_closest_marker("cluster") is not None]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session whose tasks are tried twice; Java is gone when the tests are."""
    from longshore.spark.spark_session import session

    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    running = session("tests", master="local[2,2]", config={**QUICK, "spark.sql.warehouse.dir": warehouse})
    gateway = running.sparkContext._gateway
    assert gateway is not None
    yield running
    running.stop()
    gateway.shutdown()
    java = gateway.proc
    java.stdin.close()  # which is what it waits for
    java.wait(timeout=30)


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store that other processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("postgres_url"))
