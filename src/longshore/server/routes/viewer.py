"""The API viewer: Swagger UI from an installed package, behind the same gate as the API it shows."""

from __future__ import annotations

from importlib import resources
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, HTMLResponse, Response

from longshore.core.tokens import Scope
from longshore.server.auth import GuardedRoute, needs
from longshore.server.console.status_page import render
from longshore.server.openapi import ADDRESS
from longshore.server.parameters import root_of

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

VIEWER = "/docs"
CONTENT_SECURITY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Files and requests of this server only; no inline script and no inline style."""
_KEPT = {"Cache-Control": "private, max-age=3600"}
_START = """\
"use strict";
document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches);
SwaggerUIBundle({
  url: document.getElementById("viewer").dataset.document,
  dom_id: "#viewer",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // the default is a service on another host
  presets: [SwaggerUIBundle.presets.apis],
});
"""


@router.get(VIEWER, response_class=HTMLResponse)
@needs(Scope.READ)
async def viewer_page(request: Request) -> HTMLResponse:
    """Every operation of the OpenAPI document, with a form to try it."""
    root = root_of(request)
    text = render("viewer.html", {"root": root, "files": f"{root}{VIEWER}", "document": f"{root}{ADDRESS}"})
    # with no referrer at all a browser does not send the origin of a form either
    return HTMLResponse(text, headers={"Content-Security-Policy": CONTENT_SECURITY, "Referrer-Policy": "same-origin"})


@router.get(f"{VIEWER}/start.js")
@needs(Scope.READ)
async def start_script() -> Response:
    """The script that starts the viewer."""
    return Response(_START, headers=_KEPT, media_type="text/javascript")


@router.get(f"{VIEWER}/swagger-ui-bundle.js")
@needs(Scope.READ)
async def viewer_script() -> FileResponse:
    """The program of Swagger UI."""
    return _asset("swagger-ui-bundle.js", "text/javascript")


@router.get(f"{VIEWER}/swagger-ui.css")
@needs(Scope.READ)
async def viewer_style() -> FileResponse:
    """The style of Swagger UI."""
    return _asset("swagger-ui.css", "text/css")


def _asset(name: str, media_type: str) -> FileResponse:
    path: Any = resources.files("fastapi_offline") / "static" / name  # a path: wheels are installed unpacked
    return FileResponse(path, headers=_KEPT, media_type=media_type)
