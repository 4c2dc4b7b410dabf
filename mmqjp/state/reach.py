"""Tracks how far back a store reaches: which documents were evicted from the join state, or dropped from `documents`.

The join state is a cache of `documents`. Evicted documents are recalled when a new one could match them. Dropped
documents are gone, so a new document that could have matched them is late.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

REACH = "reach"
"""The setting with the reach."""

MAX_GAPS = 16
"""The maximum number of gaps. Past it the two oldest ones are merged into one that covers both."""


class Gap(NamedTuple):
    """Documents that begin before the time `before` may be missing. `window` is the widest window of the queries at
    that time. Both are in microseconds. Later queries do not see the missing documents."""

    before: int
    window: int


Gaps = tuple[Gap, ...]
"""Gaps in the order in which they opened. From each to the next, `before` falls and `window` grows."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The gaps of the join state, `evicted`, and of `documents`, `dropped`. `joined` are the streams that queries
    joined when documents were last dropped."""

    evicted: Gaps = ()
    dropped: Gaps = ()
    joined: frozenset[str] = frozenset()

    def to_setting(self) -> str:
        """Returns the JSON text to store as a setting."""
        noted = {"evicted": self.evicted, "dropped": self.dropped, "joined": sorted(self.joined)}
        return json.dumps(noted, ensure_ascii=False)

    @staticmethod
    def from_setting(value: str | None) -> Reach:
        """Parses the value of a setting. None means that nothing is missing."""
        if value is None:
            return Reach()
        noted = json.loads(value)
        evicted, dropped = (tuple(Gap(*gap) for gap in noted[name]) for name in ("evicted", "dropped"))
        return Reach(evicted, dropped, frozenset(noted["joined"]))

    def late_by(self, time: int) -> int:
        """Returns by how many microseconds a joined document that ends at `time` is too old, because it could miss
        dropped documents. Returns 0 if it is not."""
        return max((0, *(gap.before + gap.window - time for gap in self.dropped)))


def with_gap(gaps: Gaps, gap: Gap) -> Gaps:
    """Returns the gaps with a new one, which replaces those that it covers."""
    if any(old.before >= gap.before and old.window >= gap.window for old in gaps):
        return gaps
    kept = [*(old for old in gaps if old.before > gap.before), gap]
    if len(kept) > MAX_GAPS:
        first, second, *rest = kept
        kept = [Gap(first.before, max(first.window, second.window)), *rest]
    return tuple(kept)


def missed_from(gaps: Gaps, time: int) -> int | None:
    """Returns the begin of the earliest missing documents that a document which ends at `time` could match, or None."""
    return min((time - gap.window for gap in gaps if time - gap.window < gap.before), default=None)


def with_recalled(gaps: Gaps, low: int) -> Gaps:
    """Returns the gaps after all documents that begin at `low` or later were recalled."""
    return tuple(dict.fromkeys(Gap(min(gap.before, low), gap.window) for gap in gaps))
