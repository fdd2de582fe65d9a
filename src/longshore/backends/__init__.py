"""Stores for jobs, with the names that authors of backends need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longshore.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from longshore.backends.base import Backend as Backend
    from longshore.backends.base import Capabilities as Capabilities
    from longshore.backends.change_signal import ChangeSignal as ChangeSignal
    from longshore.backends.engine import TransactionalBackend as TransactionalBackend
    from longshore.backends.memory import MemoryStore as MemoryStore
    from longshore.backends.port import Operation as Operation
    from longshore.backends.sqlite.backend import SQLiteBackend as SQLiteBackend
    from longshore.core.clock import Clock as Clock
    from longshore.core.clock import micros_of as micros_of
    from longshore.core.job_record import Record as Record

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "longshore.backends.base": ["Backend", "Capabilities"],
        "longshore.backends.change_signal": ["ChangeSignal"],
        "longshore.backends.engine": ["TransactionalBackend"],
        "longshore.backends.memory": ["MemoryStore"],
        "longshore.backends.port": ["Operation"],
        "longshore.backends.sqlite.backend": ["SQLiteBackend"],
        "longshore.core.clock": ["Clock", "micros_of"],
        "longshore.core.job_record": ["Record"],
    },
)
