"""Fingerprints that group errors which differ only in numbers, names and addresses."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

_TYPE = r"^\s*([A-Za-z_][A-Za-z0-9_.]*(?:Error|Exception|Warning|Interrupt|Exit|Fatal|Timeout|[A-Z][a-z]+))\s*(?::|$)"
_VARIABLE = (
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<id>"),
    (r"0x[0-9a-fA-F]+", "<address>"),
    (r"'[^']*'|\"[^\"]*\"", "<text>"),
    (r"(?:/[\w.\-]+){2,}", "<path>"),
    (r"[0-9]+", "<n>"),
    (r"\s+", " "),
)
"""Replacements in order: a quoted path counts as text, and a number in a path is part of the path."""


def first_line_of(error: Column) -> Column:
    """The first line of an error."""
    return F.substring_index(F.trim(error), "\n", 1)


def error_type_of(error: Column) -> Column:
    """The class at the start of an error, as in `ValueError: …`; empty if there is none."""
    return F.regexp_extract(error, _TYPE, 1)


def pattern_of(error: Column) -> Column:
    """The first line of an error, without the parts that vary."""
    text = first_line_of(error)
    for variable, shown in _VARIABLE:
        text = F.regexp_replace(text, variable, shown)
    return F.trim(text)


def fingerprint_of(error: Column) -> Column:
    """Twelve characters that are equal for errors of the same pattern; null without an error."""
    return F.substring(F.md5(pattern_of(error).cast("binary")), 1, 12)
