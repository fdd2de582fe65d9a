"""What the document of the API says of the verbs of the contract: their bodies, examples and headers."""

from __future__ import annotations

from typing import Any

from longshore.backends.remote import records
from longshore.backends.remote.codecs import WAIT
from longshore.backends.remote.protocol import DEQUEUE_JOBS, KEY, Verb

CHANGES_ANSWER: dict[str, Any] = {
    "description": "Where the store stands, and whether that is another place than the one given.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"mark": {"type": "string"}, "changed": {"type": "boolean"}},
                "required": ["mark", "changed"],
            }
        }
    },
}
CHANGES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"mark": {"type": "string"}, "timeout": WAIT.schema},
                    "additionalProperties": False,
                }
            }
        },
    }
}

_EXAMPLES: dict[str, Any] = {
    "dequeue_jobs": {"assignee_id": "worker-1", "queues": ["mail"], "limit": 10, "lease": 30, "wait": 20},
    "extend_leases": {"leases": {"welcome-ada": {"token": "6f1c…", "epoch": 1}}, "duration": 30},
    "settle_jobs": {
        "outcomes": [{"job_id": "welcome-ada", "lease": {"token": "6f1c…", "epoch": 1}, "result": '{"sent": true}'}]
    },
    "set_progress": {"job_id": "welcome-ada", "value": 0.5, "lease": {"token": "6f1c…", "epoch": 1}},
}


def told_in_full(verb: Verb[Any]) -> str:
    """What it does, and for whom."""
    lease = (
        "\n\nWithout a lease it is for whoever has the scope admin." if verb.takes.get("lease") is records.LEASE else ""
    )
    return verb.description + lease


def described(verb: Verb[Any]) -> dict[str, Any]:
    """What the document of the API says of a request, beside its answers."""
    schema = dict(verb.body)
    if verb is DEQUEUE_JOBS:
        waits = {**WAIT.schema, "description": "Seconds to wait for a job if there is none now."}
        schema["properties"] = {**schema["properties"], "wait": waits}
    content: dict[str, Any] = {"schema": schema}
    if verb.name in _EXAMPLES:
        content["example"] = _EXAMPLES[verb.name]
    extra: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/json": content}}}
    if not verb.looks:
        extra["parameters"] = [
            {
                "name": KEY,
                "in": "header",
                "required": False,
                "description": "Makes the request safe to repeat for two minutes: it is answered as the first was.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }
        ]
    return extra
