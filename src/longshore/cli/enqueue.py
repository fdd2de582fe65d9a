"""`enqueue`: one job, or one for each line of a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli import parsing
from longshore.cli.exit_codes import Exit
from longshore.cli.inspect import content, tell_new_job
from longshore.cli.open_store import AsJson, Quiet, Store, a_store, complete_job, complete_queue, complete_type
from longshore.cli.options import gathered
from longshore.cli.output import complain, flush, say, say_id, say_lines, say_model
from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.status import JobStatus
from longshore.core.validation import check_name

if TYPE_CHECKING:
    from longshore.core.job import Job
    from longshore.runtime.queue import Queue

Priority = Annotated[int, typer.Option(help="Smaller is sooner; may be negative.")]
Delay = Annotated[str | None, typer.Option(help="Not before so long from now: 90s, 5m, 2h.")]
RunAt = Annotated[str | None, typer.Option(help="Not before: 2026-05-01T12:00Z.")]
ExpiresAt = Annotated[str | None, typer.Option(help="Not started after: a time, or a span from now.")]
Attempts = Annotated[int, typer.Option(min=0, help="Tries in all; 0 is no limit.")]
Backoff = Annotated[str | None, typer.Option(help="The wait between tries: 5s, or exponential:2s, or JSON.")]
Strategy = Annotated[str | None, typer.Option("--retry-strategy", help="A strategy that its worker knows.")]
Lifo = Annotated[bool, typer.Option("--lifo", help="Before all others of its priority.")]
JobIdOption = Annotated[str | None, typer.Option("--job-id", help="An id of your own; a UUID if left out.")]
IdempotencyKey = Annotated[
    str | None, typer.Option("--idempotency-key", help="Repeated with the same key, it is the same job.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", "--tags", help="A tag; may be given many times.")]
Timeout = Annotated[str | None, typer.Option(help="How long one try may take.")]
DependsOn = Annotated[
    list[str] | None,
    typer.Option(autocompletion=complete_job, help="A job that must complete before; may be given many times."),
]
OnDependencyFailure = Annotated[str, typer.Option(help="What then: wait, stop or ignore.")]
ParentId = Annotated[str | None, typer.Option(help="The job or flow it belongs to.")]
RemoveOnComplete = Annotated[str | None, typer.Option(help="yes, or how many completed ones to keep.")]
RemoveOnFail = Annotated[str | None, typer.Option(help="yes, or how many dead ones to keep.")]
ConcurrencyKey = Annotated[
    str | None, typer.Option("--concurrency-key", "--key", help="Jobs that share it share its limits.")
]
MaxCrashes = Annotated[str, typer.Option(help="Crashes survived, or none for no limit.")]
Hold = Annotated[bool, typer.Option("--hold", help="Store it, but let it wait until it is accepted.")]


def repeatable_options(
    priority: Priority = 0,
    delay: Delay = None,
    attempts: Attempts = 1,
    backoff: Backoff = None,
    retry_strategy: Strategy = None,
    lifo: Lifo = False,
    tags: Tags = None,
    timeout: Timeout = None,
    parent_id: ParentId = None,
    remove_on_complete: RemoveOnComplete = None,
    remove_on_fail: RemoveOnFail = None,
    concurrency_key: ConcurrencyKey = None,
    max_crashes: MaxCrashes = "3",
) -> dict[str, Any]:
    """What fits a job that is made once, and one that is made again and again."""
    return {
        "priority": priority,
        "delay": None if delay is None else parsing.duration("delay", delay),
        "attempts": attempts,
        "backoff": None if backoff is None else parsing.backoff("backoff", backoff),
        "retry_strategy": retry_strategy,
        "lifo": lifo,
        "tags": tags or [],
        "timeout": None if timeout is None else parsing.duration("timeout", timeout),
        "parent_id": parent_id,
        "remove_on_complete": parsing.kept("remove-on-complete", remove_on_complete),
        "remove_on_fail": parsing.kept("remove-on-fail", remove_on_fail),
        "concurrency_key": concurrency_key,
        "max_crashes": parsing.limit("max-crashes", max_crashes),
    }


def single_options(
    run_at: RunAt = None,
    expires_at: ExpiresAt = None,
    job_id: JobIdOption = None,
    idempotency_key: IdempotencyKey = None,
    depends_on: DependsOn = None,
    on_dependency_failure: OnDependencyFailure = "wait",
    hold: Hold = False,
) -> dict[str, Any]:
    """What fits a job that is made once only."""
    return {
        "run_at": None if run_at is None else parsing.moment("run-at", run_at),
        "expires_at": None if expires_at is None else parsing.moment("expires-at", expires_at),
        "job_id": job_id,
        "idempotency_key": idempotency_key,
        "depends_on": depends_on or (),
        "on_dependency_failure": on_dependency_failure,
        "hold": hold,
    }


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
    patience = parsing.duration("wait-timeout", wait_timeout)
    value = parsing.data(data)

    async def add(found: Queue) -> None:
        job = await found.add(str(type), value, **repeatable, **single)
        if not wait:
            await tell_new_job(found, job, as_json=as_json, quiet=quiet)
            return
        from longshore.app.results import ResultWaiter

        complain(f"job {job.id} is stored; waiting for its end")
        try:
            ended = await ResultWaiter(found).ended(job.id, patience)
        except TimeoutError:
            raise TimeoutError(
                f"job {job.id} has not ended after {patience:g} s; it goes on: longshore explain {job.id}"
            ) from None
        _tell_end(ended, as_json=as_json)

    store.within(add, queue=queue)


def _tell_end(job: Job, *, as_json: bool) -> None:
    """Its result for people and programs, or why there is none; the exit code tells which."""
    if as_json:
        from longshore.cli.json_output import job_result

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
        from longshore.cli.json_output import Enqueued

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
