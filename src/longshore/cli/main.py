"""The `longshore` command: the tree of commands, and how it ends when something goes wrong."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any

import typer

from longshore.cli import (
    doctor,
    enqueue,
    events,
    flows,
    inspect,
    jobs,
    pipeline,
    queues,
    schedules,
    serve,
    store,
    tokens,
    workers,
)
from longshore.cli.exit_codes import Exit, exit_code_of
from longshore.cli.output import complain, say
from longshore.core.errors import Unauthenticated

_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
"""What typer raises for wrong use: from its own click, or the real one, as its version has it."""

app = typer.Typer(
    help="A durable job queue for Python. Exit codes and examples of every command: docs/cli.md.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_shown_in_full = False
_ROOM = 58
"""Characters beside the longest name, on a terminal that is as narrow as terminals are."""


def _tell_version(asked: bool) -> None:
    if asked:
        import longshore

        say(f"longshore {longshore.__version__}")
        raise typer.Exit


@app.callback()
def _all_commands(
    _version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", envvar="LONGSHORE_TRACEBACK", help="Show where an error comes from.")
    ] = False,
) -> None:
    global _shown_in_full  # an error is printed after the context of this call has ended
    _shown_in_full = show_traceback


_COMMANDS: dict[str, dict[str, Callable[..., Any]]] = {
    "Start": {"up": serve.up, "serve": serve.serve_api, "worker": workers.worker, "scheduler": workers.scheduler},
    "Look": {
        "list": inspect.list_jobs,
        "show": inspect.show,
        "explain": inspect.explain,
        "logs": events.logs,
        "events": events.events,
        "stats": queues.stats,
        "queues": queues.queues,
        "workers": queues.workers,
    },
    "Act": {
        "enqueue": enqueue.enqueue,
        "cancel": jobs.cancel,
        "retry": jobs.retry,
        "promote": jobs.promote,
        "delete": jobs.delete,
        "pause": queues.pause,
        "resume": queues.resume,
        "limits": queues.limits,
    },
    "Keep": {
        "migrate": store.migrate,
        "migrate-data": store.migrate_data,
        "backup": store.backup,
        "doctor": doctor.doctor,
    },
}

for _group, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        app.command(_name, rich_help_panel=_group)(_command)
app.add_typer(jobs.dlq, name="dlq")
app.add_typer(schedules.schedule, name="schedule")
app.add_typer(flows.flow, name="flow")
app.add_typer(tokens.token, name="token")
app.add_typer(pipeline.pipeline, name="pipeline")


@cache
def command() -> Any:
    """The whole tree, as it is run."""
    tree = typer.main.get_command(app)
    _tell_in_short(tree)
    return tree


def _tell_in_short(tree: Any) -> None:
    """Has every list of commands say of each what is whole without the rest, rather than cut it off with dots."""
    for child in getattr(tree, "commands", {}).values():
        told = " ".join((child.help or "").partition("\n\n")[0].split()).partition(". ")[0]
        for parting in (r"[:;] .*", r", [^,]*$", r", [^,]*$"):
            told = re.sub(parting, "", told) if len(told) > _ROOM else told
        child.short_help = told.removesuffix(".")
        _tell_in_short(child)


def main(arguments: Sequence[str]) -> int:
    """Runs one command; whatever is wrong is one line that says what to do, and the exit code its kind."""
    global _shown_in_full
    _shown_in_full = False
    try:
        code = command().main(args=list(arguments), prog_name="longshore", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else Exit.OK
    except SystemExit as ending:  # of a command that has run a process's whole life
        return ending.code if isinstance(ending.code, int) else Exit.OK
    except BaseException as error:
        return _told(error)


def _told(error: BaseException) -> int:
    if isinstance(error, BrokenPipeError):
        return Exit.PIPE_CLOSED
    if _shown_in_full:
        traceback.print_exception(error)
    if isinstance(error, _USAGE_ERROR):
        _tell_use(error.ctx, error.format_message())
        return Exit.USAGE
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return Exit.INTERRUPTED
    code = exit_code_of(type(error))
    if code is Exit.INTERNAL:
        _complain(f"{type(error).__name__}: {error}; that is a defect: longshore --traceback … shows where")
    elif isinstance(error, Unauthenticated):
        _complain(f"{error}; put it into LONGSHORE_TOKEN")
    else:
        _complain(str(error))
    return code


def _tell_use(context: Any, message: str) -> None:
    """What was wrong with the words; of a command that was given none, how it is used."""
    if context is not None and message == context.get_help():
        for line in message.splitlines():
            complain(line)
    else:
        command_path = "longshore" if context is None else context.command_path
        _complain(f"{message.rstrip('.')} – see {command_path} --help")


def _complain(what: str) -> None:
    complain(f"longshore: {what}")


def run() -> None:
    """The entry point."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # they are files here
    code = main(sys.argv[1:])
    if code == Exit.PIPE_CLOSED:  # what is still in the buffer has no reader: it must not be tried again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
