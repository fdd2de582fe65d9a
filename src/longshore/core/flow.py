"""Dependencies as a graph: what a set of new jobs would close into a circle."""

from __future__ import annotations

from collections import defaultdict
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


def never_ready(starts: Iterable[str], dependencies_of: Callable[[str], Iterable[str]]) -> list[str]:
    """Of these, those that lie on a circle or wait for one; each edge is looked at once, however deep the graph is."""
    begun = list(dict.fromkeys(starts))
    waiting_for: dict[str, int] = {}
    dependents: dict[str, list[str]] = defaultdict(list)
    ready = []
    to_see = list(begun)
    while to_see:
        step = to_see.pop()
        if step in waiting_for:
            continue
        needed = set(dependencies_of(step))
        waiting_for[step] = len(needed)
        if not needed:
            ready.append(step)
        for other in needed:
            dependents[other].append(step)
            to_see.append(other)
    while ready:
        for step in dependents[ready.pop()]:
            waiting_for[step] -= 1
            if waiting_for[step] == 0:
                ready.append(step)
    return [step for step in begun if waiting_for[step]]
