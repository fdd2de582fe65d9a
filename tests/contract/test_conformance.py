"""The whole conformance kit, on every backend of the house."""

from longshore.testing.conformance import *  # noqa: F403  # the kit is meant to be taken in whole
