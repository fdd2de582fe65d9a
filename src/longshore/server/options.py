"""The options of a server, each with the reason for its default."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from longshore.core.errors import InvalidArgument

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MEGABYTE = 1024 * 1024
MOST_PER_BATCH = 1_000
"""Jobs one request may bring: a transaction of some tens of milliseconds, during which others wait."""
MOST_PER_PAGE = 500
"""Jobs one page may show; each may carry megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """All of it, with defaults for one machine."""

    max_body: int = 32 * MEGABYTE
    """Bytes: twice the largest payload, for a JSON string may be written longer than what it says."""
    max_values: int = 1_000_000
    """Values and keys in the JSON of a large body: each uses up to 240 bytes of memory after parsing."""
    max_body_memory: int = 512 * MEGABYTE
    """Bytes for all bodies in flight: an estimate, see `metering.py`; the next one waits."""
    body_patience: float = 30.0
    """Seconds a body may take, plus one for every announced 64 KiB; and the seconds it may wait for memory."""
    max_streams: int = 200
    """Live streams and waiting calls at once; each holds a connection and a little memory."""
    max_connections: int = 1_000
    """Beyond these a request is answered with 503 at once."""
    max_connections_per_address: int = 250
    """Per address (for IPv6, per /64). Above it a request is answered with 429; above twice as many it is closed."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose X-Forwarded headers are trusted; their connections are not counted."""
    heartbeat: float = 15.0
    """Seconds after which a silent stream says that it is alive; proxies cut a silent connection after 60."""
    longest_wait: float = 60.0
    """Seconds a call may wait for a job's end; longer ones belong on a stream."""
    grace: float = 10.0
    """Seconds that requests under way have to end when the server stops."""
    ready_within: float = 15.0
    """Seconds since the store last answered, after which the server does not count as ready."""
    allowed_hosts: tuple[str, ...] = ()
    """Names this server is called by, besides those of a loopback address; see `hosts.py`."""
    tracing: bool = False
    """Whether submitted jobs carry a trace; needs `longshore[otel]`."""
    access_log: bool = False
    """Whether each request is logged; failures always are."""

    def __post_init__(self) -> None:
        self.networks()

    def networks(self) -> tuple[Network, ...]:
        """The networks of the trusted proxies."""
        return tuple(_network(given) for given in self.trusted_proxies)


def _network(given: str) -> Network:
    try:
        return ipaddress.ip_network(given.strip())
    except ValueError:
        raise InvalidArgument(
            "trusted_proxy", f"must be an address or a network, like 10.0.0.7 or 10.0.0.0/24; got {given!r}"
        ) from None
