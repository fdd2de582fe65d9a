"""A backend with threads and connections of its own that can be told what is archived."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from longshore.backends import archiving
from longshore.backends.archiving import Archived
from longshore.backends.staged import StagingBackend
from longshore.core.times import check_datetime


class ArchivingBackend(StagingBackend):
    """The verbs of a store that lets go of what is held elsewhere."""

    async def remove_archived_jobs(self, jobs: Sequence[Archived]) -> int:
        return await self._write(archiving.remove_archived_jobs, jobs)

    async def prune_archived_events(self, before: datetime, through: int) -> int:
        moment = check_datetime("before", before)
        return await self._write(archiving.prune_archived_events, moment, through)
