"""The time as fetching sees it: a protocol, so that tests can bring a clock of their own."""

from __future__ import annotations

import asyncio
from typing import Protocol

from feeds.document import now_us

SECOND = 1_000_000
"""In microseconds, as all times here are."""
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND


class Clock(Protocol):
    """Says what time it is, in microseconds of UTC, and waits."""

    def now(self) -> int: ...

    async def sleep_until(self, moment: int) -> None:
        """Returns at or after the moment; at once where it has passed."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return now_us()

    async def sleep_until(self, moment: int) -> None:
        while (left := moment - self.now()) > 0:
            # In steps, because a machine that was asleep, or whose clock was set, does not count that time.
            await asyncio.sleep(min(left / SECOND, 60))
