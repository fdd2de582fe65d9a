"""The conformance kit: tests that every Longshore backend must pass.

A backend's author writes two files. `conftest.py` defines how to open the store. Each call opens one more backend on
the same store, with the kit's clock, which moves only when a test moves it:

    import pytest
    from longshore.testing import backend, clock, open_backend, work_done
    from my_store import MyBackend

    @pytest.fixture
    def connect_store(tmp_path, clock):
        return lambda: MyBackend(tmp_path / "jobs", clock=clock)

`test_conformance.py` imports the whole kit:

    from longshore.testing import *

It needs `asyncio_mode = "auto"` of pytest-asyncio. The backend's `capabilities` decide which tests are skipped.
Every test ends with an audit: each job's history is legal, and the counts are exact.
The ids in comments (`B-DEQ-05`) are rows of docs/specification.md, which the test verifies.
"""

from longshore.testing.conformance.admin import TestOperators, TestUpdates
from longshore.testing.conformance.bad_input import TestBadInput, TestNames
from longshore.testing.conformance.cancel import TestCancellation, TestRemoval
from longshore.testing.conformance.claim import TestClaiming, TestTurnover
from longshore.testing.conformance.closing import TestClosing, TestInterruptions
from longshore.testing.conformance.concurrency import TestConcurrency
from longshore.testing.conformance.crashes import TestCrashes, TestWorkers
from longshore.testing.conformance.delayed import TestAnnouncements, TestWaiting
from longshore.testing.conformance.dependencies import TestDependencies, TestEdges
from longshore.testing.conformance.durability import TestDurability, TestSharing
from longshore.testing.conformance.effort import TestEffort
from longshore.testing.conformance.enqueue import TestAdding, TestSubmission
from longshore.testing.conformance.events import TestEvents
from longshore.testing.conformance.leases import TestLeases
from longshore.testing.conformance.limits import TestLimits, TestRates
from longshore.testing.conformance.reads import TestExplaining, TestLooking
from longshore.testing.conformance.records import TestNotes, TestRecords, TestSurface
from longshore.testing.conformance.schedules import TestMissedRuns, TestScheduleActs, TestSchedules
from longshore.testing.conformance.settle import TestBatches, TestSettlement

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
