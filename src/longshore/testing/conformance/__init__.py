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

import pytest

# before they are imported, so that a failed assertion in the kit shows its values as in any test file
pytest.register_assert_rewrite(
    "longshore.testing.conformance.cancellation",
    "longshore.testing.conformance.claiming",
    "longshore.testing.conformance.crashes",
    "longshore.testing.conformance.dependencies",
    "longshore.testing.conformance.leases",
    "longshore.testing.conformance.limits",
    "longshore.testing.conformance.looking",
    "longshore.testing.conformance.settlement",
    "longshore.testing.conformance.staging",
    "longshore.testing.conformance.submission",
    "longshore.testing.conformance.surface",
    "longshore.testing.conformance.updates",
)

from longshore.testing.conformance.cancellation import TestCancellation  # noqa: E402  # after the line above
from longshore.testing.conformance.claiming import TestClaiming  # noqa: E402  # after the line above
from longshore.testing.conformance.crashes import TestCrashes  # noqa: E402  # after the line above
from longshore.testing.conformance.dependencies import TestDependencies  # noqa: E402  # after the line above
from longshore.testing.conformance.leases import TestLeases  # noqa: E402  # after the line above
from longshore.testing.conformance.limits import TestLimits  # noqa: E402  # after the line above
from longshore.testing.conformance.looking import TestLooking  # noqa: E402  # after the line above
from longshore.testing.conformance.settlement import TestSettlement  # noqa: E402  # after the line above
from longshore.testing.conformance.submission import TestSubmission  # noqa: E402  # after the line above
from longshore.testing.conformance.surface import TestSurface  # noqa: E402  # after the line above
from longshore.testing.conformance.updates import TestUpdates  # noqa: E402  # after the line above

__all__ = [
    "TestCancellation",
    "TestClaiming",
    "TestCrashes",
    "TestDependencies",
    "TestLeases",
    "TestLimits",
    "TestLooking",
    "TestSettlement",
    "TestSubmission",
    "TestSurface",
    "TestUpdates",
]
