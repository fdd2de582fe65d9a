"""A harbor at the top level of a module, as in an application; child processes find its tasks by name."""

import asyncio
import os
import threading

from longshore import Harbor, current_job

harbor = Harbor("memory://")


@harbor.task(executor="process")
def add_elsewhere(a: int, b: int = 1) -> dict[str, int]:
    current_job().update_progress("adding")
    return {"sum": a + b, "pid": os.getpid()}


@harbor.task(executor="process")
async def double_elsewhere(a: int) -> int:
    await current_job().update_progress("doubling")
    await asyncio.sleep(0)
    return 2 * a


@harbor.task(executor="process")
def sum_elsewhere(parts: list[int]) -> tuple[int, list[int]]:
    return sum(parts), list(current_job().dependency_results().values())


@harbor.task(executor="process", memory_limit=64 * 1024 * 1024)
def greedy() -> int:
    return len(bytearray(512 * 1024 * 1024))


@harbor.task
def in_a_thread() -> str:
    return threading.current_thread().name


@harbor.task
async def on_the_loop() -> str:
    return threading.current_thread().name


def plain() -> None: ...


renamed = harbor.task(plain)


@harbor.task(executor="process")
def fails_elsewhere() -> None:
    raise ValueError("not there")
