"""Operators find what the statements mean of which they are made, by the oracle."""

from __future__ import annotations

import pytest

from tests.generate.event_worlds import world
from tests.generate.seeds import seeds
from tests.support.event_algebra import run
from xscl.event_lower import lower_event_query
from xscl.event_parser import schemas_of
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import EventStreams


@pytest.mark.parametrize("seed", seeds(10, 3_000))
def test_operators_find_what_statements_mean(seed: int) -> None:
    one = world(seed, most=9)
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
