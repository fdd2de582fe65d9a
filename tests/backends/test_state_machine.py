"""SQLite driven against memory with every verb of the contract, and both against what a history must look like."""

from __future__ import annotations

from random import Random
from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.backends.two_stores import WEIGHTED, TwoStores, fewest, random_steps, walk
from tests.conftest import PROVING

PARTS = 4
"""The walks are spread over so many tests, for test processes to share."""
WALKS, STEPS = (100, 400) if PROVING else (6, 250)


class AnythingHappens(RuleBasedStateMachine):
    """One rule that draws from all steps: as rules of their own, half of them would be switched off in each run."""

    runs: ClassVar[int] = 0
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.stores = TwoStores()
        self.failed = False

    @rule(name=st.sampled_from(WEIGHTED), chance=st.randoms(use_true_random=False))
    def happens(self, name: str, chance: Random) -> None:
        try:
            self.stores.happen(name, chance)
        except AssertionError:
            self.failed = True
            raise

    def teardown(self) -> None:
        AnythingHappens.runs += 1
        AnythingHappens.steps += self.stores.steps
        try:
            if not self.failed:
                self.stores.finish()
        finally:
            self.stores.close()


# The short form shows a failure as it was found: making it smaller takes minutes, which the long form has.
AnythingHappens.TestCase.settings = (
    settings(max_examples=2_000, stateful_step_count=50)
    if PROVING
    else settings(max_examples=60, stateful_step_count=40, phases=[Phase.explicit, Phase.generate])
)


@pytest.mark.prove
class TestSQLiteAgainstMemory(AnythingHappens.TestCase):  # type: ignore[misc,valid-type]  # made at run time
    """SQLite gives the answers, the errors and the events of the store that is the specification."""

    def runTest(self) -> None:  # noqa: N802 - the name unittest looks for
        super().runTest()
        print(f"{AnythingHappens.runs} runs, {AnythingHappens.steps} steps")


@pytest.mark.prove
@pytest.mark.parametrize("part", range(PARTS))
def test_on_a_long_random_walk_sqlite_and_memory_stay_the_same(part: int, seed: int) -> None:
    """Hypothesis finds the short ways to go wrong; on a long walk keys fill up, jobs are parked and windows pass."""
    for number in range(WALKS):
        steps = random_steps(seed + PARTS * number + part, STEPS)
        found = walk(steps)
        if found is not None:
            wrong, told = walk(fewest(steps, found[0], tries=400 if PROVING else 60)) or found
            pytest.fail(f"seed {seed + PARTS * number + part}: {wrong}\n\nafter\n  " + "\n  ".join(told))
    print(f"{WALKS} walks of {STEPS} steps, from seed {seed + part}")
