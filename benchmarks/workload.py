"""The measured jobs, prepared before the clock starts and the same on both sides."""

from __future__ import annotations

import json
from collections.abc import Sequence

from longshore.core.job import Job
from longshore.core.validation import new_id

QUEUE = "images"
TYPE = "resize_image"
WORKER = "worker-1"
RESULT = b'{"bytes":48213}'

EVERY = "customer:42"
HALF = "nightly"
RARE = "second-look"
"""Tags of every job, of half of the jobs, and of ten jobs in a large file."""


def payload_of(number: int) -> bytes:
    """A small JSON document."""
    return json.dumps({"image": number, "width": 640, "height": 480, "format": "webp"}).encode()


def hundred_bytes(number: int) -> bytes:
    """A JSON document of exactly a hundred bytes."""
    return b'{"image":%07d,"width":640,"height":480,"format":"webp","quality":82,"path":"originals/2026/dock"}' % (
        1_000_000 + number
    )


def tags_of(number: int, count: int) -> tuple[str, ...]:
    """The tags of one of `count` jobs; the ten rare tags are spread over all of them."""
    tags = (EVERY,) if number % 2 else (EVERY, HALF)
    return (*tags, RARE) if number % (count // 10) == 0 else tags


def new_job(number: int, *, tags: tuple[str, ...] = (), concurrency_key: str | None = None) -> Job:
    """One job as an application would enqueue it."""
    return Job(type=TYPE, queue=QUEUE, payload=payload_of(number), tags=tags, concurrency_key=concurrency_key)


def new_jobs(count: int) -> list[Job]:
    """Jobs without tags."""
    return [new_job(number) for number in range(count)]


def small_jobs(first: int, end: int) -> list[Job]:
    """The jobs of worker benchmarks."""
    return [Job(type=TYPE, queue=QUEUE, payload=hundred_bytes(number)) for number in range(first, end)]


def batches_of(jobs: Sequence[Job], size: int) -> list[list[Job]]:
    """The jobs in equal batches."""
    return [list(jobs[start : start + size]) for start in range(0, len(jobs), size)]


def new_ids(count: int) -> list[str]:
    """Ids of the same kind as the product's."""
    return [new_id() for _ in range(count)]
