"""A backend that keeps tokens in its store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from longshore.backends import tokens
from longshore.backends.stored import StoredBackend
from longshore.backends.tokens import Found, NewToken
from longshore.core.times import Duration, check_duration
from longshore.core.tokens import (
    Issued,
    Scope,
    Token,
    check_queues,
    check_scopes,
    check_token_name,
    new_secret,
    new_token_id,
)
from longshore.core.validation import check_name, check_names


class TokenKeepingBackend(StoredBackend):
    """The verbs of a store that tokens are kept in."""

    async def issue_token(
        self,
        name: str,
        scopes: Iterable[Scope | str],
        *,
        queues: Iterable[str] | None = None,
        expires_in: Duration | None = None,
        no_later_than: datetime | None = None,
    ) -> Issued:
        token_id = new_token_id()
        new = NewToken(
            token_id,
            new_secret(token_id),
            check_token_name(name),
            check_scopes(scopes),
            check_queues(queues),
            None if expires_in is None else check_duration("expires_in", expires_in),
            no_later_than,
        )
        return await self._write(tokens.issue_token, new)

    async def list_tokens(self) -> list[Token]:
        return await self._read(tokens.list_tokens)

    async def find_token(self, token_id: str) -> Found:
        return await self._read(tokens.find_token, check_name("token_id", token_id))

    async def revoke_token(self, token_id: str) -> Token:
        return await self._write(tokens.revoke_token, check_name("token_id", token_id))

    async def note_token_use(self, token_ids: Sequence[str]) -> None:
        await self._write(tokens.note_token_use, check_names("token_ids", token_ids))
