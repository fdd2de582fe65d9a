"""Each durable store is compared with memory on every operation of the contract, and both with a legal history."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from longshore.backends.operations import claim
from tests.backends.second_store import OpenStore, PostgresStore, SQLiteStore
from tests.backends.two_stores import WEIGHTED, TwoStores, fewest, random_steps, walk
from tests.conftest import PROVING

PARTS = 4
"""The walks are spread over this many tests, for parallel test processes."""


class Extent(NamedTuple):
    """The amount of work in one run."""

    examples: int
    steps: int
    walks: int
    walk_steps: int


# A server answers ten times slower than a file in the same process.
EXTENTS = {
    "sqlite": Extent(2_000, 50, 100, 400) if PROVING else Extent(60, 40, 6, 250),
    "postgres": Extent(500, 50, 40, 400) if PROVING else Extent(12, 40, 2, 200),
}


@pytest.fixture(params=sorted(EXTENTS))
def store(request: pytest.FixtureRequest) -> tuple[OpenStore, Extent]:
    """How to open the store under test, empty each time, and how many steps to run."""
    extent = EXTENTS[request.param]
    if request.param == "sqlite":
        return SQLiteStore, extent
    return partial(PostgresStore, request.getfixturevalue("postgres_url")), extent


class AnythingHappens(RuleBasedStateMachine):
    """One rule that draws from all steps: as separate rules, half of them would be switched off in each run."""

    def __init__(self, open_store: OpenStore, done: list[int]) -> None:
        super().__init__()
        self.stores = TwoStores(open_store)
        self.done = done
        self.failed = False

    @rule(name=st.sampled_from(WEIGHTED), chance=st.randoms(use_true_random=False))
    def happens(self, name: str, chance: Random) -> None:
        try:
            self.stores.happen(name, chance)
        except AssertionError:
            self.failed = True
            raise

    def teardown(self) -> None:
        self.done.append(self.stores.steps)
        try:
            if not self.failed:
                self.stores.finish()
        finally:
            self.stores.close()


@pytest.mark.prove
def test_a_store_gives_the_same_answers_errors_and_events_as_memory(store: tuple[OpenStore, Extent]) -> None:
    open_store, extent = store
    done: list[int] = []
    # The short form reports a failure as found: shrinking takes minutes, which the long form has.
    phases = list(Phase) if PROVING else [Phase.explicit, Phase.generate]
    run_state_machine_as_test(
        partial(AnythingHappens, open_store, done),  # type: ignore[arg-type] # accepts any factory of a machine
        settings=settings(max_examples=extent.examples, stateful_step_count=extent.steps, phases=phases),
    )
    print(f"{len(done)} runs, {sum(done)} steps")


@pytest.mark.prove
@pytest.mark.parametrize("part", range(PARTS))
def test_a_store_and_memory_agree_on_a_long_random_walk(
    part: int, store: tuple[OpenStore, Extent], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypothesis finds short failing sequences; on a long walk keys fill up and windows pass.

    A walk has about ten jobs, too few for a claim to block any. So half of the walks block from the first job on.
    """
    # S5: keys, limits and types together
    if part % 2:
        monkeypatch.setattr(claim, "LEAST_READ", 1)
    open_store, extent = store
    for number in range(extent.walks):
        steps = random_steps(seed + PARTS * number + part, extent.walk_steps)
        found = walk(open_store, steps)
        if found is not None:
            fewer = fewest(open_store, steps, found[0], tries=400 if PROVING else 60)
            wrong, reported = walk(open_store, fewer) or found
            pytest.fail(f"seed {seed + PARTS * number + part}: {wrong}\n\nafter\n  " + "\n  ".join(reported))
    print(f"{extent.walks} walks of {extent.walk_steps} steps, from seed {seed + part}")
