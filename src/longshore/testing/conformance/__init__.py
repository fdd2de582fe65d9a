"""The conformance kit: what a store must do to be a Longshore backend, as tests that anybody can run on it.

A backend's author writes two files. `conftest.py` says how to open the store; each call gives one more backend on the
same store, judged by the kit's clock, which moves only when a test moves it:

    import pytest
    from longshore.testing.conformance.fixtures import backend, clock, open_backend, work_done
    from my_store import MyBackend

    @pytest.fixture
    def connect_store(tmp_path, clock):
        return lambda: MyBackend(tmp_path / "jobs", clock=clock)

`test_conformance.py` takes in the whole kit:

    from longshore.testing.conformance import *

It runs with `asyncio_mode = "auto"` of pytest-asyncio. A test that does not apply is skipped by the backend's
`capabilities`, never by its name. Every test ends with an audit: each job's history is legal, and the counts are exact.
The ids in comments (`B-DEQ-05`) are rows of docs/specification.md: the test would fail if that behaviour broke.
"""

from longshore.testing.conformance.adding import TestAdding
from longshore.testing.conformance.announcements import TestAnnouncements
from longshore.testing.conformance.bad_input import TestBadInput
from longshore.testing.conformance.batches import TestBatches
from longshore.testing.conformance.cancellation import TestCancellation
from longshore.testing.conformance.claiming import TestClaiming
from longshore.testing.conformance.closing import TestClosing
from longshore.testing.conformance.concurrency import TestConcurrency
from longshore.testing.conformance.crashes import TestCrashes
from longshore.testing.conformance.dependencies import TestDependencies
from longshore.testing.conformance.durability import TestDurability, TestSharing
from longshore.testing.conformance.edges import TestEdges
from longshore.testing.conformance.effort import TestEffort
from longshore.testing.conformance.events import TestEvents
from longshore.testing.conformance.explaining import TestExplaining
from longshore.testing.conformance.interruptions import TestInterruptions
from longshore.testing.conformance.leases import TestLeases
from longshore.testing.conformance.limits import TestLimits
from longshore.testing.conformance.looking import TestLooking
from longshore.testing.conformance.missed_runs import TestMissedRuns
from longshore.testing.conformance.names import TestNames
from longshore.testing.conformance.notes import TestNotes
from longshore.testing.conformance.operators import TestOperators
from longshore.testing.conformance.rates import TestRates
from longshore.testing.conformance.records import TestRecords
from longshore.testing.conformance.removal import TestRemoval
from longshore.testing.conformance.schedule_acts import TestScheduleActs
from longshore.testing.conformance.schedules import TestSchedules
from longshore.testing.conformance.settlement import TestSettlement
from longshore.testing.conformance.submission import TestSubmission
from longshore.testing.conformance.surface import TestSurface
from longshore.testing.conformance.turnover import TestTurnover
from longshore.testing.conformance.updates import TestUpdates
from longshore.testing.conformance.waiting import TestWaiting
from longshore.testing.conformance.workers import TestWorkers

__all__ = [
    "TestAdding",
    "TestAnnouncements",
    "TestBadInput",
    "TestBatches",
    "TestCancellation",
    "TestClaiming",
    "TestClosing",
    "TestConcurrency",
    "TestCrashes",
    "TestDependencies",
    "TestDurability",
    "TestEdges",
    "TestEffort",
    "TestEvents",
    "TestExplaining",
    "TestInterruptions",
    "TestLeases",
    "TestLimits",
    "TestLooking",
    "TestMissedRuns",
    "TestNames",
    "TestNotes",
    "TestOperators",
    "TestRates",
    "TestRecords",
    "TestRemoval",
    "TestScheduleActs",
    "TestSchedules",
    "TestSettlement",
    "TestSharing",
    "TestSubmission",
    "TestSurface",
    "TestTurnover",
    "TestUpdates",
    "TestWaiting",
    "TestWorkers",
]
