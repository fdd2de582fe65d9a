"""A type checker sees the parameters and result of a task, and every option: wrong calls are errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[a-z-]+)\]$", re.MULTILINE)

RIGHT = """
from datetime import timedelta
from typing import assert_type

from longshore import Dependency, Harbor, Job, Repeat, current_job, fixed
from longshore.app.results import JobHandle
from longshore.app.step import Step
from longshore.app.task import Task
from longshore.core.schedule import Schedule
from longshore.core.flows import FlowState
from longshore.core.job_options import AnySpec, JobOptions, job_from

harbor = Harbor("memory://")


@harbor.task
async def greet(name: str, times: int = 1) -> str:
    await current_job().log("greeting")
    return name * times


@harbor.task(queue="sums", attempts=3, executor="thread", concurrency_key=lambda a, b: f"{a}")
def add(a: int, b: int) -> int:
    return a + b


@harbor.task()
async def numbers() -> list[int]:
    return []


@harbor.task
def total(parts: list[int], title: str = "") -> float:
    return float(sum(parts))


async def flows() -> None:
    flow = harbor.flow("sums")
    parts = [flow.add(add.call(1, number)) for number in range(3)]
    assert_type(parts, list[Step[int]])
    assert_type(parts[0].result, int)
    assert_type(parts[0].result_or_none, int | None)
    last = flow.add(total.call([part.result for part in parts]), after=parts, on_failure="stop")
    handle = await flow.enqueue()
    assert_type(await handle[last].result(), float)
    chain = harbor.chain(add.call(1, 2), lambda n: add.call(n, 3), lambda n: total.call([n]), name="sum", id="one")
    assert_type(await (await chain.enqueue()).result(), float)
    assert_type(await (await harbor.chain(numbers.call(), total.call).enqueue()).result(), float)
    assert_type(harbor.group(add.call(1, n) for n in range(3)).enqueue_sync().result_sync(), list[int])
    assert_type(await (await harbor.chord([add.call(1, 2)], total.call).enqueue()).result(timeout=5), float)
    assert_type((await handle.status()).state, FlowState)
    await total.options(depends_on=["id", last, Dependency(handle[last], on_failure="ignore")]).enqueue([1])
    await harbor.queue().add("x", depends_on={"id": "stop"})


async def main() -> None:
    assert_type(await greet.enqueue("ada"), JobHandle[str])
    assert_type(await (await greet.enqueue("ada", times=2)).result(timeout=10), str)
    assert_type(await greet("ada"), str)
    assert_type(add(1, 2), int)
    assert_type(add.enqueue_sync(1, b=2).result_sync(), int)
    assert_type(await (await add.options(delay=5, tags=["a"], queue="x").enqueue(1, 2)).result(), int)
    assert_type(await add.enqueue_many([add.call(1, 2), add.options(priority=1).call(3, b=4)]), list[JobHandle[int]])
    assert_type(await numbers.handle("id").result(), list[int])
    task: Task[[str, int], str] | Task[..., str] = greet
    handles = [await greet.enqueue("ada"), await add.enqueue(1, 2)]
    for handle in handles:
        print(await handle.result(), task.name)
    await harbor.enqueue_many([greet.call("ada"), add.call(1, 2)])
    await harbor.worker(["sums"], concurrency=4).run()
    assert_type(await harbor.schedule("a", greet, Repeat(every=60), "ada", times=2), Schedule)
    assert_type(await harbor.schedule("b", add.options(delay=5), Repeat(cron="0 * * * *"), 1, b=2), Schedule)
    assert_type(harbor.schedule_sync("c", add.call(1, 2), Repeat(every=60)), Schedule)
    assert_type(await harbor.queue().add("x", repeat=Repeat(every=60)), Schedule)
    assert_type(harbor.queue().sync.add("x", 1, repeat=Repeat(every=60), tags=["a"]), Schedule)
    assert_type(await harbor.queue().add("x", {"a": 1}, priority=1, backoff={"type": "fixed", "delay": 2}), Job)
    assert_type(harbor.queue().sync.add("x", delay=timedelta(hours=1), remove_on_fail=10, hold=True), Job)
    specs: list[AnySpec] = [("x",), ("x", 1, {"priority": 1}), {"type": "x", "run_at": 5, "depends_on": ["a"]}]
    assert_type(await harbor.queue().add_bulk(specs), list[Job])
    assert_type(job_from("x", timeout=5, max_crashes=None), Job)
    options: JobOptions = {"attempts": 3, "expires_at": 60}
    await harbor.queue().add("x", **options)


@harbor.task(priority=1, tags=("a",), timeout=timedelta(minutes=1), retry_strategy=lambda failures, error: 1)
def declared() -> None: ...


@harbor.spark_task(attempts=3, backoff=fixed(5), progress=False)
def sums(spark: object, rows: int) -> int:
    return rows


assert_type(sums.enqueue_sync(5).result_sync(), int)
"""

WRONG = """
from longshore import Harbor, Repeat
from longshore.core.job_options import JobOptions, JobSpec, job_from

harbor = Harbor("memory://")


@harbor.task
async def greet(name: str, times: int = 1) -> str:
    return name * times


@harbor.task(queue="sums")
def add(a: int, b: int) -> int:
    return a + b


async def main() -> None:
    await greet.enqueue(naem="ada")  # wrong: call-arg
    await greet.enqueue(5)  # wrong: arg-type
    await greet.enqueue()  # wrong: call-arg
    await greet.enqueue("ada", 1, 2)  # wrong: call-arg
    await greet.enqueue("ada", delay=5)  # wrong: call-arg
    add.enqueue_sync(1, "2")  # wrong: arg-type
    add.options(dealy=5)  # wrong: call-arg
    add.options(delay="5")  # wrong: arg-type
    await add.options(delay=5).enqueue(1, "2")  # wrong: arg-type
    add.call(1)  # wrong: call-arg
    add(1, "2")  # wrong: arg-type
    text: str = add(1, 2)  # wrong: assignment
    number: int = await (await greet.enqueue("ada")).result()  # wrong: assignment
    coroutine: str = greet("ada")  # wrong: assignment
    await add.enqueue_many([greet.call("ada")])  # wrong: list-item
    add.enqueue(1, 2).result()  # wrong: attr-defined
    flow = harbor.flow("sums")
    one = flow.add(add.call(1, 2))
    flow.add(greet.call(one.result))  # wrong: arg-type
    flow.add(add.call(1, one.result_or_none))  # wrong: arg-type
    flow.add(add)  # wrong: arg-type
    flow.add(add.call(1, 2), after=5)  # wrong: arg-type
    flow.add(add.call(1, 2), on_failure="explode")  # wrong: arg-type
    harbor.chain(add.call(1, 2), greet.call)  # wrong: arg-type
    harbor.chain(add.call(1, 2), add.call)  # wrong: arg-type
    harbor.chord([add.call(1, 2)], greet.call)  # wrong: arg-type
    sums: list[str] = await (await harbor.group([add.call(1, 2)]).enqueue()).result()  # wrong: assignment
    harbor.schedule_sync("a", add, Repeat(every=60), 1)  # wrong: call-overload
    harbor.schedule_sync("a", add, Repeat(every=60), 1, "2")  # wrong: call-overload
    harbor.schedule_sync("a", add, Repeat(every=60), 1, c=2)  # wrong: call-arg
    harbor.schedule_sync("a", add.call(1, 2), Repeat(every=60), 1)  # wrong: call-overload
    harbor.schedule_sync("a", add.call(1, 2), 60)  # wrong: call-overload
    harbor.task(queue=5)  # wrong: call-overload
    harbor.task(attempts=3, executor="cloud")  # wrong: call-overload
    harbor.task(attempts="3")  # wrong: call-overload
    harbor.task(delay=5)  # wrong: call-overload
    harbor.spark_task(atempts=3)  # wrong: call-overload
    harbor.spark_task(tags=5)  # wrong: call-overload
    add.options(tags=5)  # wrong: arg-type
    add.options(on_dependency_failure="explode")  # wrong: arg-type
    await harbor.queue().add("x", dealy=5)  # wrong: call-overload
    await harbor.queue().add("x", delay="5s")  # wrong: call-overload
    await harbor.queue().add("x", repeat=Repeat(every=5), priority="1")  # wrong: call-overload
    await harbor.queue().add("x", repeat=Repeat(every=5), connection=None)  # wrong: call-overload
    harbor.queue().sync.add("x", atempts=3)  # wrong: call-overload
    harbor.queue().sync.add("x", hold="yes")  # wrong: call-overload
    await harbor.queue().add_bulk([{"type": "x", "dealy": 5}])  # wrong: list-item
    await harbor.queue().add_bulk([{"type": "x", "delay": "5s"}])  # wrong: list-item
    await harbor.queue().add_bulk([("x", None, {"priority": "1"})])  # wrong: typeddict-item
    harbor.queue().sync.add_bulk([{"data": 1}])  # wrong: list-item
    job_from("x", dealy=5)  # wrong: call-arg
    job_from("x", max_crashes="none")  # wrong: arg-type
    options: JobOptions = {"attempts": "3"}  # wrong: typeddict-item
    more: JobOptions = {"atempts": 3}  # wrong: typeddict-unknown-key
    spec: JobSpec = {"data": 1}  # wrong: typeddict-item
"""


SPOILED = {
    "first_job/first_job.py": ('send_mail.enqueue(to="lin@example.org")', 'send_mail.enqueue(too="lin@example.org")'),
    "retries_and_dead_letters/retries.py": ('import_file.enqueue("rates.csv")', "import_file.enqueue(5)"),
    "cpu_bound_processes/primes.py": ("unpack.enqueue(1024)", 'unpack.enqueue("1024")'),
    "cancellation_and_progress/exports.py": ("export.enqueue(pages=2)", "export.enqueue(page=2)"),
    "transactional_enqueue/orders.py": (".enqueue_sync(order)", '.enqueue_sync(order, "now")'),
    "import_flow/import_flow.py": ("report.call(amounts.result,", "report.call(weather.result,"),
    "tenant_limits/tenants.py": ('render.call("modest", page)', 'render.call("modest", "page")'),
    "nightly_report/nightly.py": ('NIGHTLY, region="eu")', "NIGHTLY, region=5)"),
    "fastapi_app/app.py": ("send_mail.enqueue(mail)", "send_mail.enqueue(mail.to)"),
    "nightly_pipeline/nightly_pipeline.py": ("send.call(number)", "send.call(str(number))"),
    "spark_jobs/spark_jobs.py": ("report.enqueue(1_000_000)", 'report.enqueue("1_000_000")'),
    "django_view/shop.py": ('enqueue_sync(name=request.POST["name"])', 'enqueue_sync(nmae=request.POST["name"])'),
}
"""In each example, a call and the same call with a wrong argument."""


class Checked:
    """The output of mypy --strict for all pages at once: one run takes seconds, and so would each single one."""

    def __init__(self, workdir: Path) -> None:
        pages = {"right.py": RIGHT, "wrong.py": WRONG}
        for example, (right, wrong) in SPOILED.items():
            text = (ROOT / "examples" / example).read_text(encoding="utf-8")
            assert text.count(right) == 1, f"{example} has changed: choose another call to spoil"
            pages[example] = text.replace(right, wrong)
        for name, text in pages.items():
            (workdir / name).parent.mkdir(parents=True, exist_ok=True)
            (workdir / name).write_text(text, encoding="utf-8")
        settings = ("--strict", "--config-file", str(ROOT / "pyproject.toml"))  # and the cache of `make check`
        command = [sys.executable, "-m", "mypy", *settings, "--no-error-summary", str(workdir), str(ROOT / "examples")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stdout + done.stderr
        self.told = done.stdout

    def errors(self, page: str) -> list[tuple[int, str]]:
        """Return line and code of each error in this file, by the end of its path: a cache may keep an older path."""
        found = ERROR.finditer(self.told)
        return [(int(one["line"]), one["code"]) for one in found if f"/{one['file']}".endswith(f"/{page}")]


@pytest.mark.slow
@pytest.mark.timeout(240)  # without a cache the type checker reads the libraries first
def test_right_calls_have_the_types_of_their_task_and_each_wrong_one_is_an_error(tmp_path: Path) -> None:
    checked = Checked(tmp_path / "spoiled")
    assert checked.errors("spoiled/right.py") == [], checked.told
    marked = [
        (number, line.rpartition("# wrong: ")[2])
        for number, line in enumerate(WRONG.splitlines(), start=1)
        if "# wrong: " in line
    ]
    found = list(dict.fromkeys(checked.errors("spoiled/wrong.py")))  # one line may have two errors of one code
    assert found == marked, checked.told
    for example, (right, _) in SPOILED.items():
        text = (ROOT / "examples" / example).read_text(encoding="utf-8")
        spoiled_at = text[: text.index(right)].count("\n") + 1
        assert [line for line, _ in checked.errors(f"spoiled/{example}")] == [spoiled_at], checked.told
        assert checked.errors(f"examples/{example}") == [], checked.told


def test_every_example_that_calls_tasks_has_a_wrong_call_here() -> None:
    programs = [(program, program.read_text(encoding="utf-8")) for program in (ROOT / "examples").glob("*/*.py")]
    assert set(SPOILED) == {
        f"{program.parent.name}/{program.name}"
        for program, text in programs
        if re.search(r"^@harbor\.", text, re.MULTILINE) and re.search(r"\.(enqueue\w*|call|schedule)\(", text)
    }
