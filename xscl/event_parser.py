"""Parses event statements: the text of one in, its syntax tree or what is wrong with it out."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from lark import Lark, UnexpectedInput

from xscl.algebra.expressions import Span
from xscl.definition_builder import DefinitionBuilder
from xscl.event_advice import explain_definition, explain_query
from xscl.event_skeletons import KnownEventSkeletons
from xscl.event_syntax import EventDefinition, EventQuery, EventStatement
from xscl.event_templates import made_of
from xscl.kinds import Kind
from xscl.lalr import TableParser, Unparsable
from xscl.pattern_advice import explain_pattern
from xscl.pattern_builder import PatternBuilder
from xscl.problems import Lines, Problem


def parse_event_statement(script: str, kind: Kind, span: Span, lines: Lines, *, reuse: bool = False) -> EventStatement:
    """The tree of a statement of a script, whose comments are blank. The spans inside a query are those in its own
    text; in a definition they are those in the script. With `reuse` those inside a query may be those in another one.

    Raises Problem, with its place in the script.
    """
    start, end = span.start, span.end
    text = script[start:end]
    try:
        if kind == "definition":
            definition: EventDefinition = _definition_tables().parse(script, start, end)
            return EventDefinition(definition.name, definition.block, definition.attributes, span)
        known = _skeletons.query(text) if reuse else None
        query: EventQuery = known[0] if known else _query_tables(kind).parse(text, 0, len(text))
        found = EventQuery(query.stream, query.select, query.within, query.publish, span)
        if known:
            made_of(found, *known[1:])
        return found
    except Unparsable:
        pass
    except Problem as problem:
        raise problem.moved(0 if kind == "definition" else start) from None
    try:
        (_definitions() if kind == "definition" else _queries(kind)).parse(text)
    except UnexpectedInput as error:
        raise _EXPLAIN[kind](error, text, start, lines) from None
    raise AssertionError(f"Lark accepts what its tables reject: {text}")


def _in_own_place(text: str) -> EventQuery | None:
    """The tree of a query, with all spans in it; None if its syntax is wrong."""
    kind: Kind = "pattern" if _PATTERN.match(text) else "event query"
    try:
        query: EventQuery = _query_tables(kind).parse(text, 0, len(text))
    except (Unparsable, Problem):
        return None
    return query


_skeletons = KnownEventSkeletons(_in_own_place)


def name_in(text: str) -> frozenset[str]:
    """The name that a statement defines or PUBLISHes, if one can be told although its syntax is wrong."""
    found = _DEFINED.match(text) or _PUBLISHED.search(text)
    return frozenset({found[1]} if found else ())


_EXPLAIN = {"definition": explain_definition, "event query": explain_query, "pattern": explain_pattern}
_PATTERN = re.compile(r"pattern\s+seq(?!\w)", re.IGNORECASE)
_DEFINED = re.compile(r"define\s+event\s+(\w+)", re.IGNORECASE)
_PUBLISHED = re.compile(r"\bpublish\s+(\w+)\s*$", re.IGNORECASE)


@cache
def _queries(kind: Kind) -> Lark:
    return _lark("events.lark", "pattern" if kind == "pattern" else "query", PatternBuilder())


@cache
def _definitions() -> Lark:
    return _lark("xscl.lark", "definition", DefinitionBuilder())


@cache
def _query_tables(kind: Kind) -> TableParser:
    return TableParser(_queries(kind))


@cache
def _definition_tables() -> TableParser:
    return TableParser(_definitions())


def _lark(file: str, start: str, builder: PatternBuilder | DefinitionBuilder) -> Lark:
    grammar = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", lexer="contextual", start=start, transformer=builder, maybe_placeholders=False)
