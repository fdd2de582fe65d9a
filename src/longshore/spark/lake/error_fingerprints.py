"""Groups errors that differ only in numbers, names and addresses."""

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
"""What is replaced, in this order: a quoted path is a text, and a number within a path is part of it."""


def first_line_of(error: Column) -> Column:
    """What a list shows of it."""
    return F.substring_index(F.trim(error), "\n", 1)


def error_type_of(error: Column) -> Column:
    """The class that an error begins with, as in `ValueError: …`; empty if it begins otherwise."""
    return F.regexp_extract(error, _TYPE, 1)


def pattern_of(error: Column) -> Column:
    """Its first line, with whatever varies from one time to the next taken out."""
    text = first_line_of(error)
    for variable, shown in _VARIABLE:
        text = F.regexp_replace(text, variable, shown)
    return F.trim(text)


def fingerprint_of(error: Column) -> Column:
    """Twelve letters that are the same for the same kind of error; null if there is none."""
    return F.substring(F.md5(pattern_of(error).cast("binary")), 1, 12)
