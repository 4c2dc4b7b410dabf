"""Parses scripts: text in, a checked syntax tree or all mistakes out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from lark import Lark, UnexpectedInput

from common.progress import followed
from xscl.advice import explain
from xscl.algebra.expressions import ElementConstructor, Hole, Span, holes_of
from xscl.builder import Builder, Declaration
from xscl.check import check_script
from xscl.check_publishing import check_publishing
from xscl.event_check import check_events
from xscl.event_parser import name_in, parse_event_statement
from xscl.event_syntax import EventDefinition, EventQuery
from xscl.kinds import Kind, kinds_of
from xscl.lalr import TableParser, Unparsable
from xscl.problems import Lines, Problem, XsclError, XsclErrors
from xscl.script import NO_EVENTS, EventStreams, Script, StatementKind
from xscl.skeletons import KnownSkeletons
from xscl.statements import Statement, split_script
from xscl.syntax import Query

XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"


def parse_script(text: str, *, stored: bool = False, events: EventStreams = NO_EVENTS) -> Script:
    """The script of a text, checked: its queries can be registered as they are.

    With `stored` they are registered already, perhaps by a version that refused less. `events` are the event streams
    that the script can read without having them. The prefix `xml` needs no declaration. A script that uses it has it
    among its namespaces.

    Raises:
        XsclErrors: with every mistake in the text, in the order of their places: mistakes of syntax in any statement,
            and mistakes of meaning in well-formed queries.
    """
    return (None if events else _known_script(text)) or _Parser(text, events).script(stored=stored)


def located_queries(
    text: str, numbers: Iterable[int], *, stored: bool = False, events: EventStreams = NO_EVENTS
) -> Iterator[Query]:
    """Some queries of a correct script, by their numbers from 0, with the spans of all their parts in its text.
    `stored` and `events` are those of `parse_script`."""
    parser = _Parser(text, events)
    parser.script(stored=stored)
    return map(parser.in_place, numbers)


MAX_STATEMENTS = 20_000
"""How many statements' trees are remembered. When there are more, all are forgotten."""

_SPACE = " \t\r\n"

_known: dict[str, Query] = {}
"""The trees of statements without prefixes and mistakes, by their text."""


def _known_script(text: str) -> Script | None:
    """The script if all its statements are known, else None. They are complete: none can run into the next."""
    queries: list[Query] = []
    at = 0
    for piece in text.rstrip(_SPACE).removesuffix(";").split(";\n"):
        statement = piece.strip(_SPACE)  # a script may have no other white space
        query = _known.get(statement)
        if query is None:
            return None
        start = at + piece.index(statement)
        queries.append(_placed(query, Span(start, start + len(statement))))
        at += len(piece) + 2
    script = Script(tuple(queries))
    return None if any(True for _ in check_publishing(script, queries.__getitem__)) else script


def _placed(query: Query, span: Span) -> Query:
    """The query at another place. The spans inside it remain those in the statement that was parsed. The builder's span
    of the query leaves out parentheses around it."""
    return Query(query.source, query.select, query.publish, span, query.once)


class _Parser:
    """Parses one script."""

    def __init__(self, text: str, events: EventStreams = NO_EVENTS) -> None:
        self._text, self._lines = text, Lines(text)
        self._clean, self._statements = split_script(text)
        self._known_events = events
        self._events: list[EventDefinition | EventQuery] = []
        self._failed_events: set[str] = set()
        self._order: list[StatementKind] = []
        self._problems: list[Problem] = []
        self._queries: list[tuple[Statement, Query]] = []
        self._declarations: list[Declaration] = []

    def script(self, *, reuse: bool = True, stored: bool = False) -> Script:
        """The script. With `reuse` a statement may take the tree of one with other constants. Raises XsclErrors."""
        kinds = kinds_of(self._clean, self._statements, self._known_events)
        for number, statement in enumerate(followed("parsing", self._statements)):
            if kinds is not None and kinds[number] != "xscl":
                self._take_events(statement, kinds[number], reuse)
            else:
                self._take(statement, reuse)
        problems = self._problems + _check_declarations(self._declarations)
        namespaces: dict[str, str] = {}
        for declaration in self._declarations:
            namespaces.setdefault(declaration.prefix, declaration.uri)
        if _XML_PREFIX.search(self._clean):
            namespaces["xml"] = XML_NAMESPACE
        script = self._script(tuple(namespaces.items()))
        problems += check_script(script, self._lines, self.in_place, stored=stored)
        if kinds is not None or self._known_events:
            failed = frozenset(self._failed_events)
            problems += check_events(
                script, self._lines, self.in_place, known=self._known_events, failed=failed, stored=stored
            )
        if not script.queries and not script.has_events and not problems:
            problems.append(Problem("there is no query in this script", Span(0, 0), "write one, such as FROM S//item"))
        if problems and reuse and self._events:  # their places may be those in other queries
            return _Parser(self._text, self._known_events).script(reuse=False, stored=stored)
        if problems:
            raise XsclErrors(XsclError(problem, self._lines) for problem in problems)
        if not namespaces and not stored:
            self._remember()
        return script

    def _script(self, namespaces: tuple[tuple[str, str], ...]) -> Script:
        queries = tuple(query for _, query in self._queries)
        if not self._events:
            return Script(queries, namespaces)
        definitions = tuple(one for one in self._events if isinstance(one, EventDefinition))
        event_queries = tuple(one for one in self._events if isinstance(one, EventQuery))
        return Script(queries, namespaces, definitions, event_queries, tuple(self._order))

    def _take_events(self, statement: Statement, kind: Kind, reuse: bool) -> None:
        """Adds an event statement to the script, or its problem to the problems."""
        try:
            if statement.problem:
                raise statement.problem
            node = parse_event_statement(self._clean, kind, statement.span, self._lines, reuse=reuse)
        except Problem as problem:
            self._problems.append(problem)
            self._failed_events |= name_in(self._clean[statement.span.start : statement.span.end])
            return
        self._events.append(node)
        self._order.append("definition" if isinstance(node, EventDefinition) else "event query")

    def _take(self, statement: Statement, reuse: bool) -> None:
        """Adds a statement to the script, or its problem to the problems."""
        span, text = statement.span, self._clean[statement.span.start : statement.span.end]
        if reuse and not statement.problem:
            known = _known.get(text) or _skeletons.query(text)
            if known:
                self._add(statement, _placed(known, statement.span))
                return
        try:
            if statement.problem:
                raise statement.problem
            if not text:
                hint = "remove it"
                raise Problem("there is no query before this semicolon", Span(span.start, span.start + 1), hint)
            # The text of a hole has its comments, which other statements do not have.
            reuse = reuse and ("<" not in text or self._text.startswith(text, span.start))
            node = _parse_statement(text, span.start, self._lines, reuse=reuse)
        except Problem as problem:
            self._problems.append(problem)
            # Otherwise its prefix would be reported wherever it is used.
            if failed := _FAILED_DECLARATION.match(self._clean, statement.span.start):
                self._declarations.append(Declaration(failed[1], "?", statement.span))
            return
        if isinstance(node, Query):
            if isinstance(node.select, ElementConstructor):
                node = _with_hole_texts(node, self._text[span.start : span.end])
            self._add(statement, _placed(node, span))
            return
        if self._queries or self._events:
            hint = "move it to the beginning of the script"
            self._problems.append(Problem("a declaration stands behind a query", span, hint))
        self._declarations.append(replace(node, span=span))

    def _add(self, statement: Statement, query: Query) -> None:
        self._queries.append((statement, query))
        self._order.append("query")

    def in_place(self, number: int) -> Query:
        """The query of a number, with the spans that it has in this script."""
        span = self._queries[number][0].span
        query = _placed(_tables().parse(self._clean, span.start, span.end), span)
        return _with_hole_texts(query, self._text) if isinstance(query.select, ElementConstructor) else query

    def _remember(self) -> None:
        if len(_known) + len(self._queries) > MAX_STATEMENTS:
            _known.clear()
        for statement, query in self._queries[:MAX_STATEMENTS]:
            # Not the text with its comments blanked: the blanks could stand in a string elsewhere.
            _known[self._text[statement.span.start : statement.span.end]] = query


_XML_PREFIX = re.compile(r"(?<![\w.\-])xml\s*:")
_FAILED_DECLARATION = re.compile(r"declare\s+namespace\s+([\w.\-]+)", re.IGNORECASE)


@cache
def _lark() -> Lark:
    grammar = Path(__file__).with_name("xscl.lark").read_text(encoding="utf-8")
    return Lark(
        grammar, parser="lalr", lexer="contextual", start="statement", transformer=Builder(), maybe_placeholders=False
    )


@cache
def _tables() -> TableParser:
    return TableParser(_lark(), _finished)


def _finished(value: object, text: str) -> object:
    """What many statements take from one: a constructor with the texts of its holes."""
    return _element_with_texts(value, text) if isinstance(value, ElementConstructor) else value


def _parse_statement(text: str, start: int, lines: Lines, *, reuse: bool = True) -> Query | Declaration:
    """The tree of a statement that begins at `start` in its script. The spans in the tree are those in the statement,
    small numbers that take no memory. With `reuse`, those in a filter may be those in another one. Raises Problem."""
    try:
        # With our builder the result is what the start rule reduces to.
        node: Query | Declaration = _tables().parse(text, 0, len(text), reuse=reuse)
    except Unparsable:
        raise _explained(text, start, lines) from None
    except Problem as problem:
        if reuse:  # its place may be one in another filter
            return _parse_statement(text, start, lines, reuse=False)
        raise problem.moved(start) from None
    return node


def _in_own_place(text: str) -> Query | None:
    """The tree of a statement, with all spans in it; None if it is no query."""
    try:
        node = _tables().parse(text, 0, len(text))
    except (Unparsable, Problem):
        return None
    return node if isinstance(node, Query) else None


_skeletons = KnownSkeletons(_in_own_place)


def _explained(statement: str, start: int, lines: Lines) -> Problem:
    """What is wrong with a statement that begins at `start`. Lark says where it stops and what it expects there."""
    try:
        _lark().parse(statement)
    except UnexpectedInput as error:
        return explain(error, statement, start, lines)
    raise AssertionError(f"Lark accepts what its tables reject: {statement}")


def _check_declarations(declarations: list[Declaration]) -> list[Problem]:
    problems: list[Problem] = []
    known = {"xml": XML_NAMESPACE}
    for declaration in declarations:
        prefix, uri = declaration.prefix, declaration.uri
        if known.setdefault(prefix, uri) != uri:
            message = f"the prefix {prefix} is already declared for {known[prefix]}"
            problems.append(Problem(message, declaration.span, "choose another prefix"))
        elif prefix == "xmlns":
            problems.append(Problem("the prefix xmlns is reserved", declaration.span, "choose another prefix"))
        elif uri == "*":
            message = "the namespace * is no URI"
            problems.append(Problem(message, declaration.span, "write *:name for a name in any namespace"))
        elif not uri:
            hint = "a name without a prefix matches elements in no namespace; remove the declaration"
            problems.append(Problem("the namespace is empty", declaration.span, hint))
    return problems


def _with_hole_texts(query: Query, text: str) -> Query:
    """The query, in whose constructor each hole has the text between its braces."""
    assert isinstance(query.select, ElementConstructor)
    if all(hole.text for hole in holes_of(query.select)):  # taken from another statement
        return query
    return Query(query.source, _element_with_texts(query.select, text), query.publish, query.span, query.once)


def _element_with_texts(node: ElementConstructor, text: str) -> ElementConstructor:
    attributes = tuple((name, tuple(_part_with_text(part, text) for part in parts)) for name, parts in node.attributes)
    children = tuple(
        _element_with_texts(child, text) if isinstance(child, ElementConstructor) else _part_with_text(child, text)
        for child in node.children
    )
    return ElementConstructor(node.name, attributes, children, node.span)


def _part_with_text(part: str | Hole, text: str) -> str | Hole:
    if isinstance(part, str):
        return part
    return Hole(part.operand, text[part.span.start + 1 : part.span.end - 1].strip(), part.span)
