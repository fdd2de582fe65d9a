"""Leases over the wire: sent back as they came, by whoever holds them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from longshore.backends import checks
from longshore.backends.remote.forms import (
    MOST_LISTED,
    TIME,
    Form,
    Json,
    an_object,
    not_too_many,
    only,
    read_time,
    stored_time,
    write_time,
)
from longshore.backends.remote.records.schemas import NUMBER, WORD, a_record, or_null
from longshore.core.errors import InvalidArgument
from longshore.core.job import Lease


def write_lease(lease: Lease) -> dict[str, Any]:
    """All of it: whoever holds it sends it back as it came."""
    told: dict[str, Any] = {"token": lease.token, "epoch": lease.epoch}
    if isinstance(lease.expires_at, datetime):
        told["expires_at"] = write_time(lease.expires_at)
    if lease.cancel_requested:
        told["cancel_requested"] = True
    return told


_LEASE_FIELDS = {"token": "", "epoch": 0, "expires_at": None, "cancel_requested": False}


def read_lease(name: str, value: Json) -> Lease:
    """A lease; only its token and its epoch are asked for."""
    told = an_object(name, value)
    token, epoch = told.get("token"), told.get("epoch")
    if not isinstance(token, str) or type(epoch) is not int:
        raise InvalidArgument(name, "must have the token and the epoch of the lease, as the claim gave them")
    only(name, told, _LEASE_FIELDS)
    ends = told.get("expires_at")
    cancelling = told.get("cancel_requested", False)
    if not isinstance(cancelling, bool):
        raise InvalidArgument(f"{name}.cancel_requested", "must be true or false")
    return Lease(token, epoch, None if ends is None else read_time(f"{name}.expires_at", ends), cancelling)


def known_lease(value: Json) -> Lease:
    """What `write_lease` wrote."""
    return Lease(
        value["token"], value["epoch"], stored_time(value.get("expires_at")), value.get("cancel_requested", False)
    )


_LEASE = a_record(
    "HeldLease",
    "The right to work on a job and report on it; sent back as it came. Without `expires_at` it never ends.",
    ["token", "epoch"],
    token=WORD,
    epoch=NUMBER,
    expires_at=or_null(TIME.schema),
    cancel_requested={"type": "boolean", "description": "Somebody wants the job called off."},
)
LEASE: Form[Lease | None] = Form(
    lambda _, value: None if checks.lease(value) is None else write_lease(value),
    lambda name, value: None if value is None else read_lease(name, value),
    or_null(_LEASE),
)


def _own_lease(name: str, value: Any) -> Json:
    held = checks.lease(value, name)
    if held is None:
        raise InvalidArgument(name, "must be the Lease of a claimed job, or None; got NoneType")
    return write_lease(held)


HELD: Form[Lease] = Form(_own_lease, read_lease, _LEASE)
LEASES: Form[dict[str, Lease]] = Form(
    lambda _, value: {job_id: write_lease(lease) for job_id, lease in checks.leases(value).items()},
    lambda name, value: {
        job_id: read_lease(name, told) for job_id, told in not_too_many(name, an_object(name, value)).items()
    },
    {
        "type": "object",
        "maxProperties": MOST_LISTED,
        "additionalProperties": _LEASE,
        "description": "Leases by job id.",
    },
)
