"""Traces of what comes in over HTTP, where OpenTelemetry is installed and traces are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from fastapi import Request

from longshore.core.job import Job


def submitting(request: Request, jobs: Sequence[Job]) -> AbstractContextManager[Sequence[Job]]:
    """The jobs to store: with traces, each carries that of the request to its runs."""
    if not request.app.state.platform.options.tracing:
        return nullcontext(jobs)
    from longshore.app.tracing import enqueuing  # it loads OpenTelemetry, which is an extra

    return enqueuing(jobs, {name: request.headers[name] for name in _CARRIED if name in request.headers})


_CARRIED = ("traceparent", "tracestate")
