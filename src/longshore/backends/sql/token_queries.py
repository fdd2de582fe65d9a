"""API tokens over named statements."""

from __future__ import annotations

import json
from collections.abc import Sequence

from longshore.backends.sql.rows import Queries, Row
from longshore.backends.sql.statements import Statements
from longshore.core.times import from_micros, optional_moment, to_micros
from longshore.core.tokens import Scope, Token


class SQLTokens:
    """The table of tokens; the same for every dialect."""

    def __init__(self, sql: Statements, queries: Queries, now: int) -> None:
        self._sql = sql
        self._rows = queries.rows
        self._run = queries.run
        self.now = now

    def tokens(self) -> list[Token]:
        return sorted(map(_token, self._rows(self._sql.tokens)), key=lambda token: (token.name, token.created_at))

    def token(self, token_id: str) -> Token | None:
        return next(map(_token, self._rows(self._sql.token_by_id, token_id)), None)

    def put_token(self, token: Token) -> None:
        self._run(
            self._sql.insert_token,
            token.id,
            token.name,
            token.hash,
            json.dumps(sorted(token.scopes)),
            None if token.queues is None else json.dumps(sorted(token.queues), ensure_ascii=False),
            to_micros(token.created_at),
            None if token.expires_at is None else to_micros(token.expires_at),
        )

    def revoke_token(self, token_id: str) -> None:
        self._run(self._sql.revoke_token, token_id, self.now)

    def touch_tokens(self, token_ids: Sequence[str]) -> None:
        for token_id in sorted(token_ids):  # in one order, so that concurrent updates do not deadlock
            self._run(self._sql.touch_token, token_id, self.now)

    def forget_tokens(self, ended_by: int) -> None:
        self._run(self._sql.forget_tokens, ended_by)


def _token(row: Row) -> Token:
    id_, name, hash_, scopes, queues, created_at, expires_at, revoked_at, last_used_at = row
    return Token(
        id=id_,
        name=name,
        hash=hash_,
        scopes=frozenset(map(Scope, json.loads(scopes))),
        queues=None if queues is None else frozenset(json.loads(queues)),
        created_at=from_micros(created_at),
        expires_at=optional_moment(expires_at),
        revoked_at=optional_moment(revoked_at),
        last_used_at=optional_moment(last_used_at),
    )
