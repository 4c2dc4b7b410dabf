"""When a sink tries again, and when it gives up: a table of waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mmqjp.sinks.message import Verdict

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND

DOWN_WAITS = (5 * SECOND, 5 * MINUTE, 30 * MINUTE, *(hours * HOUR for hours in (2, 5, 10, 14, 20, 24)))
"""How long a sink waits after the first, second, ... failure in a row to reach its receiver. Then it stops. These are
the times of Standard Webhooks."""

REFUSED_WAITS = (5 * SECOND, 10 * SECOND, 30 * SECOND, MINUTE)
"""How long it waits after the first, second, ... refusal of a message. After one more it leaves the message out."""

LONGEST_ASKED = DAY
"""A receiver is let wait for as long as it asks, up to this."""

Step = Literal["wait", "leave out", "stop"]


@dataclass(frozen=True, slots=True)
class Tries:
    """How often a sink has failed in a row: `down` since its receiver took a message or a message was left out,
    `refused` with the message at hand."""

    down: int = 0
    refused: int = 0

    def __bool__(self) -> bool:
        return bool(self.down or self.refused)

    def after(self, verdict: Verdict, more: float) -> tuple[Tries, Step, int]:
        """Returns what has been tried after a failure, what to do, and how long to wait, in microseconds. `more` is a
        random number from 0 to 1: waits become up to a tenth longer, so that sinks do not all try again at once."""
        if verdict.kind == "gone":
            return replace(self, down=self.down + 1), "stop", 0
        waits = REFUSED_WAITS if verdict.kind == "refused" else DOWN_WAITS
        count = self.refused if verdict.kind == "refused" else self.down
        tried = replace(self, refused=count + 1) if verdict.kind == "refused" else replace(self, down=count + 1)
        if count >= len(waits):
            return tried, "leave out" if verdict.kind == "refused" else "stop", 0
        asked = min(verdict.retry_after or 0, LONGEST_ASKED)
        return tried, "wait", max(waits[count] + int(waits[count] * more / 10), asked)
