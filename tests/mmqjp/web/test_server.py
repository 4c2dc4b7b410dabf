"""The server over its socket."""

from __future__ import annotations

import socket

from mmqjp.web.serving import listen


def test_answers_are_not_held_back():
    """asyncio tells sockets to send at once only if they say that they are of TCP."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP
