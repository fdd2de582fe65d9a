"""The harbor's part for flows: any graph of calls, and the three that are needed most as one-liners."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from longshore.app.flow import Flow
from longshore.app.flow_handle import FlowHandle
from longshore.app.flow_office import FlowOffice
from longshore.app.task import Call, Task
from longshore.core.errors import InvalidArgument
from longshore.core.validation import check_name

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")


class HarborFlows:
    """What every Harbor can do with flows."""

    _flows: FlowOffice

    def flow(self, name: str = "flow", *, id: str | None = None) -> Flow[Any]:
        """A flow to add steps to; `await flow.enqueue()` stores them all at once."""
        return Flow(self._flows, name, id)

    def get_flow(self, id: str) -> FlowHandle[Any]:
        """The handle of a flow that was enqueued before, here or elsewhere."""
        return FlowHandle(check_name("id", id), self._flows)

    @overload
    def chain(self, first: Call[A], /, *, name: str = "chain", id: str | None = None) -> Flow[A]: ...

    @overload
    def chain(
        self, first: Call[A], second: Callable[[A], Call[B]], /, *, name: str = "chain", id: str | None = None
    ) -> Flow[B]: ...

    @overload
    def chain(
        self,
        first: Call[A],
        second: Callable[[A], Call[B]],
        third: Callable[[B], Call[C]],
        /,
        *,
        name: str = "chain",
        id: str | None = None,
    ) -> Flow[C]: ...

    @overload
    def chain(
        self,
        first: Call[A],
        second: Callable[[A], Call[B]],
        third: Callable[[B], Call[C]],
        fourth: Callable[[C], Call[D]],
        /,
        *,
        name: str = "chain",
        id: str | None = None,
    ) -> Flow[D]: ...

    @overload
    def chain(
        self,
        first: Call[A],
        second: Callable[[A], Call[B]],
        third: Callable[[B], Call[C]],
        fourth: Callable[[C], Call[D]],
        fifth: Callable[[D], Call[E]],
        /,
        *,
        name: str = "chain",
        id: str | None = None,
    ) -> Flow[E]: ...

    @overload
    def chain(
        self,
        first: Call[A],
        second: Callable[[A], Call[B]],
        third: Callable[[B], Call[C]],
        fourth: Callable[[C], Call[D]],
        fifth: Callable[[D], Call[E]],
        sixth: Callable[[E], Call[Any]],
        /,
        *following: Callable[[Any], Call[Any]],
        name: str = "chain",
        id: str | None = None,
    ) -> Flow[Any]: ...

    def chain(
        self, first: Call[Any], /, *following: Callable[[Any], Call[Any]], name: str = "chain", id: str | None = None
    ) -> Flow[Any]:
        """One after the other, each with the result of the one before: `harbor.chain(a.call(1), b.call, c.call)`.

        What follows the first call is `task.call`, or any function that makes a call from the result:
        `lambda rows: load.call(rows, table="orders")`. The flow's result is the last one's.
        """
        flow: Flow[Any] = Flow(self._flows, name, id)
        step = flow.add(first)
        for position, make in enumerate(following, 2):
            step = flow.add(_made_by(make, step.result, f"link {position} of the chain"))
        return flow

    def group(self, calls: Iterable[Call[A]], *, name: str = "group", id: str | None = None) -> Flow[list[A]]:
        """Side by side; the flow's result is the list of theirs, in the order given. There must be at least one."""
        flow: Flow[list[A]] = Flow(self._flows, name, id, listed=True)
        for call in calls:
            flow.add(call)
        if not flow.steps:
            raise InvalidArgument("calls", "has no call in it; a group of none has nothing to store, and gives back []")
        return flow

    def chord(
        self,
        calls: Iterable[Call[A]],
        then: Callable[[list[A]], Call[B]],
        *,
        name: str = "chord",
        id: str | None = None,
    ) -> Flow[B]:
        """Side by side, and then one call with the list of their results: `harbor.chord(pages, bind.call)`.

        With no calls the list is empty, and the one is made at once.
        """
        flow: Flow[B] = Flow(self._flows, name, id)
        steps = [flow.add(call) for call in calls]
        flow.add(_made_by(then, [step.result for step in steps], "then"))
        return flow


def _made_by(make: Callable[[Any], Call[B]], result: Any, field: str) -> Call[B]:
    """The call that follows, made from the result to come."""
    if isinstance(make, Call | Task):
        task = make.task.name if isinstance(make, Call) else make.name
        raise InvalidArgument(
            field, f"must make its call from the result before: {task}.call, or lambda result: {task}.call(result, …)"
        )
    if not callable(make):
        raise InvalidArgument(field, f"must be task.call, or a function that makes a call, not {make!r}")
    return make(result)
