"""Repeating work, under the one name that others import it by; each part of it has a room of its own."""

from longshore.core.missed_runs import MOST_MADE_UP, MOST_MISSED, ON_TIME, due_now, due_runs, skip_missed
from longshore.core.planned_times import first_time, next_times, planned_times
from longshore.core.repeat import CatchUp, OnGap, OnOverlap, Repeat
from longshore.core.schedule import LONGEST_SCHEDULE_ID, Schedule, check_schedule

__all__ = [
    "LONGEST_SCHEDULE_ID",
    "MOST_MADE_UP",
    "MOST_MISSED",
    "ON_TIME",
    "CatchUp",
    "OnGap",
    "OnOverlap",
    "Repeat",
    "Schedule",
    "check_schedule",
    "due_now",
    "due_runs",
    "first_time",
    "next_times",
    "planned_times",
    "skip_missed",
]
