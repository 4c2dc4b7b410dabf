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
from xscl.builder import Builder, Declaration
from xscl.check import check_script
from xscl.errors import Problem, XsclError, XsclErrors
from xscl.script import Statement, split_script
from xscl.syntax import ElementConstructor, Hole, Query, Script, Span

XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"


def parse_script(text: str) -> Script:
    """The script that a text says, checked: its queries can be registered as they are.

    The prefix `xml` is known without a declaration; a script that uses it has it among its namespaces.

    Raises:
        XsclErrors: with every mistake in the text: of syntax for each statement, and of meaning for each
            query that is well-formed, in the order of their places.
    """
    clean, statements = split_script(text)
    problems: list[Problem] = []
    queries: list[Query] = []
    declarations: list[Declaration] = []
    for statement in statements:
        try:
            node = _parse_statement(clean, statement)
        except Problem as problem:
            problems.append(problem)
            # Its prefix would otherwise be reported again wherever it is used.
            if failed := _FAILED_DECLARATION.match(clean, statement.span.start):
                declarations.append(Declaration(failed[1], "?", statement.span))
            continue
        if isinstance(node, Query):
            queries.append(_with_hole_texts(node, text) if isinstance(node.select, ElementConstructor) else node)
        else:
            if queries:
                hint = "move it to the beginning of the script"
                problems.append(Problem("a declaration stands behind a query", node.span, hint))
            declarations.append(node)
    problems += _check_declarations(declarations)
    namespaces: dict[str, str] = {}
    for declaration in declarations:
        namespaces.setdefault(declaration.prefix, declaration.uri)
    if _XML_PREFIX.search(clean):
        namespaces["xml"] = XML_NAMESPACE
    script = Script(tuple(queries), tuple(namespaces.items()))
    errors = [XsclError(problem, text) for problem in problems] + check_script(script, text)
    if not queries and not errors:
        nothing = Problem("there is no query in this script", Span(0, 0), "write one, such as FROM S//item")
        errors.append(XsclError(nothing, text))
    if errors:
        raise XsclErrors(errors)
    return script


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
