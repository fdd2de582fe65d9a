"""The SQL of the stores: the loader, the status words, and what differs between the dialects, each with the reason."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from longshore.backends.data_migration import TABLES
from longshore.backends.sql import statements as loader
from longshore.backends.sql.statements import STATUS_WORDS, Statements
from longshore.core.status import ELIGIBLE, TRANSITIONS, JobStatus, Verb

BACKENDS = Path(__file__).resolve().parents[2] / "src" / "longshore" / "backends"
DIALECTS = ("postgres", "sqlite")

ONLY_IN = {
    "postgres": {
        "several transactions write at once, so each locks what it relies on": (
            "jobs_and_dependents try_lock held_schedules held_settings held_statuses"
            " try_locks lock_jobs insert_schedules jobs_to_renew unverified_edges"
        ),
        "settling does not wait for claims: it records released slots, and the next claim takes them back": (
            "held_settings_and_slots note_released_slots released_slots"
        ),
        "a common claim is one statement, which also skips dead rows that an old snapshot keeps": (
            "claim_chosen claim_next claim_from_cursor claim_within_keys entries_read first_candidates shares_of_queues"
            " candidates_of_types claim_types claim_types_from_cursor claim_types_within_keys shares_of_queues_by_type"
        ),
        "a batch takes one round trip": (
            "copy_events copy_jobs copy_staged_jobs copy_tags count_delayed insert_plain_jobs jobs_behind_keys"
            " tombstones_behind_keys unblock_first"
        ),
        "uids come from a sequence, and the time from the server": "new_uids now",
        "a count is the sum of rows that are only added; a sweep merges them": "merge_counts",
        "the log is ordered by transaction, and read up to the oldest open one": "count_events horizon last_event",
        "the health of a server is queried; that of a file is read from the file system": (
            "dead_rows durability oldest_snapshot restored_lately same_log size_of_schema"
        ),
        "NOTIFY wakes other processes; a poll finds what a lost message did not": "changes_since hint notify snapshot",
        "during a data migration triggers refuse other writers; a file has a temporary name instead": (
            "any_rows lock_schema fill_concurrency_keys fill_queues fill_schedules set_sequences analyze_tables"
            " allow_copy unlock_schema"
        ),
        "copied events get the lowest transaction id, and the source is read in one snapshot": (
            "blocks_of_events digest_of_block_of_events events_outside state_to_copy undecided_edges"
        ),
    },
    "sqlite": {
        "statements run in the same process, so one more costs little; PostgreSQL saves the round trips": (
            "any_open_edge claimable_by_uid delayed_fifo delayed_lifo delayed_blocked job_behind_key job_by_uid"
            " first_blocked types_with_blocked next_owner removed_jobs_of_keys tombstone_behind_key uid_with_free_slots"
        ),
        "SQLite has no statement that changes two tables: select, write the events, then update": (
            "accept_jobs claim_jobs claim_span complete_job complete_span first_claimable first_with_keys"
            " claimable_of_type first_of_type first_priorities_of_types next_priority_of_type"
            " forget_idle_keys release_keys insert_accepted_events insert_active_events insert_completed_events"
            " insert_promoted_events jobs_to_accept jobs_to_announce jobs_to_claim jobs_to_complete use_keys"
        ),
        "SQLite has one writer, which keeps the next uid and event number itself": "save_counters",
        "a copy of a file gets a new log when it is made; PostgreSQL detects a copy later": "begin_new_log",
        "only a file can lose its write-ahead log": "has_open_mark mark_open open_mark record_lost_log",
        "only SQLite uses the machine's clock, and corrects times after a step of it": (
            "anchor_clock clock_step count_shifted_events counters_and_clock insert_shifted_events newest_event"
            " record_step shift_cancellations shift_leases shift_relative_times shift_sort_keys shift_tags"
        ),
        "SQLite keeps the state of a data migration in a table of its own": "clear_copy_state create_copy_state",
    },
}


def statements(dialect: str) -> frozenset[str]:
    return Statements(f"longshore.backends.{dialect}", schema="longshore").names()


def called(dialect: str) -> set[str]:
    """Names that Python uses: as attributes, or built from an action and a table, such as `fill_jobs`."""
    files = [path for part in ("sql", dialect) for path in (BACKENDS / part).glob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    built = {f"{what}_{table}" for what in re.findall(r'_named\("(\w+)"', code) for table in TABLES}
    return built | set(re.findall(r"(?:\b|_)(?:sql|SQL)\.(\w+)", code))


def text_of(dialect: str) -> str:
    """All SQL of a dialect's statements, as it is written."""
    files = [BACKENDS / "sql" / "shared.sql", *(BACKENDS / dialect / "sql").glob("*.sql")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def listed(dialect: str) -> list[str]:
    return [name for names in ONLY_IN[dialect].values() for name in names.split()]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_is_used(dialect: str) -> None:
    assert sorted(statements(dialect) - called(dialect)) == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_fragment_is_used(dialect: str) -> None:
    fragments = set(re.findall(r"^-- fragment: (\w+)", text_of(dialect), re.MULTILINE))
    assert sorted(fragments - set(re.findall(r"\{(\w+)\}", text_of(dialect))) - called(dialect)) == []


@pytest.mark.parametrize(("dialect", "other"), [DIALECTS, DIALECTS[::-1]])
def test_statements_have_the_same_names_in_both_dialects_or_a_reason(dialect: str, other: str) -> None:
    assert sorted(statements(dialect) - statements(other)) == sorted(listed(dialect))


def test_a_text_that_both_dialects_have_is_in_the_shared_file() -> None:
    source = (BACKENDS / "sql" / "shared.sql").read_text(encoding="utf-8")
    texts = []
    for dialect in DIALECTS:
        sql = Statements(f"longshore.backends.{dialect}", schema="x")
        texts.append({(name, _plain(getattr(sql, name))) for name in sql.names()})
    same = {name for name, _ in texts[0] & texts[1]}
    # of these a fragment differs: SQLite has one more column, and unicode() for ascii()
    differ = {"job_by_id", "digest_of_jobs", "digest_of_job_tags", "digest_of_tombstones"}
    assert same == set(re.findall(r"^-- name: (\w+)", source, re.MULTILINE)) - differ


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("x.", "").replace("?", "$"))


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Statements]:
    """Load a text as the statements of a dialect."""

    def loaded(text: str, dialect: str = "sqlite", schema: str = "main") -> Statements:
        folder = tmp_path / dialect / "sql"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "some.sql").write_text(text)
        monkeypatch.setattr(loader, "files", lambda _: folder.parent)
        return Statements(dialect, schema)

    return loaded


def test_parameters_are_numbered_in_the_declared_order(load: Callable[..., Statements]) -> None:
    text = "-- name: some(now, first,\n--     last)\n-- A reason.\nSELECT :first, :now, :first, :last\n"
    assert load(text).some == "SELECT ?2, ?1, ?2, ?3"
    assert load(text, "postgres").some == "SELECT $2, $1, $2, $3"


def test_casts_literals_comments_and_other_names_are_no_parameters(load: Callable[..., Statements]) -> None:
    text = """-- name: some(now)
SELECT :now::bigint, a::text, ':b', ':c''s', ":d", $$:e$$, $f$:g$f$, h[1:2] -- of :i
FROM {schema}.jobs
"""
    sql = load(text, "postgres", schema='"odd :name {now}"')
    expected = text.partition("\n")[2].strip().replace(":now", "$1")
    assert sql.some == expected.replace("{schema}", '"odd :name {now}"')


@pytest.mark.parametrize(
    "text",
    [
        "-- name: some(now)\nSELECT 1",
        "-- name: some\nSELECT :now",
        "-- name: some(now, now)\nSELECT :now",
        "-- name: some\nSELECT {due}\n-- fragment: due\nrun_at <= :now",
        "-- name: some\nSELECT 1\n-- name: some\nSELECT 2",
    ],
)
def test_a_wrong_declaration_is_refused(text: str, load: Callable[..., Statements]) -> None:
    with pytest.raises(ValueError, match="some"):
        load(text)


def test_fragments_take_their_parameters_from_the_statement(load: Callable[..., Statements]) -> None:
    sql = load("-- fragment: due\nrun_at <= :now\n-- name: some(id, now)\nSELECT :id WHERE {due}\n")
    assert sql.some == "SELECT ?1 WHERE run_at <= ?2"
    assert sql.names() == {"some"}
    assert sql.parameters == {"some": ("id", "now")}


STATUS_WORD = re.compile(rf"'({'|'.join(JobStatus)})'")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_statements_take_their_status_words_from_the_transition_table(dialect: str) -> None:
    assert STATUS_WORD.findall(text_of(dialect)) == []


def test_each_verb_has_the_sources_and_the_target_of_the_transition_table() -> None:
    for verb in Verb:
        moves = [move for move in TRANSITIONS if move.verb is verb]
        sources, targets = {move.source for move in moves}, {move.target for move in moves}
        assert set(STATUS_WORD.findall(STATUS_WORDS[f"{verb.name.lower()}_sources"])) == sources
        target = STATUS_WORDS.get(f"{verb.name.lower()}_target")
        assert (target is None) == (len(targets) > 1 and len(targets & ELIGIBLE) != 1)
        assert target is None or STATUS_WORD.findall(target)[0] in targets


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_schema_has_the_status_words_of_the_transition_table(dialect: str) -> None:
    """In its checks all statuses, and in the conditions of its indexes the lists of the statements."""
    text = (BACKENDS / dialect / "migrations" / "0001_initial.sql").read_text(encoding="utf-8")
    lists = [tuple(STATUS_WORD.findall(words)) for words in re.findall(r"\bIN \(([^()]*)\)", text)]
    uncommon = [STATUS_WORDS[f"{verb}_target"] for verb in ("accept", "claim", "complete")]
    known = {tuple(STATUS_WORD.findall(words)) for words in (*STATUS_WORDS.values(), ", ".join(uncommon))}
    found = [words for words in lists if words]
    assert {words for words in found if set(words) != set(JobStatus)} <= known
    assert len([words for words in found if set(words) == set(JobStatus)]) >= 1
    check = re.search(r"^    status TEXT.*?\n    \)+,$|^CREATE DOMAIN.*?;$", text, re.MULTILINE | re.DOTALL)
    assert check is not None
    assert sorted(STATUS_WORD.findall(check[0])) == sorted(JobStatus)


def test_most_statements_have_the_same_name_in_both_dialects() -> None:
    assert len(statements("postgres") & statements("sqlite")) > 60
