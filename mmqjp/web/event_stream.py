"""Server-sent events: a response that ends with its messages or its client, and waits for no stalled client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

SEND_SECONDS = 20.0
"""A client that takes nothing for so many seconds is left."""

COMMENT = b": still there\n\n"
"""What is sent when there is nothing to send."""

RETRY = b"retry: 3000\n\n"
"""Tells the client to come back after 3 s."""


class EventStream(Response):
    """A response with a message for each of `messages`."""

    media_type = "text/event-stream"

    def __init__(self, messages: AsyncGenerator[bytes, None]) -> None:
        # Without the last one, some proxies keep messages back.
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]  # nobody knows it
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the messages until they end or the client goes."""
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None and not isinstance(error, OSError):
            raise error

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await self._body(send, RETRY)
            async for message in self._messages:
                await self._body(send, message)
            await send({"type": "http.response.body", "body": b""})
        finally:
            await self._messages.aclose()

    async def _body(self, send: Send, content: bytes) -> None:
        async with asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": content, "more_body": True})


def message(event: str, id: int, data: str) -> bytes:
    """Returns a message with its number. `data` may have several lines.

    >>> message("output", 7, "a\\nb")
    b'id: 7\\nevent: output\\ndata: a\\ndata: b\\n\\n'
    """
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"id: {id}\nevent: {event}\n{lines}\n".encode()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
