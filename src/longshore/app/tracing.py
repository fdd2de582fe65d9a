"""OpenTelemetry traces from the enqueue of a job to each of its runs, across processes.

It needs `longshore[otel]` and a tracer provider that the application sets up; without one it records nothing.
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
    """Traces jobs with OpenTelemetry: `harbor.add_middleware(Tracing())`, in producers and workers."""

    def __init__(self) -> None:
        self._enqueuing: dict[str, Span] = {}
        self._running: dict[tuple[str, int], tuple[Span, Token[Any]]] = {}

    def before_enqueue(self, job: Job) -> Job:
        """Start a span and store its context in the job."""
        span = _tracer.start_span(f"enqueue {job.type}", kind=SpanKind.PRODUCER, attributes=_attributes(job))
        self._enqueuing[job.id] = span
        return carrying(job, span)

    def after_enqueue(self, job: Job, error: BaseException | None) -> None:
        """End the span of the enqueue."""
        _end(self._enqueuing.pop(job.id), error)

    def before_run(self, job: RunningJob) -> None:
        """Start a span in the trace that the job carries."""
        attributes = {**_attributes(job), "longshore.execution": job.executions}
        span = _tracer.start_span(f"run {job.type}", origin_of(job.options), SpanKind.CONSUMER, attributes)
        self._running[job.id, job.epoch] = span, context.attach(trace.set_span_in_context(span))

    def after_run(self, job: RunningJob, result: Any, error: BaseException | None) -> None:  # noqa: ARG002 - results may be secret
        """End the span of the run."""
        span, token = self._running.pop((job.id, job.epoch))
        context.detach(token)
        _end(span, error)


def carrying(job: Job, span: Span) -> Job:
    """Return the job with the context of this span among its options."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return job.replace(options={**job.options, TRACE: carrier}) if carrier else job


def origin_of(options: Mapping[str, Any]) -> context.Context:
    """Return the trace context of a job, or an empty one."""
    carried = options.get(TRACE)
    strings = {str(key): str(value) for key, value in carried.items()} if isinstance(carried, Mapping) else {}
    return propagate.extract(strings, context.Context())


@contextmanager
def enqueuing(jobs: Sequence[Job], headers: Mapping[str, str]) -> Iterator[list[Job]]:
    """Yield the jobs with a span in the trace of the request's headers, for a server."""
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
    if error is not None:  # only its type, because messages may hold secrets
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
    span.end()
