"""The hand-checked examples of PATTERN (S, Q, N, M, A), told by an engine over documents: the oracle's own tests are
run once more, with what the engine tells in place of what the oracle finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from random import Random
from typing import Any

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.shown_engine import Engine
from tests.mmqjp.answers.test_event_examples import cases
from tests.oracle import test_near, test_pattern_sets, test_patterns
from tests.oracle.event_cases import SECOND, events, schema
from tests.oracle.event_values import Value
from tests.oracle.pattern_cases import Given
from tests.oracle.pattern_syntax import STRATEGIES, Near, Pattern
from tests.oracle.pattern_world import each_of, items_of
from xscl.algebra.values import number_text

NUMBER = "number_of_event"
"""An attribute that each event has besides: its number among all that are given."""


def outputs(statements: list[Pattern | Near], given: tuple[Given, ...]) -> list[list[Output]]:
    """What an engine tells of each statement."""
    with Engine("duckdb", settle=None) as engine:
        texts = [replace(one, publish=f"p{place}").text() for place, one in enumerate(statements)]
        engine.subscribe("; ".join([*_definitions(given), *texts]))
        engine.process(list(_documents(given)))
        found = list(engine.finish())
        return [[one for one in found if one.query == f"p{place}"] for place in range(len(statements))]


def _definitions(given: tuple[Given, ...]) -> Iterator[str]:
    for name, of, _ in given:
        attributes = [
            f"{one} := number(e/@{one})" if kind == "number" else f"{one} := e/@{one}"
            for one, kind in schema(f"{of} {NUMBER}:number").items()
        ]
        yield f"DEFINE EVENT {name} FROM documents_{name}//e->e ({', '.join(attributes)})"


def _documents(given: tuple[Given, ...]) -> Iterator[Document]:
    number = 0
    for name, of, text in given:
        for one in events(schema(of), text):
            number += 1
            attributes = {key: _text(value) for key, value in one.attributes if value is not None}
            element = etree.Element("e", attributes | {NUMBER: str(number)})
            yield Document(f"{number:03}", etree.tostring(element), f"documents_{name}", (one.t0, one.t1))


def _text(value: Value) -> str:
    return number_text(value) if isinstance(value, float) else str(value)


def told(statement: Pattern | Near, *given: Given) -> list[str]:
    """See `pattern_cases.told`."""
    (found,) = outputs([statement], given)
    return briefs(statement, found)


def briefs(statement: Pattern | Near, found: list[Output]) -> list[str]:
    return sorted((_brief(statement, one) for one in found), key=_numbers)


def _brief(statement: Pattern | Near, output: Output) -> str:
    root = etree.fromstring(output.xml)
    if isinstance(statement, Near):
        variables = [list(root)]
    else:
        variables = [list(some) for _, some in groupby(root, key=lambda one: one.tag)]
    shown = " | ".join(" ".join(one.findtext(NUMBER, "") for one in some) for some in variables)
    errors = int(root.get("errors", "0"))
    return f"{shown} @{output.t1 / SECOND:.10g}" + (f" -{errors}" if errors else "")


def _numbers(brief: str) -> list[object]:
    return [int(word) if word.isdigit() else -1 for word in brief.split()]


def values(statement: Pattern | Near, *given: Given) -> list[dict[str, Value | tuple[Value, ...]]]:
    """See `pattern_cases.values`."""
    (found,) = outputs([statement], given)
    every = {item.label for item in items_of(statement) if each_of(item.expr) is not None}
    return [_values(etree.fromstring(one.xml), every) for one in sorted(found, key=lambda one: (one.t1, one.t0))]


def _values(root: Any, every: set[str]) -> dict[str, Value | tuple[Value, ...]]:
    found = {}
    for name, some in groupby(root, key=lambda one: str(one.tag)):
        plain = [_plain(one.text) for one in some]
        found[name] = tuple(plain) if name in every else plain[0]
    return found


def _plain(text: str) -> Value:
    try:
        return float(text)
    except ValueError:
        return text


@pytest.mark.parametrize(
    ("test", "row"),
    cases(
        [
            test_patterns.test_s1_matches_by_strategy,
            test_patterns.test_s1_non_overlapping,
            test_patterns.test_s2_values_of_runs,
            test_patterns.test_s3_runs_that_would_be_merged_naively_are_not_matches,
            test_patterns.test_q2_any_follows_all_ways_and_next_the_first,
            test_patterns.test_n1_trailing_negation,
            test_patterns.test_n1_leading_negation,
            test_patterns.test_negation_between_two,
            test_patterns.test_n2_an_event_that_overlaps_does_not_exist_for_strict_contiguity,
            test_patterns.test_what_only_the_next_component_takes_does_not_end_a_run,
            test_patterns.test_every_item_and_conditions_on_all_items,
            test_patterns.test_returned_items,
            test_pattern_sets.test_m1_all_matches,
            test_pattern_sets.test_m2_earliest_and_maximal,
            test_pattern_sets.test_m7_what_a_counter_would_miss,
            test_pattern_sets.test_m8_a_kleene_variable_in_the_last_set_is_known_at_the_end_of_the_window,
            test_pattern_sets.test_negation_beside_sets,
            test_near.test_a1,
            test_near.test_a2,
            test_near.test_needed_letters_and_keys,
        ]
    ),
)
def test_an_engine_tells_the_examples(test: Callable[..., None], row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (test_patterns, test_pattern_sets, test_near):
        monkeypatch.setattr(module, "told", told)
    monkeypatch.setattr(test_patterns, "values", values)
    test(*row)


def test_s5_strategies_include_each_other_and_smaller_windows_are_spans_of_larger_ones() -> None:
    rng = Random(5)
    rows = " | ".join(
        f"{rng.choice('AB')} {rng.randint(1, 4)} {rng.choice((700, 1100))} @{time}" for time in range(1, 25)
    )
    wide = [replace(test_patterns.Q3, strategy=strategy) for strategy in STRATEGIES]
    narrow = [replace(one, within=test_patterns.SECONDS[4]) for one in wide]
    found = outputs([*wide, *narrow], ((*test_patterns.QUOTES[:2], rows),))
    sets = [{(one.t0, one.t1, one.xml.partition(">")[2]) for one in some} for some in found]
    strict, partition, next_, any_ = sets[:4]
    assert strict <= partition <= next_ <= any_ and strict < any_
    for larger, smaller in zip(sets[:4], sets[4:], strict=True):
        assert smaller == {one for one in larger if one[1] - one[0] <= 4 * SECOND}
