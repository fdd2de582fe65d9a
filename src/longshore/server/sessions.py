"""A browser that showed a token once: a signed cookie that names it, worth nothing once the token is."""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple

from longshore.core.times import from_micros, to_micros
from longshore.server.newest import Newest

LASTS = timedelta(hours=12)
"""A working day; then the token is asked for again."""
PLAIN, SECURE, SECURE_MOUNTED = "longshore_session", "__Host-longshore_session", "__Secure-longshore_session"
"""The cookie's name; over TLS the one that a browser takes from nobody else."""
_MOST_ENDED = 10_000


def cookie_name(*, secure: bool, root: str) -> str:
    """The cookie's name: `__Host-` requires the path `/`, which a mounted application shares with its host."""
    if not secure:
        return PLAIN
    return SECURE_MOUNTED if root else SECURE


class Session(NamedTuple):
    """What a good cookie says."""

    token_id: str
    number: str
    ends: datetime


class Sessions:
    """Those that one key has signed: of this process alone, unless a key is shared."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else key
        self._ended: Newest[str, None] = Newest(_MOST_ENDED)

    def begin(self, token_id: str, now: datetime) -> str:
        """A new cookie's value."""
        said = f"{token_id}.{secrets.token_hex(8)}.{to_micros(now + LASTS)}"
        return f"{said}.{self._signature(said)}"

    def read(self, value: str) -> Session | None:
        """What it says, if it is ours and nobody signed out of it; whether it is over is for the store's clock."""
        said, _, signature = value.rpartition(".")
        if not hmac.compare_digest(self._signature(said).encode(), signature.encode("utf-8", "replace")):
            return None
        token_id, number, ends = said.split(".")
        return None if number in self._ended else Session(token_id, number, from_micros(int(ends)))

    def end(self, value: str) -> None:
        """Signed out: a copy of the cookie is worth nothing either."""
        session = self.read(value)
        if session is not None:
            self._ended.put(session.number, None)

    def _signature(self, said: str) -> str:
        return hmac.new(self._key, said.encode("utf-8", "replace"), sha256).hexdigest()
