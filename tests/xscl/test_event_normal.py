"""What event statements mean in the algebra is what the oracle says of their text; printed, they are the same."""

from __future__ import annotations

import pytest

from tests.generate.event_worlds import world as event_world
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import seeds
from tests.oracle.near_matches import near_matches
from tests.oracle.pattern_matches import Matcher
from tests.oracle.pattern_syntax import Near, Pattern
from tests.oracle.pattern_world import by_parts, pattern_schema
from tests.oracle.pattern_world import returned as told
from tests.support import pattern_algebra
from tests.support.event_algebra import run
from xscl.algebra import events as algebra
from xscl.algebra.events import Schema
from xscl.algebra.values import Span
from xscl.event_lower import lower_event_query, lower_statement
from xscl.event_parser import parse_event_statement, schemas_of
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.problems import Lines
from xscl.syntax import EventQuery, EventStreams
from xscl.text import SyntaxKind


def parsed(text: str, *, reuse: bool = False) -> EventQuery:
    kind: SyntaxKind = "pattern" if text.startswith("PATTERN") else "event query"
    found = parse_event_statement(text, kind, Span(0, len(text)), Lines(text), reuse=reuse)
    assert isinstance(found, EventQuery)
    return found


@pytest.mark.parametrize("seed", seeds(10, 3_000))
def test_patterns_mean_what_the_oracle_says(seed: int):
    world = pattern_world(seed)
    schemas: dict[str, Schema] = {name: tuple(schema.items()) for name, schema in world.schemas.items()}
    for statement in world.statements:
        text = statement.text()
        query = parsed(text)
        assert parsed(to_xscl(query)) == query
        lowered = lower_statement(query, schemas)
        assert repr(lower_statement(parsed(text, reuse=True), schemas)) == repr(lowered), text
        if not isinstance(statement, Pattern | Near):
            continue
        assert isinstance(lowered, algebra.Pattern | algebra.NearPattern)
        assert dict(lowered.schema) == pattern_schema(statement, world.schemas)
        streams = {name: world.stream(name) for name in lowered.streams}
        found = pattern_algebra.matches(lowered, streams, by_parts)
        if isinstance(statement, Near):
            assert found == near_matches(statement, streams), text
            continue
        assert isinstance(lowered, algebra.Pattern)
        assert found == Matcher(statement, streams, by_parts).matches(), text
        for match in found:
            assert pattern_algebra.returned(lowered, match) == told(statement, match)


@pytest.mark.parametrize("seed", seeds(10, 3_000))
def test_operators_find_what_statements_mean(seed: int):
    one = event_world(seed, most=9)
    given = {name: tuple(schema.items()) for name, schema in one.schemas.items() if name.startswith("E")}
    known = EventStreams(given)
    script = parse_script("; ".join(statement.text() for statement in one.statements), events=known)
    assert parse_script(to_xscl(script), events=known) == script
    schemas = schemas_of(script, known)
    streams = {name: one.stream(name) for name in one.schemas}
    for place, query in enumerate(script.event_queries):
        lowered = lower_event_query(query, schemas)
        assert dict(lowered.schema) == dict(schemas[query.publish] if query.publish else lowered.schema)
        assert run(lowered, streams) == one.results(place), to_xscl(query)
