"""Dependencies as a graph: what a set of new jobs would close into a circle."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def find_cycle(start: str, dependencies_of: Callable[[str], Iterable[str]]) -> list[str] | None:
    """The path `start -> … -> start` along "depends on", or None if no path leads back."""
    path = [start]
    seen = {start}
    branches = [iter(dependencies_of(start))]
    while branches:
        step = next(branches[-1], None)
        if step is None:
            branches.pop()
            path.pop()
        elif step == start:
            return [*path, start]
        elif step not in seen:
            seen.add(step)
            path.append(step)
            branches.append(iter(dependencies_of(step)))
    return None
