"""The SQLite store: one file, safe against power cuts, shared by the processes of one machine."""

from __future__ import annotations

from longshore.backends.sql.statements import Statements

SQL = Statements("longshore.backends.sqlite")
