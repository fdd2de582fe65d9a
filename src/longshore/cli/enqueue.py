"""`enqueue`: one job, or one for each line of a file."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from longshore.cli import parsing
from longshore.cli.exit_codes import Exit
from longshore.cli.inspect import content, tell_new_job
from longshore.cli.open_store import AsJson, Quiet, Store, a_store, complete_job, complete_queue, complete_type
from longshore.cli.options import gathered
from longshore.cli.output import complain, flush, say, say_id, say_lines, say_model
from longshore.core.dependencies import Dependencies, DependencyPolicy
from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.job_options import BackoffLike, JobOptions, Option, options_of
from longshore.core.status import JobStatus
from longshore.core.times import Duration, Moment
from longshore.core.validation import check_name

if TYPE_CHECKING:
    from longshore.core.job import Job
    from longshore.runtime.queue import Queue

_FLAGS = {"tags": ("--tag", "--tags"), "concurrency_key": ("--concurrency-key", "--key")}
"""Options that have another flag than their name."""
_PARSED: Mapping[Any, tuple[Callable[[str, str], Any], str]] = {
    Duration | None: (parsing.duration, "90s, 5m, 2h"),
    Moment | None: (parsing.moment, "2026-05-01T12:00Z, or a span from now"),
    BackoffLike | None: (parsing.backoff, "5s, exponential:2s, or JSON"),
    bool | int: (parsing.kept, "yes, or how many to keep"),
    int | None: (parsing.limit, "none: no limit"),
}
"""How the text of an option is read, by the option's type, and what to write."""
_MANY = (Sequence[str], Dependencies)


def job_options(table: type) -> Callable[..., dict[str, Any]]:
    """Makes the flags for all options of a table, for `gathered`; the command gets them as `Queue.add` takes them."""
    options = options_of(table)

    def read(**given: Any) -> dict[str, Any]:
        values = {}
        for name, value in given.items():
            parse = _PARSED.get(options[name].type)
            if parse is not None and value is not None:
                values[name] = parse[0](name.replace("_", "-"), value)
            elif value is not None:
                values[name] = value
        return values

    flags = [_flag(name, option) for name, option in options.items()]
    read.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]  # what `gathered` reads
    return read


def _flag(name: str, option: Option) -> inspect.Parameter:
    kind, default, text = option.type, option.default, option.help
    if kind in _PARSED:
        kind, default, text = str | None, str(default) if default else None, f"{text[:-1]} ({_PARSED[kind][1]})."
    elif kind in _MANY:
        kind, default, text = list[str] | None, None, f"{text} May be given many times."
    elif kind is DependencyPolicy:
        kind = str
    flags = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
    completion = complete_job if option.type is Dependencies else None
    typed = typer.Option(*flags, help=text, autocompletion=completion)
    annotation = Annotated[kind, typed]  # type: ignore[valid-type]  # a type that is made here
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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
WaitTimeout = Annotated[str, typer.Option(help="With --wait, stop waiting after this long; the job keeps running.")]


@gathered(options=job_options(JobOptions), store=a_store)
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
    """Stores a job, durably, and prints its id; or many, from a file with one on each line."""
    if (type is None) == (from_ is None):
        raise InvalidArgument("type", "say what to run: a TYPE, or --from FILE with a job on each line")
    if from_ is not None:
        if wait or data is not None:
            raise InvalidArgument("from", "reads jobs from a file: leave out the data and --wait")
        _store_lines(store, from_, queue, as_json=as_json, quiet=quiet)
        return
    patience = parsing.duration("wait-timeout", wait_timeout)
    value = parsing.data(data)

    async def add(found: Queue) -> None:
        job = await found.add(str(type), value, **options)
        if not wait:
            await tell_new_job(found, job, as_json=as_json, quiet=quiet)
            return
        from longshore.app.results import ResultWaiter

        complain(f"job {job.id} is stored; waiting for its end")
        try:
            ended = await ResultWaiter(found).ended(job.id, patience)
        except TimeoutError:
            raise TimeoutError(
                f"job {job.id} has not ended after {patience:g} s and keeps running: longshore explain {job.id}"
            ) from None
        _tell_end(ended, as_json=as_json)

    store.within(add, queue=queue)


def _tell_end(job: Job, *, as_json: bool) -> None:
    """Prints its result, or why there is none; the exit code says which."""
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


class _Line(NamedTuple):
    number: int
    queue: str
    spec: dict[str, Any]


def _store_lines(store: Store, name: str, queue: str, *, as_json: bool, quiet: bool) -> None:
    async def add(found: Queue) -> int:
        stored = 0
        lines = _lines(name, queue)
        try:
            while batch := list(islice(lines, AT_ONCE)):
                for to, group in groupby(batch, key=lambda line: line.queue):
                    ids = await _store_group(found, to, list(group), stored)
                    stored += len(ids)
                    _print_ids(ids, as_json=as_json, quiet=quiet)
        except InvalidArgument as error:
            raise InvalidArgument(error.field, f"{error.problem}{_kept(stored)}") from None
        return stored

    stored = store.within(add)
    if not (as_json or quiet):
        say(f"{stored:,} jobs stored")


async def _store_group(found: Queue, queue: str, lines: Sequence[_Line], stored: int) -> list[str]:
    """Stores consecutive lines of one queue; a refusal names the line."""
    from longshore.runtime.queue import Queue

    async with Queue(found.backend, queue) as named:
        try:
            specs: list[Any] = [line.spec for line in lines]  # of any type: `add_bulk` checks them
            return [job.id for job in await named.add_bulk(specs)]
        except InvalidArgument as error:
            place, dot, field = error.field.partition(".")
            position = place.removeprefix("specs[").removesuffix("]")
            line = f"line {lines[int(position)].number}" if position.isdecimal() else place
            raise InvalidArgument(f"{line}{dot}{field}", error.problem) from None
        except LongshoreError:
            complain(f"longshore: line {lines[0].number} and those after it were not stored{_kept(stored)}")
            raise


def _print_ids(ids: list[str], *, as_json: bool, quiet: bool) -> None:
    if as_json:
        from longshore.cli.json_output import Enqueued

        say_model(Enqueued(job_ids=ids))
    elif quiet:
        for job_id in ids:
            say_id(job_id)
    flush()


def _lines(name: str, queue: str) -> Iterator[_Line]:
    """The jobs in the file; `queue` is for those that name none."""
    if name != "-" and not Path(name).is_file():
        raise InvalidArgument("from", f"there is no file {name}")
    try:
        with sys.stdin if name == "-" else Path(name).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    spec = _spec(number, line)
                    yield _Line(number, check_name(f"line {number}.queue", spec.pop("queue", queue)), spec)
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


def _kept(stored: int) -> str:
    return f"; the {stored:,} jobs of the batches before it are stored" if stored else "; nothing was stored"
