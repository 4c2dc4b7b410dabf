"""The result of a back-test in words."""

from __future__ import annotations

from collections.abc import Iterator

from mmqjp.backtest.result import Backtest, Novelty
from mmqjp.present.times import Clock

_PLURAL = {"event query": "event queries"}


def summary(result: Backtest, clock: Clock) -> Iterator[str]:
    """Yields lines that say what was tried and found, and what the script would cost."""
    of = f" of {result.kept:,}" if result.kept > result.documents else ""
    times = ""
    if result.since is not None and result.until is not None:
        times = f", from {clock.minute(result.since)} to {clock.minute(result.until)} {clock.zone_at(result.until)}"
    refused = f"; {result.refused:,} could not be read" if result.refused else ""
    yield f"tried on {_counted(result.documents, 'document')}{of}{times}{refused}"
    if result.publishers:
        yield f"together with the registered queries that it reads: {', '.join(result.publishers)}"
    if result.cut_short is not None:
        yield f"cut short: {result.cut_short}"
    yield f"{_counted(result.outputs, 'output')}" + (f"; {a_day(result)}" if result.documents else "")
    yield novelty(result.novelty)
    if result.milliseconds is not None:
        yield f"1,000 documents take {result.milliseconds:,.0f} ms"


def a_day(result: Backtest) -> str:
    """Returns how many outputs a day has."""
    return f"{result.outputs_a_day:,.1f} a day in the last {_counted(result.recent_days, 'day')}"


def novelty(found: Novelty) -> str:
    """Returns what is new with a script, in words."""
    if found.is_shared:
        return "nothing new: registered queries have the same patterns and joins, and it costs only its outputs"
    joins = (
        (found.new_patterns, found.patterns, "pattern"),
        (found.new_templates, found.templates, "template"),
        (found.new_rows, found.rows, "row"),
    )
    events = (
        (found.new_definitions, found.definitions, "definition"),
        (found.new_event_queries, found.event_queries, "event query"),
    )
    same = ""
    if found.same_event_queries:
        count = _counted(found.same_event_queries, "event query")
        same = f"; {count} would not share the work of the same one, whose results depend on since when it sees events"
    has_events = found.definitions or found.event_queries
    parts = joins * bool(found.rows or not has_events) + events * bool(has_events)
    return "new: " + ", ".join(f"{new:,} of {_counted(all, noun)}" for new, all, noun in parts) + same


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else _PLURAL.get(noun, noun + 's')}"
