"""OpenTelemetry traces from the enqueue of a job to each of its runs, across processes.

Needs `longshore[otel]`, and a provider that the application has set up; without one nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from typing import Any

from longshore.app.middleware import Middleware
from longshore.core.errors import MissingExtra
from longshore.core.job import Job
from longshore.runtime.running_job import RunningJob

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode
except ImportError as error:
    raise MissingExtra("Tracing", "otel") from error

TRACE = "trace"
"""The option of a job that carries the trace context of its enqueue, as W3C trace headers."""

_tracer = trace.get_tracer("longshore")


class Tracing(Middleware):
    """Add it with `harbor.add_middleware(Tracing())`, in producers and in workers."""

    def __init__(self) -> None:
        self._enqueuing: dict[str, Span] = {}
        self._running: dict[tuple[str, int], tuple[Span, Token[Any]]] = {}

    def before_enqueue(self, job: Job) -> Job:
        """The job carries the trace along."""
        span = _tracer.start_span(f"enqueue {job.type}", kind=SpanKind.PRODUCER, attributes=_attributes(job))
        self._enqueuing[job.id] = span
        return carrying(job, span)

    def after_enqueue(self, job: Job, error: BaseException | None) -> None:
        """The span ends with the enqueue."""
        _end(self._enqueuing.pop(job.id), error)

    def before_run(self, job: RunningJob) -> None:
        """The run is part of the trace that the job carries."""
        attributes = {**_attributes(job), "longshore.execution": job.executions}
        span = _tracer.start_span(f"run {job.type}", origin_of(job.options), SpanKind.CONSUMER, attributes)
        self._running[job.id, job.epoch] = span, context.attach(trace.set_span_in_context(span))

    def after_run(self, job: RunningJob, result: Any, error: BaseException | None) -> None:  # noqa: ARG002 - results may be secret
        """The span ends with the run."""
        span, token = self._running.pop((job.id, job.epoch))
        context.detach(token)
        _end(span, error)


def carrying(job: Job, span: Span) -> Job:
    """The job with the context of this span among its options."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return job.replace(options={**job.options, TRACE: carrier}) if carrier else job


def origin_of(options: Mapping[str, Any]) -> context.Context:
    """The context a job carries; an empty one if it carries none, or something else under that name."""
    carried = options.get(TRACE)
    strings = {str(key): str(value) for key, value in carried.items()} if isinstance(carried, Mapping) else {}
    return propagate.extract(strings, context.Context())


@contextmanager
def enqueuing(jobs: Sequence[Job], headers: Mapping[str, str]) -> Iterator[list[Job]]:
    """For a server: the jobs, carrying a span that is part of the trace in the request's headers."""
    kinds = sorted({job.type for job in jobs})
    name = f"enqueue {kinds[0]}" if len(kinds) == 1 else f"enqueue {len(jobs)} jobs"
    attributes = _attributes(jobs[0]) if len(jobs) == 1 else {"longshore.jobs": len(jobs)}
    span = _tracer.start_span(name, propagate.extract(headers, context.Context()), SpanKind.PRODUCER, attributes)
    error: BaseException | None = None
    try:
        yield [carrying(job, span) for job in jobs]
    except BaseException as raised:
        error = raised
        raise
    finally:
        _end(span, error)


def _attributes(job: Job | RunningJob) -> dict[str, str | int]:
    return {"longshore.job.id": job.id, "longshore.job.type": job.type, "longshore.queue": str(job.queue)}


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:  # its kind only: messages may hold secrets
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
    span.end()
