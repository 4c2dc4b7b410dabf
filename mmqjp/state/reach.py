"""How far back a store reaches: which documents left the join state, and which are gone from `documents` too.

The join state is a cache of `documents`: what was evicted is brought back when something comes that could meet it. What
was dropped from `documents` is gone, and what could have met it is late.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

REACH = "reach"
"""The setting with what has left."""

MOST_GAPS = 16
"""So many gaps are told apart; past it the two oldest count as one, which is the larger of both."""


class Gap(NamedTuple):
    """Documents that begin before a time may be missing; the widest window of the queries from before it opened. Times
    in microseconds. Later queries do not see what is missing."""

    before: int
    window: int


Gaps = tuple[Gap, ...]
"""Gaps, those that reach least far, but whose queries look back furthest, last."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What has left the join state, `evicted`, and what has left `documents`, `dropped`. `joined` are the streams whose
    documents queries joined when documents were dropped last."""

    evicted: Gaps = ()
    dropped: Gaps = ()
    joined: frozenset[str] = frozenset()

    def to_setting(self) -> str:
        """The note of it."""
        noted = {"evicted": self.evicted, "dropped": self.dropped, "joined": sorted(self.joined)}
        return json.dumps(noted, ensure_ascii=False)

    @staticmethod
    def from_setting(value: str | None) -> Reach:
        """What was noted; nothing has left if there is no note."""
        if value is None:
            return Reach()
        noted = json.loads(value)
        evicted, dropped = (tuple(Gap(*gap) for gap in noted[name]) for name in ("evicted", "dropped"))
        return Reach(evicted, dropped, frozenset(noted["joined"]))

    def late(self, time: int) -> int:
        """By how many microseconds a document that ends at `time` is too old, if it is joined, so that it could miss
        documents that were dropped; 0 if it is not."""
        return max((0, *(gap.before + gap.window - time for gap in self.dropped)))


def opened(gaps: Gaps, gap: Gap) -> Gaps:
    """The gaps with one more, which is younger: it takes in those that reach less far."""
    if any(old.before >= gap.before and old.window >= gap.window for old in gaps):
        return gaps
    kept = [*(old for old in gaps if old.before > gap.before), gap]
    if len(kept) > MOST_GAPS:
        first, second, *rest = kept
        kept = [Gap(first.before, max(first.window, second.window)), *rest]
    return tuple(kept)


def missed_from(gaps: Gaps, time: int) -> int | None:
    """The time from which on documents begin that are missing and that one which ends at `time` could meet; None if
    there are none."""
    return min((time - gap.window for gap in gaps if time - gap.window < gap.before), default=None)


def filled(gaps: Gaps, low: int) -> Gaps:
    """The gaps once all is back that begins at `low` or later."""
    return tuple(dict.fromkeys(Gap(min(gap.before, low), gap.window) for gap in gaps))
