"""What made an output of a PATTERN: finds the events of its match again, and the conditions that held for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from mmqjp.answers.output import Output
from mmqjp.documents.record import Record
from mmqjp.documents.record_rows import record_of
from mmqjp.explain.node_names import fillers
from mmqjp.explain.operands import Condition, Operand
from mmqjp.explain.pattern_text import all_written, component_text
from mmqjp.explain.reasons import Reason
from mmqjp.explain.retrace.event import Plain, Source
from mmqjp.explain.retrace.filled import Filling, Part, Span, part_of, places_of, shown
from mmqjp.explain.retrace.patterns.asked import Match
from mmqjp.explain.retrace.patterns.matched import Matcher, Wanted, tested
from mmqjp.explain.retrace.values import text_of
from mmqjp.explain.terms import window_text
from mmqjp.present.event_sources import EventSources, Exhausted, Interval, Work
from mmqjp.present.event_why import EventWhy
from mmqjp.present.known_event_queries import KnownPattern, known_event_queries
from mmqjp.tables.lookup import Select, documents_by_id
from xpath_stage.parse import parse_document
from xscl.algebra.event_sequences import ERRORS, NearPattern, Pattern


def pattern_why(select: Select, output: Output, form: str) -> EventWhy | None:
    """Returns what made an output of a PATTERN of a form. None if it cannot be told: it is of no PATTERN, what it was
    made of is no longer stored, or is too much to look at. Raises what `select` does."""
    sources = list(zip(output.documents, output.streams, strict=True))
    wanted = Wanted(fillers(output.nodes), output.t0, frozenset(sources)) if sources else None
    for known in known_event_queries(select, output.query, form) if wanted is not None else ():
        if not isinstance(known, KnownPattern):
            continue
        rows = documents_by_id(select, output.documents)
        records = [record_of(row) for row in rows if (row["id"], row["stream"]) in set(sources)]
        for interval in (None, Interval(output.t0, output.t1, output.t1)):
            with suppress(Exhausted):
                assert wanted is not None, "there are documents"
                match = _match(select, known, records, interval, wanted)
                if match is not None:
                    return EventWhy(*_told(known.stream, match, output, sources), known.query.text)
    return None


def _match(
    select: Select, known: KnownPattern, records: Sequence[Record], interval: Interval | None, wanted: Wanted
) -> Match | None:
    work = Work()
    events = EventSources(select, known, records, interval, work)
    return Matcher(known.stream, events.given, work.take).match(wanted)


def _told(
    pattern: Pattern | NearPattern, match: Match, output: Output, sources: Sequence[Source]
) -> tuple[Filling, Reason]:
    places = places_of(sources)
    parts: list[Part] = []
    conditions: list[Condition] = []
    first = next(event for events in match.values() for event in events)
    for key in pattern.keys:
        conditions.append(_equal(key, first.values[key]))
    if isinstance(pattern, NearPattern):
        parts += [part_of(name, events, places) for name, events in match.items()]
        conditions.append(Condition((f"{_errors(output.xml)} letters are missing, of {pattern.errors} that may be",)))
    else:
        for one in pattern.variables:
            if not one.negated:
                parts.append(part_of(component_text(one), match[one.name], places))
        operator = pattern.variables[0].source
        conditions += [shown(operator, condition, scope) for condition, scope in tested(pattern, match)]
        conditions += _absent(pattern)
    span = Span("PATTERN", output.t1 - output.t0, None, pattern.within)
    return Filling(tuple(parts), (span,)), Reason((), tuple(dict.fromkeys(conditions)))


def _equal(key: str, value: Plain) -> Condition:
    """Returns that all events have the same value of an attribute."""
    name = f"[{key}]"
    return Condition((Operand(name, value),)) if isinstance(value, str) else Condition((f"{name} {text_of(value)}",))


def _absent(pattern: Pattern) -> Iterator[Condition]:
    """Yields what did not come."""
    for at, one in enumerate(pattern.variables):
        if one.negated:
            text = all_written([kill for kill in pattern.kills if kill.variable == at], pattern)
            where = _where(pattern, one.group)
            yield Condition((f"no {one.source.stream} {one.name} {where}{f': {text}' if text else ''}",))


def _where(pattern: Pattern, group: int) -> str:
    window = "" if pattern.within is None else f" in {window_text(pattern.within)}"
    return f"before{window}" if not group else f"afterwards{window}" if group == pattern.groups else "in between"


def _errors(xml: str) -> str:
    return parse_document(xml.encode(), trusted=True).root.get(ERRORS, "")
