"""Templates become pages: everything that is filled in is escaped, and nothing may be missing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

_STYLE = resources.files("longshore.server.pages").joinpath("templates", "style.css").read_text(encoding="utf-8")
_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()

CONTENT_SECURITY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""No script at all, and no style but our own; whatever text of a job should become one, it does nothing."""

_templates = Environment(
    loader=PackageLoader("longshore.server.pages"), autoescape=True, undefined=StrictUndefined, auto_reload=False
)


def page(
    name: str, shown: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> HTMLResponse:
    """The page as an answer."""
    told = {name: value for name, value in (headers or {}).items() if name.lower() in _HANDED_ON}
    # with no referrer at all a browser would not say either which page a form was sent from
    told |= {"Content-Security-Policy": CONTENT_SECURITY, "Referrer-Policy": "same-origin"}
    return HTMLResponse(render(name, shown), status, told)


_HANDED_ON = frozenset({"www-authenticate", "retry-after"})


def render(name: str, shown: Mapping[str, Any]) -> str:
    """The page."""
    return _templates.get_template(name).render(style=_STYLE, **shown)
