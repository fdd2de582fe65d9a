"""Pages for a browser: sign-in, status and the API viewer."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from longshore.core.errors import Forbidden, InvalidArgument, Unauthenticated
from longshore.core.filters import JobFilter
from longshore.core.status import JobStatus
from longshore.core.tokens import Scope
from longshore.server import problems
from longshore.server.auth import SESSION_LIFETIME, Calling, GuardedRoute, TokenGate, cookie_name, needs, takes_form
from longshore.server.console.status_page import page, render, status_of
from longshore.server.http_errors import TooLarge, TooMany
from longshore.server.openapi import ADDRESS
from longshore.server.parameters import root_of
from longshore.server.platform import Here
from longshore.server.problems import kind_of
from longshore.server.request_origin import SAFE

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

_VIEWER = "/docs"
_VIEWER_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The viewer runs scripts: files and requests of this server only, nothing inline."""
_VIEWER_FILES = {
    "viewer.js": "longshore.server.console",
    "swagger-ui-bundle.js": "fastapi_offline",
    "swagger-ui.css": "fastapi_offline",
}
"""The package that has each file."""
_LONGEST = 4_096
_MOST_FIELDS = 10


@router.get("/sign-in", response_class=HTMLResponse)
@needs(Scope.PUBLIC)
async def sign_in_page(request: Request) -> Response:
    """Show the sign-in form."""
    if not isinstance(request.app.state.gate, TokenGate):
        return RedirectResponse(f"{root_of(request)}/", 303)
    return _form(request, "")


@router.post("/sign-in", response_class=HTMLResponse)
@needs(Scope.PUBLIC)
@takes_form
async def sign_in(request: Request) -> Response:
    """Exchange a token for a session."""
    gate = request.app.state.gate
    if not isinstance(gate, TokenGate):
        return RedirectResponse(f"{root_of(request)}/", 303)
    try:
        value = await gate.begin_session(request, await _field(request, "token"))
    except (Unauthenticated, Forbidden, TooMany) as error:
        problem = problems.problem(error)
        return _form(request, str(error), kind_of(type(error)).status, problem.headers)
    answer = RedirectResponse(f"{root_of(request)}/", 303)
    secure, root = request.url.scheme == "https", root_of(request)
    answer.set_cookie(
        cookie_name(secure=secure, root=root),
        value,
        max_age=int(SESSION_LIFETIME.total_seconds()),
        path=root or "/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
    return answer


@router.post("/sign-out", response_class=HTMLResponse)
@needs(Scope.PUBLIC)
@takes_form
async def sign_out(request: Request) -> Response:
    """End the session, also for copies of its cookie."""
    if isinstance(request.app.state.gate, TokenGate):
        request.app.state.gate.end_session(request)
    answer = RedirectResponse(f"{root_of(request)}/sign-in", 303)
    root = root_of(request)
    for secure in (False, True):
        name = cookie_name(secure=secure, root=root)
        if name in request.cookies:
            answer.delete_cookie(name, path=root or "/", secure=secure, httponly=True, samesite="strict")
    return answer


async def on_unauthenticated(request: Request, error: Exception) -> Response:
    """Respond to an unauthenticated request: a browser gets the sign-in page, a program a problem."""
    assert isinstance(error, Unauthenticated)
    route = request.scope.get("route")
    wants_page = isinstance(route, GuardedRoute) and route.response_class is HTMLResponse
    if wants_page and request.method in SAFE and "text/html" in request.headers.get("accept", ""):
        problem = problems.problem(error)
        return _form(request, "", problem.status_code, problem.headers)
    return await problems.on_refusal(request, error)


def _form(request: Request, error: str, status: int = 200, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    return page("sign_in.html", {"error": error, "root": root_of(request)}, status, headers)


async def _field(request: Request, name: str) -> str:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST:
            raise TooLarge(f"the form has more than {_LONGEST:,} bytes")
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise InvalidArgument("form", f"has more than {_MOST_FIELDS} fields; send {name} alone") from None
    return fields.get(name, [""])[0].strip()


_SHOWN = 20


@router.get("/", response_class=HTMLResponse)
@needs(Scope.READ)
async def status_page(request: Request, here: Here, caller: Calling) -> HTMLResponse:
    """Show queues, counts, the latest and failed jobs, and workers."""
    queues = [info for info in await here.backend.list_queues() if caller.sees(info.name)]
    theirs = caller.queues_among(())
    latest = await here.backend.list_jobs(JobFilter(queues=theirs), limit=_SHOWN)
    failed = await here.backend.list_jobs(
        JobFilter(queues=theirs, statuses=(JobStatus.DEAD, JobStatus.FAILED_RETRY)), limit=_SHOWN
    )
    workers = [worker for worker in await here.backend.list_workers() if caller.owns(worker.queues)]
    now = await here.backend.now()
    signed_in = caller.name if getattr(request.state, "signed_in", False) else ""
    shown = status_of(queues, latest.items, failed.items, workers, now)
    return page("status.html", {**shown, "signed_in": signed_in, "root": root_of(request)})


@router.get(_VIEWER, response_class=HTMLResponse)
@needs(Scope.READ)
async def viewer(request: Request) -> HTMLResponse:
    """Show every operation of the OpenAPI document, with a form to try it."""
    root = root_of(request)
    text = render("viewer.html", {"root": root, "files": f"{root}{_VIEWER}", "document": f"{root}{ADDRESS}"})
    # without any referrer a browser would not send the Origin of a request either
    return HTMLResponse(text, headers={"Content-Security-Policy": _VIEWER_POLICY, "Referrer-Policy": "same-origin"})


@router.get(f"{_VIEWER}/{{name}}")
@needs(Scope.READ)
async def viewer_file(name: str) -> FileResponse:
    """Return a script or the style of the viewer."""
    if name not in _VIEWER_FILES:
        raise HTTPException(404)
    path = str(resources.files(_VIEWER_FILES[name]) / "static" / name)  # wheels are installed unpacked
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    return FileResponse(path, headers={"Cache-Control": "private, max-age=3600"}, media_type=kind)
