"""One run of the pipeline: land new events, compute silver and gold, check them, and commit them atomically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from time import perf_counter

from pyspark.sql import SparkSession

from longshore.backends.export import log_position
from longshore.backends.port import LogEnds
from longshore.core.errors import InvalidArgument
from longshore.core.times import from_micros
from longshore.spark.lake import checks
from longshore.spark.lake.bronze import Landing, receipts_after
from longshore.spark.lake.draft import Draft
from longshore.spark.lake.lake import Lake, check_format, clear_away, refuse_another_log
from longshore.spark.lake.manifest import Receipt
from longshore.spark.lake.refresh import Refresh, Step
from longshore.spark.lake.tables import EVENTS
from longshore.spark.options import Address, address, answer

EVENTS_AT_ONCE = 1_000_000


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """The result of a run."""

    version: int
    """The version of the lake after the run."""
    events: int
    """Events added by this run."""
    batches: int
    steps: tuple[Step, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Days:
    """The days to rebuild from bronze; None means no limit."""

    first: date | None = None
    last: date | None = None

    def __post_init__(self) -> None:
        if self.first is not None and self.last is not None and self.first > self.last:
            raise InvalidArgument("to", f"must not be before --from, {self.first}")

    @property
    def any(self) -> bool:
        """Whether any days are to be rebuilt."""
        return self.first is not None or self.last is not None

    def of(self, days: Sequence[str]) -> list[str]:
        """Those of these days."""
        first = "" if self.first is None else self.first.isoformat()
        last = "9999-12-31" if self.last is None else self.last.isoformat()
        return [day for day in days if first <= day <= last]


def run_pipeline(
    url: str,
    lake: str,
    *,
    spark: SparkSession,
    schema: str | None = None,
    form: str | None = None,
    again: Days = Days(),  # noqa: B008 - the default is immutable
    fresh_within: timedelta | None = None,
    events_at_once: int = EVENTS_AT_ONCE,
    partitions: int = 4,
    on_step: Callable[[Step], None] = lambda _: None,
) -> PipelineReport:
    """Bring the lake up to date with the store's log, and rebuild the days of `again`.

    If it is killed, run it again to resume. Raises LakeError if a check fails; the lake then does not change. See
    docs/pipeline.md.
    """
    store = address({"url": url} if schema is None else {"url": url, "schema": schema})
    found = Lake.open_or_new(lake, spark)
    with found.files.alone():
        return _Run(spark, store, Lake.open_or_new(lake, spark), form, on_step).run(
            again, fresh_within, events_at_once, partitions
        )


class _Run:
    def __init__(
        self, spark: SparkSession, store: Address, lake: Lake, form: str | None, on_step: Callable[[Step], None]
    ) -> None:
        self._spark = spark
        self._store = store
        self._lake = lake
        self._form = check_format(lake, form)
        self._steps: list[Step] = []
        self._listener = on_step
        self._begun = perf_counter()

    def run(self, again: Days, fresh_within: timedelta | None, events_at_once: int, partitions: int) -> PipelineReport:
        manifest = self._lake.manifest
        before = self._store.log_ends()
        refuse_another_log(self._lake, before.log)
        old = receipts_after(self._lake.files, manifest.last_batch)
        self._land(events_at_once, partitions)
        after = self._store.log_ends()
        receipts = receipts_after(self._lake.files, manifest.last_batch)
        with self._store.opened() as backend:
            now = answer(backend.now())
        self._check(receipts, len(old), before, after)
        checks.check_fresh(self._newest(receipts), now, fresh_within)
        if receipts or again.any:
            self._lake = refresh_lake(
                self._spark, self._lake, receipts, form=self._form, log=before.log, made_at=now, again=again,
                on_step=self._tell,
            )  # fmt: skip
        return PipelineReport(
            self._lake.version,
            sum(receipt.rows for receipt in receipts),
            len(receipts),
            tuple(self._steps),
            perf_counter() - self._begun,
        )

    def _land(self, events_at_once: int, partitions: int) -> None:
        begun = perf_counter()
        landed = Landing(self._spark, self._store, self._lake.files, self._form).run(events_at_once, partitions)
        self._tell(Step("events landed", landed, perf_counter() - begun))

    def _check(self, receipts: Sequence[Receipt], old: int, before: LogEnds, after: LogEnds) -> None:
        checks.check_nulls(receipts)
        checks.check_order(receipts, self._lake.manifest.reached)
        reached = self._lake.manifest.reached
        for batch in receipts[:old]:
            reached = list(batch.last) or reached
        had = max(list(reached), list(log_position(before.pruned_anywhere)))
        checks.check_nothing_was_pruned(log_position(after.pruned_anywhere), had)
        wanted = list(log_position(before.last))
        if wanted > had:
            checks.check_reached(max([list(reached), *(list(batch.last) for batch in receipts)]), wanted)

    def _newest(self, receipts: Sequence[Receipt]) -> datetime | None:
        newest = max([self._lake.manifest.newest, *(each.newest for each in receipts)])
        return from_micros(newest) if newest else None

    def _tell(self, step: Step) -> None:
        self._steps.append(step)
        self._listener(step)


def refresh_lake(
    spark: SparkSession,
    lake: Lake,
    receipts: Sequence[Receipt],
    *,
    form: str,
    log: str,
    made_at: datetime,
    again: Days = Days(),  # noqa: B008 - the default is immutable
    on_step: Callable[[Step], None] = lambda _: None,
) -> Lake:
    """Add the landed batches, recompute what they change, and return the next version of the lake."""
    draft = Draft(spark, lake, form)
    refresh = Refresh(spark, draft, on_step)
    refresh.take_in([receipt for receipt in receipts if receipt.rows])
    if again.any:
        refresh.rebuild(again.of(list(draft.manifest.days(EVENTS))))
    refresh.compact()
    old = lake.manifest
    sums = {
        "events": sum(each.rows for each in receipts),
        "added": sum(each.added for each in receipts),
        "claims": sum(each.claims for each in receipts),
    }
    draft.state(
        log=log,
        last_batch=max([old.last_batch, *(each.batch for each in receipts)]),
        reached=max([list(old.reached), *(list(each.last) for each in receipts)]),
        totals={name: old.totals.get(name, 0) + count for name, count in sums.items()},
        newest=max([old.newest, *(each.newest for each in receipts)]),
        made_at=made_at.isoformat(),
    )
    checks.check_conservation(draft.manifest, list(draft.manifest.days(EVENTS)))
    refreshed = draft.commit()
    clear_away(refreshed)
    return refreshed
