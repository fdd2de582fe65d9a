"""`enqueue`: a job, or as many as a file has lines; and its result, for whoever waits."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli import words
from longshore.cli.completion import complete_queue, complete_type
from longshore.cli.exits import Exit
from longshore.cli.gathering import gathered
from longshore.cli.job_options import repeatable_options, single_options
from longshore.cli.output import complain, flush, say, say_id, say_lines, say_model
from longshore.cli.store import AsJson, Quiet, Store, a_store
from longshore.cli.telling import content, tell_new_job
from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.status import JobStatus
from longshore.core.validation import check_name

if TYPE_CHECKING:
    from longshore.core.job import Job
    from longshore.runtime.queue import Queue

AT_ONCE = 1_000
"""Lines that are stored in one transaction: all of them or none."""

TypeName = Annotated[
    str | None, typer.Argument(metavar="TYPE", autocompletion=complete_type, help="Which task runs it.")
]
Data = Annotated[
    str | None, typer.Argument(metavar="DATA", help="Its arguments: JSON, @file with JSON, or - for standard input.")
]
QueueName = Annotated[str, typer.Option("--queue", autocompletion=complete_queue, help="Where it waits.")]
From = Annotated[
    str | None,
    typer.Option("--from", help="A file (- is standard input) with a job as JSON on each line, in place of TYPE."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for its end, and print what it gave back.")]
WaitTimeout = Annotated[str, typer.Option(help="With --wait, give up after so long; the job goes on.")]


@gathered(repeatable=repeatable_options, single=single_options, store=a_store)
def enqueue(
    type: TypeName = None,
    data: Data = None,
    *,
    queue: QueueName = "default",
    from_: From = None,
    wait: Wait = False,
    wait_timeout: WaitTimeout = "60s",
    as_json: AsJson = False,
    quiet: Quiet = False,
    repeatable: dict[str, Any],
    single: dict[str, Any],
    store: Store,
) -> None:
    """Stores a job, durably, and prints its id; or many, from a file with one on each line."""
    if (type is None) == (from_ is None):
        raise InvalidArgument("type", "say what to run: a TYPE, or --from FILE with a job on each line")
    if from_ is not None:
        if wait or data is not None:
            raise InvalidArgument("from", "brings jobs of its own: leave out the data and --wait")
        _store_lines(store, from_, queue, as_json=as_json, quiet=quiet)
        return
    patience = words.duration("wait-timeout", wait_timeout)
    value = words.data(data)

    async def add(found: Queue) -> None:
        job = await found.add(str(type), value, **repeatable, **single)
        if not wait:
            await tell_new_job(found, job, as_json=as_json, quiet=quiet)
            return
        from longshore.app.results import WaitingRoom

        complain(f"job {job.id} is stored; waiting for its end")
        try:
            ended = await WaitingRoom(found).ended(job.id, patience)
        except TimeoutError:
            raise TimeoutError(
                f"job {job.id} has not ended after {patience:g} s; it goes on: longshore explain {job.id}"
            ) from None
        _tell_end(ended, as_json=as_json)

    store.within(add, queue=queue)


def _tell_end(job: Job, *, as_json: bool) -> None:
    """Its result for people and programs, or why there is none; the exit code tells which."""
    if as_json:
        from longshore.cli.shapes import job_result

        say_model(job_result(job))
    elif job.status is JobStatus.COMPLETED:
        say_lines("null" if job.result is None else content(job.result))
    else:
        complain(f"longshore: job {job.id} is {job.status}: {job.error_message.partition(chr(10))[0]}")
    if job.status is not JobStatus.COMPLETED:
        raise typer.Exit(Exit.FAILED)


# -- many


def _store_lines(store: Store, name: str, queue: str, *, as_json: bool, quiet: bool) -> None:
    async def add(found: Queue) -> int:
        from longshore.runtime.queue import Queue

        stored = 0
        specs = _specs(name, queue)
        while batch := _next(specs, stored):
            for to, lines in groupby(batch, key=lambda line: line[1]):
                given = list(lines)
                named = Queue(found.backend, to)
                try:
                    jobs = await named.add_bulk(_specs_of(given))
                except InvalidArgument as error:
                    raise _by_line(error, [number for number, _, _ in given], stored) from None
                except LongshoreError:
                    complain(f"longshore: line {given[0][0]} and those after it were not stored{_kept(stored)}")
                    raise
                finally:
                    await named.close()
                stored += len(jobs)
                _tell_ids([job.id for job in jobs], as_json=as_json, quiet=quiet)
        return stored

    stored = store.within(add)
    if not (as_json or quiet):
        say(f"{stored:,} jobs stored")


def _specs_of(lines: Iterable[tuple[int, str, Any]]) -> list[Any]:
    """The specs alone: `add_bulk` checks each, for nobody knows what is in a file."""
    return [spec for _, _, spec in lines]


def _tell_ids(ids: Iterable[str], *, as_json: bool, quiet: bool) -> None:
    if as_json:
        from longshore.cli.shapes import Enqueued

        say_model(Enqueued(job_ids=list(ids)))
    elif quiet:
        for job_id in ids:
            say_id(job_id)
    flush()


def _specs(name: str, queue: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Each line with its number and its queue."""
    if name != "-" and not Path(name).is_file():
        raise InvalidArgument("from", f"there is no file {name}")
    try:
        with sys.stdin if name == "-" else Path(name).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    spec = _spec(number, line)
                    yield number, check_name(f"line {number}.queue", spec.pop("queue", queue)), spec
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument("from", f"{name} cannot be read: {error}") from None


def _spec(number: int, line: str) -> dict[str, Any]:
    try:
        spec = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"line {number}", f"is not JSON: {error}") from None
    if not isinstance(spec, dict):
        raise InvalidArgument(f"line {number}", 'must be an object like {"type": "echo", "data": {}}')
    return spec


def _next(specs: Iterator[tuple[int, str, dict[str, Any]]], stored: int) -> list[tuple[int, str, dict[str, Any]]]:
    """The lines of one batch; a line that cannot be read is told with what is stored by then."""
    try:
        return list(islice(specs, AT_ONCE))
    except InvalidArgument as error:
        raise InvalidArgument(error.field, f"{error.problem}{_kept(stored)}") from None


def _kept(stored: int) -> str:
    return f"; the {stored:,} jobs of the batches before it are stored" if stored else "; nothing was stored"


def _by_line(error: InvalidArgument, numbers: list[int], stored: int) -> InvalidArgument:
    """The refusal of a spec, by the line it stands on."""
    place, dot, field = error.field.partition(".")
    position = place.removeprefix("specs[").removesuffix("]")
    line = f"line {numbers[int(position)]}" if position.isdecimal() else place
    return InvalidArgument(f"{line}{dot}{field}", f"{error.problem}{_kept(stored)}")
