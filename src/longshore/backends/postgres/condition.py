"""What can be seen of a server and a schema without touching a job."""

from __future__ import annotations

from datetime import timedelta

from longshore.backends.postgres.session import OwnSession
from longshore.backends.statements import Statements
from longshore.core.health import Condition, Rows
from longshore.core.times import from_micros

_THEIRS = "another session, which this user may not look at"


def condition_of(session: OwnSession, sql: Statements, schema: str, schema_version: int) -> Condition:
    """The facts; of other sessions only as much as this user may see."""
    settings = {str(name): str(said) for name, said in session.rows(sql.durability)}
    number = session.connection.info.server_version
    ((size,),) = session.rows(sql.size_of_schema, (schema,))
    held = session.rows(sql.oldest_snapshot)
    ((newest,),) = session.rows(sql.newest_time)
    restored = session.rows(sql.restored_lately)
    return Condition(
        engine="PostgreSQL",
        version=(number // 10_000, number % 10_000),
        schema_version=schema_version,
        settings=settings,
        size=int(size),
        tables={str(name): Rows(int(live), int(dead)) for name, live, dead in session.rows(sql.dead_rows, (schema,))},
        held_for=timedelta(microseconds=int(held[0][0])) if held else None,
        held_by=str(held[0][1] or _THEIRS) if held else "",
        restored_at=from_micros(int(restored[0][0])) if restored else None,
        newest=None if newest is None else from_micros(int(newest)),
    )
