"""A backend with threads and connections of its own that jobs can be laid aside in."""

from __future__ import annotations

from collections.abc import Sequence

from longshore.backends import staging
from longshore.backends.lifetime import OneProcessBackend
from longshore.backends.staging import RunReport


class StagingBackend(OneProcessBackend):
    """The verbs of a store that jobs can be laid aside in."""

    async def stage_jobs(self, run: str, part: str, bodies: Sequence[str]) -> None:
        await self._write(staging.stage_jobs, run, part, bodies)

    async def commit_run(self, run: str, parts: Sequence[str]) -> RunReport:
        return await self._write(staging.commit_run, run, parts)

    async def abandon_run(self, run: str) -> None:
        await self._write(staging.abandon_run, run)

    async def clear_silent_runs(self) -> int:
        return await self._write(staging.clear_silent_runs)

    async def run_report(self, run: str) -> RunReport | None:
        return await self._write(staging.run_report, run)
