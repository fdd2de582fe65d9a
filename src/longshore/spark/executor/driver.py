"""The driver of a worker's batches: its Spark session, and the server that Spark tasks report to."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import socket
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from longshore.runtime.executors.thread import WorkerThread
from longshore.runtime.executors.wire import Unreadable, read_frame
from longshore.safe_logging import logger
from longshore.spark.executor.batch import SLICES_PER_SLOT, Batch, TaskLine
from longshore.spark.executor.rows import ENDED, ROWS, Columns, TaskSpec, run_rows
from longshore.spark.spark_session import SparkUnavailable, session

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


_INTRODUCES_ITSELF_WITHIN = 10.0
_SILENT_FOR, _BETWEEN_PROBES, _PROBES = 60, 10, 3
"""Seconds for TCP keepalive: a machine that lost power closes no connection."""


class DriverServer:
    """The server for Spark tasks; belongs to the event loop that opens it."""

    def __init__(self) -> None:
        self._expected: dict[str, Batch] = {}
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._talks: set[asyncio.Task[None]] = set()

    async def open(self, host: str) -> int:
        """Listen on this address; return the port."""
        async with self._opening:  # batches of two types may start concurrently
            if self._server is None:
                self._server = await asyncio.start_server(self._answer, host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def expect(self, batch: Batch) -> None:
        """Accept the tasks of a batch."""
        self._expected[batch.token] = batch

    def forget(self, batch: Batch) -> None:
        """Refuse the tasks of a batch."""
        self._expected.pop(batch.token, None)

    async def close(self) -> None:
        """Close the server and all connections."""
        if self._server is not None:
            self._server.close()
        for talk in list(self._talks):
            talk.cancel()
        if self._talks:
            await asyncio.wait(list(self._talks))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        try:
            async with asyncio.timeout(_INTRODUCES_ITSELF_WITHIN):
                message, _ = await read_frame(reader)
            batch = self._expected.get(str(message.get("hello")))
            if batch is None:
                return
            _notice_lost_power(writer.get_extra_info("socket"))
            await batch.serve(reader, TaskLine(writer, str(message.get("task"))[:200]))
        except (TimeoutError, EOFError, OSError, Unreadable, asyncio.CancelledError):
            return  # an unknown client, or a connection closed by this side
        finally:
            self._talks.discard(talk)
            writer.close()


def _notice_lost_power(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with suppress(AttributeError, OSError):  # these options exist on Linux only
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_FOR)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN_PROBES)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


T = TypeVar("T")

_CANCELS_WITHIN, _CLOSES_WITHIN = 10.0, 15.0

_log = logger("longshore.worker")


class Place(NamedTuple):
    """The cluster of a session."""

    host: str
    """The address under which tasks reach this machine."""
    bound_to: str
    slots: int
    """The number of concurrent tasks."""


class Driver:
    """Spark calls on separate threads, because they block."""

    def __init__(self, master: str | None, config: Mapping[str, str]) -> None:
        self._master = master
        self._config = config
        self._spark: SparkSession | None = None
        self._place = Place("", "", 1)
        self._ours = False
        """Whether this object started the session and must stop it."""
        self._one_at_a_time = asyncio.Lock()
        self._idle: list[WorkerThread] = []

    async def start(self) -> Place:
        """Return the cluster of the session; raise SparkUnavailable if no session can be started."""
        async with self._one_at_a_time:
            if self._spark is None:
                await self._in_a_thread(self._open)
            return self._place

    async def submit(self, rows: Callable[[], Columns], spec: TaskSpec, group: str) -> None:
        """Run the rows; return when no task is left, and raise the error of Spark."""
        await self._in_a_thread(self._run, rows, spec, group)

    async def cancel(self, group: str) -> None:
        """Make Spark kill the tasks of a batch and their processes."""
        spark = self._spark
        if spark is not None:
            with suppress(Exception):  # a dead Spark has no tasks, and a hanging one cannot end them
                async with asyncio.timeout(_CANCELS_WITHIN):
                    await self._in_a_thread(spark.sparkContext.cancelJobGroup, group)

    async def forget_if_dead(self) -> None:
        """After a failed batch, forget a dead Spark, so that the next batch starts another."""
        async with self._one_at_a_time:
            spark = self._spark
            if spark is not None and not await self._in_a_thread(_answers, spark):
                _log.error("Spark has ended under this worker; it is started again for the next batch")
                self._spark = None
                await self._in_a_thread(_forget, spark)

    async def close(self) -> None:
        """Stop the session if this object started it."""
        spark, self._spark = self._spark, None
        if spark is not None and self._ours:
            with suppress(TimeoutError, Exception):  # the session ends with this process anyway
                async with asyncio.timeout(_CLOSES_WITHIN):
                    await self._in_a_thread(spark.stop)
        while self._idle:
            self._idle.pop().dismiss()

    async def _in_a_thread(self, call: Callable[..., T], *args: Any) -> T:
        hand = self._idle.pop() if self._idle else WorkerThread()
        work = hand.begin(contextvars.copy_context(), call, *args)
        try:
            value, error = await asyncio.shield(work)
        finally:
            if work.done():
                self._idle.append(hand)
            else:
                hand.dismiss()
        if error is not None:
            raise error
        result: T = value
        return result

    # -- on a thread

    def _open(self) -> None:
        from pyspark import SparkContext

        there = SparkContext._active_spark_context is not None
        spark = session(master=self._master, config=self._config)
        try:
            context = spark.sparkContext
        except Exception as error:  # a session of Spark Connect has none
            raise SparkUnavailable(
                'executor="spark" needs a session with a driver of its own, and this one is of Spark Connect; '
                "name another master: local[*], spark://…, yarn or k8s://…"
            ) from error
        conf = context.getConf()
        if conf.get("spark.speculation", "false") == "true":
            raise SparkUnavailable("spark.speculation would run jobs twice at the same time: set it to false")
        slots = context.defaultParallelism
        self._spark = spark.newSession()  # its settings affect no other session
        self._spark.conf.set("spark.sql.leafNodeDefaultParallelism", str(slots * SLICES_PER_SLOT))
        host = str(conf.get("spark.driver.host", "127.0.0.1"))
        self._place = Place(host, str(conf.get("spark.driver.bindAddress", host)), slots)
        self._ours = not there
        self._master = self._master or context.master  # if its Java dies, the next one uses the same master

    def _run(self, rows: Callable[[], Columns], spec: TaskSpec, group: str) -> None:

        spark = self._spark
        if spark is None:
            raise SparkUnavailable("Spark has ended")
        context = spark.sparkContext
        columns = rows()
        context.setJobGroup(group, f"longshore: {len(columns[0])} jobs of {spec.target.name}", interruptOnCancel=True)
        table = _sliced(columns, self._place.slots * SLICES_PER_SLOT)
        frame = spark.createDataFrame(table, schema=ROWS)
        ended = frame.mapInArrow(functools.partial(run_rows, spec), ENDED)
        ended.write.format("noop").mode("overwrite").save()  # the tasks report outcomes over their connections


def _sliced(columns: Columns, slices: int) -> pyarrow.Table:
    """The rows with one slice per task; Spark creates a task per slice."""
    import pyarrow

    types = [pyarrow.int32(), pyarrow.string(), pyarrow.binary()]
    arrays = [pyarrow.array(values, type_) for values, type_ in zip(columns, types, strict=True)]
    whole = pyarrow.Table.from_arrays(arrays, names=["number", "job", "payload"])
    return pyarrow.Table.from_batches(whole.to_batches(max_chunksize=max(1, -(-len(whole) // slices))))


def _answers(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j raises many types for a dead Java
        return False


def _forget(spark: SparkSession) -> None:
    """Make PySpark forget a dead Java, which it would otherwise use until this process ends."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    java = getattr(gateway, "proc", None)
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a dead Java cannot be stopped cleanly
        spark.stop()
    if java is not None and java.poll() is not None:
        with suppress(Exception):
            gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
