"""Repeated log lines are logged once per interval, with a count of the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from longshore.server.rate_limit import INTERVAL, RepeatedLines


class Log:
    """A logger behind the filter, with a clock and timers that a test moves."""

    def __init__(self, only: frozenset[str] | None) -> None:
        self.now = 1_000.0
        self.lines: list[str] = []
        self.timers: list[Callable[[], None]] = []
        self.logger = logging.Logger("flood")
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]  # as a subclass would
        self.logger.addHandler(handler)
        self.filter = RepeatedLines(self.logger, only, clock=lambda: self.now, later=self._later)
        self.logger.addFilter(self.filter)

    def _later(self, seconds: float, told: Callable[[], None]) -> None:
        assert seconds == INTERVAL
        self.timers.append(told)

    def interval_passes(self) -> None:
        """All timers are due."""
        self.now += INTERVAL
        due, self.timers = self.timers, []
        for told in due:
            told()


@pytest.fixture
def log() -> Log:
    """One that limits every warning."""
    return Log(None)


def test_the_first_line_is_logged_and_then_a_count_for_each_interval(log: Log) -> None:  # X5
    for number in range(3_491):
        log.logger.warning("refused: %d connections", number)
    assert log.lines == ["refused: 0 connections"]
    log.interval_passes()
    assert log.lines[1:] == ["repeated 3,490 more times in 60 seconds: refused: 3490 connections"]
    log.logger.warning("refused: %d connections", 7)
    log.interval_passes()
    assert log.lines[2:] == ["repeated 1 more times in 60 seconds: refused: 7 connections"]
    log.interval_passes()
    assert (len(log.lines), log.timers) == (3, []), "no line after the flood has ended"
    log.logger.warning("refused: %d connections", 8)
    assert log.lines[3:] == ["refused: 8 connections"]


def test_other_lines_are_logged_meanwhile(log: Log) -> None:  # X5
    for _ in range(2):
        log.logger.warning("one")
        log.logger.warning("another")
        log.logger.error("one")
        log.logger.info("one")
    assert log.lines == ["one", "another", "one", "one", "one", "one"], "only warnings are limited"


def test_other_messages_are_logged_each_time() -> None:  # X5
    log = Log(frozenset({"flood"}))
    for _ in range(3):
        log.logger.warning("flood")
        log.logger.warning("the store cannot be read")
    assert log.lines == ["flood"] + ["the store cannot be read"] * 3


def test_a_count_that_no_timer_logged_comes_with_the_next_line(log: Log) -> None:  # X5
    log.logger.warning("flood")
    log.logger.warning("flood")
    log.timers.clear()  # as when an event loop ends before they are due
    log.now += 2 * INTERVAL
    log.logger.warning("flood")
    assert log.lines == ["flood", "flood"]
