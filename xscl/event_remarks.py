"""Remarks on correct event queries that may not mean what they seem to: texts compared as numbers, state without end.

Each has its place in the text of the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xscl.algebra.comparisons import ORDERS
from xscl.algebra.events import Condition, Constant, Fold, Next, Schema, Select, Stream, Value
from xscl.algebra.expressions import Span
from xscl.event_constants import kind_of
from xscl.event_expressions import Both, EventCompare, EventExpr, Reference
from xscl.event_forms import is_bounded
from xscl.event_resolve import Resolver
from xscl.event_syntax import EventQuery, EventStream, Filtered, Grouped, Inner, Iteration, Sequence, Together
from xscl.event_values import Scope
from xscl.pattern_resolve import PatternResolver
from xscl.pattern_syntax import Sequenced
from xscl.problems import Problem
from xscl.syntax import Window

_FOREVER = "what waits here is kept for ever"
_NUMBER_HINT = "make it a number where the event is defined, with number(...)"


def remarks(query: EventQuery, schemas: Mapping[str, Schema]) -> list[Problem]:
    """The remarks on a query that `xscl.event_check` found no fault with, in the order of their places."""
    body = query.stream
    if isinstance(body, Sequenced):
        of_pattern = _PatternRemarking(schemas)
        of_pattern.pattern(query, body)
        found, place = of_pattern.remarks, None
        if query.within is not None and query.within.us is None:
            place, hint = query.within.span, "write a window, such as WITHIN 30 d"
    else:
        remarking = _Remarking(schemas)
        remarking.query(query.select, body, query.within)
        found, place = remarking.remarks, _without_end(query, body, schemas)
        hint = "write WITHIN and a window at the end of the query, such as WITHIN 30 d"
    if place is not None:
        found.append(Problem(f"{_FOREVER}: nothing says how long a result may take", place, hint))
    # A part of the tree may have been resolved more than once.
    distinct = {(problem.span.start, problem.span.end, problem.message): problem for problem in found}
    return [problem for _, problem in sorted(distinct.items())]


class _TextRemarks(Resolver):
    """Collects `remarks` on comparisons on the way."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        super().__init__(schemas, ())
        self.remarks: list[Problem] = []

    def comparison(self, expr: EventCompare, scope: Scope, negated: bool) -> Condition | None:
        """A comparison: texts count as numbers in all but = and !=, and beside a number."""
        left, right = self.value(expr.left, scope), self.value(expr.right, scope)
        if left is not None and right is not None:
            self._texts(expr, left, right)
        return super().comparison(expr, scope, negated)

    def _texts(self, expr: EventCompare, left: Value, right: Value) -> None:
        texts = [
            one for one, value in ((expr.left, left), (expr.right, right))
            if kind_of(value) == "string" and not isinstance(value, Constant)
        ]  # fmt: skip
        if len(texts) == 2 and expr.op in ORDERS:
            message = f"{expr.op} compares numbers, and both of these are texts: it holds for texts that are numbers"
            self.remarks.append(
                Problem(message, expr.span, f"{_NUMBER_HINT}; DUR and GAP say how far apart events are")
            )
        elif len(texts) == 1 and (expr.op in ORDERS or "number" in (kind_of(left), kind_of(right))):
            message = "a text is compared with a number: this never holds for a text that is none"
            self.remarks.append(Problem(message, texts[0].span, _NUMBER_HINT))


class _PatternRemarking(_TextRemarks, PatternResolver):
    """Resolves a pattern again."""


class _Remarking(_TextRemarks):
    """Resolves a query again."""

    def query(self, select: object, source: EventStream, within: Window | None) -> Stream | None:
        """A SELECT over a stream. WITHIN has a meaning for NEXT and FOLD only."""
        if within is not None and within.us is not None and not any(_joins(source)):
            hint = "remove it; OVER in the braces of AGGREGATE says how far back it looks"
            self.remarks.append(Problem("WITHIN changes nothing without NEXT or FOLD", within.span, hint))
        return super().query(select, source, within)  # type: ignore[arg-type]  # the items, which are passed on

    def filter(self, node: Filtered) -> Stream | None:
        """A FILTER: behind a NEXT without a condition it looks at the first event only, whichever it is."""
        join = node.source
        if isinstance(join, Sequence) and join.condition is None:
            left, right = Resolver.stream(self, join.left), Resolver.stream(self, join.right)
            if left is not None and right is not None:
                self._behind_next(node.condition, left.schema, right.schema)
        return super().filter(node)

    def _behind_next(self, condition: EventExpr, left: Schema, right: Schema) -> None:
        names = {name for name, _ in right}
        clash = any(name in names for name, _ in left)
        before = {f"{name}_1" if clash else name for name, _ in left}
        for atom in condition.args if isinstance(condition, Both) else (condition,):
            match atom:
                case EventCompare(op="=", left=Reference(name=one), right=Reference(name=other)) if {
                    one,
                    other,
                } & before and {one, other} & names:
                    message = "NEXT has taken the first event of all before this is tested"
                    hint = "write it in the braces of NEXT for the first event for which it holds"
                    self.remarks.append(Problem(message, atom.span, hint))


def _joins(stream: EventStream) -> Iterator[EventStream]:
    """The NEXT and FOLD of a stream."""
    waiting = [stream]
    while waiting:
        node = waiting.pop()
        match node:
            case Inner():
                waiting.append(node.stream)
            case Filtered() | Grouped():
                waiting.append(node.source)
            case Sequence() | Iteration() | Together():
                if not isinstance(node, Together):
                    yield node
                waiting += node.left, node.right


def _without_end(query: EventQuery, node: EventStream, schemas: Mapping[str, Schema]) -> Span | None:
    """The place of the outermost NEXT or FOLD whose state has no end, of the whole query."""
    stream = Resolver(schemas, ()).query(query.select, node, query.within)
    if stream is None or is_bounded(stream):
        return None
    while True:
        match node:
            case Inner():
                node = node.stream
            case Filtered() | Grouped():
                node = node.source
            case Together():
                left = Resolver(schemas, ()).stream(node.left)
                node = node.right if left is not None and is_bounded(left) else node.left
            case Sequence() | Iteration():
                if _is_endless(Resolver(schemas, ()).stream(node)):
                    return node.span
                left = Resolver(schemas, ()).stream(node.left)
                node = node.right if left is not None and is_bounded(left) else node.left
            case _:
                return node.span


def _is_endless(stream: Stream | None) -> bool:
    """Whether NEXT or FOLD, perhaps below a SELECT, has no window."""
    while isinstance(stream, Select):
        stream = stream.source
    return isinstance(stream, Next | Fold) and stream.within is None
