"""Any exception of a handler becomes readable text that every store can keep."""

from __future__ import annotations

import asyncio
import pickle
import tracemalloc

import pytest

from longshore.core.errors import Fatal, Snooze
from longshore.core.validation import LONGEST_TEXT, clean_text
from longshore.runtime.error_text import (
    LONGEST_STDERR,
    ProcessDied,
    RemoteFailure,
    describe,
    describe_exit,
    is_a,
    type_names,
)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_the_first_line_is_type_and_message_and_the_last_lines_tell_where() -> None:
    text = describe(raised(ValueError("bad colour")))
    assert text.splitlines()[0] == "ValueError: bad colour"
    assert 'test_failures.py", line' in text
    assert "in raised" in text
    assert text.splitlines()[-1] == "ValueError: bad colour"


def test_an_error_without_a_traceback_or_message_is_shown() -> None:
    assert describe(KeyError()).splitlines()[0] == "KeyError"
    assert describe(ValueError("quiet")) == "ValueError: quiet\n\nValueError: quiet\n"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no")

    __repr__ = __str__


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]  # the name cannot be read, on purpose
        raise RuntimeError("no name")


class NamelessError(Exception, metaclass=Nameless):
    pass


class Liar(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getitem__(self, _: object) -> str:
        raise RuntimeError("no parts")


class Lying(Exception):
    def __str__(self) -> str:
        return Liar("a lie")


class CauseRaises(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]  # reading it raises, on purpose
        raise RuntimeError("no cause")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Unspeakable(), "Unspeakable: (its message cannot be read: __str__ raised SystemExit)"),
        (NamelessError("x"), "an unnamed exception: x"),
        (Lying(), "Lying: a lie"),
        (CauseRaises("x"), "CauseRaises: (it could not be described: RuntimeError)"),
    ],
)
def test_an_exception_that_raises_when_it_is_read_is_still_described(error: Exception, told: str) -> None:
    assert describe(raised(error)).splitlines()[0] == told


def test_characters_that_no_store_can_keep_are_replaced() -> None:
    assert describe(ValueError("a\x00b\ud800c")).splitlines()[0] == "ValueError: a\ufffdb\ufffdc"


def test_a_message_of_50_mb_is_cut_with_a_mark_and_not_copied() -> None:
    error = raised(ValueError("x" * 50_000_000))
    tracemalloc.start()
    try:
        text = describe(error)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(text) <= LONGEST_TEXT
    assert most < 5_000_000
    assert "[cut: 50000000 characters in all]" in text
    assert "in raised" in text
    assert clean_text("error", text) == text


def test_a_chain_of_exceptions_is_shown_in_order() -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError as cause:
            raise ValueError("second") from cause

    with pytest.raises(ValueError, match="second") as caught:
        fail()
    text = describe(caught.value)
    assert text.index("KeyError: 'first'") < text.index("direct cause") < text.rindex("ValueError: second")


def test_a_chain_that_bites_its_own_tail_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert describe(one).count("direct cause") == 1


def test_a_chain_of_ten_thousand_exceptions_shows_the_latest() -> None:
    error = Exception("0")
    for number in range(10_000):
        later = Exception(str(number + 1))
        later.__context__ = error
        error = later
    text = describe(error)
    assert text.endswith("Exception: 10000\n")
    assert len(text) < 4000


def test_a_deep_recursion_is_shown_at_both_ends() -> None:
    def deeper(depth: int) -> int:
        return deeper(depth + 1) + 1

    with pytest.raises(RecursionError) as caught:
        deeper(0)
    text = describe(caught.value)
    assert "frames omitted]" in text
    assert len(text) < 12_000
    assert "deeper(0)" in text


def test_the_end_of_a_traceback_that_is_too_long_is_kept() -> None:
    error = raised(ValueError("the end"))
    for _ in range(9):
        error.add_note("n" * 10_000)
    text = describe(error)
    assert len(text) <= LONGEST_TEXT
    assert text.startswith("ValueError: the end\n\nTraceback")
    assert "the middle is omitted" in text
    assert text.endswith("n\n")


def test_an_exception_group_shows_its_members() -> None:
    text = describe(raised(BaseExceptionGroup("several", [raised(ValueError("a")), KeyError("b")])))
    assert text.startswith("ExceptionGroup: several (2 sub-exceptions)")
    assert "  ValueError: a" in text
    assert "  KeyError: 'b'" in text


def test_a_group_that_holds_itself_many_times_over_has_an_end() -> None:
    group: ExceptionGroup[Exception] = ExceptionGroup("0", [ValueError("deep inside")])
    for number in range(9):
        group = ExceptionGroup(str(number + 1), [group] * 10)
    text = describe(group)
    assert text.count("deep inside") == 1


async def test_frames_of_the_plumbing_are_left_out() -> None:
    async def handler() -> None:
        raise ValueError("x")

    try:
        await asyncio.wait_for(asyncio.gather(asyncio.to_thread(asyncio.run, handler())), 10)
    except ValueError as error:
        frames = [line for line in describe(error).splitlines() if line.startswith("  File")]
    assert frames[0].split(", in ")[1] == "test_frames_of_the_plumbing_are_left_out"
    assert frames[-1].split(", in ")[1] == "handler"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-11, "its process was killed by SIGSEGV"),
        (-9, "its process was killed by SIGKILL"),
        (-64, "its process was killed by SIGRTMAX"),
        (-99, "its process was killed by signal 99"),
        (3, "its process exited with code 3 before the job ended"),
    ],
)
def test_an_exit_code_is_described(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_a_dead_process_is_reported_with_its_reason_and_last_stderr() -> None:
    died = ProcessDied("its process was killed by SIGSEGV", "x" * 100_000 + "\nlast words\n")
    text = describe(raised(died))
    assert text.startswith("its process was killed by SIGSEGV; its last output on stderr:\n")
    assert text.endswith("\nlast words")
    assert len(text) < LONGEST_STDERR + 100
    again = pickle.loads(pickle.dumps(died))
    assert (again.reason, again.stderr) == (died.reason, died.stderr)


def test_a_failure_elsewhere_keeps_its_own_story() -> None:
    far = raised(RemoteFailure("ValueError: far\n\nTraceback …\nValueError: far\n", ("builtins.ValueError",)))
    assert describe(far) == "ValueError: far\n\nTraceback …\nValueError: far\n"
    assert str(far) == "ValueError: far"
    for error in (Fatal("over"), Snooze(5, "later")):
        error.__cause__ = far
        assert describe(raised(error)) == describe(far)


def test_an_error_is_recognised_by_its_kind_across_processes() -> None:
    far = RemoteFailure("text", type_names(ConnectionResetError()))
    for error in (far, ConnectionResetError()):
        assert is_a(error, ConnectionError)
        assert is_a(error, OSError)
        assert not is_a(error, ValueError)
