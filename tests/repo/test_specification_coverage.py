"""Every promised behaviour is cited by a test, and every citation names a promise."""

from collections import Counter

import pytest

from tests.repo import specification

# The parts of the specification that are built: each of their rows must be cited. A part joins when it is built.
REQUIRED_PREFIXES = ("B-", "T-", "Q-", "M-", "O-")
# of these, rows that are promised for every store
ON_EVERY_STORE = ("Q-", "M-")


def test_every_id_is_promised_once() -> None:
    ids = specification.promised_ids()
    assert ids, f"no ids found in {specification.SPECIFICATION}"
    repeated = [identifier for identifier, count in Counter(ids).items() if count > 1]
    assert not repeated


@pytest.mark.parametrize("prefix", REQUIRED_PREFIXES)
def test_a_built_part_of_the_specification_has_no_id_without_a_test(prefix: str) -> None:
    tallies = specification.tally()
    print(specification.in_one_line(tallies))
    missing = tallies[prefix].missing
    assert not missing, f"{len(missing)} ids {prefix}* are cited by no test: {', '.join(missing)}"


def test_rows_promised_for_every_store_are_cited_by_tests_that_run_on_every_store() -> None:
    everywhere = specification.cited_on_every_store()
    promised = {identifier for identifier in specification.promised_ids() if identifier.startswith(ON_EVERY_STORE)}
    missing = sorted(promised - everywhere)
    assert not missing, f"{len(missing)} ids are cited by no test that runs on every store: {', '.join(missing)}"


def test_every_citation_names_a_row_of_the_specification() -> None:
    promised = set(specification.promised_ids())
    unknown = sorted(
        f"{identifier} in {path}" for identifier, path in specification.citations() if identifier not in promised
    )
    assert not unknown, f"cited but not in docs/specification.md: {'; '.join(unknown)}"
