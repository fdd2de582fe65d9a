"""`schedule`: list, add, change, run and remove schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli import parsing, rows
from longshore.cli.enqueue import job_options
from longshore.cli.inspect import print_new_job
from longshore.cli.open_store import (
    AsJson,
    OneQueue,
    Quiet,
    Store,
    complete_queue,
    complete_schedule,
    complete_type,
    store_options,
)
from longshore.cli.options import on_store, option_groups
from longshore.cli.output import print_line, print_list, print_model, print_rows
from longshore.core.errors import InvalidArgument, ScheduleNotFound
from longshore.core.job_options import RepeatedJobOptions
from longshore.core.validation import check_names

if TYPE_CHECKING:
    from longshore.core.repeat import Repeat
    from longshore.core.schedule import Schedule
    from longshore.runtime.queue import Queue

RepeatFactory = Callable[[], Any]
"""Builds the `Repeat`; not called if the command names an existing schedule."""

Cron = Annotated[str | None, typer.Option(help='A cron expression, such as "30 2 * * *".')]
Every = Annotated[str | None, typer.Option(help="An interval, such as 15m.")]
Zone = Annotated[str, typer.Option(help="The time zone of --cron, such as Europe/Berlin.")]
Most = Annotated[int | None, typer.Option("--limit", min=1, help="The most occurrences.")]
Start = Annotated[str | None, typer.Option(help="No occurrence before this time, such as 2026-05-01T12:00Z.")]
End = Annotated[str | None, typer.Option(help="No occurrence after this time.")]
OnGap = Annotated[str, typer.Option(help="A local time that daylight saving skips: next or skip.")]
OnOverlap = Annotated[str, typer.Option(help="A local time that occurs twice: first, second or both.")]
CatchUp = Annotated[str, typer.Option(help="Missed occurrences to run: none, last or all.")]

Immediate = Annotated[bool, typer.Option("--immediate", help="Run once immediately if the schedule is new.")]


def repeat_options(
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
) -> RepeatFactory:
    """The options of a repetition."""

    def made() -> Repeat:
        from longshore.core.repeat import Repeat

        policies: Any = {"on_gap": on_gap, "on_overlap": on_overlap, "catch_up": catch_up}
        try:
            return Repeat(
                cron=cron,
                every=None if every is None else parsing.duration("every", every),
                tz=tz,
                limit=limit,
                start=None if start is None else parsing.exact_time("start", start),
                end=None if end is None else parsing.exact_time("end", end),
                immediate=immediate,
                **policies,
            )
        except InvalidArgument as error:
            raise InvalidArgument(error.field.removeprefix("repeat.").replace("_", "-"), error.problem) from None

    return made


schedule = typer.Typer(help="Schedules: jobs that repeat.", no_args_is_help=True, rich_markup_mode=None)

ScheduleId = Annotated[str, typer.Argument(metavar="ID", autocompletion=complete_schedule, help="The schedule's id.")]
SomeScheduleId = Annotated[
    str | None, typer.Argument(metavar="ID", autocompletion=complete_schedule, help="The schedule's id.")
]
TypeName = Annotated[str, typer.Argument(metavar="TYPE", autocompletion=complete_type, help="The name of the task.")]
Data = Annotated[str | None, typer.Argument(metavar="DATA", help="The task's arguments: JSON, @file, or -.")]
QueueName = Annotated[str, typer.Option("--queue", autocompletion=complete_queue, help="The queue of its jobs.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="Number of times to show.")]


@schedule.command("list")
@on_store()
async def list_schedules(found: Queue, queue: OneQueue = None, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """List schedules with their next occurrence."""
    check_names("queue", [] if queue is None else [queue])
    stored, now = await found.get_schedules(), await found.backend.now()
    known = [one for one in stored if queue in (None, one.job.queue)]
    if as_json:
        from longshore.server.models.schedules import ScheduleList, schedule_view

        print_model(ScheduleList.model_construct(items=[schedule_view(one, now) for one in known]))
    else:
        nothing = "no schedules; create one with: longshore schedule add"
        print_list(rows.SCHEDULES, [rows.schedule_row(one, now) for one in known], nothing=nothing, quiet=quiet)


@schedule.command()
@option_groups(repeat=repeat_options, job=job_options(RepeatedJobOptions), store=store_options)
def add(
    schedule_id: ScheduleId,
    type: TypeName,
    data: Data = None,
    *,
    queue: QueueName = "default",
    as_json: AsJson = False,
    repeat: RepeatFactory,
    job: dict[str, Any],
    store: Store,
) -> None:
    """Create or change a schedule: it enqueues a job of TYPE at the times of --cron or --every."""
    when, value = repeat(), parsing.data(data)

    async def put(found: Queue) -> None:
        await _show_changed(found, await found.add(type, value, repeat=when, job_id=schedule_id, **job), as_json)

    store.within(put, queue=queue)


@schedule.command()
@on_store()
async def run(found: Queue, schedule_id: ScheduleId, *, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Enqueue one job of the schedule now; its planned times do not change."""
    job = await found.run_schedule(schedule_id)
    await print_new_job(found, job, as_json=as_json, quiet=quiet)


@schedule.command()
@on_store()
async def pause(found: Queue, schedule_id: ScheduleId, as_json: AsJson = False) -> None:
    """Pause a schedule: it enqueues no jobs until you resume it."""
    await _show_changed(found, await found.pause_schedule(schedule_id), as_json)


@schedule.command()
@on_store()
async def resume(found: Queue, schedule_id: ScheduleId, as_json: AsJson = False) -> None:
    """Resume a schedule at its next occurrence; occurrences during the pause are skipped."""
    await _show_changed(found, await found.resume_schedule(schedule_id), as_json)


async def _show_changed(found: Queue, changed: Schedule, as_json: bool) -> None:
    now = await found.backend.now()
    if as_json:
        from longshore.server.models.schedules import schedule_view

        print_model(schedule_view(changed, now))
    else:
        print_rows(rows.SCHEDULES, [rows.schedule_row(changed, now)])


@schedule.command()
@on_store(repeat=repeat_options)
async def preview(
    found: Queue,
    schedule_id: SomeScheduleId = None,
    *,
    count: Count = 10,
    as_json: AsJson = False,
    repeat: RepeatFactory,
) -> None:
    """Show the next occurrences of a schedule, or of --cron or --every."""
    wanted = repeat() if schedule_id is None else schedule_id
    times = await found.preview_schedule(wanted, count)
    if as_json:
        from longshore.server.models.schedules import Times

        print_model(Times(items=times))
        return
    now = await found.backend.now()
    zone = (wanted if not isinstance(wanted, str) else (await found.get_schedule(wanted)).repeat).zone
    for moment in times:
        print_line(f"{rows.clock(moment)}  {moment.astimezone(zone):%a %d %b %Y %H:%M:%S %Z}  {rows.ago(moment, now)}")


@schedule.command()
@on_store()
async def remove(found: Queue, schedule_id: ScheduleId, *, as_json: AsJson = False) -> None:
    """Remove a schedule. Its jobs stay."""
    if not await found.remove_schedule(schedule_id):
        raise ScheduleNotFound(schedule_id)
    if as_json:
        from longshore.cli.json_output import Removed

        print_model(Removed(id=schedule_id, removed=True))
    else:
        print_line(f"{schedule_id} is removed; its jobs stay")
