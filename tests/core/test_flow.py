"""Cycles among dependencies, compared with a reference."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from longshore.core.flows import find_cycle, never_ready

NODES = "abcdef"
GRAPHS = st.dictionaries(st.sampled_from(NODES), st.lists(st.sampled_from(NODES), unique=True, max_size=4))


def reaches(graph: dict[str, list[str]], start: str, goal: str) -> bool:
    """The reference: whether a path of at least one step exists, by transitive closure."""
    pairs = {(node, step) for node, steps in graph.items() for step in steps}
    while True:
        longer = {(a, d) for (a, b), (c, d) in itertools.product(pairs, pairs) if b == c}
        if longer <= pairs:
            return (start, goal) in pairs
        pairs |= longer


@given(GRAPHS, st.sampled_from(NODES))
def test_a_circle_is_found_exactly_if_some_path_leads_back(graph: dict[str, list[str]], start: str) -> None:
    #
    found = find_cycle(start, lambda node: graph.get(node, []))
    assert (found is not None) == reaches(graph, start, start)


@given(GRAPHS, st.sampled_from(NODES))
def test_the_reported_cycle_is_a_path_from_the_start_back_to_it(graph: dict[str, list[str]], start: str) -> None:
    found = find_cycle(start, lambda node: graph.get(node, []))
    if found is not None:
        assert found[0] == found[-1] == start
        assert len(found) == len(set(found)) + 1
        assert all(step in graph[node] for node, step in itertools.pairwise(found))


def test_a_circle_elsewhere_is_no_circle_of_this_job() -> None:
    graph = {"a": ["b"], "b": ["c"], "c": ["b"]}
    assert find_cycle("a", lambda node: graph.get(node, [])) is None


def test_a_job_that_depends_on_itself_is_the_smallest_circle() -> None:
    #
    assert find_cycle("a", lambda node: [node]) == ["a", "a"]


def test_a_long_chain_is_walked_without_exhausting_the_stack() -> None:
    length = 50_000

    def dependencies_of(node: str) -> list[str]:
        return [str((int(node) + 1) % length)]

    found = find_cycle("0", dependencies_of)
    assert found is not None
    assert len(found) == length + 1


def test_each_job_is_visited_once_however_many_paths_lead_to_it() -> None:
    asked: list[str] = []

    def dependencies_of(node: str) -> list[str]:
        asked.append(node)
        depth = int(node)
        return [] if depth == 30 else [str(depth + 1)] * 2

    assert find_cycle("0", dependencies_of) is None
    assert len(asked) == 31


@given(GRAPHS)
def test_a_job_that_is_never_ready_leads_to_a_cycle(graph: dict[str, list[str]]) -> None:
    def dependencies_of(node: str) -> list[str]:
        return graph.get(node, [])

    leads_to_a_circle = [
        node
        for node in NODES
        if any(find_cycle(other, dependencies_of) and (node == other or reaches(graph, node, other)) for other in NODES)
    ]
    assert never_ready(NODES, dependencies_of) == leads_to_a_circle


def test_a_long_chain_is_checked_with_one_visit_of_each_job() -> None:
    asked: list[str] = []

    def dependencies_of(node: str) -> list[str]:
        asked.append(node)
        return [] if node == "0" else [str(int(node) - 1)]

    assert never_ready(map(str, range(20_000)), dependencies_of) == []
    assert len(asked) == 20_000
