"""Hands outputs to open pages as they come: it looks at the store from beside, so the engine does nothing for it.

One task looks for newer outputs while somebody listens, reads each once, and puts it into a queue for each listener. A
listener whose queue is full is closed; it comes back and names the last output that it has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from common.errors import OperationalError
from mmqjp.present.match import Match

MOST_LISTENERS, MOST_QUEUED = 100, 100
"""The most listeners, and the most events that wait for one of them."""

MOST_BEHIND = 1_000
"""Who is more outputs behind gets a gap instead of them."""

LOOK = 0.5
"""Seconds between two looks for newer outputs."""

PAGE = 50
"""The most outputs that are told at each look: nobody reads faster, and the engine works beside."""


class TooManyListeners(OperationalError, RuntimeError):
    """There are as many listeners as there may be."""

    def __init__(
        self, text: str = f"{MOST_LISTENERS} pages are open that show outputs as they come: close one, or reload later"
    ) -> None:
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class Gap:
    """Outputs that are left out, by their numbers: the first and the last."""

    first: int
    last: int


class Outputs(Protocol):
    """The outputs of a store, by their numbers. Its methods are called in other threads."""

    def version(self) -> object:
        """Returns something that is another once there are newer outputs."""

    def span(self) -> tuple[int, int]:
        """Returns the numbers of the oldest output that is kept and of the newest one; (0, -1) if there is none."""

    def after(self, seq: int, until: int) -> Sequence[Match]:
        """Returns the outputs with greater numbers, up to one."""


class Listener:
    """Somebody who gets events. None in the queue ends it. Events up to `position` are not for the queue; None until it
    has begun."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Match | Gap | None] = asyncio.Queue()
        self.position: int | None = None
        self.is_closed = False

    def put(self, event: Match | Gap) -> None:
        """Adds an event, or closes the listener if too many wait."""
        if self.queue.qsize() >= MOST_QUEUED:
            self.close()
        elif not self.is_closed:
            self.queue.put_nowait(event)

    def close(self) -> None:
        """Ends it after the events that wait."""
        if not self.is_closed:
            self.is_closed = True
            self.queue.put_nowait(None)


class Hub:
    """The listeners of a site. All methods but `close` belong to the event loop of the server."""

    def __init__(self, outputs: Outputs, look: float = LOOK) -> None:
        self._outputs, self._look = outputs, look
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._position = -1
        self._is_closed = False

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._listeners)

    @property
    def begun(self) -> int:
        """How many of them get what comes from now on."""
        return sum(listener.position is not None for listener in self._listeners)

    def close(self) -> None:
        """Ends all listeners, from any thread. There are no new ones after it."""
        self._is_closed = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._task is not None:
            self._task.cancel()

    def check(self) -> None:
        """Raises TooManyListeners if there may be no other one."""
        if len(self._listeners) >= MOST_LISTENERS:
            raise TooManyListeners

    async def listen(self, seen: int | None, quiet: float) -> AsyncGenerator[Match | Gap | None, None]:
        """Yields the outputs after the one with the number `seen`, or, with None, those that come from now on. Yields
        None when nothing came for `quiet` seconds. Ends when the listener was too slow, or when the hub is closed.

        Raises TooManyListeners, and what reading the store raises.
        """
        self.check()
        listener = Listener()
        self._listeners.add(listener)
        self._loop = asyncio.get_running_loop()
        try:
            oldest, listener.position = await self._begin()
            position = listener.position
            async for missed in self._missed(oldest, position, seen):
                yield missed
            while not self._is_closed:
                try:
                    event = await asyncio.wait_for(listener.queue.get(), quiet)
                except TimeoutError:
                    yield None
                    continue
                if event is None:
                    return
                if (event.last if isinstance(event, Gap) else event.output.seq) > position:
                    yield event
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _missed(self, oldest: int, newest: int, seen: int | None) -> AsyncIterator[Match | Gap]:
        """Yields what came since a listener went away. What comes meanwhile is in its queue."""
        if seen is None or seen >= newest:
            return
        first = seen + 1
        if newest - seen > MOST_BEHIND or first < oldest:
            first = newest + 1 if newest - seen > MOST_BEHIND else oldest
            yield Gap(seen + 1, first - 1)
        while first <= newest and not self._is_closed:
            until = min(first + MOST_QUEUED - 1, newest)
            for match in await asyncio.to_thread(self._outputs.after, first - 1, until):
                yield match
            first = until + 1

    async def _begin(self) -> tuple[int, int]:
        """Begins to look, unless that has begun. Returns the span up to where has been looked."""
        oldest, newest = await asyncio.to_thread(self._outputs.span)
        if self._task is None or self._task.done():
            self._position = newest
            self._task = asyncio.create_task(self._watch())
        return oldest, self._position

    async def _watch(self) -> None:
        """Looks for newer outputs. What goes wrong with the store ends the listeners, who come back."""
        seen: object = None
        try:
            while True:
                version = await asyncio.to_thread(self._outputs.version)
                if version != seen and await self._publish():
                    seen = version
                await asyncio.sleep(self._look)
        except Exception:
            for listener in self._listeners:
                listener.close()

    async def _publish(self) -> bool:
        """Tells at most PAGE of the newer outputs. Returns whether these were all."""
        oldest, newest = await asyncio.to_thread(self._outputs.span)
        first = max(self._position + 1, oldest)
        if newest - self._position > MOST_BEHIND:
            first = max(first, newest - PAGE + 1)
        if self._position + 1 < first <= newest:
            self._tell(Gap(self._position + 1, first - 1))
        until = min(first + PAGE - 1, newest)
        for match in await asyncio.to_thread(self._outputs.after, first - 1, until) if first <= until else ():
            self._tell(match)
        self._position = max(self._position, until)
        return self._position >= newest

    def _tell(self, event: Match | Gap) -> None:
        for listener in list(self._listeners):
            listener.put(event)
