"""The SQLite dialect's statements, read once."""

from __future__ import annotations

from longshore.backends.statements import Statements

SQL = Statements("longshore.backends.sqlite")
