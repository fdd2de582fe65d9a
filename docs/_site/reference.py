"""The reference pages that are written from the program: its commands, its routes and its settings."""

from __future__ import annotations

import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from longshore import connect, settings
from longshore.backends.remote.codecs import PREFIX
from longshore.cli.exit_codes import Exit
from longshore.cli.main import command
from longshore.server.app import create_app
from longshore.server.problems import TABLE

WRITTEN = "`make docs` writes this page from the program."


def _cell(text: str) -> str:
    """Text that a table shows as it is."""
    one_line = " ".join(text.split())
    parts = one_line.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows), ""]


# --- the command line ---


def cli_page() -> str:
    """Every command: its synopsis, its help, its arguments and options."""
    tree = command()
    lines = ["# Command line reference", ""]
    lines += [
        "Every command of `longshore`, with its arguments and options. [The command line](../cli.md) is the guide."
    ]
    lines += [WRITTEN, "", "## Options of `longshore` itself", ""]
    lines += _parameters(tree)
    for name, each in _commands(tree, "longshore"):
        lines += [f"## {name}", ""]
        lines += ["```text", _usage(name, each), "```", ""]
        lines += [f"{_prose(each.help)}\n"] if each.help else []
        lines += _parameters(each)
    lines += ["## Exit codes", ""]
    lines += _table(["code", "meaning"], [[str(code.value), _cell(code.meaning)] for code in Exit])
    return "\n".join(lines).rstrip("\n") + "\n"


def _commands(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    for child, each in tree.commands.items():
        if hasattr(each, "commands"):
            yield from _commands(each, f"{name} {child}")
        else:
            yield f"{name} {child}", each


def _usage(name: str, each: Any) -> str:
    arguments = [parameter for parameter in each.params if parameter.param_type_name == "argument"]
    return " ".join([name, "[OPTIONS]", *(_argument(argument) for argument in arguments)])


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    many = "..." if argument.nargs == -1 else ""
    return f"{name}{many}" if argument.required else f"[{name}]{many}"


def _prose(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()))


def _parameters(each: Any) -> list[str]:
    shown = [one for one in each.params if not getattr(one, "hidden", False) and one.name != "help"]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    lines: list[str] = []
    if arguments:
        rows = [[f"`{_argument(one)}`", _cell(one.help or "")] for one in arguments]
        lines += _table(["argument", "meaning"], rows)
    if options:
        rows = [[_flags(one), " ".join([_cell(one.help or ""), *_origins(one)])] for one in options]
        lines += _table(["option", "meaning"], rows)
    return lines


def _flags(option: Any) -> str:
    value = "" if option.is_flag else f" {(option.metavar or 'VALUE').replace('|', '/')}"
    names = sorted([*option.opts, *option.secondary_opts], key=lambda flag: (flag.startswith("--"), len(flag)))
    return ", ".join(f"`{flag}{value}`" for flag in names)


def _origins(option: Any) -> Iterator[str]:
    """Where the value comes from if the option is not given."""
    shown = option.opts[0] if option.default is True else option.default
    if option.show_default and shown not in (None, False, "", (), []) and not callable(shown):
        yield f"Default: `{shown}`."
    for name in [option.envvar] if isinstance(option.envvar, str) else option.envvar or []:
        yield f"Variable: `{name}`."


# --- the HTTP API ---


def http_page() -> str:
    """Every route of the OpenAPI document, and every problem type."""
    document = create_app(connect("memory://")).openapi()
    lines = ["# HTTP API reference", ""]
    lines += [
        "Every route, the scope that its caller needs, and what it does. [The HTTP API](../server.md) is the guide."
    ]
    lines += ["The server describes parameters, bodies and answers at `/v1/openapi.json`, and shows them at `/docs`."]
    lines += [WRITTEN, ""]
    by_tag: dict[str, list[list[str]]] = defaultdict(list)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            row = [f"`{method.upper()}`", f"`{path}`", operation.get("x-longshore-scope", "none")]
            by_tag[operation["tags"][0]].append([*row, _cell(operation["summary"])])
    for tag, rows in by_tag.items():
        lines += [f"## {tag.capitalize()}", ""]
        lines += _table(["method", "path", "scope", "summary"], rows)
    lines += ["## Problem types", ""]
    lines += ["An error is a problem document (RFC 9457). Its `type` never changes its meaning."]
    lines += ["The last column names the exception that a Python client gets.", ""]
    rows = []
    for error, kind in sorted(TABLE.items(), key=lambda row: (row[1].status, row[1].name)):
        public = f"`{error.__name__}`" if error.__module__ == "longshore.errors" else ""
        rows.append([str(kind.status), f"`{PREFIX}{kind.name}`", _cell(kind.title), public])
    lines += _table(["status", "type", "title", "exception"], rows)
    return "\n".join(lines).rstrip("\n") + "\n"


# --- settings ---


def settings_page() -> str:
    """Every environment variable that Longshore reads."""
    lines = ["# Settings", ""]
    lines += [
        "The environment variables that Longshore reads. An option or an argument takes precedence over its variable."
    ]
    lines += [WRITTEN, ""]
    found: dict[str, tuple[str, set[str], Counter[str]]] = {}
    trees = [("longshore", command()), *_commands(command(), "longshore")]
    for name, each in trees:
        for one in each.params:
            for variable in [one.envvar] if isinstance(one.envvar, str) else one.envvar or []:
                _, commands, helps = found.setdefault(variable, (f"`{one.opts[0]}`", set(), Counter()))
                commands.add(name.removeprefix("longshore "))
                helps[one.help or ""] += 1
    rows = []
    for variable, (option, commands, helps) in sorted(found.items()):
        where = (
            "every command with a store" if len(commands) > 6 else ", ".join(f"`{name}`" for name in sorted(commands))
        )
        rows.append([f"`{variable}`", option, where, _cell(helps.most_common(1)[0][0])])
    lines += ["## Of the command line", "", *_table(["variable", "option", "commands", "meaning"], rows)]
    rows = []
    for _, function in inspect.getmembers(settings, inspect.isfunction):
        for variable in re.findall(r'"(LONGSHORE_\w+)"', inspect.getsource(function)):
            told = (inspect.getdoc(function) or "").partition("\n\n")[0]
            rows.append([f"`{variable}`", _cell(told.removeprefix(f"{variable}: "))])
    lines += ["## Of the library", "", *_table(["variable", "meaning"], rows)]
    return "\n".join(lines).rstrip("\n") + "\n"
