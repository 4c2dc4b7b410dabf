"""Why documents give no output of a PATTERN: looks for their match, and says why one that there is is not told."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from feeds.dates import iso_utc
from mmqjp.documents.record import Record
from mmqjp.explain.retrace.patterns.asked import Match
from mmqjp.explain.retrace.patterns.looked import LookingForMatches
from mmqjp.explain.retrace.patterns.sought import Sought
from mmqjp.explain.retrace.patterns.whole import known_at
from mmqjp.present.event_looked import LookedAt, dropped, times_around, untold
from mmqjp.present.event_sources import FOR_EVER, EventSources, Exhausted, Interval, Work
from mmqjp.present.known_event_queries import KnownPattern
from mmqjp.present.why_not_result import WhyNot
from mmqjp.tables.event_lookup import outputs_between_times
from mmqjp.tables.lookup import Select
from xscl.algebra.event_sequences import NearPattern

_NOTHING = Sought(None, (), 0)


def pattern_looked_at(select: Select, known: KnownPattern, records: Sequence[Record]) -> tuple[LookedAt, Match | None]:
    """Looks for a match of documents, among those around them."""
    t0, t1 = times_around(select, known, records)
    far = known.stream.within
    interval = Interval(-FOR_EVER, FOR_EVER, t1) if far is None else Interval(t0 - 2 * far, t1 + 2 * far, t1)
    work, found, sources = Work(), _NOTHING, None
    with suppress(Exhausted):
        sources = EventSources(select, known, records, interval, work)
        found = LookingForMatches(known.stream, sources.given, records, sources.why_none, work.take).sought()
    is_incomplete = found is _NOTHING or (sources is not None and sources.left_out > 0)
    read, rank = 0 if sources is None else sources.read, (found.found, found.rank)
    is_found = found.match is not None
    at = LookedAt(known, is_found, found.stages, rank, found.near, found.without, read, is_incomplete)
    return at, found.match


def pattern_made(select: Select, at: LookedAt, match: Match, shown: WhyNot) -> WhyNot:
    """Returns why there is no output of documents that are in a match."""
    assert isinstance(at.known, KnownPattern)
    pattern, known = at.known.stream, known_at(at.known.stream, match)
    if (said := untold(select, at, known, shown)) is not None:
        return said
    t0 = min(one.t0 for events in match.values() for one in events)
    if pattern.apart and (told := outputs_between_times(select, shown.query, t0, known, known, 1)):
        what = f"a match from {iso_utc(told[0]['t0'])} to {iso_utc(told[0]['t1'])} was told, and is not over before"
        hint = f"NON OVERLAPPING tells the first of several; this is output {told[0]['id']}"
        return replace(shown, kind="overlapping", part="NON OVERLAPPING", message=what, hint=hint)
    if isinstance(pattern, NearPattern) and pattern.budget is not None:
        what = "they match, but a part of the match was not kept"
        return replace(shown, kind="budget", part=f"BUDGET {pattern.budget}", message=what)
    return dropped(shown)
