"""A flow as a picture in text: Mermaid, which Markdown pages and editors draw."""

from __future__ import annotations

from collections.abc import Sequence

from longshore.core.dependencies import policy_of
from longshore.core.flow_progress import step_name
from longshore.core.job import Job

MOST_DRAWN = 200
"""Steps; a picture of more shows nothing."""


def drawing(steps: Sequence[Job]) -> str:
    """The steps with their statuses, and an arrow from each to whoever waits for it; dotted where it may fail."""
    drawn = {step.id: f"s{number}" for number, step in enumerate(steps[:MOST_DRAWN])}
    lines = ["flowchart TD"]
    for step in steps[:MOST_DRAWN]:
        lines.append(f'    {drawn[step.id]}["{_safe(step_name(step))}<br/>{step.status.value}"]')
        for name in step.depends_on:
            if name in drawn:
                arrow = "-.->" if policy_of(step, name) == "ignore" else "-->"
                lines.append(f"    {drawn[name]} {arrow} {drawn[step.id]}")
    if len(steps) > MOST_DRAWN:
        lines.append(f'    more["and {len(steps) - MOST_DRAWN} more"]')
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    """Without what Mermaid or a page would take for its own."""
    return "".join(letter if letter.isalnum() or letter in " _-.:/" else f"#{ord(letter)};" for letter in text)
