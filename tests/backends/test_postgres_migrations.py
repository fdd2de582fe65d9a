"""The schema on PostgreSQL: the same after any upgrade path, with any name, rejected if newer, private to its user."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from longshore import Job, JobFilter, JobStatus, connect
from longshore.backends.base import Backend
from longshore.backends.postgres import schema as preparing
from longshore.backends.postgres.connection import Server
from longshore.backends.sql.statements import Migration
from longshore.core.dependencies import POLICIES
from longshore.core.errors import BackendUnavailable, InvalidArgument
from longshore.core.status import TRANSITIONS, Verb
from tests.backends.postgres_following import AT_ONCE, read_until
from tests.postgres_server import connect as connect_to_server

# Everything in the catalogs that describes a schema, without the schema's name.
CATALOG = """
SELECT 'column', c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull::text,
    a.attidentity::text, a.attstorage::text, a.attnum::text, coalesce(l.collname::text, ''),
    coalesce(pg_get_expr(d.adbin, d.adrelid), '')
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
WHERE c.relnamespace = %(schema)s::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'relation', relname, relkind::text, relpersistence::text, coalesce(reloptions::text, ''), '', '', '', '', ''
FROM pg_class WHERE relnamespace = %(schema)s::regnamespace
UNION ALL
SELECT 'index', c.relname, pg_get_indexdef(c.oid), '', '', '', '', '', '', ''
FROM pg_class AS c WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind = 'i'
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', '', '', '', '', ''
FROM pg_constraint WHERE connamespace = %(schema)s::regnamespace
UNION ALL
SELECT 'view', c.relname, pg_get_viewdef(c.oid), '', '', '', '', '', '', ''
FROM pg_class AS c WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind = 'v'
UNION ALL
SELECT 'sequence', sequencename, data_type::text, start_value::text, increment_by::text, max_value::text, cycle::text,
    cache_size::text, '', ''
FROM pg_sequences WHERE schemaname = %(name)s
UNION ALL
SELECT 'function', proname, pg_get_functiondef(oid), '', '', '', '', '', '', ''
FROM pg_proc WHERE pronamespace = %(schema)s::regnamespace
UNION ALL
SELECT 'trigger', tgrelid::regclass::text, pg_get_triggerdef(t.oid), '', '', '', '', '', '', ''
FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = tgrelid
WHERE c.relnamespace = %(schema)s::regnamespace AND NOT tgisinternal
"""

ODD_NAMES = (
    "UpperCase",
    "with spaces",
    'with "quotes"',
    "with 'single' quotes",
    "käferschiffchen 🚢",
    "semi;colon -- comment",
    "percent %s %(x)s 100%",
    "braces {schema} {jobs}",
    "dollar $1",
    "select",
    "x.y",
    "back\\slash",
)


def catalog(url: str, schema: str) -> list[tuple[str, ...]]:
    with psycopg.connect(url) as connection:
        name = preparing.quoted(schema)
        rows = connection.execute(CATALOG, {"schema": name, "name": schema}).fetchall()
    return sorted(tuple(text.replace(f"{name}.", "").replace(f"{schema}.", "") for text in row) for row in rows)


# --- upgrade paths ---


SECOND = Migration(
    len(preparing.MIGRATIONS) + 1,
    "for_tests.sql",
    "ALTER TABLE {schema}.jobs ADD COLUMN note text; CREATE INDEX jobs_by_note ON {schema}.jobs (note)",
)
"""A migration for tests only: it comes after the last real one."""


def test_a_fresh_schema_is_what_all_migrations_make_step_by_step(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(postgres_url)
    every = (*preparing.MIGRATIONS, SECOND)
    for count in range(1, len(every) + 1):
        monkeypatch.setattr(preparing, "MIGRATIONS", every[:count])  # an older version of the code
        assert preparing.prepare(server, "grown").version == count
        if count < len(every):
            preparing.prepare(server, "before")
    preparing.prepare(server, "fresh")
    fresh, grown = catalog(postgres_url, "fresh"), catalog(postgres_url, "grown")
    assert len(fresh) > 100
    assert fresh == grown
    before = catalog(postgres_url, "before")
    assert before != fresh
    assert before == catalog(postgres_url, "longshore")  # the template's, created by the same code


def words_of(text: str) -> set[str]:
    return set(re.findall(r"'(\w+)'", text))


def test_the_checks_and_indexes_of_the_schema_have_the_statuses_of_the_transition_table(postgres_url: str) -> None:
    preparing.prepare(Server(postgres_url), "longshore")
    rows = catalog(postgres_url, "longshore")
    checks = {name: words_of(text) for kind, _, name, text, *_ in rows if kind == "constraint"}
    indexes = {name: words_of(text) for kind, name, text, *_ in rows if kind == "index"}
    sources = {verb: {move.source for move in TRANSITIONS if move.verb is verb} for verb in Verb}
    assert checks["job_status_check"] == set(JobStatus)
    assert checks["dependency_policy_check"] == set(POLICIES)
    for index in ("jobs_claimable", "jobs_of_type", "jobs_to_announce"):
        assert indexes[index] == sources[Verb.CLAIM], index
    assert indexes["jobs_expiring"] == sources[Verb.EXPIRE]
    assert indexes["jobs_cancelling"] == sources[Verb.ACKNOWLEDGE]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("jobs", "status"),
        ("jobs", "on_dependency_failure"),
        ("job_dependencies", "policy"),
        ("job_dependencies", "state"),
    ],
)
async def test_a_word_that_is_none_of_ours_is_refused(postgres_url: str, table: str, column: str) -> None:
    async with connect(postgres_url) as backend:
        await backend.enqueue_jobs([Job(id="a", type="t"), Job(id="b", type="t", depends_on=["a"])])
    with psycopg.connect(postgres_url) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(f"UPDATE longshore.{table} SET {column} = 'running'")


def test_the_catalog_would_tell_a_difference(postgres_url: str) -> None:
    preparing.prepare(Server(postgres_url), "other")
    for change in (
        "ALTER TABLE other.jobs RESET (fillfactor)",
        "ALTER TABLE other.jobs ALTER COLUMN crashes SET DEFAULT 1",
        "ALTER TABLE other.jobs ALTER COLUMN progress TYPE varchar",
        "ALTER TABLE other.jobs ALTER COLUMN payload SET STORAGE external",
        "DROP INDEX other.jobs_claimable",
        "ALTER TABLE other.meta DROP CONSTRAINT meta_one_check",
        "DROP VIEW other.job_list",
    ):
        with psycopg.connect(postgres_url) as connection:
            connection.execute("DROP VIEW IF EXISTS other.job_list") if "TYPE" in change else None
            connection.execute(change)
        assert catalog(postgres_url, "other") != catalog(postgres_url, "longshore"), change
        with psycopg.connect(postgres_url) as connection:
            connection.execute("DROP SCHEMA other CASCADE")
        preparing.prepare(Server(postgres_url), "other")


def test_many_who_migrate_at_once_do_no_harm(postgres_url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        for number in range(5):
            name = f"at once {number}"
            made = list(pool.map(lambda name: preparing.prepare(Server(postgres_url), name), [name] * 6))
            assert len(set(made)) == 1
            assert catalog(postgres_url, name) == catalog(postgres_url, "longshore")


# --- names ---


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_a_schema_may_have_any_name(name: str, postgres_url: str) -> None:
    async with connect(postgres_url, schema=name) as backend:
        jobs = [Job(id="a", type="t", tags=["x", "y"], concurrency_key="k"), Job(id="b", type="t", depends_on=["a"])]
        await backend.enqueue_jobs([*jobs, *(Job(type="t") for _ in range(60))])
        await backend.set_limits("default", per_key=1)
        (job,) = await backend.dequeue_jobs("w", ["x", "y"])
        await backend.append_log("a", "a line", lease=job.lease)
        await backend.complete_job("a", b"1", lease=job.lease)
        assert len((await backend.list_jobs(JobFilter(tags=["x"]))).items) == 1
        assert (await backend.get_job_stats(["x", "y"])).completed_jobs == 1
        assert len(await backend.dequeue_jobs("w", limit=5)) == 5
        await backend.reclaim_expired_leases()
        await backend.apply_retention()
        assert await backend.wait_for_change(0) in (True, False)
        with psycopg.connect(postgres_url) as connection:
            await backend.enqueue_jobs([Job(id="c", type="t")], connection=connection)
        assert (await backend.get_job("c")).status is JobStatus.INITIAL_PENDING
        assert await read_until(backend, 70)
    assert catalog(postgres_url, name) == catalog(postgres_url, "longshore")
    async with connect(postgres_url, schema=name, create=False) as again:
        assert (await again.get_job("a")).result == b"1"


@pytest.mark.parametrize("name", ["", "x" * 64, "ü" * 32, "with\0zero", "pg_mine", 5, None])
def test_a_name_that_postgresql_cannot_keep_is_refused(name: object, postgres_url: str) -> None:
    """PostgreSQL cuts names after 63 bytes silently, and two queues would become one."""
    with pytest.raises(InvalidArgument) as refusal:
        connect(postgres_url, schema=name)
    assert refusal.value.field == "schema"


# --- rejected schemas ---


async def test_a_schema_newer_than_the_code_is_refused(postgres_url: str) -> None:
    async with connect(postgres_url) as before:
        await before.count_jobs()
        with psycopg.connect(postgres_url) as connection:
            connection.execute("INSERT INTO longshore.migrations (number, name) VALUES (999, 'from the future')")
        async with connect(postgres_url) as backend:
            with pytest.raises(BackendUnavailable, match="999"):
                await backend.count_jobs()
            with pytest.raises(BackendUnavailable, match="999"):
                await backend.enqueue_job(Job(type="t"))


@pytest.mark.parametrize(
    "change", ["ALTER TABLE longshore.meta DROP COLUMN lineage", "UPDATE longshore.meta SET lineage = 'another'"]
)
async def test_a_schema_of_another_lineage_is_refused_with_the_remedy(postgres_url: str, change: str) -> None:
    async with connect(postgres_url) as before:
        await before.enqueue_job(Job(type="t"))
        with connect_to_server(postgres_url) as connection:
            connection.execute("INSERT INTO longshore.migrations (number, name) VALUES (11, 'of another lineage')")
            connection.execute(change)
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'longshore'"
            )
        async with connect(postgres_url) as backend:
            for store in (before, backend):
                with pytest.raises(
                    BackendUnavailable, match=r"schema longshore .*lineage.*or choose a new file or schema"
                ):
                    await store.count_jobs()


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """An ordinary user of the server who may only connect."""
    name = f"guest_{secrets.token_hex(4)}"
    with connect_to_server(postgres_url) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        yield name
        connection.execute(f"DROP OWNED BY {name} CASCADE")
        connection.execute(f"DROP ROLE {name}")


def as_role(url: str, role: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}").geturl()


async def test_a_role_without_rights_gets_a_plain_error(postgres_url: str, role: str) -> None:
    for schema in ("longshore", "new"):
        async with connect(as_role(postgres_url, role), schema=schema) as backend:
            with pytest.raises(BackendUnavailable, match="does not allow this user to do this; grant it") as refusal:
                await backend.enqueue_job(Job(type="t"))
            assert "\n" not in str(refusal.value)


async def test_an_ordinary_role_that_owns_its_schema_can_do_everything(postgres_url: str, role: str) -> None:
    name = urlsplit(postgres_url).path.removeprefix("/")
    with connect_to_server(postgres_url) as connection:
        connection.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(*map(sql.Identifier, (name, role))))
    async with connect(as_role(postgres_url, role), schema="own") as backend:
        await works(backend)


async def test_an_ordinary_role_that_was_granted_the_tables_can_work(postgres_url: str, role: str) -> None:
    async with connect(postgres_url) as owner:
        await owner.count_jobs()
    with connect_to_server(postgres_url) as connection:
        connection.execute(f"GRANT USAGE ON SCHEMA longshore TO {role}")
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA longshore TO {role}")
        connection.execute(f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA longshore TO {role}")
    async with connect(as_role(postgres_url, role)) as backend:
        await works(backend)


async def test_two_roles_as_the_guide_makes_them_share_the_work_also_after_a_later_migration(
    postgres_url: str, role: str
) -> None:
    owner = f"{role}_owner"
    guide = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text(encoding="utf-8")
    pasted = guide.partition("### Two roles")[2].partition("```sql\n")[2].partition("```")[0]
    named = pasted.replace("longshore_owner", owner).replace("TO app;", f"TO {role};")
    with connect_to_server(postgres_url) as connection:
        connection.execute("DROP SCHEMA IF EXISTS longshore CASCADE")
        connection.execute(sql.SQL(named.replace("CREATE ROLE app LOGIN;", "")))
    try:
        async with connect(as_role(postgres_url, owner)) as backend:
            await backend.count_jobs()
        with psycopg.connect(as_role(postgres_url, owner), autocommit=True) as connection:
            connection.execute("CREATE TABLE longshore.of_a_later_release (id bigint GENERATED ALWAYS AS IDENTITY)")
        async with connect(as_role(postgres_url, role), create=False) as backend:
            await works(backend)
        with psycopg.connect(as_role(postgres_url, role), autocommit=True) as connection:
            connection.execute("INSERT INTO longshore.of_a_later_release DEFAULT VALUES")
    finally:
        with connect_to_server(postgres_url) as connection:
            connection.execute(f"DROP OWNED BY {owner} CASCADE")
            connection.execute(f"DROP ROLE {owner}")


async def works(backend: Backend) -> None:
    await backend.enqueue_jobs([Job(type="t") for _ in range(60)])
    await backend.set_limits("default", running=5)
    jobs = await backend.dequeue_jobs("w", limit=10)
    assert len(jobs) == 5
    await backend.complete_job(jobs[0].id, lease=jobs[0].lease)
    await backend.reclaim_expired_leases()
    await backend.apply_retention()
    assert len(await read_until(backend, 66)) >= 66


# --- other schemas and users ---


@pytest.fixture
async def ours(postgres_url: str) -> AsyncIterator[Backend]:
    async with connect(postgres_url, schema="ours") as opened:
        yield opened


@pytest.fixture
async def theirs(postgres_url: str) -> AsyncIterator[Backend]:
    async with connect(postgres_url, schema="theirs", poll_seconds=0.05) as opened:
        yield opened


async def test_two_schemas_of_one_database_are_independent(ours: Backend, theirs: Backend, postgres_url: str) -> None:
    while await theirs.wait_for_change(0.3):  # it wakes once for what exists already
        pass
    await ours.enqueue_jobs([Job(id="a", type="t", idempotency_key="k"), Job(id="b", type="t")])
    await ours.pause_queue("default")
    await ours.set_limits("default", running=1)
    assert await theirs.dequeue_jobs("w", limit=5) == []
    assert await theirs.list_queues() == []
    assert await theirs.read_events() == []
    assert not await theirs.wait_for_change(0.3)
    assert await theirs.enqueue_jobs([Job(id="a", type="u", idempotency_key="k")]) == ["a"]
    assert [job.type for job in await theirs.dequeue_jobs("w", limit=5)] == ["u"]
    assert (await ours.count_jobs())[JobStatus.INITIAL_PENDING] == 2
    with psycopg.connect(postgres_url) as connection:
        connection.execute("LOCK TABLE ours.jobs, ours.queues, ours.job_events IN ACCESS EXCLUSIVE MODE")
        async with asyncio.timeout(AT_ONCE):
            await theirs.pause_queue("default")
            await theirs.resume_queue("default")
            await theirs.enqueue_job(Job(type="t"))
            assert len(await theirs.dequeue_jobs("w")) == 1
            await theirs.reclaim_expired_leases()
