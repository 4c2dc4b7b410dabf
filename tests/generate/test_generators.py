"""Random cases are worth their time: valid, the same for a seed, often with results, and of every construct."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.generate.events import world
from tests.generate.patterns import pattern_world
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.evaluation import evaluate
from tests.oracle.pattern_syntax import STRATEGIES, AnyOrder, Many, Near, Pattern
from tests.oracle.walk import walk


def test_large_cases_have_a_bounded_number_of_outputs() -> None:
    rows = [len(evaluate(*random_case(seed, n_queries=20, n_documents=12))) for seed in seeds(1, 20)]
    assert all(0 < count < 20_000 for count in rows)


@pytest.mark.soak
def test_cases_mostly_have_outputs() -> None:
    """Of the queries in 300 cases at least 40% have an output, and every construct occurs in one that has."""
    queries = answered = 0
    seen: set[str] = set()
    for seed in range(300):
        script, documents = random_case(seed)
        names = {row.query for row in evaluate(script, documents)}
        queries += len(script.queries)
        for name, query in zip(script.names(), script.queries, strict=True):
            if name in names:
                answered += 1
                seen |= {one if isinstance(one, str) else type(one).__name__ for one in walk(query)}
    assert answered >= 0.4 * queries
    assert not CONSTRUCTS - seen


CONSTRUCTS = {  # the node types and words of queries
    *("Block", "Join", "SubQuery", "SelectStar", "SelectItems", "ElementConstructor", "And", "Or", "Not", "Call"),
    *("FOLLOWED BY", "JOIN", "JOIN UNORDERED", "/", "//", "attribute", "element", "=", "!=", "<", "<=", ">", ">="),
    *("hits", "alerts", "news"),
    *("contains", "starts-with", "ends-with", "matches", "count", "string-length", "number", "string"),
    *("normalize-space", "lower-case", "upper-case", "canonical-url", "host", "date"),
    *("domain", "words", "year-month", "substring-before", "substring-after"),
}


# ---------------------------------------------------------------- events


def test_event_statements_have_all_operators_and_some_are_equal_and_many_find_something() -> None:
    worlds = [world(seed) for seed in range(40)]
    used = Counter(type(one).__name__ for some in worlds for one in walk(tuple(some.statements)))
    assert min(used[name] for name in ("Next", "Fold", "Filter", "Union", "Aggregate", "Cel", "Name")) > 30
    assert any(len(set(one.statements)) < 10 for one in worlds)
    found = [len(one.results(place)) for one in worlds[:20] for place in range(len(one.statements))]
    assert sum(map(bool, found)) > len(found) / 3
    assert max(found) > 20


def test_patterns_of_each_kind_match() -> None:
    matching = Counter[str | None]()
    for seed in range(60):
        one = pattern_world(seed)
        for place, statement in enumerate(one.statements):
            if isinstance(statement, Pattern | Near) and one.matches(place):
                matching.update(_kinds(statement))
    kinds = {"near", "apart", "maximal", "kleene", "set", "negated", "having", "published", None, *STRATEGIES}
    assert {kind for kind in kinds if matching[kind] < 2} == set()
    assert matching["pattern"] > 20


def _kinds(statement: Pattern | Near) -> list[str | None]:
    told: dict[str, object] = {"apart": statement.apart, "published": statement.publish}
    if isinstance(statement, Pattern):
        told |= {
            "maximal": statement.maximal,
            "kleene": any(isinstance(one, Many) for one in statement.positive),
            "set": any(isinstance(one, AnyOrder) for one in statement.components),
            "negated": statement.absent,
            "having": statement.having,
        }
    own = ["pattern", statement.strategy] if isinstance(statement, Pattern) else ["near"]
    return [*own, *(kind for kind, holds in told.items() if holds)]
