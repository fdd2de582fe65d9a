"""`enqueue`: one job, or one per line of a file."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from longshore.cli import parsing
from longshore.cli.exit_codes import Exit
from longshore.cli.inspect import content, print_new_job
from longshore.cli.open_store import AsJson, Quiet, Store, complete_job, complete_queue, complete_type, store_options
from longshore.cli.options import option_groups
from longshore.cli.output import flush, print_id, print_line, print_lines, print_model, print_stderr
from longshore.core.dependencies import Dependencies, DependencyPolicy
from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.job_options import BackoffLike, JobOptions, Option, options_of
from longshore.core.status import JobStatus
from longshore.core.times import Duration, Moment
from longshore.core.validation import check_name, counted, new_id

if TYPE_CHECKING:
    from longshore.core.job import Job
    from longshore.runtime.queue import Queue

_FLAGS = {"tags": ("--tag", "--tags"), "concurrency_key": ("--concurrency-key", "--key")}
"""Options whose flag differs from their name."""
_PARSERS: Mapping[Any, tuple[Callable[[str, str], Any], str]] = {
    Duration | None: (parsing.duration, "90s, 5m, 2h"),
    Moment | None: (parsing.moment, "2026-05-01T12:00Z, or a duration from now"),
    BackoffLike | None: (parsing.backoff, "5s, exponential:2s, or JSON"),
    bool | int: (parsing.keep_count, "yes, or how many to keep"),
    int | None: (parsing.limit, "none: no limit"),
}
"""The parser of each option type, and the values it takes."""
_REPEATABLE = (Sequence[str], Dependencies)


def job_options(table: type) -> Callable[..., dict[str, Any]]:
    """Make flags of a table's options, for `option_groups`. The command gets keyword arguments of `Queue.add`."""
    options = options_of(table)

    def read(**given: Any) -> dict[str, Any]:
        values = {}
        for name, value in given.items():
            parse = _PARSERS.get(options[name].type)
            if parse is not None and value is not None:
                values[name] = parse[0](name.replace("_", "-"), value)
            elif value is not None:
                values[name] = value
        return values

    flags = [_flag(name, option) for name, option in options.items()]
    read.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]  # what `option_groups` reads
    return read


def _flag(name: str, option: Option) -> inspect.Parameter:
    kind, default, text = option.type, option.default, option.help
    if kind in _PARSERS:
        kind, default, text = str | None, str(default) if default else None, f"{text[:-1]} ({_PARSERS[kind][1]})."
    elif kind in _REPEATABLE:
        kind, default, text = list[str] | None, None, f"{text} Repeatable."
    elif kind is DependencyPolicy:
        kind = str
    flags = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
    completion = complete_job if option.type is Dependencies else None
    typed = typer.Option(*flags, help=text, autocompletion=completion)
    annotation = Annotated[kind, typed]  # type: ignore[valid-type]  # built at run time
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


BATCH_SIZE = 1_000
"""Lines per transaction; a transaction stores all of its lines or none."""

TypeName = Annotated[
    str | None, typer.Argument(metavar="TYPE", autocompletion=complete_type, help="The name of the task.")
]
Data = Annotated[
    str | None, typer.Argument(metavar="DATA", help="The task's arguments: JSON, @file, or - for standard input.")
]
QueueName = Annotated[str, typer.Option("--queue", autocompletion=complete_queue, help="The queue of the job.")]
From = Annotated[
    str | None,
    typer.Option("--from", help="Instead of TYPE: a file with one JSON job per line, or - for standard input."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the job ends and print its result.")]
WaitTimeout = Annotated[str, typer.Option(help="With --wait, the longest time to wait; the job keeps running.")]


@option_groups(options=job_options(JobOptions), store=store_options)
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
    options: dict[str, Any],
    store: Store,
) -> None:
    """Enqueue a job and print its id, or enqueue one job per line of a file."""
    if (type is None) == (from_ is None):
        raise InvalidArgument("type", "give either a TYPE, or --from FILE with one JSON job per line")
    if from_ is not None:
        if wait or data is not None:
            raise InvalidArgument("from", "cannot be combined with DATA or --wait; leave them out")
        _store_lines(store, from_, queue, as_json=as_json, quiet=quiet)
        return
    timeout = parsing.duration("wait-timeout", wait_timeout)
    value = parsing.data(data)

    async def add(found: Queue) -> None:
        job, replayed = await _add(found, str(type), value, options)
        if not wait:
            await print_new_job(found, job, as_json=as_json, quiet=quiet, replayed=replayed)
            return
        from longshore.app.results import ResultWaiter

        print_stderr(f"job {job.id} {'exists already' if replayed else 'is enqueued'}; waiting for its result")
        try:
            ended = await ResultWaiter(found).ended(job.id, timeout)
        except TimeoutError:
            raise TimeoutError(await _late(found, job.id, timeout)) from None
        _print_outcome(ended, as_json=as_json)

    store.within(add, queue=queue)


async def _add(found: Queue, job_type: str, data: Any, options: dict[str, Any]) -> tuple[Job, bool]:
    """Store the job; return it, or the existing job with this key or id, and whether it existed."""
    before = await found.backend.now() if "job_id" in options else None
    job_id = options.setdefault("job_id", new_id())  # the existing job with this key has another id
    job = await found.add(job_type, data, **options)
    return job, job.id != job_id or (before is not None and (job.created_at is None or job.created_at < before))


async def _late(found: Queue, job_id: str, seconds: float) -> str:
    with suppress(LongshoreError):
        job = await found.get_job(job_id)
        if job.executions == 0:
            hint = f"check that a worker runs for the queue {str(job.queue)!r} (longshore explain {job_id} says why)"
            return f"job {job_id} has not started after {seconds:g} s; {hint}"
    return f"job {job_id} did not end within {seconds:g} s and continues; see: longshore explain {job_id}"


def _print_outcome(job: Job, *, as_json: bool) -> None:
    """Print the result of an ended job, or its error."""
    if as_json:
        from longshore.cli.json_output import job_result

        print_model(job_result(job))
    elif job.status is JobStatus.COMPLETED:
        print_lines("null" if job.result is None else content(job.result))
    else:
        print_stderr(f"longshore: job {job.id} is {job.status}: {job.error_message.partition(chr(10))[0]}")
    if job.status is not JobStatus.COMPLETED:
        raise typer.Exit(Exit.FAILED)


# -- one job per line


class _Line(NamedTuple):
    number: int
    queue: str
    spec: dict[str, Any]


def _store_lines(store: Store, name: str, queue: str, *, as_json: bool, quiet: bool) -> None:
    async def add(found: Queue) -> int:
        stored = 0
        lines = _lines(name, queue)
        try:
            while batch := list(islice(lines, BATCH_SIZE)):
                for to, group in groupby(batch, key=lambda line: line.queue):
                    ids = await _store_group(found, to, list(group), stored)
                    stored += len(ids)
                    _print_ids(ids, as_json=as_json, quiet=quiet)
        except InvalidArgument as error:
            raise InvalidArgument(error.field, f"{error.problem}{_stored_note(stored)}") from None
        return stored

    stored = store.within(add)
    if not (as_json or quiet):
        print_line(f"{counted(stored, 'job')} enqueued")


async def _store_group(found: Queue, queue: str, lines: Sequence[_Line], stored: int) -> list[str]:
    """Enqueue consecutive lines of one queue; an error names the line."""
    from longshore.runtime.queue import Queue

    async with Queue(found.backend, queue) as named:
        try:
            specs: list[Any] = [line.spec for line in lines]  # unchecked JSON: `add_bulk` validates it
            return [job.id for job in await named.add_bulk(specs)]
        except InvalidArgument as error:
            place, dot, field = error.field.partition(".")
            position = place.removeprefix("specs[").removesuffix("]")
            line = f"line {lines[int(position)].number}" if position.isdecimal() else place
            raise InvalidArgument(f"{line}{dot}{field}", error.problem) from None
        except LongshoreError:
            print_stderr(f"longshore: not enqueued from line {lines[0].number} on{_stored_note(stored)}")
            raise


def _print_ids(ids: list[str], *, as_json: bool, quiet: bool) -> None:
    if as_json:
        from longshore.cli.json_output import Enqueued

        print_model(Enqueued(job_ids=ids))
    elif quiet:
        for job_id in ids:
            print_id(job_id)
    flush()


def _lines(name: str, queue: str) -> Iterator[_Line]:
    """Yield the jobs in the file; `queue` is the default queue."""
    if name != "-" and not Path(name).is_file():
        raise InvalidArgument("from", f"no such file: {name}")
    try:
        with sys.stdin if name == "-" else Path(name).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    spec = _spec(number, line)
                    yield _Line(number, check_name(f"line {number}.queue", spec.pop("queue", queue)), spec)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument("from", f"cannot read {name}: {error}") from None


def _spec(number: int, line: str) -> dict[str, Any]:
    try:
        spec = json.loads(line.rstrip())
    except (ValueError, RecursionError) as error:
        why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise InvalidArgument(f"line {number}", f"is not JSON: {why}") from None
    if not isinstance(spec, dict):
        raise InvalidArgument(f"line {number}", 'must be an object such as {"type": "echo", "data": {}}')
    return spec


def _stored_note(stored: int) -> str:
    return f"; {counted(stored, 'job')} of earlier batches enqueued" if stored else "; nothing was enqueued"
