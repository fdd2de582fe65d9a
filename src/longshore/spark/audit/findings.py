"""From lives to findings: the rules, asked of every step at once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.audit import rules
from longshore.spark.audit.certainty import Certainty
from longshore.spark.audit.lives import standings, steps, with_the_whole_life, with_what_came_before
from longshore.spark.audit.rules import Rule

Group = Sequence[Rule]


def judged_lives(events: DataFrame, jobs: DataFrame | None = None, certain: Certainty | None = None) -> DataFrame:
    """Every step of every job with what is wrong about it in `wrong`, an array that is empty for most.

    `events` and `jobs` are as the data source `longshore` gives them, whatever the order of their rows.
    """
    certain = certain or Certainty()
    lives = steps(events, certain.until)
    if jobs is None:
        return lives.transform(with_what_came_before).withColumn("wrong", F.expr(_wrong(rules.OF_EVENTS)))
    lives = lives.unionByName(standings(jobs)).transform(with_what_came_before).transform(with_the_whole_life)
    swept = None if certain.now is None else certain.now - certain.swept_within
    of_events, of_jobs = _judgements(certain)
    judged = f"IF(stored, {_wrong(of_jobs)}, {_wrong(of_events)})"
    return lives.withColumn("swept", F.lit(swept).cast("timestamp")).withColumn("wrong", F.expr(judged))


def findings(judged: DataFrame) -> DataFrame:
    """One row for everything that is wrong."""
    return (
        judged.where("size(wrong) > 0")
        .withColumn("found", F.explode("wrong"))
        .select("found.kind", "job_uid", "job_id", "queue", "job_seq", "event", "occurred_at", "found.detail")
    )


def _judgements(certain: Certainty) -> tuple[list[Group], list[Group]]:
    """The groups asked of events, and those asked of stored jobs."""
    of_jobs: list[Group] = [rules.STANDING, rules.SWEEP]
    if not certain.covered:
        return list(rules.OF_EVENTS), of_jobs
    return [*rules.OF_EVENTS, rules.PRESENCE], [rules.RECORDED, *of_jobs]


def _wrong(groups: Sequence[Group]) -> str:
    return f"array_compact(array({', '.join(map(_first_that_holds, groups))}))"


def _first_that_holds(group: Group) -> str:
    cases = " ".join(
        f"WHEN {rule.when} THEN named_struct('kind', '{rule.kind}', 'detail', {_told(rule.told)})" for rule in group
    )
    return f"CASE {cases} END"


def _told(text: str) -> str:
    """Pieces of text and SQL in braces as one text; what is null is told as nothing."""
    pieces = re.split(r"\{([^}]*)\}", text)
    spoken = [
        f"coalesce(string({piece}), 'nothing')" if place % 2 else f"'{piece}'" for place, piece in enumerate(pieces)
    ]
    return f"concat({', '.join(spoken)})"
