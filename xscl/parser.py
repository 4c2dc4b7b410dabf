"""Parses scripts: text in, a checked syntax tree or all mistakes out."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from functools import cache, cached_property, partial

from common.tools import ClearedCache, track_progress
from xscl import text as texts
from xscl.advice import explain_syntax_error, variable_of_event
from xscl.algebra.values import XML_SPACE, Span
from xscl.algebra.weights import is_weights_name
from xscl.builder import Declaration, WeightsDeclaration, with_hole_texts
from xscl.check import check_publishing, check_script
from xscl.check_expressions import blocks
from xscl.event_forms import too_deep
from xscl.event_lower import check_events, made_of
from xscl.lalr import Unparsable, parser_of
from xscl.named_values import with_values
from xscl.skeletons import KnownTrees
from xscl.story_queries import statements_of
from xscl.syntax import NO_EVENTS, EventDefinition, EventQuery, EventStreams, Query, Script, StoryQuery

XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"

_Tree = Query | StoryQuery | EventDefinition | EventQuery | Declaration | WeightsDeclaration


def parse_script(text: str, *, stored: bool = False, events: EventStreams = NO_EVENTS) -> Script:
    """Parses and checks a script: its queries can be registered as they are.

    `stored`: they were registered earlier, perhaps by a laxer version. `events` are external event streams that the
    script can read. The prefix `xml` needs no declaration; a script that uses it has it among its namespaces. Raises
    XsclErrors with all mistakes, in the order of their places: syntax errors of any statement, and mistakes of meaning
    in well-formed queries."""
    return (None if events else _known_script(text)) or _Parser(text, events, stored=stored).script()


def located_queries(
    text: str, numbers: Iterable[int], *, stored: bool = False, events: EventStreams = NO_EVENTS
) -> Iterator[Query]:
    """The queries of a correct script with these numbers, from 0, with all spans in its text; see `parse_script`."""
    parser = _Parser(text, events, stored=stored)
    queries = parser.script().queries
    return (parser.in_place(queries[number]) for number in numbers)


MAX_STATEMENTS = 20_000  # maximum number of cached statements' trees

_known = ClearedCache[str, Query](MAX_STATEMENTS)  # trees of correct statements that use no prefixes, by text


def _known_script(text: str) -> Script | None:
    """The script if all its statements are cached and complete, so that none extends into the next; else None."""
    queries: list[Query] = []
    at = 0
    for piece in text.rstrip(XML_SPACE).removesuffix(";").split(";\n"):
        statement = piece.strip(XML_SPACE)  # no other white space is allowed in a script
        if (query := _known.get(statement)) is None:
            return None
        start = at + piece.index(statement)
        queries.append(_query_at(query, Span(start, start + len(statement))))
        at += len(piece) + 2
    script = Script(tuple(queries), text=text)
    return None if any(True for _ in check_publishing(script, lambda query: query)) else script


def _query_at(query: Query, span: Span, name: str | None = None) -> Query:
    """Moves a query to another place, perhaps with a PUBLISH name. Spans inside it stay."""
    return Query(query.source, query.select, name or query.publish, span, query.once, query.hidden)


def _placed(node: _Tree, span: Span, name: str | None = None) -> _Tree:
    """Like `_query_at`. The builder's span excludes parentheses around a query."""
    match node:
        case Query():
            return _query_at(node, span, name)
        case EventQuery():
            return EventQuery(node.stream, node.select, node.within, name or node.publish, span, node.hidden)
    return replace(node, span=span)


def parse_statement(
    script: str, kind: texts.SyntaxKind, span: Span, lines: texts.Lines, *, reuse: bool = False
) -> _Tree:
    """Parses a statement of a script, whose comments are blank. Spans inside a definition are relative to the script;
    others to the statement's own text or, with `reuse`, to another's. Raises Problem, with its place in the script."""
    text = script[span.start : span.end]
    start, end = (span.start, span.end) if kind == "definition" else (0, len(text))
    if reuse and kind != "definition" and (known := _trees_of(kind).query(text)):
        found = _placed(known.tree, span, known.name)
        if isinstance(found, EventQuery):
            made_of(found, known)
        return found
    try:
        parsed = script if kind == "definition" else text
        # With our builders the result is the value of the start rule.
        node: _Tree = parser_of(kind).parse(parsed, start, end, reuse=reuse and kind == "xscl")
    except Unparsable:
        raise explain_syntax_error(text, span.start, lines, kind) from None
    except texts.Problem as problem:
        if reuse and kind == "xscl":  # its place may be in another filter
            return parse_statement(script, kind, span, lines)
        raise problem.moved(span.start - start) from None
    return _placed(node, span)


# A quote after a name is a prime. After a keyword it opens a string, which stays part of the skeleton.
_LITERAL = re.compile(
    r"""(?<![\w.\-'"]) (?: ("(?:[^"\n]|"")*"|'(?:[^'\n]|'')*') | (-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)) )""", re.VERBOSE
)
_EVENT_LITERAL = re.compile(
    r"""(?<![\w.'"$]) (?: ("(?:[^"\n]|"")*"|'(?:[^'\n]|'')*') | ((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)) (?!\s*\]) )""",
    re.VERBOSE,
)


@cache
def _trees_of(kind: texts.SyntaxKind) -> KnownTrees:
    return KnownTrees(_LITERAL if kind == "xscl" else _EVENT_LITERAL, partial(_in_own_place, kind))


def _in_own_place(kind: texts.SyntaxKind, text: str) -> Query | EventQuery | None:
    try:
        node = parser_of(kind).parse(text, 0, len(text))
    except (Unparsable, texts.Problem):
        return None
    if isinstance(node, EventQuery):
        return None if too_deep(node) else node
    return node if isinstance(node, Query) else None


class _AnyName:
    def __contains__(self, name: object) -> bool:
        return bool(name)


def may_lack_events(text: str, errors: texts.XsclErrors) -> bool:
    """Whether a script's mistakes are all reads of missing events, or in statements that read a bare name."""
    clean, statements = texts.split_script(text)
    kinds = texts.kinds_of(clean, statements, _AnyName()) or []
    of_events = [one.span for one, kind in zip(statements, kinds, strict=False) if kind == "event query"]
    return all(
        error.message.startswith(texts.LACKS_EVENTS)
        or any(span.start <= error.span.start <= span.end for span in of_events)
        for error in errors.errors
    )


class _Parser:
    def __init__(self, text: str, events: EventStreams = NO_EVENTS, *, stored: bool = False) -> None:
        self._text, self._lines, self._stored = text, texts.Lines(text), stored
        self._clean, self._statements = texts.split_script(text, stored=stored)
        self._known_events = events
        self._nodes: list[Query | EventDefinition | EventQuery] = []
        self._failed_events: set[str] = set()
        self._short: set[Span] = set()  # of statements that are shorthand for others
        self._problems: list[texts.Problem] = []
        self._declarations: list[Declaration] = []
        self._weights: list[WeightsDeclaration] = []

    def script(self, *, reuse: bool = True) -> Script:
        """With `reuse`, a statement may take the tree of one with other constants. Raises XsclErrors."""
        kinds = texts.kinds_of(self._clean, self._statements, self._known_events)
        for number, statement in enumerate(track_progress("parsing", self._statements)):
            self._take(statement, "xscl" if kinds is None else kinds[number], reuse)
        problems = self._problems + _check_declarations(self._declarations) + _check_weights(self._weights)
        namespaces: dict[str, str] = {}
        for declaration in self._declarations:
            namespaces.setdefault(declaration.prefix, declaration.uri)
        if _XML_PREFIX.search(self._clean):
            namespaces["xml"] = XML_NAMESPACE
        weights = self._weights[0].name if self._weights else None
        script = Script(tuple(self._nodes), tuple(namespaces.items()), weights, self._text)
        problems += check_script(script, self._lines, self.in_place, stored=self._stored)
        if kinds is not None or self._known_events or self._short:
            failed = frozenset(self._failed_events)
            problems += check_events(
                script, self._lines, self.in_place, known=self._known_events, failed=failed, stored=self._stored
            )
        if not self._nodes and not problems:
            hint = "write one, such as FROM S//item"
            problems.append(texts.Problem("there is no query in this script", Span(0, 0), hint))
        if problems and self._defined:
            problems = self._with_variables_of_events(script, problems)
        if problems and reuse and script.has_events:  # their places may be in other queries
            return _Parser(self._text, self._known_events, stored=self._stored).script(reuse=False)
        if problems:
            raise texts.XsclErrors(texts.XsclError(problem, self._lines) for problem in problems)
        if not namespaces and not self._stored:
            if len(_known) + len(script.queries) > _known.most:
                _known.clear()
            for query in (one for one in script.queries[: _known.most] if one.span not in self._short):
                # Not the text with comments blanked: in another text, the blanks could be in a string.
                _known[self._text[query.span.start : query.span.end]] = query
        return script

    def _with_variables_of_events(self, script: Script, problems: list[texts.Problem]) -> list[texts.Problem]:
        """Replaces all problems of a query that binds a variable to an event by one."""
        wrong: dict[int, tuple[Span, texts.Problem]] = {}
        for query in script.queries:
            if not any(block.stream in self._defined for block in blocks(query.source)):
                continue
            start, end = query.span.start, query.span.end
            if better := variable_of_event(self._clean[start:end], start, self._defined):
                wrong[start] = query.span, better
        starts = sorted(wrong)

        def is_other(problem: texts.Problem) -> bool:
            at = bisect_right(starts, problem.span.start)
            return not at or problem.span.start > wrong[starts[at - 1]][0].end

        return [*filter(is_other, problems), *(better for _, better in wrong.values())]

    @cached_property
    def _defined(self) -> Set[str]:
        return self._known_events.defined.keys() | set(_DEFINED.findall(self._clean))

    def _take(self, statement: texts.StatementSpan, kind: texts.SyntaxKind, reuse: bool) -> None:
        span, text = statement.span, self._clean[statement.span.start : statement.span.end]
        if reuse and not statement.problem and (known := _known.get(text)) and kind == "xscl":
            self._nodes.append(_query_at(known, span))
            return
        try:
            if statement.problem:
                raise statement.problem
            if not text:
                hint = "remove it"
                raise texts.Problem("there is no query before this semicolon", Span(span.start, span.start + 1), hint)
            # The text of a hole includes comments, which other statements lack.
            reuse = reuse and ("<" not in text or kind != "xscl" or self._text.startswith(text, span.start))
            node = parse_statement(self._clean, kind, span, self._lines, reuse=reuse)
            if kind == "xscl" and _NAMED_VALUE.search(text):
                node = self._with_values(span, node)
        except texts.Problem as problem:
            better = variable_of_event(text, span.start, self._defined) if kind in ("xscl", "event query") else None
            self._problems.append(better or problem)
            if kind != "xscl" and (named := _DEFINED.match(text) or _PUBLISHED.search(text)):
                self._failed_events.add(named[1])
            # Otherwise its prefix would be reported at each use.
            elif failed := _FAILED_DECLARATION.match(text):
                self._declarations.append(Declaration(failed[1], "?", span))
            return
        if isinstance(node, Declaration | WeightsDeclaration):
            if self._nodes:
                hint = "move it to the beginning of the script"
                self._problems.append(texts.Problem("a declaration comes after a query", span, hint))
            if isinstance(node, Declaration):
                self._declarations.append(node)
            else:
                self._weights.append(node)
        elif isinstance(node, StoryQuery):
            self._take_stories(node)
        else:
            self._nodes.append(self._with_own_holes(node) if isinstance(node, Query) else node)

    def _with_own_holes(self, query: Query) -> Query:
        return _with_hole_texts(query, self._text[query.span.start : query.span.end])

    def _with_values(self, span: Span, node: _Tree) -> _Tree:
        """Replaces names of values in a query. Raises Problem, with its place in the script."""
        try:
            if isinstance(node, StoryQuery):
                return replace(node, pairs=with_values(node.pairs))
            return with_values(self._with_own_holes(node)) if isinstance(node, Query) else node
        except texts.Problem:  # its place may be in another query
            try:
                with_values(self._parsed(span))
            except texts.Problem as problem:
                raise problem from None
            raise

    def _parsed(self, span: Span) -> Query:
        """Parses a query again, for spans in the script."""
        found: Query | StoryQuery = parser_of("xscl").parse(self._clean, span.start, span.end)
        return found.pairs if isinstance(found, StoryQuery) else found

    def _take_stories(self, node: StoryQuery) -> None:
        try:
            self._nodes += statements_of(node)
        except texts.Problem as problem:
            self._problems.append(problem.moved(node.span.start))
            return
        self._short.add(node.span)

    def in_place(self, query: Query) -> Query:
        span = query.span
        if span in self._short:
            found: StoryQuery = parser_of("xscl").parse(self._clean, span.start, span.end)
            return statements_of(replace(found, pairs=with_values(found.pairs)))[0]
        query = _with_hole_texts(_query_at(self._parsed(span), span), self._text)
        return with_values(query) if _NAMED_VALUE.search(self._clean, span.start, span.end) else query


def _with_hole_texts(query: Query, text: str) -> Query:
    select = with_hole_texts(query.select, text)
    return query if select is query.select else replace(query, select=select)


# In SELECT, a comma or FROM follows a name.
_NAMED_VALUE = re.compile(r"\)\s*(?:->|as\s+[^\s\]),]+\s*(?:[\])]|and\b|or\b))", re.IGNORECASE)
_XML_PREFIX = re.compile(r"(?<![\w.\-])xml\s*:")
_DEFINED = re.compile(r"\bdefine\s+event\s+(\w+)", re.IGNORECASE)
_PUBLISHED = re.compile(r"\bpublish\s+(\w+)\s*(?:\bhidden\s*)?$", re.IGNORECASE)
_FAILED_DECLARATION = re.compile(r"declare\s+namespace\s+([\w.\-]+)", re.IGNORECASE)


def _check_weights(declared: list[WeightsDeclaration]) -> list[texts.Problem]:
    problems: list[texts.Problem] = []
    for one in declared:
        if not is_weights_name(one.name):
            hint = 'a table has a name of letters, digits, "-", "_" and ".", such as "general-1"'
            problems.append(texts.Problem("this is not the name of a table of weights", one.span, hint))
        elif one.name != declared[0].name:
            problems.append(texts.Problem("two tables of weights are declared", one.span, "remove one"))
    return problems


def _check_declarations(declarations: list[Declaration]) -> list[texts.Problem]:
    problems: list[texts.Problem] = []
    known = {"xml": XML_NAMESPACE}
    for declaration in declarations:
        prefix, uri = declaration.prefix, declaration.uri
        if known.setdefault(prefix, uri) != uri:
            message = f"the prefix {prefix} is already declared for {known[prefix]}"
            problems.append(texts.Problem(message, declaration.span, "choose another prefix"))
        elif prefix == "xmlns":
            problems.append(texts.Problem("the prefix xmlns is reserved", declaration.span, "choose another prefix"))
        elif uri == "*":
            message = "the namespace * is not a URI"
            problems.append(texts.Problem(message, declaration.span, "write *:name for a name in any namespace"))
        elif not uri:
            hint = "a name without a prefix matches elements in no namespace; remove the declaration"
            problems.append(texts.Problem("the namespace is empty", declaration.span, hint))
    return problems
