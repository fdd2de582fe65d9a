"""What may be said of a new job: the options of `Queue.add`, spelled the same, for `enqueue` and `schedule add`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from longshore.cli import words
from longshore.cli.completion import complete_job

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
        "delay": None if delay is None else words.duration("delay", delay),
        "attempts": attempts,
        "backoff": None if backoff is None else words.backoff("backoff", backoff),
        "retry_strategy": retry_strategy,
        "lifo": lifo,
        "tags": tags or [],
        "timeout": None if timeout is None else words.duration("timeout", timeout),
        "parent_id": parent_id,
        "remove_on_complete": words.kept("remove-on-complete", remove_on_complete),
        "remove_on_fail": words.kept("remove-on-fail", remove_on_fail),
        "concurrency_key": concurrency_key,
        "max_crashes": words.limit("max-crashes", max_crashes),
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
        "run_at": None if run_at is None else words.moment("run-at", run_at),
        "expires_at": None if expires_at is None else words.moment("expires-at", expires_at),
        "job_id": job_id,
        "idempotency_key": idempotency_key,
        "depends_on": depends_on or (),
        "on_dependency_failure": on_dependency_failure,
        "hold": hold,
    }
