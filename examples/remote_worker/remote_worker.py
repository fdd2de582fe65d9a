"""A worker on another machine: nothing but Python's standard library, and no code of Longshore's.

`python remote_worker.py ADDRESS` works until it is stopped; a second argument is how many jobs it does before it ends.
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

ADDRESS, NAME, PLACES = sys.argv[1], f"stdlib-{os.getpid()}", 4
SETTINGS = os.environ  # noqa: TID251 - it has no settings of ours
TOKEN, LEASE = SETTINGS.get("LONGSHORE_TOKEN"), float(SETTINGS.get("LEASE_SECONDS", "30"))
held: dict[str, Any] = {}  # the jobs that were claimed and are not settled yet, by id


def ask(path: str, **body: Any) -> Any:
    """One request, repeated under its key until it is answered: it is carried out once."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4())}
    headers |= {"Authorization": f"Bearer {TOKEN}"} if TOKEN else {}
    request = urllib.request.Request(f"{ADDRESS}/v1/work/{path}", json.dumps(body).encode(), headers)
    pauses = [5, 2, 0.5, 0.1]
    while True:
        try:
            with urllib.request.urlopen(request, timeout=body.get("wait", 0) + 10) as answer:
                return json.load(answer)
        except (OSError, HTTPException) as error:  # nobody answered, or with an error that may be over in a moment
            if not pauses or getattr(error, "code", 503) not in (429, 502, 503, 504):
                raise ConnectionError(f"{path}: {error} {getattr(error, 'read', str)()}") from None
            threading.Event().wait(pauses.pop())


def keep_leases() -> None:
    """Renews the leases of all jobs that are not settled yet; whoever works on one learns when it is to stop."""
    while True:
        threading.Event().wait(min(LEASE / 4, 15))
        jobs = dict(held)
        try:
            renewed = ask("renew", leases={name: job["lease"] for name, job in jobs.items()}, duration=LEASE)["leases"]
        except ConnectionError as error:  # this thread must go on: the next round may come in time
            print(f"the leases were not renewed: {error}", file=sys.stderr, flush=True)
            continue
        for name, job in jobs.items():
            if name not in renewed or renewed[name].get("cancel_requested"):  # it is somebody else's, or called off
                job["stop"].set()


def perform(job: Any) -> str:
    """The work itself: what this worker knows how to do, by the type of the job. What takes long looks at `stop`."""
    data = json.loads(job["payload"])
    if job["type"] != "shout":
        raise ValueError(f"{job['type']} is nothing that this worker can do")
    if job["stop"].wait(data.get("after_seconds", 0)):
        raise InterruptedError
    return str(data["text"]).upper() + "!"


def work_on(job: Any) -> None:
    """Runs the job and settles it at once: until then its lease is renewed."""
    told = {"job_id": job["id"], "lease": job["lease"]}
    try:
        told |= {"verb": "complete", "result": json.dumps(perform(job))}
    except InterruptedError:
        told |= {"verb": "stop"}
    except Exception as error:
        last = job.get("max_attempts", 0) and job.get("retry_count", 0) + 1 >= job["max_attempts"]
        told |= {"error": repr(error)} | ({"verb": "bury"} if last else {"verb": "fail", "retry_at": 1})
    refused = ask("settle", outcomes=[told])["refused"]
    held.pop(job["id"])
    print(f"{job['type']}: {refused or told.get('result') or told.get('error', 'called off')}", flush=True)


threading.Thread(target=keep_leases, daemon=True).start()
left = int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize
with ThreadPoolExecutor(PLACES) as places:
    while left > 0:
        jobs = ask("claim", assignee_id=NAME, limit=min(left, PLACES), lease=LEASE, wait=20)["jobs"]
        held.update({job["id"]: job | {"stop": threading.Event()} for job in jobs})
        list(places.map(work_on, [held[job["id"]] for job in jobs]))
        left -= len(jobs)
