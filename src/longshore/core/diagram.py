"""Draws the table of legal transitions as the page docs/states.md: `python -m longshore.core.diagram`."""

from __future__ import annotations

from itertools import groupby

from longshore.core.lifecycle import ELIGIBLE, FINAL, TABLE, Arrow, JobStatus, arrows_from

_MEANING = {
    JobStatus.CREATED: "stored, not yet accepted (two-phase submit)",
    JobStatus.WAITING_CHILDREN: "waits for the jobs it depends on",
    JobStatus.INITIAL_PENDING: "accepted, never run; once left, never entered again",
    JobStatus.RUNNING: "one owner, under a lease",
    JobStatus.CANCELLING: "cancel asked for, the owner has not answered yet",
    JobStatus.FAILED_RETRY: "failed, will run again (at `run_at`, if that is in the future)",
    JobStatus.UNKNOWN_RETRY: "its owner vanished or gave it back; will run again",
    JobStatus.COMPLETED: "done, result kept",
    JobStatus.STOPPED: "cancelled after it had been assigned",
    JobStatus.UNSCHEDULED: "cancelled before it was ever assigned",
    JobStatus.UNKNOWN_STOPPED: "cancelled, but nobody knows how far it got",
    JobStatus.DEAD: "failed for good: the dead-letter queue",
}


def _merged(status: JobStatus) -> list[tuple[JobStatus, str]]:
    def by_target(arrow: Arrow) -> str:
        return arrow.target

    groups = groupby(sorted(arrows_from(status), key=by_target), key=by_target)
    return [(JobStatus(target), ", ".join(dict.fromkeys(a.verb.value for a in arrows))) for target, arrows in groups]


def page() -> str:
    """The whole page, generated from the table and nothing else."""
    lines = [
        "# The states of a job",
        "",
        "Generated from the one table of legal transitions in `longshore/core/lifecycle.py` by `make docs`.",
        "",
        "| status | eligible | final | meaning |",
        "|---|---|---|---|",
    ]
    for status in JobStatus:
        eligible, final = ("yes" if status in ELIGIBLE else ""), ("yes" if status in FINAL else "")
        lines.append(f"| {status} | {eligible} | {final} | {_MEANING[status]} |")
    lines += ["", "```mermaid", "stateDiagram-v2"]
    lines += ["    [*] --> CREATED: hold", "    [*] --> WAITING_CHILDREN: depends_on", "    [*] --> INITIAL_PENDING"]
    for status in JobStatus:
        for target, verbs in _merged(status):
            lines.append(f"    {status} --> {target}: {verbs}")
    lines += ["```", "", "| from | to | by |", "|---|---|---|"]
    lines += [f"| {arrow.source} | {arrow.target} | {arrow.verb.value} |" for arrow in TABLE]
    lines += [
        "",
        "A running job is buried in two recorded steps, RUNNING → FAILED_RETRY → DEAD, in one transaction.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
