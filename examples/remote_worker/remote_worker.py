"""A worker on another machine: nothing but Python's standard library, and no code of Longshore's.

`python remote_worker.py ADDRESS` works until it is stopped; a second argument is how many jobs it does before it ends.
"""

import json
import os
import sys
import threading
import urllib.request
import uuid
from typing import Any

ADDRESS, LEASE = sys.argv[1], 30
NAME = f"stdlib-{os.getpid()}"
TOKEN = os.environ.get("LONGSHORE_TOKEN")  # noqa: TID251 - it has no settings of ours
held: dict[str, Any] = {}  # the leases of the jobs at work, by job id


def ask(path: str, **body: Any) -> Any:
    """One request, repeated under its key until it is answered: it is carried out once."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4())}
    headers |= {"Authorization": f"Bearer {TOKEN}"} if TOKEN else {}
    request = urllib.request.Request(f"{ADDRESS}/v1/work/{path}", json.dumps(body).encode(), headers)
    for pause in (0.1, 0.5, 2, 5, None):
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return json.load(answer)
        except OSError as error:  # nobody answered, or with an error: of these some are over in a moment
            status = getattr(error, "code", 503)
            if pause is None or status not in (429, 502, 503, 504):
                raise SystemExit(f"{path}: {error.read().decode() if hasattr(error, 'read') else error}") from None
            threading.Event().wait(pause)
    return None


def keep_leases() -> None:
    """While a job is at work its lease is renewed; one that is not in the answer is somebody else's by now."""
    while True:
        threading.Event().wait(LEASE / 3)
        if held:
            renewed = ask("renew", leases=dict(held), duration=LEASE)["leases"]
            for job_id in set(held) - set(renewed):
                held.pop(job_id, None)


def perform(job: Any) -> str:
    """The work itself: what this worker knows how to do, by the type of the job."""
    data = json.loads(job["payload"])
    if job["type"] == "shout":
        return str(data["text"]).upper() + "!"
    raise ValueError(f"{job['type']} is nothing that this worker can do")


def outcome_of(job: Any) -> dict[str, Any]:
    """How the job ended, in the words of the protocol."""
    told = {"job_id": job["id"], "lease": job["lease"]}
    try:
        told |= {"verb": "complete", "result": json.dumps(perform(job))}
    except Exception as error:
        last = job.get("max_attempts", 0) and job.get("retry_count", 0) + 1 >= job["max_attempts"]
        told |= (
            {"verb": "bury", "error": repr(error)} if last else {"verb": "fail", "error": repr(error), "retry_at": 1}
        )
    held.pop(job["id"], None)
    print(f"{job['type']}: {told.get('result') or told.get('error')}", flush=True)
    return told


threading.Thread(target=keep_leases, daemon=True).start()
left = int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize
while left > 0:
    jobs = ask("claim", assignee_id=NAME, limit=min(left, 10), lease=LEASE, wait=20)["jobs"]
    held.update({job["id"]: job["lease"] for job in jobs})
    report = ask("settle", outcomes=[outcome_of(job) for job in jobs])
    for job_id, problem in report["refused"].items():
        print(f"{job_id} was refused: {problem['detail']}", flush=True)
    left -= len(jobs)
