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

_ROOMS = (
    "bad_input",
    "cancellation",
    "claiming",
    "closing",
    "concurrency",
    "crashes",
    "dependencies",
    "durability",
    "effort",
    "events",
    "interruptions",
    "leases",
    "limits",
    "looking",
    "notes",
    "operators",
    "schedules",
    "settlement",
    "staging",
    "submission",
    "surface",
    "updates",
)
# before they are imported, so that a failed assertion in the kit shows its values as in any test file
pytest.register_assert_rewrite(*(f"{__name__}.{room}" for room in _ROOMS))

from longshore.testing.conformance.bad_input import TestBadInput  # noqa: E402  # after the line above, see there
