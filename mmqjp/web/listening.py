"""The socket at which the page is served."""

from __future__ import annotations

import socket

from common.errors import OperationalError


class CannotListen(OperationalError, OSError):
    """The server cannot listen where it is told to."""


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens. Raises CannotListen."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        # Of a socket that says it is of TCP, asyncio sends small answers at once, not after 40 ms.
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(place)
            found.listen(128)
        except BaseException:
            found.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotListen(f"cannot listen at {host}:{port}: {reason}; choose another --address") from error
    return found
