"""Lays out explanations as plain text: wrapped lines, columns, trees, queries over several lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mmqjp.queries.event_compile import is_bare
from xscl import Query, Script, XsclErrors, parse_script, to_xscl
from xscl.algebra.expressions import And, Or
from xscl.algebra.pattern import PatternNode
from xscl.syntax import Input, Join

WIDTH = 100

_TIE = "\u00a0"
_TIED = re.compile(r"(?<!,) (?!AND )")


def indented(lines: Iterable[str], indent: int) -> Iterator[str]:
    """Indents lines. Empty ones stay empty."""
    return (" " * indent + line if line else "" for line in lines)


def wrapped(text: str, indent: int) -> list[str]:
    """Wraps text at blanks, to at most WIDTH columns. Continuation lines are indented further."""
    own = len(text) - len(text.lstrip())
    return textwrap.wrap(
        text.strip(),
        WIDTH,
        initial_indent=" " * (indent + own),
        subsequent_indent=" " * (indent + own + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrapped_sql(line: str, indent: int) -> list[str]:
    """Wraps a line of SQL after commas and before AND only."""
    tied = _TIED.sub(_TIE, line.lstrip())
    own = len(line) - len(line.lstrip())
    return [part.replace(_TIE, " ") for part in wrapped(" " * own + tied, indent)]


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields rows in columns that are as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def tree(pattern: PatternNode) -> Iterator[str]:
    """Yields a pattern as a tree, one node per line."""
    yield str(replace(pattern, children=()))
    for place, child in enumerate(pattern.children, 1):
        last = place == len(pattern.children)
        first, *rest = tree(child)
        yield ("└─ " if last else "├─ ") + first
        yield from (("   " if last else "│  ") + line for line in rest)


def query_lines(script: Script, indent: int) -> Iterator[str]:
    """Yields a script's canonical text with one line per clause. The result can be parsed again."""
    declarations = Script((), script.namespaces)
    if script.namespaces:
        yield from wrapped(f"{to_xscl(declarations)};", indent)
    for query in script.queries:
        yield from _query(query, indent)


def text_lines(text: str, indent: int) -> Iterator[str]:
    """Yields the text of a stored query with one line per clause; that of an event query, which others complete, as it
    is."""
    try:
        script = Script(()) if is_bare(text) else parse_script(text, stored=True)
    except XsclErrors:
        script = Script(())
    if not script.queries:
        yield from wrapped(text, indent)
    else:
        yield from query_lines(script, indent)


def _query(query: Query, indent: int) -> Iterator[str]:
    if query.select is not None:
        yield from indented([f"SELECT {to_xscl(query.select)}"], indent)
    first, *rest = _input(query.source)
    yield from indented([f"FROM {first}", *rest], indent)
    if query.publish is not None:
        once = [] if query.once is None else [to_xscl(query.once)]
        yield from indented([f"PUBLISH {query.publish}", *once], indent)


def _input(source: Input) -> Iterator[str]:
    """Yields a join as its left input, its operator and its right input; anything else as one line."""
    if not isinstance(source, Join):
        yield to_xscl(source)
        return
    yield from _input(source.left)
    yield from _operator(source)
    right = to_xscl(source.right)
    yield f"  ({right})" if isinstance(source.right, Join) else f"  {right}"


def _operator(join: Join) -> Iterator[str]:
    """Yields a join's operator with predicate and window: on one line, or with a line per arm of the predicate."""
    line = f"  {join.op} {{{to_xscl(join.pred)}, {to_xscl(join.window)}}}"
    if len(line) <= WIDTH // 5 * 4 or not isinstance(join.pred, And | Or):
        yield line
        return
    word = "and" if isinstance(join.pred, And) else "or"
    arms = [f"({to_xscl(arm)})" if isinstance(arm, And | Or) else to_xscl(arm) for arm in join.pred.args]
    yield f"  {join.op} {{{arms[0]}"
    yield from (f"    {word} {arm}" for arm in arms[1:-1])
    yield f"    {word} {arms[-1]}, {to_xscl(join.window)}}}"
