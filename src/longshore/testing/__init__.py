"""What others need to test against Longshore: the conformance kit for backend authors. It needs pytest."""

import pytest

# before the kit is imported, so that a failed assertion in it shows its values as in any test file
pytest.register_assert_rewrite("longshore.testing.conformance")
