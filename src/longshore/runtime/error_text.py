"""Formats any exception as bounded, readable text."""

from __future__ import annotations

import asyncio
import concurrent.futures
import linecache
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from longshore.core.errors import Fatal, LongshoreError, Snooze
from longshore.core.validation import LONGEST_TEXT, clean_text

LONGEST_MESSAGE = 8 * 1024
"""The longest message; the rest of the text is for the traceback."""
LONGEST_STDERR = 16 * 1024
LONGEST_CHAIN = 10
MOST_FRAMES = 60
_LONGEST_LINE = 200
_CUT = "\n… [the middle is omitted]\n"
_INTERNAL_PATHS = (
    f"{Path(__file__).parent}{os.sep}",
    f"{Path(__file__).parents[1] / 'app'}{os.sep}",
    f"{Path(asyncio.__file__).parent}{os.sep}",
    f"{Path(concurrent.futures.__file__).parent}{os.sep}",
    threading.__file__,
)
"""Modules that call handlers: their frames do not help the author of a handler."""


class ProcessDied(LongshoreError):
    """The process that ran the job ended without an answer, which counts as a crash."""

    def __init__(self, reason: str, stderr: str = "") -> None:
        stderr = stderr[-LONGEST_STDERR:].strip()
        super().__init__(f"{reason}; its last output on stderr:\n{stderr}" if stderr else reason)
        self.reason = reason
        self.stderr = stderr


class RemoteFailure(Exception):
    """An exception that was raised in a child process: its text, never unpickled."""

    def __init__(self, text: str, type_names: tuple[str, ...] = ()) -> None:
        super().__init__(text, type_names)
        self.text = text
        """The text that `describe` returned there."""
        _, _, traceback = text.partition("\n\n")
        if traceback:
            self.add_note(f"in the process that ran the job:\n{traceback}")
        self.type_names = type_names
        """Its class and base classes, as `module.name`."""

    def __str__(self) -> str:
        return self.text.partition("\n")[0]


def type_names(error: BaseException) -> tuple[str, ...]:
    """Return the names of an exception's classes, nearest first; rules match them across processes."""
    if isinstance(error, RemoteFailure):
        return error.type_names
    return tuple(_full_name(kind) for kind in type(error).__mro__ if kind is not object)


def is_a(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether the error is of this kind, here or in the process that raised it."""
    return isinstance(error, kind) or (isinstance(error, RemoteFailure) and _full_name(kind) in error.type_names)


def _full_name(kind: type) -> str:
    # a child imports its parent's main file under this other name
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}.{kind.__qualname__}"


def describe_exit(exit_code: int, when: str = "before the job ended") -> str:
    """Return an exit code in words."""
    if exit_code >= 0:
        return f"its process exited with code {exit_code} {when}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"its process was killed by {name}"


def describe(error: BaseException) -> str:
    """Return `Type: message` and the traceback, within the size that a store keeps. Never raises."""
    try:
        text = _remote_text(error)
        if text is None:
            head = _headline(error)
            text = f"{head}\n\n{_bounded(''.join(_chained(error)), LONGEST_TEXT - len(head) - 2)}"
        return clean_text("error", _bounded(text, LONGEST_TEXT))
    except BaseException as problem:  # user code runs in here, and the failure must still be recorded
        return f"{_name(error)}: (it could not be described: {_name(problem)})"


def _remote_text(error: BaseException) -> str | None:
    """Return the text of an error that was raised in another process."""
    if isinstance(error, ProcessDied):
        return str(error)
    source = error.__cause__ if type(error) in (Fatal, Snooze) else error
    return source.text if isinstance(source, RemoteFailure) else None


def _name(error: BaseException) -> str:
    try:
        return _exact(type(error).__name__)
    except BaseException:  # a metaclass may raise anything
        return "an unnamed exception"


def _headline(error: BaseException) -> str:
    message = _message(error)
    return f"{_name(error)}: {message}" if message else _name(error)


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as problem:  # a broken __str__ is reported too
        return f"(its message cannot be read: __str__ raised {_name(problem)})"
    length = str.__len__(text)
    if length <= LONGEST_MESSAGE:
        return _exact(text)
    return f"{_exact(str.__getitem__(text, slice(0, LONGEST_MESSAGE)))}… [cut: {length} characters in all]"


def _exact(text: str) -> str:
    return text if type(text) is str else "".join((text,))  # a subclass may misreport its length or its parts


def _bounded(text: str, limit: int) -> str:
    """Cut the middle: the end says most, and the beginning gives its context."""
    if len(text) <= limit:
        return text
    kept = limit - len(_CUT)
    return f"{text[: kept // 4]}{_CUT}{text[len(text) - (kept - kept // 4) :]}"


def _chained(error: BaseException) -> Iterator[str]:
    """Yield the chain as Python prints it: the earliest exception first."""
    chain = [(error, "")]
    seen = {id(error)}
    while len(chain) < LONGEST_CHAIN:
        latest = chain[-1][0]
        before, link = latest.__cause__, "The above exception was the direct cause of the following exception:"
        if before is None and not latest.__suppress_context__:
            before, link = latest.__context__, "During handling of the above exception, another exception occurred:"
        if before is None or id(before) in seen:
            break
        seen.add(id(before))
        chain.append((before, f"\n{link}\n\n"))
    for one, link in reversed(chain):
        yield from _one(one, set(), depth=0)
        yield link


def _one(error: BaseException, shown: set[int], depth: int) -> Iterator[str]:
    text = _remote_text(error)
    if text is not None:
        yield f"{text}\n"
        return
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from _frames(user_traceback(error))
    yield f"{_headline(error)}\n"
    notes = getattr(error, "__notes__", None)
    for note in notes[:LONGEST_CHAIN] if isinstance(notes, list) else ():
        yield f"{note[:LONGEST_MESSAGE]}\n" if type(note) is str else ""
    if isinstance(error, BaseExceptionGroup):
        yield from _members(error, shown, depth)


def _members(group: BaseExceptionGroup[BaseException], shown: set[int], depth: int) -> Iterator[str]:
    # one group may be a member many times, on every level: show it once, or the text never ends
    if depth >= LONGEST_CHAIN or id(group) in shown:
        yield "  … [its members are omitted]\n"
        return
    shown.add(id(group))
    for number, member in enumerate(group.exceptions[:LONGEST_CHAIN], start=1):
        yield f"  --- {number} of {len(group.exceptions)} ---\n"
        inner = _bounded("".join(_one(member, shown, depth + 1)), LONGEST_TEXT)
        yield "".join(f"  {line}\n" for line in inner.splitlines())
    if len(group.exceptions) > LONGEST_CHAIN:
        yield f"  … [{len(group.exceptions) - LONGEST_CHAIN} more]\n"


def user_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback without the frames of the worker before the first frame of the handler."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename.startswith(_INTERNAL_PATHS):
        at = at.tb_next
    return at or error.__traceback__


def _frames(at: TracebackType | None) -> Iterator[str]:
    frames = []
    while at is not None:
        frames.append(at)
        at = at.tb_next
    left_out = len(frames) - MOST_FRAMES
    for number, frame in enumerate(frames):
        # both ends of a deep recursion matter
        if left_out <= 0 or number < MOST_FRAMES // 4 or number >= MOST_FRAMES // 4 + left_out:
            code = frame.tb_frame.f_code
            yield f'  File "{code.co_filename}", line {frame.tb_lineno}, in {code.co_name}\n'
            line = linecache.getline(code.co_filename, frame.tb_lineno, frame.tb_frame.f_globals).strip()
            yield f"    {line[:_LONGEST_LINE]}\n" if line else ""
        elif number == MOST_FRAMES // 4:
            yield f"  … [{left_out} frames omitted]\n"
