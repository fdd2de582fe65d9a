"""Bytes that are no JSON, shown in JSON."""

from __future__ import annotations

from base64 import b64encode


def base64_text(raw: bytes) -> str:
    """The bytes as base64."""
    return b64encode(raw).decode("ascii")
