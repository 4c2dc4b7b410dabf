"""The random generators make valid scripts that round-trip and that mostly have outputs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given

from feeds.documents import Document
from tests.generate.strategies import cases, document_sets, random_case, scripts
from tests.oracle.evaluation import evaluate
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Script


@given(scripts())
def test_scripts_are_valid_and_round_trip(script: Script) -> None:
    assert parse_script(to_xscl(script)) == script


@given(scripts(), document_sets())
def test_scripts_run_over_any_documents(script: Script, documents: list[Document]) -> None:
    for row in evaluate(script, documents):
        assert row.query in script.names()
        assert {(stream, id) for stream, id in zip(row.streams, row.documents, strict=True)} <= {
            (document.stream, document.id) for document in documents
        }


@given(cases(max_queries=2, max_documents=5, max_elements=5))
def test_result_does_not_depend_on_the_order_of_documents(case: tuple[Script, list[Document]]) -> None:
    script, documents = case
    distinct = list({(document.stream, document.id): document for document in documents}.values())
    assert evaluate(script, distinct) == evaluate(script, distinct[::-1])


def test_cases_are_the_same_for_a_seed() -> None:
    assert random_case(7) == random_case(7) != random_case(8)


@pytest.mark.soak
def test_cases_mostly_have_outputs() -> None:
    """Of the queries in 150 cases at least 40% have an output, and every construct occurs in one that has."""
    queries = answered = 0
    seen: set[str] = set()
    for seed in range(150):
        script, documents = random_case(seed)
        names = {row.query for row in evaluate(script, documents)}
        queries += len(script.queries)
        for name, query in zip(script.names(), script.queries, strict=True):
            if name in names:
                answered += 1
                seen |= set(_constructs(query))
    assert answered >= 0.4 * queries
    missing = CONSTRUCTS - seen
    assert not missing


CONSTRUCTS = {
    *("Block", "Join", "SubQuery", "SelectStar", "SelectItems", "ElementConstructor", "And", "Or", "Not", "Call"),
    *("FOLLOWED BY", "JOIN", "JOIN UNORDERED", "/", "//", "attribute", "element", "=", "!=", "<", "<=", ">", ">="),
    *("hits", "alerts", "news"),
    *("contains", "starts-with", "ends-with", "matches", "count", "string-length", "number", "string"),
    *("normalize-space", "lower-case", "upper-case", "canonical-url", "host", "date"),
    *("domain", "words", "year-month", "substring-before", "substring-after"),
}


def _constructs(part: object) -> Iterator[str]:
    """The node types and words of a query."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from _constructs(item)
    elif is_dataclass(part):
        yield type(part).__name__
        for field in fields(part):
            yield from _constructs(getattr(part, field.name))


def test_twenty_queries_over_twelve_documents_are_quick() -> None:
    """The oracle's cost is bounded: random scripts must not have outputs by the hundred thousand."""
    started = time.process_time()
    rows = [len(evaluate(*random_case(seed, n_queries=20, n_documents=12))) for seed in range(3)]
    assert time.process_time() - started < 3 * 2
    assert all(0 < count < 20_000 for count in rows)
