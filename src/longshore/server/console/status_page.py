"""The content of the status page, and rendering of templates."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from longshore.backends.base import QueueInfo, WorkerInfo
from longshore.core.explain import state_of_worker
from longshore.core.job import Job
from longshore.core.status import JobStatus

_STYLE = resources.files("longshore.server.console").joinpath("templates", "style.css").read_text(encoding="utf-8")
_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()

CONTENT_SECURITY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""No script at all, and no style but our own; whatever text of a job should become one, it does nothing."""

_templates = Environment(
    loader=PackageLoader("longshore.server.console"), autoescape=True, undefined=StrictUndefined, auto_reload=False
)


def page(
    name: str, shown: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> HTMLResponse:
    """Return the page as a response."""
    kept = {name: value for name, value in (headers or {}).items() if name.lower() in _KEPT_HEADERS}
    # without any referrer a browser would not send the Origin of a form either
    kept |= {"Content-Security-Policy": CONTENT_SECURITY, "Referrer-Policy": "same-origin"}
    return HTMLResponse(render(name, shown), status, kept)


_KEPT_HEADERS = frozenset({"www-authenticate", "retry-after"})


def render(name: str, shown: Mapping[str, Any]) -> str:
    """Render a template."""
    return _templates.get_template(name).render(style=_STYLE, **shown)


_SHOWN_ERROR = 200
_SHOWN_WORKERS = 50
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def status_of(
    queues: Sequence[QueueInfo],
    latest: Sequence[Job],
    failed: Sequence[Job],
    workers: Sequence[WorkerInfo],
    now: datetime,
) -> dict[str, Any]:
    """Return the values of the status template."""
    latest_first = sorted(workers, key=lambda worker: worker.seen_at or now, reverse=True)
    return {
        "at": f"{now:%Y-%m-%d %H:%M:%S} UTC",
        "queues": [_queue(queue) for queue in queues],
        "latest": [_job(job, now) for job in latest],
        "failed": [_job(job, now) for job in failed],
        "workers": [_worker(worker, now) for worker in latest_first[:_SHOWN_WORKERS]],
    }


def _queue(queue: QueueInfo) -> dict[str, Any]:
    counts = queue.counts
    completed, dead = counts.get(JobStatus.COMPLETED, 0), counts.get(JobStatus.DEAD, 0)
    limits = {"running": queue.running, "per key": queue.per_key}
    return {
        "name": queue.name,
        "waiting": f"{queue.waiting:,}",
        "running": f"{queue.held:,}",
        "completed": f"{completed:,}",
        "dead": f"{dead:,}",
        "other": f"{sum(counts.values()) - queue.waiting - queue.held - completed - dead:,}",
        "paused": queue.paused,
        "limits": ", ".join(f"{name} {number}" for name, number in limits.items() if number is not None),
    }


def _job(job: Job, now: datetime) -> dict[str, Any]:
    error = job.error_message.partition("\n")[0]
    moods = {JobStatus.DEAD: "bad", JobStatus.FAILED_RETRY: "bad", JobStatus.COMPLETED: "good"}
    return {
        "record": job,
        "address": f"/v1/jobs/{quote(job.id, safe='')}",
        "mood": moods.get(job.status, ""),
        "since": ago(job.updated_at, now),
        "error": error if len(error) <= _SHOWN_ERROR else f"{error[:_SHOWN_ERROR]}…",
    }


def _worker(worker: WorkerInfo, now: datetime) -> dict[str, Any]:
    state = state_of_worker(worker.state, worker.seen_at, now)
    return {
        "record": worker,
        "state": state,
        "mood": "bad" if state == "silent" else "good" if state == "running" else "",
        "seen": ago(worker.seen_at, now),
    }


def ago(moment: datetime | None, now: datetime) -> str:
    """The age in the largest unit that fits."""
    if moment is None:
        return ""
    seconds = max(0, int((now - moment).total_seconds()))
    unit, size = next((one for one in _UNITS if seconds >= one[1]), _UNITS[-1])
    return f"{seconds // size} {unit} ago"
