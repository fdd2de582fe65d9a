"""The HTTP platform: the API, live events, health, metrics and the status page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longshore.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from longshore.core.tokens import Scope as Scope
    from longshore.server.app import create_app as create_app
    from longshore.server.auth import Calling as Calling
    from longshore.server.auth import GuardedRoute as GuardedRoute
    from longshore.server.auth import TokenGate as TokenGate
    from longshore.server.auth import needs as needs
    from longshore.server.options import ServerOptions as ServerOptions
    from longshore.server.platform import Here as Here
    from longshore.server.uvicorn_server import ApiServer as ApiServer

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "longshore.core.tokens": ["Scope"],
        "longshore.server.app": ["create_app"],
        "longshore.server.auth": ["Calling", "GuardedRoute", "TokenGate", "needs"],
        "longshore.server.options": ["ServerOptions"],
        "longshore.server.platform": ["Here"],
        "longshore.server.uvicorn_server": ["ApiServer"],
    },
)
