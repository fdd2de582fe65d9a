"""What mkdocstrings shows differently: the methods `*_sync`, and the names of guides in docstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

BLOCKING = re.compile(r"(?:background\.)?blocking\((\w+)\)")
GUIDE = re.compile(r"(?<![\w/`(])docs/([\w/-]+)\.md")


class LongshoreExtension(griffe.Extension):
    """Turns `close_sync = blocking(close)` into a method, and `docs/tasks.md` into a link to the guide."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Give each blocking form the signature of the method it calls."""
        for name, member in list(cls.members.items()):
            found = BLOCKING.fullmatch(str(member.value)) if isinstance(member, griffe.Attribute) else None
            target = cls.members.get(found[1]) if found else None
            if isinstance(target, griffe.Function):
                method = griffe.Function(
                    name, parameters=target.parameters, returns=target.returns, lineno=member.lineno, parent=cls
                )
                method.docstring = griffe.Docstring(
                    f"Call `{target.name}` from code without an event loop.", parent=method
                )
                cls.set_member(name, method)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Link the guides that a docstring names; every page of the reference is one folder below the root."""
        if obj.docstring:
            obj.docstring.value = GUIDE.sub(r"[docs/\1.md](../\1.md)", obj.docstring.value)
