"""The names under which a browser may know the site. Others are refused: a page elsewhere could rebind its own name."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

HTTP_PORT = 80

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?", re.ASCII)


def is_loopback(host: str) -> bool:
    """Returns whether a host is this machine alone."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts that requests may name: those of the address where the server listens, and of the public URL.

    Where it listens on every address of the machine, any address of digits is one: names cannot be rebound to those.
    """

    host: str
    port: int
    public_url: str = ""

    def has(self, header: str) -> bool:
        """Returns whether the header Host, or the host and port of an Origin, is one of them."""
        if self.public_url and header.lower() == urlsplit(self.public_url).netloc.lower():
            return True
        if (parts := _HOST.fullmatch(header)) is None or int(parts["port"] or HTTP_PORT) != self.port:
            return False
        host = parts["host"].lower().strip("[]")
        if is_loopback(self.host):
            return is_loopback(host) or host == self.host
        listening, address = _address(self.host), _address(host)
        if listening is not None and listening.is_unspecified and address is not None:
            return True
        return host == self.host.lower() or is_loopback(host)

    def is_origin(self, origin: str) -> bool:
        """Returns whether the header Origin names one of them."""
        scheme, _, host = origin.partition("://")
        return scheme in ("http", "https") and self.has(host)


@lru_cache(100)
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
