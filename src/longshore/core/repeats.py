"""Whether a job that comes again is the one that is known: by the request that made it, or else by what it says."""

from __future__ import annotations

from longshore.core.record import Record, Tombstone


def is_repeat(sent: Record, known: Record | Tombstone) -> bool:
    """Whether the job that is sent is the known one once more, and not another one under its key or id."""
    if (sent.queue, sent.type) != (known.queue, known.type):
        return False
    if sent.idempotency_key not in (None, known.idempotency_key):  # known by its id, and it would not keep this key
        return False
    if known.request is not None:
        return sent.request == known.request
    return isinstance(known, Tombstone) or sent.payload == known.payload  # of a payload that is gone nothing is known
