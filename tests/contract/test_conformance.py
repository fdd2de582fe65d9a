"""The whole conformance kit, on every backend."""

from longshore.testing.conformance import *  # noqa: F403  # the kit is imported as a whole
