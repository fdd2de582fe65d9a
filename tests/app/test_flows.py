"""Flows: calls that wait for each other and pass on results, stored in one transaction."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest

from longshore import Dependency, Harbor, Job, JobFilter, JobStatus, current_job
from longshore.app.middleware import Middleware
from longshore.app.results import FlowHandle
from longshore.core.errors import DuplicateJob, InvalidArgument, JobFailed
from longshore.runtime import running_job
from tests.app import sample_harbor


@dataclasses.dataclass(frozen=True)
class Row:
    number: int
    at: datetime


async def stored(harbor: Harbor, flow_id: str) -> list[Job]:
    page = await harbor.backend.list_jobs(JobFilter(parent_id=flow_id))
    return page.items[::-1]


# -- results of other steps


async def test_results_go_from_step_to_step_in_a_fan_out_and_a_fan_in(stored_harbor: Harbor) -> None:
    # M-OPT-16 M-OPT-17
    @stored_harbor.task
    async def extract(url: str) -> list[int]:
        return [1, 2, 3] if url == "numbers" else []

    @stored_harbor.task
    def square(rows: list[int], place: int) -> int:
        return rows[place] ** 2

    @stored_harbor.task
    async def report(parts: list[int], title: str, by_name: dict[str, int]) -> str:
        return f"{title}: {parts} {by_name}"

    flow = stored_harbor.flow("import")
    rows = flow.add(extract.call("numbers"))
    parts = [flow.add(square.call(rows.result, place), name=f"square {place}") for place in range(3)]
    last = flow.add(report.call([part.result for part in parts], "Squares", {"first": parts[0].result, "none": 0}))
    handle = await flow.enqueue()
    assert [(job.type, job.status) for job in await stored(stored_harbor, flow.id)] == [
        ("extract", JobStatus.INITIAL_PENDING),
        *[("square", JobStatus.WAITING_CHILDREN)] * 3,
        ("report", JobStatus.WAITING_CHILDREN),
    ]
    assert await stored_harbor.run_until_empty() == 5
    assert await handle.result() == "Squares: [1, 4, 9] {'first': 1, 'none': 0}"
    assert await handle[last].result() == "Squares: [1, 4, 9] {'first': 1, 'none': 0}"
    assert await handle[parts[2]].result() == 9
    assert await (await handle.step("square 1")).result() == 4


async def test_an_injected_result_has_the_type_of_the_parameter(stored_harbor: Harbor) -> None:
    moment = datetime(2026, 3, 4, tzinfo=UTC)

    @stored_harbor.task
    def make(number: int) -> Row:
        return Row(number, moment)

    @stored_harbor.task
    def keep(*rows: Row, when: datetime, **named: Row) -> str:
        assert all(isinstance(row, Row) for row in (*rows, *named.values()))
        return f"{[row.number for row in rows]} {sorted(named)} {when == moment}"

    flow = stored_harbor.flow()
    one, two = flow.add(make.call(1)), flow.add(make.call(2))
    flow.add(keep.call(one.result, Row(7, moment), two.result, when=moment, other=two.result))
    handle = await flow.enqueue()
    await stored_harbor.run_until_empty()
    assert await handle.result() == "[1, 7, 2] ['other'] True"


async def test_a_result_that_the_parameter_refuses_is_named_by_its_field(harbor: Harbor) -> None:
    @harbor.task
    def make() -> Any:
        return {"not": "a number"}

    @harbor.task
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    flow = harbor.flow()
    flow.add(add.call([1, flow.add(make.call()).result]))
    handle = await flow.enqueue()
    await harbor.run_until_empty()
    with pytest.raises(JobFailed, match=r"add\.numbers\[1\]: should be a valid integer"):
        await handle.result()


async def test_the_other_arguments_are_checked_when_the_call_is_made(harbor: Harbor) -> None:
    @harbor.task
    def make() -> int:
        return 1

    @harbor.task
    def add(a: int, b: int) -> int:
        return a + b

    flow = harbor.flow()
    made = flow.add(make.call())
    wrong: Any = "two"
    with pytest.raises(InvalidArgument, match=r"add\.b: should be a valid integer"):
        add.call(made.result, wrong)
    with pytest.raises(InvalidArgument, match=r"add\.b: is missing"):
        add.call(made.result)  # type: ignore[call-arg]  # wrong on purpose
    with pytest.raises(InvalidArgument, match=r"add\.a: is or contains an object of type object"):
        add.call([made.result, object()], 1)  # type: ignore[arg-type]  # wrong on purpose


async def test_a_result_to_come_can_only_be_passed_on_whole(harbor: Harbor) -> None:
    @harbor.task
    def make() -> list[int]:
        return [1]

    rows = harbor.flow().add(make.call())
    for use in (
        lambda: rows.result[0],
        lambda: bool(rows.result),
        lambda: list(rows.result),
        lambda: f"{rows.result}",
        lambda: len(rows.result),
        lambda: rows.result + rows.result,
    ):
        with pytest.raises(InvalidArgument, match=r"result of make: does not exist before the flow has run"):
            use()


async def test_a_call_with_a_result_to_come_cannot_be_enqueued_outside_of_its_flow(harbor: Harbor) -> None:
    @harbor.task
    def make(number: int) -> int:
        return number

    flow, other = harbor.flow("one"), harbor.flow("other")
    made = flow.add(make.call(1))
    with pytest.raises(InvalidArgument, match=r"make: takes <the result of make>, which only a step of the same flow"):
        await make.enqueue(made.result)
    with pytest.raises(InvalidArgument, match="is a step of another flow"):
        other.add(make.call(made.result))
    with pytest.raises(InvalidArgument, match="is a step of another flow"):
        other.add(make.call(1), after=made)
    assert (await harbor.backend.count_jobs())[JobStatus.INITIAL_PENDING] == 0


async def test_a_concurrency_key_is_made_from_the_arguments_that_are_there(harbor: Harbor) -> None:
    @harbor.task(concurrency_key=lambda tenant, *_: tenant)
    def load(tenant: str, rows: int) -> int:
        return rows

    @harbor.task(concurrency_key=lambda rows: f"{rows}")
    def spoil(rows: int) -> int:
        return rows

    flow = harbor.flow()
    first = flow.add(load.call("ada", 1))
    flow.add(load.call("lin", first.result))
    with pytest.raises(InvalidArgument, match="does not exist before the flow has run"):
        spoil.call(first.result)
    await flow.enqueue()
    assert [job.concurrency_key for job in await stored(harbor, flow.id)] == ["ada", "lin"]


@pytest.mark.slow
async def test_a_process_gets_the_results_of_other_steps() -> None:
    calls = [sample_harbor.double_elsewhere.call(number) for number in range(3)]
    handle = await sample_harbor.harbor.chord(calls, sample_harbor.sum_elsewhere.call).enqueue()
    await sample_harbor.harbor.run_until_empty(concurrency=1)
    assert await handle.result() == (6, [0, 2, 4])


# -- the graph


async def test_after_makes_an_order_without_handing_anything_on(stored_harbor: Harbor) -> None:
    ran: list[str] = []

    @stored_harbor.task
    async def work(name: str) -> None:
        ran.append(name)

    outside = await work.options(delay=3600).enqueue("outside")
    flow = stored_harbor.flow()
    first = flow.add(work.call("first"))
    second = flow.add(work.call("second"), after=first)
    third = flow.add(work.options(priority=-5).call("third"), after=[first, second])
    flow.add(work.call("never"), after=[third, outside])
    handle = await flow.enqueue()
    assert await stored_harbor.run_until_empty() == 3
    assert ran == ["first", "second", "third"]
    status = await handle.status()
    assert (status.state, status.total, status.ended) == ("waiting", 4, 3)
    assert status.steps[3].waits_for == (third.id, outside.id)


async def test_each_edge_may_have_its_own_policy(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def work(fails: bool = False) -> int:
        if fails:
            raise ValueError("as it should")
        return 1

    @stored_harbor.task
    def collect(one: int, other: int | None) -> list[int | None]:
        return [one, other]

    flow = stored_harbor.flow()
    good, bad, worse = flow.add(work.call()), flow.add(work.call(fails=True)), flow.add(work.call(fails=True))
    last = flow.add(collect.call(good.result, bad.result_or_none), after=Dependency(worse, on_failure="ignore"))
    handle = await flow.enqueue()
    job = (await stored(stored_harbor, flow.id))[-1]
    assert job.on_dependency_failure == "wait"
    assert job.options["dependency_policies"] == {bad.id: "ignore", worse.id: "ignore"}
    await stored_harbor.run_until_empty()
    assert await handle.result() == [1, None]
    assert await handle[last].result() == [1, None]
    assert (await handle.status()).state == "completed"


async def test_a_needed_result_cannot_be_ignored(harbor: Harbor) -> None:
    @harbor.task
    def work(number: int = 0) -> int:
        return number

    flow = harbor.flow()
    first = flow.add(work.call())
    with pytest.raises(InvalidArgument, match="on_failure: is ignore, but work takes <the result of work>"):
        flow.add(work.call(first.result), on_failure="ignore")
    with pytest.raises(InvalidArgument, match="on_failure: must be one of wait, stop, ignore"):
        flow.add(work.call(), after=first, on_failure="cry")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidArgument, match="on_failure: is ignore, but work takes <the result of work>"):
        flow.add(work.call(first.result), after=Dependency(first, on_failure="ignore"))


async def test_the_given_policy_of_an_edge_applies_where_a_result_is_taken(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def fail() -> int:
        raise ValueError("as it should")

    @stored_harbor.task
    def take(number: int | None, other: int | None = None) -> int | None:
        return number

    flow = stored_harbor.flow()
    bad = flow.add(fail.call())
    flow.add(take.call(bad.result), after=[Dependency(bad, on_failure="stop")])
    flow.add(take.options(depends_on=[bad], on_dependency_failure="stop").call(bad.result))
    flow.add(take.options(on_dependency_failure="stop").call(bad.result))
    flow.add(take.call(bad.result_or_none, bad.result), on_failure="stop")
    flow.add(take.call(bad.result_or_none), after=[Dependency(bad, on_failure="stop")])
    handle = await flow.enqueue()
    await stored_harbor.run_until_empty()
    assert [job.status for job in await handle.steps()] == [JobStatus.DEAD, *[JobStatus.UNSCHEDULED] * 5]


async def test_a_step_whose_result_is_taken_is_not_removed_on_completion(harbor: Harbor) -> None:
    @harbor.task(remove_on_complete=True)
    def work(number: int = 0) -> int:
        return number

    flow = harbor.flow()
    flow.add(work.call(flow.add(work.call()).result))
    with pytest.raises(InvalidArgument, match=r"remove_on_complete: would remove work .*remove_on_complete=False"):
        await flow.enqueue()
    assert not (await harbor.backend.list_jobs(JobFilter())).items
    kept = harbor.flow()
    keeping = work.options(remove_on_complete=False)
    kept.add(keeping.call(kept.add(keeping.call(4)).result), after=kept.add(work.call(1)))
    handle = await kept.enqueue()
    assert await harbor.run_until_empty() == 3
    assert await handle.result() == 4


async def test_a_step_whose_result_is_the_flows_is_not_removed_on_completion(harbor: Harbor) -> None:
    @harbor.task(remove_on_complete=100)
    def work(number: int = 0) -> int:
        return number

    with pytest.raises(
        InvalidArgument, match=r"would remove work before the flow.s result is read; .*remove_on_complete=False"
    ):
        await harbor.group([work.call(1), work.call(2)]).enqueue()
    assert not (await harbor.backend.list_jobs(JobFilter())).items


class Berth(enum.Enum):
    NORTH = "n"
    SOUTH = "s"


async def test_results_are_injected_under_keys_that_are_not_text(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def make(number: int) -> int:
        return number

    @stored_harbor.task
    def collect(
        by_number: dict[int, int], by_berth: dict[Berth, list[int]], by_id: dict[UUID, int], by_day: dict[date, int]
    ) -> list[bool]:
        return [
            by_number == {1: 1, 2: 0},
            by_berth == {Berth.SOUTH: [1]},
            by_id == {UUID(int=7): 1},
            by_day == {date(2026, 3, 4): 1},
        ]

    flow = stored_harbor.flow()
    one = flow.add(make.call(1)).result
    flow.add(collect.call({1: one, 2: 0}, {Berth.SOUTH: [one]}, {UUID(int=7): one}, {date(2026, 3, 4): one}))
    handle = await flow.enqueue()
    await stored_harbor.run_until_empty()
    assert await handle.result() == [True] * 4


async def test_keys_that_json_cannot_keep_are_refused_when_the_call_is_made(harbor: Harbor) -> None:
    @harbor.task
    def make() -> int:
        return 1

    @harbor.task
    def collect(typed: dict[Any, Any], untyped=None) -> None: ...  # type: ignore[no-untyped-def]  # the point of it

    one = harbor.flow().add(make.call()).result
    with pytest.raises(InvalidArgument, match="typed: has keys that are equal in JSON"):
        collect.call({1: one, "1": 2})
    with pytest.raises(InvalidArgument, match=r"typed\.inside: the key <object .* cannot be stored as JSON"):
        collect.call({"inside": {object(): one}})
    with pytest.raises(InvalidArgument, match="has the key 1; JSON keys must be text"):
        collect.call({}, {1: one})


async def test_a_result_that_was_removed_meanwhile_ends_the_step_that_takes_it(stored_harbor: Harbor) -> None:
    @stored_harbor.task(attempts=5)
    def work(number: int = 0) -> int:
        return number

    flow = stored_harbor.flow()
    first = flow.add(work.call())
    last = flow.add(work.options(queue="later").call(first.result))
    handle = await flow.enqueue()
    await stored_harbor.run_until_empty(["default"])
    await stored_harbor.backend.delete_jobs(job_ids=[first.id])
    await stored_harbor.run_until_empty()
    job = await handle[last].job()
    assert (job.status, job.executions) == (JobStatus.DEAD, 1)
    assert f"the dependency '{first.id}' was removed with its result" in job.error_message


async def test_results_too_large_for_a_worker_fail_the_step_with_advice(
    stored_harbor: Harbor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_job, "MOST_TAKEN", 2**20)

    @stored_harbor.task
    def make(size: int) -> str:
        return "x" * size

    @stored_harbor.task(attempts=3)
    async def collect(parts: list[str]) -> int:
        return sum(map(len, parts))

    @stored_harbor.task(attempts=3)
    async def ask() -> int:
        return len(await current_job().dependency_results())

    fits = stored_harbor.flow()
    fits.add(collect.call([fits.add(make.call(50_000)).result for _ in range(20)]))
    too_much = stored_harbor.flow()
    parts = [too_much.add(make.call(100_000)) for _ in range(20)]
    taking = [too_much.add(collect.call([part.result for part in parts])), too_much.add(ask.call(), after=parts)]
    fitting, handle = await fits.enqueue(), await too_much.enqueue()
    await stored_harbor.run_until_empty()
    assert await fitting.result() == 1_000_000
    for step in taking:
        job = await handle[step].job()
        assert (job.status, job.executions) == (JobStatus.DEAD, 1)
        assert "the results of its dependencies are larger than 1 MiB: the first" in job.error_message
        assert "Store large results elsewhere and return their address" in job.error_message


async def test_dependency_results_are_available_to_the_tasks_of_a_flow(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    async def work(number: int) -> int:
        return number

    @stored_harbor.task
    async def on_loop() -> list[Any]:
        return list((await current_job().dependency_results()).values())

    @stored_harbor.task
    def in_thread() -> list[Any]:
        return list(current_job().dependency_results().values())

    flow = stored_harbor.flow()
    parts = [flow.add(work.call(number)) for number in (3, 1, 2)]
    flow.add(on_loop.call(), after=parts)
    flow.add(in_thread.call(), after=parts)
    handle = await flow.enqueue()
    await stored_harbor.run_until_empty()
    assert await handle.result() == [[3, 1, 2], [3, 1, 2]]


# -- one transaction


async def test_a_flow_is_stored_whole_or_not_at_all(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def work(number: int = 0) -> int:
        return number

    class Refusing(Middleware):
        def before_enqueue(self, job: Job) -> None:
            if job.data == {"number": 13}:
                raise PermissionError("not this one")

    stored_harbor.add_middleware(Refusing())
    flow = stored_harbor.flow()
    for number in (1, 2, 13):
        flow.add(work.call(number))
    with pytest.raises(PermissionError):
        await flow.enqueue()
    refused = stored_harbor.flow()
    refused.add(work.call())
    refused.add(work.options(queue="\x00").call())
    with pytest.raises(InvalidArgument, match=r"queue: must be text"):
        await refused.enqueue()
    assert not (await stored_harbor.backend.list_jobs(JobFilter())).items


async def test_a_flow_with_an_id_is_stored_once(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def work(number: int) -> int:
        return number

    async def enqueue(first: int) -> Any:
        flow = stored_harbor.flow("nightly", id="nightly-2026-11-16")
        flow.add(work.call(flow.add(work.call(first)).result))
        await flow.enqueue()
        return await flow.enqueue()

    handle, again = await enqueue(1), await enqueue(2)
    assert handle.id == again.id == "nightly-2026-11-16"
    assert await stored_harbor.run_until_empty() == 2
    assert await again.result() == 1
    assert (await stored_harbor.get_flow("nightly-2026-11-16").status()).name == "nightly"


async def test_a_flow_is_not_treated_as_stored_because_another_job_has_one_of_its_ids(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def work(number: int) -> int:
        return number

    await stored_harbor.queue().add("stranger", job_id="mine.1")
    flow = stored_harbor.flow(id="mine")
    flow.add(work.call(flow.add(work.call(1)).result))
    with pytest.raises(
        DuplicateJob, match=r"flow 'mine': its step 'mine\.1' .* a 'stranger' that belongs to no flow"
    ) as met:
        await flow.enqueue()
    assert met.value.job_ids == ["mine.1"]
    assert [job.type for job in (await stored_harbor.backend.list_jobs(JobFilter())).items] == ["stranger"]
    await stored_harbor.queue().remove_job("mine.1")
    await flow.enqueue()
    assert await stored_harbor.run_until_empty() == 2


async def test_a_flow_with_other_steps_is_not_taken_for_the_one_stored_under_its_id(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def work(number: int) -> int:
        return number

    @stored_harbor.task
    def other(number: int) -> int:
        return number

    def flow_of(*calls: Any) -> Any:
        flow = stored_harbor.flow(id="nightly")
        for call in calls:
            flow.add(call)
        return flow

    await flow_of(work.call(1), work.call(2)).enqueue()
    for others, told in (
        ((work.call(1), work.call(2), work.call(3)), "with 2 steps, but this one has 3"),
        ((work.call(1),), "with 2 steps, but this one has 1"),
        ((work.call(1), other.call(2)), r"its step 'nightly\.1' is a 'work' there but a 'other' here"),
    ):
        with pytest.raises(DuplicateJob, match=told):
            await flow_of(*others).enqueue()
    assert len(await stored(stored_harbor, "nightly")) == 2
    await stored_harbor.run_until_empty()
    await stored_harbor.backend.delete_jobs(job_ids=["nightly.0"])
    again = await flow_of(work.call(1), work.call(2)).enqueue()
    assert (await again.status()).total == 1, "a flow some steps of which were removed is there still"


def test_a_flow_can_be_read_without_an_event_loop(store_url: str) -> None:
    harbor = Harbor(store_url)

    @harbor.task
    def work(number: int) -> int:
        return number

    harbor.queue().sync.add("stranger", job_id="mine.0")
    for flow_id, stranger in (("free", False), ("free", False), ("mine", True)):
        flow = harbor.flow(id=flow_id)
        flow.add(work.call(1))
        if stranger:
            with pytest.raises(DuplicateJob, match="a 'stranger' that belongs to no flow"):
                flow.enqueue_sync()
        else:
            assert flow.enqueue_sync().status_sync().total == 1
    harbor.close_sync()


async def test_an_enqueued_flow_takes_no_more_steps_and_an_empty_one_is_refused(harbor: Harbor) -> None:
    @harbor.task
    def work() -> None: ...

    flow = harbor.flow("done")
    with pytest.raises(InvalidArgument, match="flow: done has no steps"):
        await flow.enqueue()
    flow.add(work.call())
    await flow.enqueue()
    with pytest.raises(InvalidArgument, match="flow: done is already enqueued"):
        flow.add(work.call())


@pytest.mark.parametrize(
    ("option", "value"), [("job_id", "mine"), ("idempotency_key", "once"), ("parent_id", "another")]
)
async def test_ids_are_the_flows_to_give(harbor: Harbor, option: str, value: str) -> None:
    @harbor.task
    def work() -> None: ...

    given: Any = {option: value}
    with pytest.raises(InvalidArgument, match=f"{option}: cannot be set for a step"):
        harbor.flow().add(work.options(**given).call())
    with pytest.raises(InvalidArgument, match="call: must be task"):
        harbor.flow().add(work)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidArgument, match=r"id: of a flow must be at most"):
        harbor.flow(id="x" * 250)


# -- one-liners


async def test_a_chain_a_group_and_a_chord(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    async def double(number: int, plus: int = 0) -> int:
        return 2 * number + plus

    @stored_harbor.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    chain = await stored_harbor.chain(double.call(1), double.call, lambda n: double.call(n, plus=1)).enqueue()
    group = await stored_harbor.group(double.call(number) for number in range(3)).enqueue()
    single = await stored_harbor.group([double.call(8)]).enqueue()
    chord = await stored_harbor.chord([double.call(number) for number in range(5)], total.call).enqueue()
    nothing = await stored_harbor.chord([double.call(number) for number in range(0)], total.call).enqueue()
    await stored_harbor.run_until_empty()
    assert await chain.result() == 9
    assert await group.result() == [0, 2, 4]
    assert await single.result() == [16]
    assert await chord.result() == 20
    assert await nothing.result() == 0
    job = (await stored(stored_harbor, chord.id))[-1]
    assert job.data == {"numbers": [None] * 5}
    assert job.options["inputs"] == [[["numbers", 0], 0, 5]]


def test_flows_work_without_an_event_loop(store_url: str) -> None:
    with Harbor(store_url) as harbor:

        @harbor.task
        def double(number: int) -> int:
            return 2 * number

        handle = harbor.chain(double.call(1), double.call).enqueue_sync()
        assert handle.status_sync().state == "running"
        harbor.run_until_empty_sync()
        assert handle.result_sync() == 4
        assert [job.status for job in handle.steps_sync()] == [JobStatus.COMPLETED] * 2
        assert (handle.cancel_sync(), handle.retry_sync()) == ([], [])
        assert handle.step_sync("double").id == f"{handle.id}.0"
        assert "double" in handle.drawing_sync()
        with pytest.raises(InvalidArgument, match="has completed; rerun_whole"):
            handle.rerun_sync()
        copy = handle.rerun_whole_sync()
        harbor.run_until_empty_sync()
        assert copy.result_sync() == 4


def test_every_question_to_a_flow_has_a_form_for_code_without_an_event_loop() -> None:
    asked = [name for name in vars(FlowHandle) if not name.startswith("_") and not name.endswith("_sync")]
    awaited = [name for name in asked if inspect.iscoroutinefunction(getattr(FlowHandle, name))]
    assert len(awaited) > 5
    assert [name for name in awaited if not hasattr(FlowHandle, f"{name}_sync")] == []


def test_a_later_call_of_a_chain_takes_the_previous_result(harbor: Harbor) -> None:
    @harbor.task
    async def double(number: int) -> int:
        return 2 * number

    untyped: Any = harbor
    for wrong in (double.call(2), double):
        with pytest.raises(InvalidArgument, match=r"link 2 of the chain: .*double\.call, or lambda"):
            untyped.chain(double.call(1), wrong)
        with pytest.raises(InvalidArgument, match=r"then: .*double\.call, or lambda"):
            untyped.chord([double.call(1)], wrong)
    with pytest.raises(InvalidArgument, match="link 3 of the chain"):
        untyped.chain(double.call(1), double.call, 7)


# -- in eager mode


async def test_eager_flows_run_where_they_are_enqueued(harbor: Harbor) -> None:
    @harbor.task
    async def double(number: int) -> int:
        return 2 * number

    @harbor.task
    def total(numbers: list[int]) -> list[Any]:
        return [sum(numbers), len(current_job().dependency_results())]

    with harbor.eager():
        handle = await harbor.chord([double.call(number) for number in range(4)], total.call).enqueue()
    assert await handle.result() == [12, 4]
    assert (await handle.status()).state == "completed"
    assert not (await harbor.backend.list_jobs(JobFilter())).items


def test_eager_flows_run_in_the_calling_thread_too() -> None:
    with Harbor("memory://") as harbor:

        @harbor.task
        async def double(number: int) -> int:
            return 2 * number

        with harbor.eager():
            handle = harbor.chain(double.call(1), double.call, double.call).enqueue_sync()
        assert handle.result_sync() == 8


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("wait", JobStatus.WAITING_CHILDREN), ("stop", JobStatus.UNSCHEDULED), ("ignore", JobStatus.COMPLETED)],
)
async def test_eager_flows_obey_the_policies(harbor: Harbor, policy: Any, expected: JobStatus) -> None:
    @harbor.task
    def work(fails: bool = False) -> None:
        if fails:
            raise ValueError("as it should")

    flow = harbor.flow()
    failing = flow.add(work.call(fails=True))
    last = flow.add(work.call(), after=failing, on_failure=policy)
    with harbor.eager():
        handle = await flow.enqueue()
    assert await handle[failing].status() is JobStatus.DEAD
    assert await handle[last].status() is expected
    if policy != "ignore":
        with pytest.raises(JobFailed, match="as it should"):
            await handle.result()
        with pytest.raises(InvalidArgument, match="ran in eager mode"):
            await handle.retry()


async def test_a_group_of_nothing_is_refused_and_a_chord_of_nothing_makes_its_last_call(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def collect(parts: list[int]) -> int:
        return len(parts)

    with pytest.raises(InvalidArgument, match=r"calls: is empty; a group needs at least one call"):
        stored_harbor.group([])
    handle = await stored_harbor.chord([], collect.call).enqueue()
    await stored_harbor.run_until_empty()
    assert await handle.result() == 0


async def test_a_step_that_others_wait_for_until_it_is_retried_is_not_removed_when_it_fails(harbor: Harbor) -> None:
    @harbor.task(remove_on_fail=True)
    def work(*done: Any) -> int:
        return len(done)

    waits = harbor.flow()
    waits.add(work.call(), after=waits.add(work.call(), name="first"))
    with pytest.raises(
        InvalidArgument, match="remove_on_fail: would remove first if it fails, and the steps that wait for its retry"
    ):
        await waits.enqueue()
    stops = harbor.flow()
    stops.add(work.call(), after=stops.add(work.call()), on_failure="stop")
    handle = await stops.enqueue()
    await harbor.run_until_empty()
    assert await handle.result() == 0
