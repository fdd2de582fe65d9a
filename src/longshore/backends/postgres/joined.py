"""Enqueueing in the caller's own transaction: under a savepoint, so that nothing of ours ever ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from psycopg import errors

from longshore.backends.postgres.connecting import Server
from longshore.backends.postgres.performing import MOST_TRIES, Performer
from longshore.backends.postgres.queue_locks import BeginAnew
from longshore.backends.postgres.session import Session
from longshore.backends.postgres.transaction import PostgresTransaction
from longshore.backends.postgres.view import array_text
from longshore.backends.statements import Statements
from longshore.backends.view import View
from longshore.core.clock import Clock
from longshore.core.errors import BackendUnavailable, DuplicateJob, InvalidArgument
from longshore.core.job import Job
from longshore.core.times import to_micros

R = TypeVar("R")


class JoinedEnqueue(Generic[R]):
    """One batch of jobs on its way into a transaction that is not ours, and that others must never wait for."""

    def __init__(
        self,
        jobs: Sequence[Job],
        verb: Callable[[PostgresTransaction], R],
        performer: Performer,
        server: Server,
        sql: Statements,
        schema: str,
        channel: str,
        clock: Clock | None,
    ) -> None:
        self._jobs = jobs
        self._verb = verb
        self._performer = performer
        self._server = server
        self._sql = sql
        self._schema = schema
        self._channel = channel
        self._clock = clock
        self._unseen: dict[tuple[str, str], str] = {}
        """Jobs of idempotency keys that the caller's snapshot is too old to see."""

    def enqueue(self, session: Session) -> R:
        """The verb's answer; whatever goes wrong, the caller's transaction is as it was."""
        with self._server.explained():
            for _ in range(MOST_TRIES):
                session.run("SAVEPOINT longshore_enqueue")
                try:
                    answer = self._enqueue_once(session)
                except BaseException as error:
                    session.run("ROLLBACK TO SAVEPOINT longshore_enqueue")
                    session.run("RELEASE SAVEPOINT longshore_enqueue")
                    met_unseen = isinstance(error, errors.SerializationFailure) and self._look_for_them(session)
                    if not met_unseen and not isinstance(error, BeginAnew):
                        raise
                else:
                    session.run("RELEASE SAVEPOINT longshore_enqueue")
                    return answer
            raise BackendUnavailable(f"PostgreSQL at {self._server.name}: others were in the way again and again")

    def _look_for_them(self, session: Session) -> bool:
        """Finds the keys' jobs that a transaction with an older snapshot meets and cannot see; refuses ids in use."""
        keys = [(job.queue, job.idempotency_key) for job in self._jobs if job.idempotency_key is not None]
        found = self._performer.perform(lambda tx: tx.jobs_by_key(keys)) if keys else {}
        known = len(self._unseen)
        self._unseen |= found
        if len(self._unseen) > known:
            return True
        fresh = [job.id for job in self._jobs if (job.queue, job.idempotency_key) not in found]
        taken = self._performer.perform(lambda tx: tx.ids_taken(fresh))
        if taken:  # in addition to jobs of the caller's transaction, which only its session sees
            taken |= {job_id for (job_id,) in session.rows(self._sql.ids_taken, (array_text(fresh), array_text([])))}
            raise DuplicateJob([job_id for job_id in dict.fromkeys(fresh) if job_id in taken])
        return False

    def _enqueue_once(self, session: Session) -> R:
        self._refuse_other_database(session)
        transaction = self._performer.transaction_on(
            session, careful=True, shares_locks=False, known_keys=self._unseen, look_elsewhere=self._look_elsewhere
        )
        if self._clock is None:
            ((transaction.now,),) = session.rows(self._sql.now)
        else:
            transaction.now = to_micros(self._clock.now())
        answer = self._verb(transaction)
        session.rows(self._sql.notify, (self._channel, array_text(sorted(transaction.queues) or [""])))
        return answer

    def _look_elsewhere(self, look: Callable[[View], Any]) -> Any:
        return self._performer.look(look, follows=False)

    def _refuse_other_database(self, session: Session) -> None:
        """The log's name tells whether it is the same schema of the same database."""
        try:
            ((theirs, _),) = session.rows(self._sql.meta)
        except (errors.UndefinedTable, errors.InvalidSchemaName):
            theirs = None
        if theirs is None or theirs != self._performer.look(_log_of, follows=False):
            raise InvalidArgument(
                "connection", f"is open on another database than {self._server.name}, or has no schema {self._schema}"
            )


def _log_of(view: View) -> str:
    return view.log_ends(None).log
