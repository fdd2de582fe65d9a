"""Options that many commands share, written once: a function that takes them stands in for what it makes of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any


def gathered(**makers: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command, in place of each parameter named here, the options of its maker: `@gathered(where=a_filter)`."""

    def around(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        asked = {name: inspect.signature(maker, eval_str=True).parameters for name, maker in makers.items()}
        parameters = [given for name, given in own.parameters.items() if name not in makers]
        parameters += [given for options in asked.values() for given in options.values()]

        # keyword only, so that one that must be given may stand behind one that need not
        told = [given.replace(kind=inspect.Parameter.KEYWORD_ONLY) for given in parameters]
        signature = own.replace(parameters=told)

        @wraps(command)
        def called(**given: Any) -> Any:
            bound = signature.bind(**given)
            bound.apply_defaults()
            values = bound.kwargs
            made = {
                name: maker(**{option: values.pop(option) for option in asked[name]}) for name, maker in makers.items()
            }
            return command(**values, **made)

        called.__signature__ = signature  # type: ignore[attr-defined]  # what typer reads
        called.__annotations__ = {given.name: given.annotation for given in told}
        return called

    return around
