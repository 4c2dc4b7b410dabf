"""Parses XSCL scripts: text in, syntax tree or all the errors out."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, UnexpectedInput
from lark.utils import TextSlice

from xscl.advice import explain
from xscl.algebra.expressions import ElementConstructor, Hole, Span
from xscl.builder import Builder, Declaration
from xscl.check import check_script
from xscl.check_publishing import check_publishing
from xscl.problems import Problem, XsclError, XsclErrors
from xscl.skeletons import KnownSkeletons
from xscl.statements import Statement, split_script
from xscl.syntax import Query, Script

XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"


def parse_script(text: str) -> Script:
    """The script that a text says, checked: its queries can be registered as they are.

    The prefix `xml` is known without a declaration; a script that uses it has it among its namespaces.

    Raises:
        XsclErrors: with every mistake in the text: of syntax for each statement, and of meaning for each
            query that is well-formed, in the order of their places.
    """
    return _known_script(text) or _Parser(text).script()


MAX_STATEMENTS = 20_000
"""Most statements whose trees are remembered; past it they are forgotten."""

_SPACE = " \t\r\n"

_known: dict[str, Query] = {}
"""Trees of statements without prefixes that nothing is wrong with, by their text."""
_skeletons = KnownSkeletons()


def _known_script(text: str) -> Script | None:
    """The script if all its statements are known; each is whole by itself, so nothing of one reaches into the next."""
    queries: list[Query] = []
    at = 0
    for piece in text.rstrip(_SPACE).removesuffix(";").split(";\n"):
        statement = piece.strip(_SPACE)  # what else `strip` takes for white space is not allowed in a script
        query = _known.get(statement)
        if query is None:
            return None
        start = at + piece.index(statement)
        queries.append(_placed(query, Span(start, start + len(statement))))
        at += len(piece) + 2
    script = Script(tuple(queries))
    return None if any(True for _ in check_publishing(script)) else script


def _placed(query: Query, span: Span) -> Query:
    """The query at another place; only the places within it are those of the first with its tree."""
    return Query(query.source, query.select, query.publish, span)


class _Parser:
    """Parses one script."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._clean, self._statements = split_script(text)
        self._problems: list[Problem] = []
        self._queries: list[tuple[Statement, Query]] = []
        self._declarations: list[Declaration] = []
        self._unplaced = False

    def script(self, *, reuse: bool = True) -> Script:
        """The script; `reuse` uses the trees of statements known but for their constants. Raises XsclErrors."""
        for statement in self._statements:
            self._take(statement, reuse)
        problems = self._problems + _check_declarations(self._declarations)
        namespaces: dict[str, str] = {}
        for declaration in self._declarations:
            namespaces.setdefault(declaration.prefix, declaration.uri)
        if _XML_PREFIX.search(self._clean):
            namespaces["xml"] = XML_NAMESPACE
        script = Script(tuple(query for _, query in self._queries), tuple(namespaces.items()))
        errors = [XsclError(problem, self._text) for problem in problems] + check_script(script, self._text)
        if errors and self._unplaced:
            return _Parser(self._text).script(reuse=False)
        if not script.queries and not errors:
            nothing = Problem("there is no query in this script", Span(0, 0), "write one, such as FROM S//item")
            errors.append(XsclError(nothing, self._text))
        if errors:
            raise XsclErrors(errors)
        if not namespaces:
            self._remember()
        return script

    def _take(self, statement: Statement, reuse: bool) -> None:
        """Takes in one statement, or what is wrong with it."""
        text = self._clean[statement.span.start : statement.span.end]
        if reuse and not statement.problem:
            known = _known.get(text) or _skeletons.query(text)
            if known:
                self._unplaced = True
                self._queries.append((statement, _placed(known, statement.span)))
                return
        try:
            node = _parse_statement(self._clean, statement)
        except Problem as problem:
            self._problems.append(problem)
            # Its prefix would otherwise be reported again wherever it is used.
            if failed := _FAILED_DECLARATION.match(self._clean, statement.span.start):
                self._declarations.append(Declaration(failed[1], "?", statement.span))
            return
        if isinstance(node, Query):
            if isinstance(node.select, ElementConstructor):
                node = _with_hole_texts(node, self._text)
            else:
                _skeletons.add(text, statement.span.start, node)
            self._queries.append((statement, node))
            return
        if self._queries:
            hint = "move it to the beginning of the script"
            self._problems.append(Problem("a declaration stands behind a query", node.span, hint))
        self._declarations.append(node)

    def _remember(self) -> None:
        if len(_known) + len(self._queries) > MAX_STATEMENTS:
            _known.clear()
        for statement, query in self._queries[:MAX_STATEMENTS]:
            # What a comment was blanked in is not the statement's text, and could be within a string elsewhere.
            _known[self._text[statement.span.start : statement.span.end]] = query


_XML_PREFIX = re.compile(r"(?<![\w.\-])xml\s*:")
_FAILED_DECLARATION = re.compile(r"declare\s+namespace\s+([\w.\-]+)", re.IGNORECASE)


@cache
def _lark() -> Lark:
    grammar = Path(__file__).with_name("xscl.lark").read_text(encoding="utf-8")
    return Lark(
        grammar, parser="lalr", lexer="contextual", start="statement", transformer=Builder(), maybe_placeholders=False
    )


def _parse_statement(clean: str, statement: Statement) -> Query | Declaration:
    """Raises `Problem`."""
    span = statement.span
    if statement.problem:
        raise statement.problem
    if span.start == span.end:
        raise Problem("there is no query before this semicolon", Span(span.start, span.start + 1), "remove it")
    try:
        # What the grammar's start rule reduces to with our builder; lark's types only know trees.
        node: Any = _lark().parse(TextSlice(clean, span.start, span.end))
    except UnexpectedInput as error:
        raise explain(error, clean, span) from None
    # A query's own span leaves out parentheses at its ends.
    result: Query | Declaration = replace(node, span=span)
    return result


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
    """The query with the text between the braces put into each hole of its constructor."""

    def hole(part: str | Hole) -> str | Hole:
        return (
            replace(part, text=text[part.span.start + 1 : part.span.end - 1].strip())
            if isinstance(part, Hole)
            else part
        )

    def element(node: ElementConstructor) -> ElementConstructor:
        attributes = tuple((name, tuple(hole(part) for part in parts)) for name, parts in node.attributes)
        children = tuple(
            element(child) if isinstance(child, ElementConstructor) else hole(child) for child in node.children
        )
        return replace(node, attributes=attributes, children=children)

    assert isinstance(query.select, ElementConstructor)
    return replace(query, select=element(query.select))
