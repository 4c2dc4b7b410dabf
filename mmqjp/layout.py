"""Lays out explanations as plain text: wrapped lines, columns, trees of patterns, queries over several lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from xscl import Query, Script, to_xscl
from xscl.pattern import PatternNode
from xscl.syntax import Input, Join

WIDTH = 100


def indented(lines: Iterable[str], indent: int) -> Iterator[str]:
    """The lines further in; empty ones stay empty."""
    return (" " * indent + line if line else "" for line in lines)


def wrapped(text: str, indent: int) -> list[str]:
    """The text as lines of at most WIDTH columns where it has blanks to break at, those after the first further in."""
    own = len(text) - len(text.lstrip())
    return textwrap.wrap(
        text.strip(),
        WIDTH,
        initial_indent=" " * (indent + own),
        subsequent_indent=" " * (indent + own + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def tree(pattern: PatternNode) -> Iterator[str]:
    """A pattern as a tree, a node a line."""
    yield str(replace(pattern, children=()))
    for place, child in enumerate(pattern.children, 1):
        last = place == len(pattern.children)
        first, *rest = tree(child)
        yield ("└─ " if last else "├─ ") + first
        yield from (("   " if last else "│  ") + line for line in rest)


def query_lines(script: Script, indent: int) -> Iterator[str]:
    """A script's canonical text with a line for each clause; it can be read as a query again."""
    declarations = Script((), script.namespaces)
    if script.namespaces:
        yield from wrapped(f"{to_xscl(declarations)};", indent)
    for query in script.queries:
        yield from _query(query, indent)


def _query(query: Query, indent: int) -> Iterator[str]:
    if query.select is not None:
        yield from indented([f"SELECT {to_xscl(query.select)}"], indent)
    first, *rest = _input(query.source)
    yield from indented([f"FROM {first}", *rest], indent)
    if query.publish is not None:
        yield from indented([f"PUBLISH {query.publish}"], indent)


def _input(source: Input) -> Iterator[str]:
    """A join as its left input, its operator, its right input; anything else on one line."""
    if not isinstance(source, Join):
        yield to_xscl(source)
        return
    yield from _input(source.left)
    yield f"  {source.op} {{{to_xscl(source.pred)}, {to_xscl(source.window)}}}"
    right = to_xscl(source.right)
    yield f"  ({right})" if isinstance(source.right, Join) else f"  {right}"
