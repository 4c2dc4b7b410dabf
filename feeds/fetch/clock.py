"""The clock of fetching: a protocol, so that tests can bring their own."""

from __future__ import annotations

import asyncio
from typing import Protocol

from feeds.times import now_us

SECOND = 1_000_000
"""In microseconds, as all times here."""
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND


class Clock(Protocol):
    """Tells the time, in microseconds of UTC, and waits."""

    def now(self) -> int: ...

    async def sleep_until(self, moment: int) -> None:
        """Returns at or after the moment, at once if it has passed."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return now_us()

    async def sleep_until(self, moment: int) -> None:
        while (left := moment - self.now()) > 0:
            # In steps, because a machine that was asleep, or whose clock was set, does not count that time.
            await asyncio.sleep(min(left / SECOND, 60))
