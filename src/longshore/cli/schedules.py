"""`schedule`: what is repeated, from a terminal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli import rows, words
from longshore.cli.completion import complete_queue, complete_schedule, complete_type
from longshore.cli.gathering import gathered
from longshore.cli.job_options import repeatable_options
from longshore.cli.output import complain, say, say_id, say_model, show_rows
from longshore.cli.repeats import RepeatWhenAsked, a_repeat
from longshore.cli.store import AsJson, OneQueue, Quiet, Store, a_store
from longshore.cli.telling import tell_new_job
from longshore.core.errors import ScheduleNotFound

if TYPE_CHECKING:
    from longshore.core.schedule import Schedule
    from longshore.runtime.queue import Queue

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
@gathered(store=a_store)
def list_schedules(*, queue: OneQueue = None, as_json: AsJson = False, quiet: Quiet = False, store: Store) -> None:
    """Lists schedules, with when they fire next."""

    async def look(found: Queue) -> None:
        known, now = await found.get_schedules(), await found.backend.now()
        if as_json:
            from longshore.server.models.schedules import ScheduleList, schedule_view

            say_model(ScheduleList.model_construct(items=[schedule_view(one, now) for one in known]))
        elif quiet:
            for one in known:
                say_id(one.id)
        elif known:
            show_rows(rows.SCHEDULES, [rows.schedule_row(one, now) for one in known])
        else:
            complain("there is no schedule; longshore schedule add makes one")

    store.within(look, queue=queue)


@schedule.command()
@gathered(repeat=a_repeat, job=repeatable_options, store=a_store)
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
    when, value = repeat(), words.data(data)

    async def put(found: Queue) -> Schedule:
        stored: Schedule = await found.add(type, value, repeat=when, job_id=schedule_id, **job)
        return stored

    _act(store, put, as_json, queue=queue)


@schedule.command()
@gathered(store=a_store)
def run(schedule_id: ScheduleId, *, as_json: AsJson = False, quiet: Quiet = False, store: Store) -> None:
    """Makes one more of its jobs now, beside its plan."""

    async def make(found: Queue) -> None:
        job = await found.run_schedule(schedule_id)
        await tell_new_job(found, job, as_json=as_json, quiet=quiet)

    store.within(make)


@schedule.command()
@gathered(store=a_store)
def pause(schedule_id: ScheduleId, *, as_json: AsJson = False, store: Store) -> None:
    """Lets it fire nothing until it is resumed."""
    _act(store, lambda found: found.pause_schedule(schedule_id), as_json)


@schedule.command()
@gathered(store=a_store)
def resume(schedule_id: ScheduleId, *, as_json: AsJson = False, store: Store) -> None:
    """Lets it go on with its next planned time; what fell into the pause is not made up for."""
    _act(store, lambda found: found.resume_schedule(schedule_id), as_json)


def _act(
    store: Store, verb: Callable[[Queue], Awaitable[Schedule]], as_json: bool, *, queue: str | None = None
) -> None:
    async def done(found: Queue) -> None:
        changed, now = await verb(found), await found.backend.now()
        if as_json:
            from longshore.server.models.schedules import schedule_view

            say_model(schedule_view(changed, now))
        else:
            show_rows(rows.SCHEDULES, [rows.schedule_row(changed, now)])

    store.within(done, queue=queue)


@schedule.command()
@gathered(repeat=a_repeat, store=a_store)
def preview(
    schedule_id: SomeScheduleId = None,
    *,
    count: Count = 10,
    as_json: AsJson = False,
    repeat: RepeatWhenAsked,
    store: Store,
) -> None:
    """Tells its next planned times; or, with --cron or --every in place of an id, those of a schedule to be."""

    async def look(found: Queue) -> None:
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

    store.within(look)


@schedule.command()
@gathered(store=a_store)
def remove(schedule_id: ScheduleId, *, as_json: AsJson = False, store: Store) -> None:
    """Removes a schedule; the jobs it made stay."""

    async def take(found: Queue) -> None:
        if not await found.remove_schedule(schedule_id):
            raise ScheduleNotFound(schedule_id)
        if as_json:
            from longshore.cli.shapes import Removed

            say_model(Removed(id=schedule_id, removed=True))
        else:
            say(f"{schedule_id} is removed; the jobs it made stay")

    store.within(take)
