"""How much a worker takes on at a time, as arithmetic: its room, the size of a turn, whether a second one pays."""

from __future__ import annotations

LARGEST_TURN = 500
"""Jobs one transaction settles, and claims: more would hold up other writers and gain nothing."""
_WORTH_A_TURN = 25
"""Jobs that must have ended, at least, before a second turn begins beside one that is under way."""
_LEFT_BEHIND = 10
"""Runs left behind, for each that may run at once, after which a worker begins no more until some have ended."""


def room(concurrency: int, held: int) -> int:
    """How many more jobs a worker may claim that holds so many, or may get them from a claim under way."""
    return max(concurrency - held, 0)


def most_in_a_turn(concurrency: int) -> int:
    """Half of what may run at once: the rest runs while the store writes."""
    return min((concurrency + 1) // 2, LARGEST_TURN)


def a_second_turn_pays(concurrency: int, *, ended: int, claimable: int) -> bool:
    """Whether enough has ended, or can be claimed, for one more transaction beside the one under way."""
    return max(ended, claimable) >= max(_WORTH_A_TURN, concurrency // 4)


def too_much_goes_on(concurrency: int, left_behind: int) -> bool:
    """Whether so many runs were given up without having ended that their process should begin no more."""
    return left_behind >= _LEFT_BEHIND * concurrency
