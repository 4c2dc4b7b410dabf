"""Why event queries give no output, or few: how many events of kept documents get past each of their stages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.retrace.looking import Looking
from mmqjp.explain.retrace.patterns.looked import LookingForMatches
from mmqjp.explain.retrace.trial import Trial
from mmqjp.present.event_sources import FOR_EVER, MOST_STEPS, EventSources, Exhausted, Interval, Work
from mmqjp.present.known_event_queries import KnownEvents, KnownPattern
from mmqjp.present.query_funnels import QueryFunnel, QueryFunnels
from mmqjp.tables.lookup import Select, count_outputs

ALWAYS = Interval(-FOR_EVER, FOR_EVER, FOR_EVER)
"""Whenever they end, the newest first."""


def event_funnels(select: Select, name: str, known: Sequence[KnownEvents | KnownPattern], most: int) -> QueryFunnels:
    """Returns what the event queries of a name, of which there is one at least, find in kept documents and in stored
    outputs: so many of the newest ones. Raises what `select` does."""
    read, left_out, funnels = 0, 0, list[QueryFunnel]()
    for one in known:
        work, paused = Work(MOST_STEPS // len(known)), one.query.paused or ""
        is_pattern = isinstance(one, KnownPattern)
        funnel = QueryFunnel(one.query.text, (), incomplete=True, paused=paused, of_events=True, of_pattern=is_pattern)
        with suppress(Exhausted):
            sources = EventSources(select, one, (), ALWAYS, work, most)
            read, left_out = max(read, sources.read), max(left_out, sources.left_out)
            stages, count = _found(one, sources, work)
            funnel = replace(funnel, stages=stages, found=count, unseen=sources.unseen, incomplete=False)
        funnels.append(funnel)
    return QueryFunnels(name, read, left_out, count_outputs(select, name), tuple(funnels))


def _found(known: KnownEvents | KnownPattern, sources: EventSources, work: Work) -> tuple[tuple[Stage, ...], int]:
    """Returns what gets past each stage, and how many events of the query, or first ones of matches, there are."""
    if isinstance(known, KnownPattern):
        sought = LookingForMatches(known.stream, sources.given, (), sources.why_none, work.take).sought()
        return sought.stages, sought.starts
    found = Looking(Trial(sources.given, work.take), (), sources.why_none).of(known.stream, ())
    return found.stages, len(found.events)
