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
from longshore.cli.output import print_line, print_stderr
from longshore.core.errors import Unauthenticated

_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
"""The usage error of the click that typer uses: a vendored copy or the real package, depending on its version."""

app = typer.Typer(
    help="A durable job queue for Python. Run `longshore up` to start, and `longshore COMMAND --help` for details.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_show_traceback = False
_SHORT_HELP_WIDTH = 58
"""Characters left for a summary beside the longest command name on a terminal of 80 columns."""


def _print_version(requested: bool) -> None:
    if requested:
        import longshore

        print_line(f"longshore {longshore.__version__}")
        raise typer.Exit


@app.callback()
def _all_commands(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", envvar="LONGSHORE_TRACEBACK", help="Print the traceback of an error.")
    ] = False,
) -> None:
    global _show_traceback  # errors are printed after typer's context has ended
    _show_traceback = show_traceback


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
    """Return the complete command tree."""
    tree = typer.main.get_command(app)
    _set_short_help(tree)
    return tree


def _set_short_help(tree: Any) -> None:
    """Summarise each command with a complete clause; typer would cut the text off with dots."""
    for child in getattr(tree, "commands", {}).values():
        summary = " ".join((child.help or "").partition("\n\n")[0].split()).partition(". ")[0]
        for trailing in (r"[:;] .*", r", [^,]*$", r", [^,]*$"):
            summary = re.sub(trailing, "", summary) if len(summary) > _SHORT_HELP_WIDTH else summary
        child.short_help = summary.removesuffix(".")
        _set_short_help(child)


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. An error prints one line that says what to do."""
    global _show_traceback
    _show_traceback = False
    try:
        code = command().main(args=list(arguments), prog_name="longshore", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else Exit.OK
    except SystemExit as exit_:  # raised by commands that run until a signal
        return exit_.code if isinstance(exit_.code, int) else Exit.OK
    except BaseException as error:
        return _report_error(error)


def _report_error(error: BaseException) -> int:
    if isinstance(error, BrokenPipeError):
        return Exit.PIPE_CLOSED
    if _show_traceback:
        traceback.print_exception(error)
    if isinstance(error, _USAGE_ERROR):
        _print_usage_error(error.ctx, error.format_message())
        return Exit.USAGE
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return Exit.INTERRUPTED
    code = exit_code_of(type(error))
    if code is Exit.INTERNAL:
        _print_error(f"{type(error).__name__}: {error}; this is a bug: longshore --traceback … shows where")
    elif isinstance(error, Unauthenticated):
        problem = str(error).rpartition(";")[0] or str(error)  # the rest says what a sender of HTTP requests can do
        _print_error(f"{problem}; set LONGSHORE_TOKEN to a token of this server (longshore token create)")
    else:
        _print_error(str(error))
    return code


def _print_usage_error(context: Any, message: str) -> None:
    """Print the usage error, or the help of a command that was called without arguments."""
    if context is not None and message == context.get_help():
        for line in message.splitlines():
            print_stderr(line)
    else:
        command_path = "longshore" if context is None else context.command_path
        text = f"{message} See" if message.endswith("?") else f"{message.rstrip('.')}; see"
        _print_error(f"{text} {command_path} --help")


def _print_error(message: str) -> None:
    print_stderr(f"longshore: {message}")


def run() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # both are files here
    code = main(sys.argv[1:])
    if code == Exit.PIPE_CLOSED:  # the interpreter would flush the buffer into the closed pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
