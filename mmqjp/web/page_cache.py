"""Keeps rendered pages until the next commit, so that many readers of a page cost the engine no more than one."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmqjp.service.sql_question import MonotonicClock
from mmqjp.web.guard import SAFE
from mmqjp.web.readers import StoreReader

MOST_SECONDS = 10.0
"""Pages also tell what is no part of a commit, such as the time: they are kept no longer."""

MOST_BYTES = 32 << 20
"""The size of all pages that are kept."""

LARGEST = 1 << 20
"""Larger pages are not kept, in bytes."""

LONGEST_ADDRESS = 4_000
"""Pages with longer addresses are not kept, in characters."""

KEPT_TYPES = ("text/html", "application/json")


@dataclass(slots=True)
class _Page:
    version: object
    made_at: float
    messages: list[Message] = field(default_factory=list)
    size: int = 0


class PageCache:
    """An ASGI app around another. It keeps what GET returns with status 200, unless the page says `no-store`.

    A page is made once, however many ask for it at the same time. After a request that changes something, no page is
    kept that was made before.
    """

    def __init__(
        self,
        app: ASGIApp,
        reader: StoreReader,
        clock: MonotonicClock = time.monotonic,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called when a request has changed something, before it is answered."""
        self._app, self._reader, self._clock, self._on_change = app, reader, clock, on_change
        self._pages: OrderedDict[tuple[str, bytes], _Page] = OrderedDict()
        self._size = self._changes = 0
        self._making: dict[tuple[str, bytes], asyncio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in SAFE:
            await self._change(scope, receive, send)
            return
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        key = scope["path"], scope["query_string"]
        if await self._sent(key, send):
            return
        if (making := self._making.get(key)) is not None:
            await making.wait()
            if await self._sent(key, send):
                return
        making = self._making[key] = asyncio.Event()
        try:
            await self._make(key, scope, receive, send, making)
        finally:
            making.set()
            if self._making.get(key) is making:
                del self._making[key]

    async def _sent(self, key: tuple[str, bytes], send: Send) -> bool:
        """Sends a page if it is kept."""
        page = self._pages.get(key)
        if page is None or page.version != self._version() or self._clock() >= page.made_at + MOST_SECONDS:
            return False
        self._pages.move_to_end(key)
        for message in page.messages:
            await send(_copied(message))
        return True

    async def _make(
        self, key: tuple[str, bytes], scope: Scope, receive: Receive, send: Send, made: asyncio.Event
    ) -> None:
        """Sends a page that is made now, and keeps it if it may be kept. Sets `made` when others need not wait."""
        page = _Page(self._version(), self._clock())
        address = sum(map(len, key))
        page.size, keeps = 2 * address, address <= LONGEST_ADDRESS

        async def note(message: Message) -> None:
            nonlocal keeps
            if message["type"] == "http.response.start":
                keeps = keeps and message["status"] == 200 and _is_kept(message)
            page.size += len(message.get("body", b"")) + 200
            keeps = keeps and page.size <= LARGEST
            if keeps:
                page.messages.append(_copied(message))
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    self._keep(key, page)
            if not keeps or key in self._pages:
                made.set()  # before it is sent: that may take as long as the client likes
            await send(message)

        await self._app(scope, receive, note)

    def _keep(self, key: tuple[str, bytes], page: _Page) -> None:
        before = self._pages.pop(key, None)
        self._size += page.size - (0 if before is None else before.size)
        self._pages[key] = page
        while self._size > MOST_BYTES:
            self._size -= self._pages.popitem(last=False)[1].size

    def _version(self) -> object:
        return self._changes, self._reader.version()

    async def _change(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a request that changes something. Whoever gets its answer sees the change from then on."""

        async def changed(message: Message) -> None:
            if message["type"] == "http.response.start":
                await run_in_threadpool(self._reader.refresh)
                self._on_change()
                self._changes += 1
            await send(message)

        await self._app(scope, receive, changed)


def _copied(message: Message) -> Message:
    """A message with headers of its own: the guard adds some."""
    return {**message, "headers": list(message["headers"])} if "headers" in message else message


def _is_kept(message: Message) -> bool:
    headers = Headers(raw=message["headers"])
    return (
        headers.get("content-type", "").startswith(KEPT_TYPES)
        and "no-store" not in headers.get("cache-control", "")
        and "set-cookie" not in headers
    )
