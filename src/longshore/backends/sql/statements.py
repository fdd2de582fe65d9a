"""Named SQL statements and numbered migrations, read from the package of each dialect.

A dialect's statements are the blocks of `shared.sql` beside this module, and of `sql/*.sql` in its own package:

    -- name: claim_span(now, first, last)      a statement and its parameters, in the order that Python passes them
    -- fragment: due                           an expression, column list or CTE; `{due}` includes it by name

The text writes a parameter as `:now`. The loader replaces it by its number (`?1` or `$1`), also inside a fragment. A
statement that uses an undeclared parameter, or declares an unused one, is refused at load. `{parameters}` stands for
all of them. `{claim_sources}`, `{claim_target}` and their like are the status words of `core.status.TRANSITIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from longshore.core.errors import BackendUnavailable
from longshore.core.status import ELIGIBLE, FINAL, HOLDS_CAPACITY, TRANSITIONS, JobStatus, Verb

_BLOCK = re.compile(
    r"^-- (?P<kind>name|fragment): (?P<name>\w+)(?:\((?P<parameters>[^)]*)\))?\n(?P<body>.*?)"
    r"(?=^-- (?:name|fragment): |\Z)",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
_INCLUDE = re.compile(r"\{(?!schema\})(\w+)\}")
_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"[^"]*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|--[^\n]*|::|(?<!\w):(?P<parameter>[a-z_]\w*)""",
    re.DOTALL,
)
_MARKS = {"sqlite": "?", "postgres": "$"}


class Statements:
    """The statements of one dialect as attributes; fragments without parameters are attributes, too."""

    def __init__(self, package: str, schema: str = "main") -> None:
        """Load the statements. `schema` is inserted last and not searched for parameters: it may have any name."""
        mark = _MARKS[package.rpartition(".")[2]]
        self.parameters: dict[str, tuple[str, ...]] = {}
        blocks = list(_blocks(package))
        fragments = STATUS_WORDS | {block["name"]: _body(block) for block in blocks if block["kind"] == "fragment"}
        for block in blocks:
            name, declared = block["name"], tuple(re.findall(r"\w+", block["parameters"] or ""))
            if name in self.__dict__:
                raise ValueError(f"{package}: two blocks are named {name}")
            fragments["parameters"] = ", ".join(f":{parameter}" for parameter in declared)
            text = _included(_body(block), fragments)
            if block["kind"] == "name":
                self.parameters[name] = declared
                text = _numbered(f"{package}: {name}", text, declared, mark)
            elif any(token["parameter"] for token in _TOKEN.finditer(text)):
                continue
            self.__dict__[name] = text.replace("{schema}", schema)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...

    def names(self) -> frozenset[str]:
        """The names of the statements, without fragments."""
        return frozenset(self.parameters)


def _blocks(package: str) -> Iterable[re.Match[str]]:
    """The blocks of both dialects, then those of one."""
    for folder in (files("longshore.backends.sql"), files(package).joinpath("sql")):
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.name.endswith(".sql"):
                yield from _BLOCK.finditer(entry.read_text(encoding="utf-8"))


def _body(block: re.Match[str]) -> str:
    return _COMMENT.sub("", block["body"]).strip()


def _included(text: str, fragments: Mapping[str, str]) -> str:
    """Insert fragments, and theirs; the schema comes last."""
    while _INCLUDE.search(text):
        text = _INCLUDE.sub(lambda use: fragments[use[1]], text)
    return text


def _numbered(where: str, text: str, declared: Sequence[str], mark: str) -> str:
    """Replace each `:name` by its number among the declared parameters."""
    used = {token["parameter"] for token in _TOKEN.finditer(text) if token["parameter"]}
    if used != set(declared) or len(declared) != len(set(declared)):
        undeclared, unused = sorted(used - set(declared)), sorted(set(declared) - used)
        raise ValueError(f"{where} uses undeclared parameters {undeclared}, and declares unused ones {unused}")
    numbers = {name: f"{mark}{number}" for number, name in enumerate(declared, start=1)}
    return _TOKEN.sub(lambda token: numbers[token["parameter"]] if token["parameter"] else token[0], text)


def _listed(statuses: Iterable[JobStatus]) -> str:
    return ", ".join(f"'{status}'" for status in statuses) or "NULL"


def _status_words() -> dict[str, str]:
    """`claim_sources` and `claim_target`, and the same for every verb: the statuses that its statements find and set.

    Of several targets it is the one that a worker can claim. An empty list is NULL, which no row equals.
    """
    words = {"final_statuses": _listed(s for s in JobStatus if s in FINAL)}
    words["held_statuses"] = _listed(s for s in JobStatus if s in HOLDS_CAPACITY)
    for verb in Verb:
        moves = [move for move in TRANSITIONS if move.verb is verb]
        words[f"{verb.name.lower()}_sources"] = _listed(dict.fromkeys(move.source for move in moves))
        targets = {move.target for move in moves}
        if len(targets) > 1:
            targets &= ELIGIBLE
        if len(targets) == 1:
            words[f"{verb.name.lower()}_target"] = _listed(targets)
    claimed = {move.target for move in TRANSITIONS if move.verb is Verb.CLAIM}
    completed = (move.source for move in TRANSITIONS if move.verb is Verb.COMPLETE and move.source in claimed)
    words["bulk_complete_sources"] = _listed(completed)
    return words


STATUS_WORDS = _status_words()
"""Lists of quoted status names from the transition table; a statement includes them like fragments."""


class Migration(NamedTuple):
    """One migration; after it the schema has this number."""

    number: int
    name: str
    text: str


def load_migrations(package: str) -> tuple[Migration, ...]:
    """All migrations in order; their numbers must be 1, 2, 3 …"""
    folder = files(package).joinpath("migrations")
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    steps = []
    for expected, name in enumerate(found, start=1):
        number = int(name.split("_", 1)[0])
        if number != expected:
            raise RuntimeError(f"migration {name} should have the number {expected:04d}")
        steps.append(Migration(number, name, folder.joinpath(name).read_text(encoding="utf-8")))
    return tuple(steps)


def refuse_newer(version: int, known: Sequence[Migration], where: str) -> None:
    """Refuse a schema that is newer than this code."""
    if version > len(known):
        raise BackendUnavailable(
            f"{where} has schema {version}, created by a newer Longshore; this program knows schemas up to "
            f"{len(known)}. Upgrade Longshore here; the store was not changed"
        )


LINEAGE = "2026-11"
"""The sequence of migrations that begins with `0001_initial.sql`; each store keeps it in its table `meta`."""


def refuse_other_lineage(lineage: str | None, where: str) -> None:
    """Refuse a store of another sequence of migrations: its numbers cannot be compared."""
    if lineage != LINEAGE:
        found = "no schema lineage" if lineage is None else f"the schema lineage {lineage!r}"
        raise BackendUnavailable(
            f"{where} has {found}; this Longshore uses {LINEAGE!r} and cannot read it. Finish its jobs with the "
            "version that created it, or choose a new file or schema"
        )
