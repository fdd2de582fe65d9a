"""A worker on another machine that uses only Python's standard library and no code of Longshore.

`python remote_worker.py ADDRESS [JOBS]` runs until it is stopped, or until it has run this number of jobs.
"""

import json
import os
import sys
import threading
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

ADDRESS, NAME, SLOTS = sys.argv[1], f"stdlib-{os.getpid()}", 4
SETTINGS = os.environ  # noqa: TID251 - this program uses no code of Longshore
TOKEN, LEASE = SETTINGS.get("LONGSHORE_TOKEN"), float(SETTINGS.get("LEASE_SECONDS", "30"))
held: dict[str, Any] = {}  # claimed jobs that are not settled yet, by id


def ask(path: str, **body: Any) -> Any:
    """Send a request, repeated with its key until it is answered; the server executes it once."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4())}
    headers |= {"Authorization": f"Bearer {TOKEN}"} if TOKEN else {}
    request = urllib.request.Request(f"{ADDRESS}/v1/work/{path}", json.dumps(body).encode(), headers)
    pauses = [5, 2, 0.5, 0.1]
    while True:
        try:
            with urllib.request.urlopen(request, timeout=body.get("wait", 0) + 10) as answer:
                return json.load(answer)
        except (OSError, HTTPException) as error:  # no answer, or an error that may be temporary
            if not pauses or getattr(error, "code", 503) not in (429, 502, 503, 504):
                raise ConnectionError(f"{path}: {error} {getattr(error, 'read', str)()}") from None
            threading.Event().wait(pauses.pop())


def keep_leases() -> None:
    """Renew the leases of all unsettled jobs, and set `stop` on those that are lost or cancelled."""
    while True:
        threading.Event().wait(min(LEASE / 4, 15))
        jobs = dict(held)
        try:
            renewed = ask("renew", leases={name: job["lease"] for name, job in jobs.items()}, duration=LEASE)["leases"]
        except ConnectionError as error:  # keep the thread alive: the next round may be in time
            print(f"leases not renewed: {error}", file=sys.stderr, flush=True)
            continue
        for name, job in jobs.items():
            if name not in renewed or renewed[name].get("cancel_requested"):  # lost or cancelled
                job["stop"].set()


def perform(job: Any) -> str:
    """Do the work for the type of the job. Long work must check `stop`."""
    data = json.loads(job["payload"])
    if job["type"] != "shout":
        raise ValueError(f"unknown type {job['type']}")
    if job["stop"].wait(data.get("after_seconds", 0)):
        raise InterruptedError
    return str(data["text"]).upper() + "!"


def work_on(job: Any) -> None:
    """Run the job and settle it. Its lease is renewed until then."""
    outcome = {"job_id": job["id"], "lease": job["lease"]}
    try:
        outcome |= {"verb": "complete", "result": json.dumps(perform(job))}
    except InterruptedError:
        outcome |= {"verb": "stop"}
    except Exception as error:
        last = job.get("max_attempts", 0) and job.get("retry_count", 0) + 1 >= job["max_attempts"]
        outcome |= {"error": repr(error)} | ({"verb": "bury"} if last else {"verb": "fail", "retry_at": 1})
    refused = ask("settle", outcomes=[outcome])["refused"]
    held.pop(job["id"])
    print(f"{job['type']}: {refused or outcome.get('result') or outcome.get('error', 'cancelled')}", flush=True)


threading.Thread(target=keep_leases, daemon=True).start()
left = int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize
with ThreadPoolExecutor(SLOTS) as slots:
    while left > 0:
        jobs = ask("claim", assignee_id=NAME, limit=min(left, SLOTS), lease=LEASE, wait=20)["jobs"]
        held.update({job["id"]: job | {"stop": threading.Event()} for job in jobs})
        list(slots.map(work_on, [held[job["id"]] for job in jobs]))
        left -= len(jobs)
