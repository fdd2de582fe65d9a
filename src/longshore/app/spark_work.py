"""What a harbor knows of Spark: where its Spark work runs, and by which names it is reached when it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longshore.core.errors import InvalidArgument
from longshore.core.validation import check_number


@dataclass(slots=True)
class SparkSettings:
    """Where Spark work runs: None is the session that is there, what spark-submit says, or this machine."""

    master: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    batch_size: int | None = None
    """Jobs in one batch of `executor="spark"`; None is the executor's own."""

    def change(self, master: str | None, config: Mapping[str, str] | None, batch_size: int | None) -> None:
        """Checked, all or nothing."""
        if master is not None and (not isinstance(master, str) or not master):
            raise InvalidArgument("master", f"must be Spark's address of a cluster, such as local[4], not {master!r}")
        if master is not None and master.startswith("sc://"):
            raise InvalidArgument(
                "master", "is of Spark Connect, which has no driver here; name local[*], spark://…, yarn or k8s://…"
            )
        for name, value in (config or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidArgument(f"config[{name!r}]", f"must be text for text, as Spark's are; got {value!r}")
        if batch_size is not None:
            check_number("batch_size", batch_size, least=1)
        self.master, self.config, self.batch_size = master, dict(config or {}), batch_size


def from_spark(module: str, name: str) -> Any:
    """A name of `longshore.spark`, which stands above this package and is loaded only where a task needs it."""
    return getattr(importlib.import_module(f"longshore.spark.{module}"), name)
