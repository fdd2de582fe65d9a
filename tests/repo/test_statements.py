"""The dialects of SQL speak of the same things by the same names; where one has a statement of its own, here is why."""

import re
from pathlib import Path

import pytest

from longshore.backends.data_migration import TABLES
from longshore.backends.sql.statements import Statements

BACKENDS = Path(__file__).resolve().parents[2] / "src" / "longshore" / "backends"
DIALECTS = ("postgres", "sqlite")

OF_THEIR_OWN = {
    "postgres": {
        "several writers work at once, and each holds what must not change under it": (
            "all_concerned alone_at_this held_schedules held_settings held_settings_of_all held_statuses"
            " hold_if_free hold_jobs insert_schedules jobs_to_renew unsure_edges"
        ),
        "who settles waits for nobody who claims: what keys get back is noted, and taken by whoever claims next": (
            "held_settings_and_slots held_settings_and_slots_of_all note_released_slots released_slots"
        ),
        "a claim is one statement where it can be, which also steps around litter that an old snapshot keeps": (
            "claim_chosen claim_next claim_from_cursor claim_within_keys entries_read head_of_line heads_of_lines"
            " candidates_of_types claim_of_types claim_of_types_further_on claim_types_within_keys heads_of_types"
        ),
        "a claim reads and locks whole jobs; SQLite finds a uid first, then the job": "tagged_with_free_slots",
        "a batch is looked up or stored in one round trip": (
            "copy_events copy_jobs copy_staged_jobs copy_tags count_delayed insert_plain_jobs jobs_behind_keys"
            " tombstones_behind_keys unblock_first"
        ),
        "numbers come from a sequence, and the time from the server": "new_uids now",
        "counts are sums of rows that nobody changes, put together now and then": "gather_counts",
        "the log is in the order of transactions, read up to the oldest one open": "count_events horizon last_event",
        "a server is looked over by asking it; a file by looking at it": (
            "dead_rows durability oldest_snapshot restored_lately same_log size_of_schema"
        ),
        "other processes are told by NOTIFY, and a look finds what nobody told": "changes_since hint notify snapshot",
        "a search is put together around these; SQLite's has its own form": "carries_tag eligible jobs_where",
        "a schema that is moved into has triggers that refuse others; a file has another name": (
            "any_belongings lock_schema fill_queues go_on_from learn_sizes allow_copy unlock_schema"
        ),
        "moved events have a transaction of their own, and what is moved out of is one snapshot": (
            "blocks_of_events digest_of_block_of_events events_outside leaving undecided_edges"
        ),
    },
    "sqlite": {
        "one by one costs nothing in the same process": (
            "any_open_edge claimable_by_uid delayed_in_line delayed_lifo delayed_blocked job_behind_key job_by_uid"
            " first_blocked types_with_blocked next_owner tombstone_behind_key uid_with_free_slots"
        ),
        "what PostgreSQL does in one statement is a few here: find and judge, tell of it, write": (
            "accept_jobs claim_jobs claim_span complete_job complete_span first_in_line first_with_keys"
            " claimable_of_type first_of_type first_priorities_of_types next_priority_of_type"
            " forget_idle_keys give_back_keys insert_accepted_events insert_active_events insert_completed_events"
            " insert_promoted_events jobs_to_accept jobs_to_announce jobs_to_claim jobs_to_complete use_keys"
        ),
        "the one writer keeps its counters itself": "save_counters",
        "a copy of the file begins a new log when it is made; PostgreSQL finds out when it is opened": "begin_new_log",
        "only a file can lose its log": "has_opening mark_open opening record_lost_log",
        "only this store lives by the machine's clock, and looks for steps of it": (
            "anchor_clock clock_step count_shifted_events counters_and_clock insert_shifted_events newest_event"
            " record_step shift_cancellations shift_leases shift_places shift_relative_times shift_tags"
        ),
        "a file notes in a table of its own where it was moved from": "clear_moving make_note_of_move",
        "the tokens are read by a statement with another name there": "rows_of_api_tokens",
    },
}


def all_names(dialect: str) -> frozenset[str]:
    return Statements(f"longshore.backends.{dialect}", schema="longshore").names()


def called(dialect: str) -> set[str]:
    """Names that Python calls: as attributes, or put together from what is done and the table it is done to."""
    files = [path for part in ("sql", dialect) for path in (BACKENDS / part).glob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    put_together = {f"{what}_{table}" for what in re.findall(r'_named\("(\w+)"', code) for table in TABLES}
    return put_together | set(re.findall(r"(?:\b|_)(?:sql|SQL)\.(\w+)", code))


def pieces(dialect: str) -> set[str]:
    """Names that stand for a part of other statements."""
    return set(re.findall(r"\{(\w+)\}", (BACKENDS / dialect / "queries.sql").read_text(encoding="utf-8")))


def statements(dialect: str) -> set[str]:
    """What is called; how a dialect divides its text into pieces is its own affair."""
    return set(all_names(dialect) & called(dialect))


def listed(dialect: str) -> list[str]:
    return [name for names in OF_THEIR_OWN[dialect].values() for name in names.split()]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_is_used(dialect: str) -> None:
    assert sorted(all_names(dialect) - called(dialect) - pieces(dialect)) == []


@pytest.mark.parametrize(("dialect", "other"), [DIALECTS, DIALECTS[::-1]])
def test_statements_have_the_same_names_in_both_dialects_or_a_reason(dialect: str, other: str) -> None:
    assert sorted(statements(dialect) - statements(other)) == sorted(listed(dialect))


def test_what_both_have_is_most_of_it() -> None:
    """Or the list of exceptions has become the rule."""
    assert len(statements("postgres") & statements("sqlite")) > 60
