"""`schedule`: lists, adds, changes, runs and removes schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli import parsing, rows
from longshore.cli.enqueue import job_options
from longshore.cli.inspect import tell_new_job
from longshore.cli.open_store import (
    AsJson,
    OneQueue,
    Quiet,
    Store,
    a_store,
    complete_queue,
    complete_schedule,
    complete_type,
)
from longshore.cli.options import gathered, on_store
from longshore.cli.output import say, say_model, show_list, show_rows
from longshore.core.errors import InvalidArgument, ScheduleNotFound
from longshore.core.job_options import RepeatedJobOptions
from longshore.core.validation import check_names

if TYPE_CHECKING:
    from longshore.core.repeat import Repeat
    from longshore.core.schedule import Schedule
    from longshore.runtime.queue import Queue

RepeatWhenAsked = Callable[[], Any]
"""Makes a `Repeat` of the options; a command that gets the id of a schedule never calls it."""

Cron = Annotated[str | None, typer.Option(help='A cron expression, like "30 2 * * *".')]
Every = Annotated[str | None, typer.Option(help="A span of time, like 15m.")]
Zone = Annotated[str, typer.Option(help="On whose clocks cron is read, like Europe/Berlin.")]
Most = Annotated[int | None, typer.Option("--limit", min=1, help="Runs in all.")]
Start = Annotated[str | None, typer.Option(help="Not before: 2026-05-01T12:00Z.")]
End = Annotated[str | None, typer.Option(help="Not after.")]
OnGap = Annotated[str, typer.Option(help="A time that a change of the clocks leaves out: next or skip.")]
OnOverlap = Annotated[str, typer.Option(help="A time that comes twice: first, second or both.")]
CatchUp = Annotated[str, typer.Option(help="What was missed: none, last or all.")]

Immediate = Annotated[bool, typer.Option("--immediate", help="Run at once when the schedule is new.")]


def a_repeat(
    cron: Cron = None,
    every: Every = None,
    tz: Zone = "UTC",
    limit: Most = None,
    start: Start = None,
    end: End = None,
    on_gap: OnGap = "next",
    on_overlap: OnOverlap = "first",
    catch_up: CatchUp = "last",
    immediate: Immediate = False,
) -> RepeatWhenAsked:
    """What was written, to be made into a `Repeat`."""

    def made() -> Repeat:
        from longshore.core.repeat import Repeat

        told: Any = {"on_gap": on_gap, "on_overlap": on_overlap, "catch_up": catch_up}
        try:
            return Repeat(
                cron=cron,
                every=None if every is None else parsing.duration("every", every),
                tz=tz,
                limit=limit,
                start=None if start is None else parsing.exact_time("start", start),
                end=None if end is None else parsing.exact_time("end", end),
                immediate=immediate,
                **told,
            )
        except InvalidArgument as error:
            raise InvalidArgument(error.field.removeprefix("repeat.").replace("_", "-"), error.problem) from None

    return made


schedule = typer.Typer(help="Work that is repeated.", no_args_is_help=True, rich_markup_mode=None)

ScheduleId = Annotated[str, typer.Argument(metavar="ID", autocompletion=complete_schedule, help="The schedule.")]
SomeScheduleId = Annotated[
    str | None, typer.Argument(metavar="ID", autocompletion=complete_schedule, help="The schedule.")
]
TypeName = Annotated[str, typer.Argument(metavar="TYPE", autocompletion=complete_type, help="Which task runs.")]
Data = Annotated[str | None, typer.Argument(metavar="DATA", help="Its arguments: JSON, @file, or -.")]
QueueName = Annotated[str, typer.Option("--queue", autocompletion=complete_queue, help="Where its jobs wait.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="Times to show.")]


@schedule.command("list")
@on_store()
async def list_schedules(found: Queue, queue: OneQueue = None, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Lists schedules, with when they fire next."""
    check_names("queue", [] if queue is None else [queue])
    stored, now = await found.get_schedules(), await found.backend.now()
    known = [one for one in stored if queue in (None, one.job.queue)]
    if as_json:
        from longshore.server.models.schedules import ScheduleList, schedule_view

        say_model(ScheduleList.model_construct(items=[schedule_view(one, now) for one in known]))
    else:
        nothing = "there is no schedule; longshore schedule add makes one"
        show_list(rows.SCHEDULES, [rows.schedule_row(one, now) for one in known], nothing=nothing, quiet=quiet)


@schedule.command()
@gathered(repeat=a_repeat, job=job_options(RepeatedJobOptions), store=a_store)
def add(
    schedule_id: ScheduleId,
    type: TypeName,
    data: Data = None,
    *,
    queue: QueueName = "default",
    as_json: AsJson = False,
    repeat: RepeatWhenAsked,
    job: dict[str, Any],
    store: Store,
) -> None:
    """Stores a schedule, or changes the one with this id: a job of TYPE at the times of --cron or --every."""
    when, value = repeat(), parsing.data(data)

    async def put(found: Queue) -> None:
        await _show_changed(found, await found.add(type, value, repeat=when, job_id=schedule_id, **job), as_json)

    store.within(put, queue=queue)


@schedule.command()
@on_store()
async def run(found: Queue, schedule_id: ScheduleId, *, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Makes one more of its jobs now, beside its plan."""
    job = await found.run_schedule(schedule_id)
    await tell_new_job(found, job, as_json=as_json, quiet=quiet)


@schedule.command()
@on_store()
async def pause(found: Queue, schedule_id: ScheduleId, as_json: AsJson = False) -> None:
    """Pauses a schedule: it makes no jobs until you resume it."""
    await _show_changed(found, await found.pause_schedule(schedule_id), as_json)


@schedule.command()
@on_store()
async def resume(found: Queue, schedule_id: ScheduleId, as_json: AsJson = False) -> None:
    """Resumes a schedule at its next planned time; it skips those that passed during the pause."""
    await _show_changed(found, await found.resume_schedule(schedule_id), as_json)


async def _show_changed(found: Queue, changed: Schedule, as_json: bool) -> None:
    now = await found.backend.now()
    if as_json:
        from longshore.server.models.schedules import schedule_view

        say_model(schedule_view(changed, now))
    else:
        show_rows(rows.SCHEDULES, [rows.schedule_row(changed, now)])


@schedule.command()
@on_store(repeat=a_repeat)
async def preview(
    found: Queue,
    schedule_id: SomeScheduleId = None,
    *,
    count: Count = 10,
    as_json: AsJson = False,
    repeat: RepeatWhenAsked,
) -> None:
    """Tells its next planned times; or, with --cron or --every in place of an id, those of a schedule to be."""
    wanted = repeat() if schedule_id is None else schedule_id
    times = await found.preview_schedule(wanted, count)
    if as_json:
        from longshore.server.models.schedules import Times

        say_model(Times(items=times))
        return
    now = await found.backend.now()
    zone = (wanted if not isinstance(wanted, str) else (await found.get_schedule(wanted)).repeat).zone
    for moment in times:
        say(f"{rows.clock(moment)}  {moment.astimezone(zone):%a %d %b %Y %H:%M:%S %Z}  {rows.ago(moment, now)}")


@schedule.command()
@on_store()
async def remove(found: Queue, schedule_id: ScheduleId, *, as_json: AsJson = False) -> None:
    """Removes a schedule; the jobs it made stay."""
    if not await found.remove_schedule(schedule_id):
        raise ScheduleNotFound(schedule_id)
    if as_json:
        from longshore.cli.json_output import Removed

        say_model(Removed(id=schedule_id, removed=True))
    else:
        say(f"{schedule_id} is removed; the jobs it made stay")
