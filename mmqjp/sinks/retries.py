"""Retries of deliveries: how often and how long a sink tries again, before it leaves a message out or stops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from common.dates import DAY, HOUR, MINUTE, SECOND
from mmqjp.sinks.sink import DeliveryResult

DOWN_WAITS = (5 * SECOND, 5 * MINUTE, 30 * MINUTE, *(hours * HOUR for hours in (2, 5, 10, 14, 20, 24)))
"""Waits after successive failures to reach the receiver, as in Standard Webhooks. Then the sink stops."""

REFUSED_WAITS = (5 * SECOND, 10 * SECOND, 30 * SECOND, MINUTE)
"""Waits after successive refusals of a message. One more drops it."""

LONGEST_ASKED = DAY  # maximum wait that a receiver may ask for

RetryAction = Literal["wait", "leave out", "stop"]


@dataclass(frozen=True, slots=True)
class Tries:
    """Failures in a row: `down` since a message was accepted or dropped, `refused` for the current message."""

    down: int = 0
    refused: int = 0

    def after(self, verdict: DeliveryResult, more: float) -> tuple[Tries, RetryAction, int]:
        """Returns the new count, the action, and the wait in microseconds; `more` (0 to 1) adds up to a tenth."""
        is_refused = verdict.kind == "refused"
        waits, count = (REFUSED_WAITS, self.refused) if is_refused else (DOWN_WAITS, self.down)
        tried = replace(self, refused=count + 1) if is_refused else replace(self, down=count + 1)
        if verdict.kind == "gone" or count >= len(waits):
            return tried, "leave out" if is_refused else "stop", 0
        asked = min(verdict.retry_after or 0, LONGEST_ASKED)
        return tried, "wait", max(waits[count] + int(waits[count] * more / 10), asked)
