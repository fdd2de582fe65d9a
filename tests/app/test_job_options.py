"""One table holds the options of a job: every interface takes them, with the same defaults."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from typer.main import get_command

from longshore import Harbor, Queue
from longshore.cli.main import app
from longshore.core.job import Job
from longshore.core.job_options import OPTIONS, EnqueueOptions, JobSpec, RepeatedJobOptions, TaskOptions, job_from
from longshore.runtime.queue import SyncQueue
from longshore.server.models.jobs import BatchJob, NewJob
from longshore.server.models.schedules import PatternJob

HTTP_NAMES = {"job_id": "id"}
NOT_OVER_HTTP = {"hold"}  # the server itself holds a job until it is stored, then accepts it


def defaults_of(function: Any) -> dict[str, Any]:
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_taken_by_every_surface_with_the_same_default(name: str) -> None:
    # M-OPT-01
    option = OPTIONS[name]
    assert option.help.endswith(".")
    for add in (Queue.add, SyncQueue.add):
        assert defaults_of(add)[name] == option.default
    if name in TaskOptions.__annotations__:
        for declare in (Harbor.task, Harbor.spark_task):
            assert defaults_of(declare)[name] == option.default
    assert name in JobSpec.__annotations__
    assert name in EnqueueOptions.__annotations__
    if name not in NOT_OVER_HTTP:
        field = BatchJob.model_fields[HTTP_NAMES.get(name, name)]
        assert field.get_default(call_default_factory=True) == (
            list(option.default) if option.default == () else option.default
        )
        assert str(field.description).startswith(option.help) or name == "idempotency_key"


def test_the_command_line_has_a_flag_for_every_option() -> None:
    # M-OPT-01
    commands: Any = get_command(app)
    enqueue = {one.name: one for one in commands.commands["enqueue"].params}
    schedule = {one.name for one in commands.commands["schedule"].commands["add"].params}
    assert OPTIONS.keys() <= enqueue.keys()
    assert RepeatedJobOptions.__annotations__.keys() <= schedule
    assert not schedule & {"run_at", "expires_at", "job_id", "idempotency_key", "depends_on", "hold"}
    for name, option in OPTIONS.items():
        assert str(enqueue[name].help).startswith(option.help[:-1]), name


def test_a_schedule_over_http_repeats_no_option_of_a_single_job() -> None:
    assert RepeatedJobOptions.__annotations__.keys() <= PatternJob.model_fields.keys()
    assert not PatternJob.model_fields.keys() & (OPTIONS.keys() - RepeatedJobOptions.__annotations__.keys())


def test_a_job_without_options_is_the_same_from_every_surface() -> None:
    # M-OPT-01 M-OPT-02 M-OPT-03
    harbor = Harbor("memory://")

    @harbor.task
    def email() -> None: ...

    plain = job_from("email", {})
    body = NewJob(type="email", data={}).options()
    assert bare(job_from(**body)) == bare(plain)
    assert bare(email.call().job()) == bare(plain)
    assert bare(email.options(lifo=False).call().job()) == bare(plain)


def bare(job: Job) -> Job:
    return job.replace(id="", queue="default")
