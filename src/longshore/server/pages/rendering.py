"""Templates become pages: everything that is filled in is escaped, and nothing may be missing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_STYLE = resources.files("longshore.server.pages").joinpath("templates", "style.css").read_text(encoding="utf-8")
_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()

CONTENT_SECURITY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No script at all, and no style but our own; whatever text of a job should become one, it does nothing."""

_templates = Environment(
    loader=PackageLoader("longshore.server.pages"), autoescape=True, undefined=StrictUndefined, auto_reload=False
)


def render(name: str, shown: Mapping[str, Any]) -> str:
    """The page."""
    return _templates.get_template(name).render(style=_STYLE, **shown)
