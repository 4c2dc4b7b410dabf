"""The random worlds of PATTERN statements are worth their time: many match, in each way that there is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from tests.generate.pattern_worlds import pattern_world
from tests.oracle.pattern_matches import Matcher
from tests.oracle.pattern_syntax import STRATEGIES, AnyOrder, Many, Near, Pattern
from tests.oracle.pattern_world import by_parts


def test_patterns_of_each_kind_match():
    matching = Counter[str | None]()
    for seed in range(60):
        one = pattern_world(seed)
        assert pattern_world(seed).statements == one.statements
        for place, statement in enumerate(one.statements):
            if isinstance(statement, Pattern | Near) and one.matches(place):
                matching.update(_kinds(statement))
    kinds = {"near", "apart", "maximal", "kleene", "set", "negated", "having", "published", None, *STRATEGIES}
    assert {kind for kind in kinds if matching[kind] < 2} == set()
    assert matching["pattern"] > 20


def _kinds(statement: Pattern | Near) -> list[str | None]:
    told: dict[str, object] = {"apart": statement.apart, "published": statement.publish}
    if isinstance(statement, Near):
        return ["near", *(kind for kind, holds in told.items() if holds)]
    told |= {
        "maximal": statement.maximal,
        "kleene": any(isinstance(one, Many) for one in statement.positive),
        "set": any(isinstance(one, AnyOrder) for one in statement.components),
        "negated": statement.absent,
        "having": statement.having,
    }
    return ["pattern", statement.strategy, *(kind for kind, holds in told.items() if holds)]


def test_strategies_include_each_other_and_sets_of_one_are_sequences():
    checked = 0
    for seed in range(12):
        one = pattern_world(seed)
        for statement in one.statements:
            if not isinstance(statement, Pattern) or statement.maximal:
                continue
            streams = {name: one.stream(name) for name in statement.streams}
            if any(isinstance(component, AnyOrder) for component in statement.components):
                continue
            found = [
                Matcher(replace(statement, strategy=strategy), streams, by_parts).matches()
                for strategy in STRATEGIES
                if statement.keys or strategy != "partition_contiguity"
            ]
            assert all(narrow <= wide for narrow, wide in pairwise(found))
            matcher = Matcher(replace(statement, strategy="skip_till_any_match"), streams, by_parts)
            assert set(matcher._sequences()) == set(matcher._sets())
            checked += 1
    assert checked > 20
