"""The conformance kit for authors of backends, and its fixtures. It needs pytest. See docs/write-a-backend.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from longshore.testing.conformance.fixtures import backend as backend
    from longshore.testing.conformance.fixtures import clock as clock
    from longshore.testing.conformance.fixtures import open_backend as open_backend
    from longshore.testing.conformance.fixtures import work_done as work_done

# before the kit is imported, so that a failed assertion in it shows its values as in any test file
pytest.register_assert_rewrite("longshore.testing.conformance")

_FIXTURES = ("backend", "clock", "open_backend", "work_done")


def __getattr__(name: str) -> Any:
    """Load the kit on first use: `from longshore.testing import *` takes in all of its tests."""
    if name == "__all__":
        from longshore.testing.conformance import __all__ as kit

        return kit
    if name in _FIXTURES:
        from longshore.testing.conformance import fixtures

        return getattr(fixtures, name)
    if name.startswith("Test"):
        from longshore.testing import conformance

        return getattr(conformance, name)
    raise AttributeError(f"module 'longshore.testing' has no attribute {name!r}")
