"""The options of a server, each with the reason for its default."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from longshore.core.errors import InvalidArgument

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MEGABYTE = 1024 * 1024
MOST_PER_BATCH = 1_000
"""Jobs per request: one transaction of some tens of milliseconds, during which other writers wait."""
MOST_PER_PAGE = 500
"""Jobs per page; each may have megabytes of data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of a server, with defaults for one machine. See docs/server.md."""

    max_body: int = 32 * MEGABYTE
    """Bytes: twice the largest payload, because escapes make a JSON string longer than its value."""
    max_values: int = 1_000_000
    """Values and keys in the JSON of a large body; each uses up to 240 bytes of memory after parsing."""
    max_body_memory: int = 512 * MEGABYTE
    """Estimated bytes for all bodies in flight, see `body_limits.py`; the next body waits."""
    body_patience: float = 30.0
    """Seconds for receiving a body, plus one per declared 64 KiB; also the longest wait for memory."""
    max_streams: int = 200
    """Open streams and long polls; each holds a connection and a little memory."""
    max_connections: int = 1_000
    """Above this number, a request gets 503 immediately."""
    max_connections_per_address: int = 250
    """Per address (IPv6: per /64). Above this number a request gets 429; above twice the number it is closed."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks whose X-Forwarded headers are trusted; their connections are not counted."""
    heartbeat: float = 15.0
    """Seconds between keep-alives of an idle stream; many proxies close idle connections after 60."""
    longest_wait: float = 60.0
    """The longest long poll in seconds; use a stream to wait longer."""
    grace: float = 10.0
    """Seconds for open requests to finish when the server stops."""
    ready_within: float = 15.0
    """Seconds without an answer of the store after which the server is not ready."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that clients may use, besides loopback names; see `request_origin.py`."""
    tracing: bool = False
    """Whether enqueued jobs carry a trace; needs `longshore[otel]`."""
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
            "trusted_proxy", f"must be an address or a network, such as 10.0.0.7 or 10.0.0.0/24; got {given!r}"
        ) from None
