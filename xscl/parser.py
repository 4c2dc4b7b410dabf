"""Parses scripts: text in, a checked syntax tree or all mistakes out."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import cast

from common.tools import track_progress
from xscl.advice import variable_of_event
from xscl.algebra.values import ElementConstructor, Hole, Span, holes_of
from xscl.builder import Declaration
from xscl.check import check_publishing, check_script
from xscl.check_expressions import blocks
from xscl.event_parser import check_events, explained, lark_of, name_in, parse_event_statement
from xscl.lalr import TableParser, Unparsable
from xscl.problems import LACKS_EVENTS, Lines, Problem, XsclError, XsclErrors
from xscl.skeletons import Fill, Skeletons, recipe_of, unpublished
from xscl.syntax import NO_EVENTS, EventDefinition, EventQuery, EventStreams, Join, Query, Script, StatementKind
from xscl.text import StatementSpan, SyntaxKind, kinds_of, split_script

MAX_TREES = 20_000
"""Maximum number of trees cached by the text before PUBLISH; the cache is cleared when it is full."""

# A quote behind a name is a prime. Behind a keyword it opens a string, which stays part of the skeleton.
_LITERAL = re.compile(
    r"""(?<![\w.\-'"]) (?: ("(?:[^"\n]|"")*"|'(?:[^'\n]|'')*') | (-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)) )""", re.VERBOSE
)


@dataclass(frozen=True, eq=False, slots=True)
class _Filled:
    """Builds trees of one skeleton. `slot` is the literal of a join's window, and `window` builds it."""

    fill: Fill
    slot: int | None = None
    window: Fill | None = None


class KnownTrees:
    def __init__(self, parse: Callable[[str], Query | None]) -> None:
        """`parse` returns the tree of a statement, with its spans in it, or None."""
        self._parse = parse
        self._skeletons = Skeletons(_LITERAL, self._filling)
        self._trees: dict[object, Query] = {}

    def query(self, text: str) -> Query | None:
        """A statement's tree, without spans, if its skeleton is cached; else None. Statements that differ only in their
        PUBLISH names share source and SELECT; those that also differ in a join's window share inputs, predicate and
        SELECT."""
        text, name = unpublished(text)
        tree = self._trees.get(text)
        if tree is None:
            filled, literals = self._skeletons.of(text)
            if filled is None:
                return None
            try:
                tree = self._tree(filled, literals)
            except Problem:
                return None
            self._keep(text, tree)
        return tree if name is None else Query(tree.source, tree.select, name, tree.span, tree.once)

    def _filling(self, text: str) -> _Filled | None:
        query = self._parse(text)
        # The holes of a constructor have texts of their own.
        if query is None or isinstance(query.select, ElementConstructor):
            return None
        if (found := recipe_of(query, text, _LITERAL)) is None:
            return None
        recipe, fill = found
        source = query.source
        if not isinstance(source, Join) or source.window.us is None:
            return _Filled(fill)
        slot = recipe.slots[source.window.span.start][0]
        return _Filled(fill, slot, recipe.of(source.window))

    def _tree(self, filled: _Filled, literals: list[str]) -> Query:
        if filled.slot is None or filled.window is None:
            return cast(Query, filled.fill(literals))
        # By the literals but the window.
        key = filled, *literals[: filled.slot], *literals[filled.slot + 1 :]
        tree = self._trees.get(key)
        if tree is None:
            tree = cast(Query, filled.fill(literals))
            self._keep(key, tree)
            return tree
        join = cast(Join, tree.source)
        other = Join(join.op, join.left, join.right, join.pred, filled.window(literals), join.span)
        return Query(other, tree.select, tree.publish, tree.span, tree.once)

    def _keep(self, key: object, tree: Query) -> None:
        if len(self._trees) >= MAX_TREES:
            self._trees.clear()
        self._trees[key] = tree


XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"


def parse_script(text: str, *, stored: bool = False, events: EventStreams = NO_EVENTS) -> Script:
    """Parses and checks a script: its queries can be registered as they are.

    `stored`: they were registered earlier, perhaps by a version that refused less. `events` are external event streams
    that the script can read. The prefix `xml` needs no declaration; a script that uses it has it among its namespaces.
    Raises XsclErrors with all mistakes, in the order of their places: syntax errors of any statement, and mistakes of
    meaning in well-formed queries.
    """
    return (None if events else _known_script(text)) or _Parser(text, events, stored=stored).script()


def located_queries(
    text: str, numbers: Iterable[int], *, stored: bool = False, events: EventStreams = NO_EVENTS
) -> Iterator[Query]:
    """Queries of a correct script, by numbers from 0, with all spans in its text; see `parse_script`."""
    parser = _Parser(text, events, stored=stored)
    parser.script()
    return map(parser.in_place, numbers)


MAX_STATEMENTS = 20_000
"""Maximum number of cached statements' trees; the cache is cleared when it is full."""

_SPACE = " \t\r\n"

_known: dict[str, Query] = {}
"""Trees of correct statements without prefixes, by text."""


def _known_script(text: str) -> Script | None:
    """The script if all its statements are cached and complete, so that none can run into the next; else None."""
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
    """Moves the query. The spans inside stay; the builder's span leaves out parentheses around it."""
    return Query(query.source, query.select, query.publish, span, query.once)


class _AnyName:
    def __contains__(self, name: object) -> bool:
        return bool(name)


def may_lack_events(text: str, errors: XsclErrors) -> bool:
    """Whether a script may be correct where there are more events: all its mistakes are reads of missing events, or in
    statements that read a bare name."""
    clean, statements = split_script(text)
    kinds = kinds_of(clean, statements, _AnyName()) or []
    of_events = [one.span for one, kind in zip(statements, kinds, strict=False) if kind == "event query"]
    return all(
        error.message.startswith(LACKS_EVENTS) or any(span.start <= error.span.start <= span.end for span in of_events)
        for error in errors.errors
    )


class _Parser:
    def __init__(self, text: str, events: EventStreams = NO_EVENTS, *, stored: bool = False) -> None:
        self._text, self._lines, self._stored = text, Lines(text), stored
        self._clean, self._statements = split_script(text, stored=stored)
        self._known_events = events
        self._events: list[EventDefinition | EventQuery] = []
        self._failed_events: set[str] = set()
        self._order: list[StatementKind] = []
        self._problems: list[Problem] = []
        self._queries: list[tuple[StatementSpan, Query]] = []
        self._declarations: list[Declaration] = []

    def script(self, *, reuse: bool = True) -> Script:
        """With `reuse` a statement may take the tree of one with other constants. Raises XsclErrors."""
        kinds = kinds_of(self._clean, self._statements, self._known_events)
        for number, statement in enumerate(track_progress("parsing", self._statements)):
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
        problems += check_script(script, self._lines, self.in_place, stored=self._stored)
        if kinds is not None or self._known_events:
            failed = frozenset(self._failed_events)
            problems += check_events(
                script, self._lines, self.in_place, known=self._known_events, failed=failed, stored=self._stored
            )
        if not script.queries and not script.has_events and not problems:
            problems.append(Problem("there is no query in this script", Span(0, 0), "write one, such as FROM S//item"))
        if problems and self._defined:
            problems = self._with_variables_of_events(problems)
        if problems and reuse and self._events:  # their places may be those in other queries
            return _Parser(self._text, self._known_events, stored=self._stored).script(reuse=False)
        if problems:
            raise XsclErrors(XsclError(problem, self._lines) for problem in problems)
        if not namespaces and not self._stored:
            self._remember()
        return script

    def _with_variables_of_events(self, problems: list[Problem]) -> list[Problem]:
        """The problems with one in place of all those of a query that binds a variable to an event."""
        wrong: dict[int, tuple[Span, Problem]] = {}
        for statement, query in self._queries:
            if not any(block.stream in self._defined for block in blocks(query.source)):
                continue
            start, end = statement.span.start, statement.span.end
            if told := variable_of_event(self._clean[start:end], start, self._defined):
                wrong[start] = statement.span, told
        starts = sorted(wrong)

        def is_other(problem: Problem) -> bool:
            at = bisect_right(starts, problem.span.start)
            return not at or problem.span.start > wrong[starts[at - 1]][0].end

        return [*filter(is_other, problems), *(told for _, told in wrong.values())]

    @cached_property
    def _defined(self) -> Set[str]:
        return self._known_events.defined.keys() | set(_DEFINED.findall(self._clean))

    def _script(self, namespaces: tuple[tuple[str, str], ...]) -> Script:
        queries = tuple(query for _, query in self._queries)
        if not self._events:
            return Script(queries, namespaces)
        definitions = tuple(one for one in self._events if isinstance(one, EventDefinition))
        event_queries = tuple(one for one in self._events if isinstance(one, EventQuery))
        return Script(queries, namespaces, definitions, event_queries, tuple(self._order))

    def _take_events(self, statement: StatementSpan, kind: SyntaxKind, reuse: bool) -> None:
        try:
            if statement.problem:
                raise statement.problem
            node = parse_event_statement(self._clean, kind, statement.span, self._lines, reuse=reuse)
        except Problem as problem:
            text = self._clean[statement.span.start : statement.span.end]
            told = variable_of_event(text, statement.span.start, self._defined) if kind == "event query" else None
            self._problems.append(told or problem)
            self._failed_events |= name_in(text)
            return
        self._events.append(node)
        self._order.append("definition" if isinstance(node, EventDefinition) else "event query")

    def _take(self, statement: StatementSpan, reuse: bool) -> None:
        span, text = statement.span, self._clean[statement.span.start : statement.span.end]
        if reuse and not statement.problem:
            known = _known.get(text) or _trees.query(text)
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
            self._problems.append(variable_of_event(text, span.start, self._defined) or problem)
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

    def _add(self, statement: StatementSpan, query: Query) -> None:
        self._queries.append((statement, query))
        self._order.append("query")

    def in_place(self, number: int) -> Query:
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
_DEFINED = re.compile(r"\bdefine\s+event\s+(\w+)", re.IGNORECASE)
_FAILED_DECLARATION = re.compile(r"declare\s+namespace\s+([\w.\-]+)", re.IGNORECASE)


@cache
def _tables() -> TableParser:
    return TableParser(lark_of("xscl"), _finished)


def _finished(value: object, text: str) -> object:
    return _element_with_texts(value, text) if isinstance(value, ElementConstructor) else value


def _parse_statement(text: str, start: int, lines: Lines, *, reuse: bool = True) -> Query | Declaration:
    """Spans are those in the statement; with `reuse`, a filter's may be those in another one. Raises Problem."""
    try:
        # With our builder the result is what the start rule reduces to.
        node: Query | Declaration = _tables().parse(text, 0, len(text), reuse=reuse)
    except Unparsable:
        raise explained(text, start, lines, "xscl") from None
    except Problem as problem:
        if reuse:  # its place may be one in another filter
            return _parse_statement(text, start, lines, reuse=False)
        raise problem.moved(start) from None
    return node


def _in_own_place(text: str) -> Query | None:
    try:
        node = _tables().parse(text, 0, len(text))
    except (Unparsable, Problem):
        return None
    return node if isinstance(node, Query) else None


_trees = KnownTrees(_in_own_place)


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
