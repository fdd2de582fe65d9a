"""Tasks: declared once, called directly, and enqueued with options that never collide with their parameters."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore import Harbor, Job, JobFilter, JobStatus, Repeat, connect, current_job, exponential
from longshore.app.task import AsyncTask, PlainTask
from longshore.core.errors import InvalidArgument, JobNotFound, LongshoreError, QueueClosed
from longshore.core.job import JobEvent


async def events_of(harbor: Harbor) -> list[JobEvent]:
    return await harbor.backend.read_events()


# -- declare


async def test_a_task_is_still_its_function(harbor: Harbor) -> None:
    @harbor.task
    def add(a: int, b: int = 2) -> int:
        """Adds."""
        return a + b

    @harbor.task(queue="mail")
    async def greet(name: str) -> str:
        return f"hello {name}"

    assert add(1) == 3
    assert await greet("Ada") == "hello Ada"
    assert isinstance(add, PlainTask)
    assert isinstance(greet, AsyncTask)
    assert (add.__name__, add.__doc__, add.name) == ("add", "Adds.", "add")
    assert str(inspect.signature(add)) == "(a: 'int', b: 'int' = 2) -> 'int'"
    assert dict(harbor.tasks) == {"add": add, "greet": greet}
    assert repr(add).startswith("<task add in ")


async def test_a_direct_call_passes_values_through_as_they_are(harbor: Harbor) -> None:
    @harbor.task
    def give_back(value: int) -> int:
        return value

    anything: Any = object()
    assert give_back(anything) is anything


def test_declaring_a_task_opens_no_store_and_needs_no_loop() -> None:
    harbor = Harbor("sqlite:///nowhere/at/all.db")

    @harbor.task
    def work() -> None: ...

    assert work.name == "work"


@pytest.mark.slow
def test_pydantic_is_loaded_by_the_first_task_and_not_before() -> None:
    program = (
        "import sys\n"
        "from longshore import Harbor, Queue, Worker\n"
        "harbor = Harbor('memory://')\n"
        "print('pydantic' in sys.modules)\n"
        "harbor.task(lambda: None)\n"
        "print('pydantic' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "True"], done.stderr


async def test_a_wrong_option_of_one_enqueue_is_named_without_a_position(harbor: Harbor) -> None:
    @harbor.task
    def work() -> None: ...

    wrong = work.options(delay=-5)
    with pytest.raises(InvalidArgument, match=r"^delay: must be at least 0 seconds"):
        await wrong.enqueue()
    with pytest.raises(InvalidArgument, match=r"^jobs\[0\]\.delay: must be at least 0 seconds"):
        await work.enqueue_many([wrong.call()])


async def test_two_tasks_with_one_name_are_refused_with_both_places(harbor: Harbor) -> None:
    @harbor.task
    def work() -> None: ...

    with pytest.raises(InvalidArgument, match=r"two tasks are named 'work': in .*test_tasks.py:\d+ and in .*\.py:\d+"):

        @harbor.task(name="work")
        def other() -> None: ...

    assert harbor.tasks["work"] is work


async def test_a_module_that_is_loaded_again_may_declare_its_tasks_again(harbor: Harbor) -> None:
    def declare() -> Any:
        @harbor.task
        def work() -> None: ...

        return work

    first, second = declare(), declare()
    assert first is not second
    assert harbor.tasks["work"] is second


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": ""}, "name"),
        ({"queue": "\x00"}, "queue"),
        ({"attempts": -1}, "attempts"),
        ({"attempts": "3"}, "attempts"),
        ({"backoff": "soon"}, "backoff"),
        ({"timeout": -1}, "timeout"),
        ({"priority": "high"}, "priority"),
        ({"tags": "mail"}, "tags"),
        ({"max_crashes": -1}, "max_crashes"),
        ({"executor": "cloud"}, "executor"),
        ({"executor": "spark"}, "executor"),
        ({"executor": "process"}, "executor"),  # it is declared inside a function
        ({"memory_limit": 1}, "memory_limit"),
    ],
)
async def test_an_option_that_is_wrong_is_refused_where_the_task_is_declared(
    harbor: Harbor, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:

        @harbor.task(**options)
        def work() -> None: ...

    assert refused.value.field == field
    assert not harbor.tasks


async def test_only_a_function_can_be_a_task(harbor: Harbor) -> None:
    declare: Any = harbor.task
    for wrong in ("mail", 5, Job, len):
        with pytest.raises(InvalidArgument, match="must be a function"):
            declare(wrong)

    def numbers() -> Any:
        yield 1

    async def more_numbers() -> Any:
        yield 1

    for generator in (numbers, more_numbers):
        with pytest.raises(InvalidArgument, match="is a generator"):
            declare(generator)

    async def wait() -> None: ...

    with pytest.raises(InvalidArgument, match="'thread' needs a def"):
        declare(executor="thread")(wait)


async def test_annotations_may_name_local_types_of_the_declaring_function(harbor: Harbor) -> None:
    from dataclasses import dataclass

    @dataclass
    class Parcel:
        weight: int

    @harbor.task
    def weigh(parcel: Parcel) -> int:
        return parcel.weight

    handle = await weigh.enqueue(Parcel(3))
    await harbor.run_until_empty()
    assert await handle.result() == 3


# -- enqueue


async def test_an_enqueued_task_is_a_job_with_the_options_of_its_declaration(stored_harbor: Harbor) -> None:
    @stored_harbor.task(
        name="mail.send",
        queue="mail",
        attempts=5,
        backoff=exponential(2),
        timeout=30,
        priority=7,
        lifo=True,
        tags=["eu"],
        max_crashes=1,
        remove_on_complete=100,
        remove_on_fail=True,
        concurrency_key="smtp",
    )
    async def send(to: str, *, subject: str = "hello") -> None: ...

    job = await (await send.enqueue("ada", subject="hi")).job()
    assert (job.type, job.queue, job.data) == ("mail.send", "mail", {"to": "ada", "subject": "hi"})
    assert (job.max_attempts, job.max_crashes, job.priority, job.lifo) == (5, 1, 7, True)
    assert (job.timeout, job.tags, job.concurrency_key) == (timedelta(seconds=30), ("eu",), "smtp")
    assert job.options == {
        "backoff": exponential(2).as_options(),
        "remove_on_complete": 100,
        "remove_on_fail": True,
    }
    assert job.status is JobStatus.INITIAL_PENDING


async def test_a_plain_task_has_the_defaults_of_the_surface(harbor: Harbor) -> None:
    @harbor.task
    def work() -> None: ...

    job = await (await work.enqueue()).job()
    assert (job.queue, job.max_attempts, job.max_crashes, job.priority, job.tags) == ("default", 1, 3, 0, ())
    assert (job.timeout, job.concurrency_key, job.options, job.data) == (None, None, {}, {})


async def test_options_of_one_enqueue_go_before_the_declared_ones_and_tags_add_up(harbor: Harbor) -> None:
    @harbor.task(queue="mail", priority=7, tags=["eu"])
    def send(priority: str, queue: str) -> None: ...

    first = await send.enqueue("of the mail", "of people")
    handle = await send.options(
        queue="parcels",
        priority=1,
        tags=["night"],
        delay=3600,
        job_id="j1",
        idempotency_key="k1",
        attempts=9,
        depends_on=[first, "j0"],
        concurrency_key="c",
    ).enqueue(priority="of the mail", queue="of people")
    job = await handle.job()
    assert handle.id == "j1"
    assert (job.queue, job.priority, job.tags, job.max_attempts) == ("parcels", 1, ("eu", "night"), 9)
    assert (job.delay, job.idempotency_key, job.concurrency_key) == (timedelta(hours=1), "k1", "c")
    assert set(job.depends_on) == {first.id, "j0"}
    assert job.data == {"priority": "of the mail", "queue": "of people"}


async def test_an_unknown_option_is_named(harbor: Harbor) -> None:
    @harbor.task
    def work() -> None: ...

    wrong: Any = {"prioritty": 1}
    with pytest.raises(InvalidArgument, match="prioritty: is not an option of a job; did you mean priority"):
        work.options(**wrong)
    with pytest.raises(InvalidArgument, match="tags: must be a list"):
        work.options(tags="mail")


async def test_an_id_or_key_that_is_in_use_answers_with_the_job_that_has_it(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def work(number: int) -> None: ...

    for options in ({"job_id": "j1"}, {"idempotency_key": "k1"}):
        first = await work.options(**options).enqueue(1)  # type: ignore[arg-type]  # mypy does not see the keys
        again = await work.options(**options).enqueue(2)  # type: ignore[arg-type]  # as above
        assert again.id == first.id
        assert (await again.job()).data == {"number": 1}


async def test_a_wrong_argument_stores_nothing(harbor: Harbor) -> None:
    @harbor.task
    def work(number: int) -> None: ...

    wrong: Any = "many"
    with pytest.raises(InvalidArgument, match=r"work\.number"):
        await work.enqueue(wrong)
    assert await events_of(harbor) == []


# -- enqueue many


async def test_many_calls_are_stored_in_one_transaction_with_handles_in_order(stored_harbor: Harbor) -> None:
    @stored_harbor.task(priority=5, tags=["all"])
    def square(number: int) -> int:
        return number**2

    calls = [square.call(1), square.options(priority=1, tags=["own"], job_id="two").call(2), square.call(number=3)]
    handles = await square.options(queue="batch", priority=3, tags=["these"]).enqueue_many(calls)
    jobs = [await handle.job() for handle in handles]
    assert [job.data["number"] for job in jobs] == [1, 2, 3]
    assert [job.priority for job in jobs] == [3, 1, 3]
    assert [job.queue for job in jobs] == ["batch"] * 3
    assert jobs[1].tags == ("all", "these", "own")
    await stored_harbor.run_until_empty()
    assert [await handle.result() for handle in handles] == [1, 4, 9]


async def test_a_wrong_call_among_many_stores_none(harbor: Harbor) -> None:
    @harbor.task
    def square(number: int) -> int:
        return number**2

    @harbor.task
    def cube(number: int) -> int:
        return number**3

    wrong: Any = "x"
    with pytest.raises(InvalidArgument, match=r"square\.number"):
        await square.enqueue_many([square.call(1), square.call(wrong)])
    with pytest.raises(InvalidArgument, match=r"calls\[1\]: is a call of cube; use harbor.enqueue_many"):
        await square.enqueue_many([square.call(1), cube.call(1)])
    with pytest.raises(InvalidArgument, match=r"calls\[0\]: must be square.call\(…\), not 5"):
        await square.enqueue_many([5])  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(InvalidArgument, match="job_id: is for one job"):
        await square.options(job_id="j").enqueue_many([square.call(1)])
    with pytest.raises(InvalidArgument, match="connection: is for all calls"):
        square.options(connection=object()).call(1)
    assert await events_of(harbor) == []


async def test_calls_of_several_tasks_are_stored_together_by_the_harbor(harbor: Harbor) -> None:
    @harbor.task(queue="a")
    def square(number: int) -> int:
        return number**2

    @harbor.task(queue="b")
    async def cube(number: int) -> int:
        return number**3

    handles = await harbor.enqueue_many([square.call(2), cube.call(2)])
    await harbor.run_until_empty()
    assert [await handle.result() for handle in handles] == [4, 8]
    wrong: Any = [square]
    with pytest.raises(InvalidArgument, match=r"calls\[0\]: must be task.call"):
        await harbor.enqueue_many(wrong)


async def test_an_empty_list_of_calls_stores_no_job(harbor: Harbor) -> None:
    @harbor.task
    def work() -> None: ...

    assert await work.enqueue_many([]) == []


# -- without an event loop


def test_the_blocking_forms_do_the_same(store_url: str) -> None:
    with Harbor(store_url) as harbor:

        @harbor.task
        def add(a: int, b: int) -> int:
            return a + b

        one = add.enqueue_sync(1, b=2)
        many = add.options(priority=1).enqueue_many_sync([add.call(3, 4), add.call(5, 6)])
        mixed = harbor.enqueue_many_sync([add.call(7, 8)])
        assert one.status_sync() is JobStatus.INITIAL_PENDING
        assert harbor.run_until_empty_sync() == 4
        assert [handle.result_sync() for handle in (one, *many, *mixed)] == [3, 7, 11, 15]
        assert one.job_sync().data == {"a": 1, "b": 2}
        assert one.cancel_sync() is False
        assert add.handle(one.id).result_sync() == 3


async def test_a_blocking_form_on_an_event_loop_is_refused_rather_than_stopping_it(harbor: Harbor) -> None:
    @harbor.task
    def work() -> None: ...

    with pytest.raises(RuntimeError, match="await the async method instead"):
        work.enqueue_sync()


# -- keys


async def test_a_concurrency_key_made_from_other_arguments_is_refused_by_name(harbor: Harbor) -> None:
    @harbor.task(concurrency_key=lambda tenant: tenant)
    async def send(tenant: str, number: int) -> None: ...

    with pytest.raises(InvalidArgument, match=r"send\.concurrency_key: must accept the arguments of send"):
        await send.enqueue("ada", 1)
    assert not (await harbor.backend.list_jobs(JobFilter())).items


async def test_a_concurrency_key_may_be_made_from_the_arguments_as_the_worker_sees_them(harbor: Harbor) -> None:
    def key(customer: int, region: str = "eu") -> str | None:
        return f"{region}-{customer + 1}" if customer else None

    @harbor.task(concurrency_key=key)
    def bill(customer: int, region: str = "eu") -> None: ...

    text: Any = "41"
    assert (await (await bill.enqueue(text)).job()).concurrency_key == "eu-42"
    assert (await (await bill.enqueue(1, region="us")).job()).concurrency_key == "us-2"
    assert (await (await bill.enqueue(0)).job()).concurrency_key is None
    assert (await (await bill.options(concurrency_key="mine").enqueue(1)).job()).concurrency_key == "mine"


# -- the harbor


async def test_a_harbor_takes_a_backend_and_closes_it_with_its_last_queue() -> None:
    backend = connect("memory://")
    async with Harbor(backend, name="shop") as harbor:
        assert harbor.backend is backend
        assert "shop" in repr(harbor)
        assert (await harbor.queue("mail").add("x")).queue == "mail"
    with pytest.raises(LongshoreError, match="closed"):
        await backend.count_jobs()
    with pytest.raises(InvalidArgument, match="store"):
        Harbor(connect("memory://"), busy_seconds=1)


async def test_a_closed_harbor_refuses_every_call_and_names_the_harbor(harbor: Harbor) -> None:
    @harbor.task
    def work() -> None: ...

    handle = await work.enqueue()
    await harbor.close()
    await harbor.close()
    asked: list[Callable[[], Awaitable[object]]] = [
        work.enqueue,
        lambda: harbor.enqueue_many([work.call()]),
        lambda: harbor.schedule("nightly", work, Repeat(every=60)),
        lambda: harbor.get_limits("default"),
        lambda: harbor.chain(work.call()).enqueue(),
        harbor.run_until_empty,
        handle.job,
        handle.result,
    ]
    for ask in asked:
        with pytest.raises(QueueClosed, match="this harbor was closed; enter it again"):
            await ask()
    for make in (harbor.queue, harbor.worker, harbor.scheduler, work.enqueue_sync):
        with pytest.raises(QueueClosed, match="this harbor was closed; enter it again"):
            await asyncio.to_thread(make)


async def test_a_closed_harbor_can_be_entered_again_and_works_as_before(store_url: str) -> None:
    # S3
    harbor = Harbor(store_url)

    @harbor.task
    def double(number: int) -> int:
        return 2 * number

    async with harbor:
        first = await double.enqueue(2)
        await harbor.run_until_empty()
        assert await first.result() == 4
        old_backend, old_queue = harbor.backend, harbor.queue()
    with pytest.raises(QueueClosed, match="this harbor was closed"):
        await double.enqueue(3)
    async with harbor:
        assert harbor.backend is not old_backend
        handle = await double.enqueue(3)
        flow = await harbor.chain(double.call(4)).enqueue()
        worker = harbor.worker()
        assert await handle.result(timeout=30) == 6
        assert await flow.result(timeout=30) == 8
        await worker.close()
        if store_url == "memory://":  # each entry opens a new store
            with pytest.raises(JobNotFound):
                await first.job()
        else:
            assert await first.result() == 4
        with pytest.raises(QueueClosed, match="this queue was closed"):
            await old_queue.get_job(handle.id)
    with pytest.raises(QueueClosed, match="this harbor was closed"):
        harbor.worker()
    with pytest.raises(QueueClosed, match="closed"):
        await handle.job()


def test_a_closed_harbor_can_be_entered_again_without_an_event_loop(tmp_path: Path) -> None:
    # S3
    harbor = Harbor(f"sqlite:///{tmp_path / 'jobs.db'}")

    @harbor.task
    def double(number: int) -> int:
        return 2 * number

    for number in (1, 2):
        with harbor:
            handle = double.enqueue_sync(number)
            harbor.run_until_empty_sync()
            assert handle.result_sync() == 2 * number


async def test_only_the_outermost_entry_closes_a_harbor() -> None:
    # S3
    harbor = Harbor("memory://")

    @harbor.task
    def work() -> None: ...

    async with harbor:
        async with harbor:
            await work.enqueue()
        await work.enqueue()
        assert await harbor.run_until_empty() == 2
    with pytest.raises(QueueClosed):
        await work.enqueue()


async def test_a_harbor_with_a_closed_backend_cannot_be_entered_again() -> None:
    # S3
    harbor = Harbor(connect("memory://"))
    await harbor.close()
    with pytest.raises(QueueClosed, match=r"cannot reopen its backend.*Harbor\(url\)"):
        async with harbor:
            pass


def test_current_job_is_for_code_that_a_worker_runs() -> None:
    with pytest.raises(LongshoreError, match="no job runs here"):
        current_job()
