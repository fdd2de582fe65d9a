"""A real standalone cluster on the loopback address: a master and workers as processes, from pyspark's own package.

Use it in a proof, for a process has one driver at most and the tests' own is in it:

    with standalone_cluster(tmp_path) as cluster:
        driver = cluster.start(program, argument)      # a process with its own driver: `session(master=…)`
        cluster.wait_for(lambda: cluster.executors())
        cluster.kill_an_executor()
        cluster.finish(driver)
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from longshore.spark.spark_session import settle_java

SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DRIVER = """
import sys
from longshore.spark.spark_session import session

spark = session("proof", master=sys.argv[1], config={
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "%(small)s",
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": "%(small)s",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
})
"""
"""How a program begins that is given to `start`; its own arguments are sys.argv[2:]."""
_STARTS_WITHIN = 60.0
_LOOKS_EVERY = 0.1


class Cluster:
    """Where it listens, what runs on it, and the processes it is made of."""

    def __init__(self, folder: Path, spark_home: Path) -> None:
        self.folder = folder
        self.url = ""
        self._spark_class = spark_home / "bin" / "spark-class"
        self._spark_submit = spark_home / "bin" / "spark-submit"
        self._environment = ["env", *(f"{name}={value}" for name, value in _settings(folder, spark_home).items())]
        self._logs: dict[str, Path] = {}
        self._workers: list[subprocess.Popen[bytes]] = []

    def start_master(self, started: ExitStack) -> None:
        self._start(started, "master", "master.Master", "--port", "0")
        self.url = self.wait_for(lambda: self._found("master", r"Starting Spark master at (spark://\S+)"))

    def start_worker(self, started: ExitStack, number: int) -> None:
        name = f"worker-{number}"
        place = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name))
        self._workers.append(self._start(started, name, "worker.Worker", *place, self.url))

    def wait_until_workers_are_known(self) -> None:
        for name in sorted(self._logs.keys() - {"master"}):
            self.wait_for(partial(self._found, name, r"(Successfully registered with master)"))

    def _start(self, started: ExitStack, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        self._logs[name] = self.folder / f"{name}.log"
        place = ("--host", "127.0.0.1", "--webui-port", "0")
        command = [*self._environment, str(self._spark_class), f"org.apache.spark.deploy.{kind}", *place, *arguments]
        with self._logs[name].open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        started.callback(_end, process)
        return process

    def _found(self, name: str, pattern: str) -> str:
        found = re.search(pattern, self._logs[name].read_text(errors="replace"))
        return "" if found is None else found[1]

    def wait_for(self, look: Callable[[], str], within: float = _STARTS_WITHIN) -> str:
        """What a look finds once it finds something."""
        until = monotonic() + within
        while not (found := look()):
            assert monotonic() < until, "\n".join(
                log.read_text(errors="replace")[-2000:] for log in self._logs.values()
            )
            threading.Event().wait(_LOOKS_EVERY)
        return found

    # -- what runs on it

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """A process with its own driver, which gets the cluster's `spark`; see `DRIVER`."""
        return self._driver(sys.executable, "-c", DRIVER % {"small": SMALL} + program, self.url, *arguments)

    def submit(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """The same by `spark-submit`, which alone says where it runs and with what."""
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        return self._driver(str(self._spark_submit), "--master", self.url, *conf, program, *arguments)

    def _driver(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._environment, *command],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, driver: subprocess.Popen[str], within: float = 240.0) -> str:
        """What a driver printed, once it ended well."""
        try:
            printed, complaints = driver.communicate(timeout=within)
        finally:
            _end(driver)
        assert driver.returncode == 0, complaints[-5000:]
        return printed

    def kill(self, driver: subprocess.Popen[str]) -> None:
        """With -9, and its Java with it."""
        _end(driver)
        driver.communicate()

    def executors(self) -> list[int]:
        """The processes that run tasks, oldest first."""
        workers = {process.pid for process in self._workers}
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                command = status.with_name("cmdline").read_bytes()
            except (OSError, ValueError):  # it ended just now
                continue
            if parent in workers and b"CoarseGrainedExecutorBackend" in command:
                found.append(int(status.parent.name))
        return sorted(found)

    def kill_an_executor(self) -> int:
        """With -9, as the kernel does it when memory runs out; its Python workers go with it."""
        (victim, *_) = self.executors()
        os.kill(victim, signal.SIGKILL)
        return victim


@contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2) -> Iterator[Cluster]:
    """A master and workers with one core each; all of them, and what they started, are gone after the block."""
    settle_java()
    package = find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    with ExitStack() as started:
        cluster = Cluster(folder, Path(package.origin).parent)
        cluster.start_master(started)
        for number in range(workers):
            cluster.start_worker(started, number)
        cluster.wait_until_workers_are_known()
        yield cluster


def _settings(folder: Path, spark_home: Path) -> dict[str, str]:
    return {
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SMALL,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kill it and whatever it started: they are one group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
