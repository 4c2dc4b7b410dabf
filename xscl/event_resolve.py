"""Resolves event queries: what stands in the syntax tree becomes operators of the algebra, with the schemas of their
events, or problems."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from difflib import get_close_matches

from xscl.algebra.events import (
    ALWAYS,
    Aggregate,
    Aggregated,
    AggregateName,
    Attribute,
    Condition,
    Events,
    Part,
    Schema,
    Stream,
    Union,
    Value,
)
from xscl.algebra.expressions import Span
from xscl.event_constants import kind_of
from xscl.event_expressions import EventCall, EventExpr, StreamName
from xscl.event_forms import MAX_CLAUSES, bounded, clauses_of, filter_of, fold_of, in_order, next_of, select_of, unequal
from xscl.event_syntax import (
    AllAttributes,
    EventStream,
    Filtered,
    Grouped,
    Inner,
    Iteration,
    Named,
    Sequence,
    Together,
)
from xscl.event_values import AGGREGATES, Expressions, Scope
from xscl.problems import LACKS_EVENTS
from xscl.syntax import Window

MAX_ATTRIBUTES = 100
"""How many attributes an event may have."""

MAX_INPUTS = 50
"""How many streams a query may read."""

Schemas = Mapping[str, Schema | None]
"""The attributes of event streams. None if its statement has mistakes of its own."""


class Resolver(Expressions):
    """Resolves one query, and counts its `inputs`."""

    def __init__(self, schemas: Schemas, documents: Ordered[str]) -> None:
        super().__init__()
        self._schemas, self._documents = schemas, documents
        self.inputs = 0

    def query(
        self, select: tuple[Named | AllAttributes, ...] | None, source: EventStream, within: Window | None
    ) -> Stream | None:
        """A SELECT over a stream."""
        stream = self.stream(source)
        if stream is None:
            return None
        if within is not None:
            stream = bounded(stream, within.us, all_inside=True)
        return stream if select is None else self._select(select, stream)

    # ------------------------------------------------------------ streams

    def stream(self, node: EventStream) -> Stream | None:
        """The events of a part of the tree, or None if something is wrong with it."""
        match node:
            case StreamName():
                return self.named(node)
            case Inner():
                return self.query(node.select, node.stream, node.within)
            case Filtered():
                return self.filter(node)
            case Grouped():
                return self._aggregate(node)
        left, right = self.stream(node.left), self.stream(node.right)
        if left is None or right is None:
            return None
        match node:
            case Sequence():
                return self._next(node, left, right)
            case Iteration():
                return self._fold(node, left, right)
            case Together():
                return self._union(node, left, right)

    def named(self, node: StreamName) -> Events | None:
        """The events of a name, or None if there are none."""
        self.inputs += 1
        name = node.name
        if name in self._schemas:
            schema = self._schemas[name]
            return None if schema is None else Events(name, schema)
        close = get_close_matches(name, self._schemas, n=1)
        if name in self._documents:
            message = f"{name} is a stream of documents, not of events"
            hint = f"write DEFINE EVENT and a name, FROM {name}/match->m (x := m/x)"
        else:
            message = f"{LACKS_EVENTS}{name}"
            example = f"define them: DEFINE EVENT {name} FROM S//item->i (title := i/title)"
            hint = f"did you mean {close[0]}?" if close else example
        self.problem(message, node.span, hint)
        return None

    def filter(self, node: Filtered) -> Stream | None:
        """The events of a FILTER, or None if something is wrong with it."""
        source = self.stream(node.source)
        if source is None:
            return None
        condition = self.tested(node.condition, Scope("FILTER", source.schema))
        return None if condition is None else filter_of(source, condition)

    def _next(self, node: Sequence, left: Stream, right: Stream) -> Stream | None:
        condition = self.tested(node.condition, Scope("NEXT", left.schema, right.schema))
        clash = {name for name, _ in left.schema} & {name for name, _ in right.schema}
        names: list[tuple[Part, str]] = [("left", name) for name, _ in left.schema]
        names += [("right", name) for name, _ in right.schema]
        schema = tuple((f"{name}_1" if clash else name, kind) for name, kind in left.schema) + right.schema
        if not self.is_schema(schema, "NEXT", node.span) or condition is None:
            return None
        return next_of(left, right, condition, tuple(names), schema)

    def _fold(self, node: Iteration, left: Stream, right: Stream) -> Stream | None:
        first, latest = dict(left.schema), dict(right.schema)
        missing = [name for name in latest if name not in first]
        if missing:
            hint = f"SELECT them on the right, or give the left side {missing[0]}, too"
            self.problem(f"FOLD's left side has no {', '.join(missing[:5])}, which its right side has", node.span, hint)
        for name in latest:
            if name in first and first[name] != latest[name]:
                message = f"{name} is a {first[name]} on the left side of FOLD, and a {latest[name]} on its right"
                self.problem(message, node.span, 'make them one kind in a SELECT: number(...), or concat(..., "")')
        changes = frozenset(latest) | {item.name for item in node.sets}
        scope = Scope("FOLD", left.schema, right.schema, changes)
        chooses, continues = self.tested(node.chooses, scope), self.tested(node.continues, scope)
        sets = self._sets(node, scope, first)
        names: list[tuple[Part, str]] = [("left", name) for name in first]
        names += [("latest", name) for name in first if name in changes]
        schema = tuple((f"{name}_1" if name in changes else name, kind) for name, kind in left.schema)
        schema += tuple((name, kind) for name, kind in left.schema if name in changes)
        if missing or not self.is_schema(schema, "FOLD", node.span) or chooses is None or continues is None:
            return None
        return fold_of(left, right, chooses, continues, sets, tuple(names), schema)

    def _sets(self, node: Iteration, scope: Scope, first: Mapping[str, str]) -> tuple[tuple[str, Value], ...]:
        """What FOLD sets in each step."""
        found: dict[str, Value] = {}
        for item in node.sets:
            if not self.has_new_name(item, found):
                continue
            value = self.value(item.expr, scope) if item.name in first else None
            if item.name not in first:
                hint = f"give it a first value on the left: (SELECT *, 0 AS {item.name} FROM ...) FOLD"
                self.problem(f"FOLD's left side has no {item.name}", item.span, hint)
            elif value is not None and kind_of(value) != first[item.name]:
                message = f"{item.name} is a {first[item.name]} on the left, and FOLD gives it a {kind_of(value)}"
                self.problem(message, item.span, "make them one kind")
            if value is not None:
                found[item.name] = value
        return tuple(found.items())

    def _union(self, node: Together, left: Stream, right: Stream) -> Stream | None:
        if problem := unequal(left.schema, right.schema):
            self.problem(f"UNION of unequal attributes: {problem}", node.span, "SELECT the same ones on both sides")
            return None
        return Union(left, in_order(right, left.schema))

    def _aggregate(self, node: Grouped) -> Stream | None:
        source = self.stream(node.source)
        if source is None:
            return None
        inside, kinds = Scope("AGGREGATE", source.schema), dict(source.schema)
        by: dict[str, None] = {}
        for reference in node.by:
            if self.value(reference, inside) is None:
                continue
            if reference.name in by:
                self.problem(f"{reference.name} is twice in BY", reference.span, "remove one of them")
            by[reference.name] = None
        over = None if node.over is None else node.over.us
        if node.over is not None and not over:
            told = "has no end" if over is None else "has the length 0"
            self.problem(f"the window of OVER {told}", node.over.span, "write one such as 30 d")
        groups = tuple((name, kinds[name]) for name in by)
        found: dict[Aggregated, tuple[str, Value]] = {}

        def grouped(call: EventCall) -> Value | None:
            """Stands for an aggregate where it is an operand."""
            args = [self.value(arg, inside) for arg in call.args]
            if not self.counted(call, *AGGREGATES[call.name]) or None in args:
                return None
            values = tuple(value for value in args if value is not None)
            name: AggregateName = call.name  # type: ignore[assignment]  # AGGREGATES has no others
            aggregated = Aggregated(name, values)
            kind = kind_of(values[0]) if name == "argmax" else "number"
            # No attribute has a name with a sign in it.
            return found.setdefault(aggregated, (f"#{len(found)}", Attribute("left", f"#{len(found)}", kind)))[1]

        scope = Scope("AGGREGATE", groups, grouped=grouped, source=source.schema)
        items: dict[str, Value] = {name: Attribute("left", name, kind) for name, kind in groups}
        for item in node.items:
            value = self.value(item.expr, scope)
            if self.has_new_name(item, items) and value is not None:
                items[item.name] = value
        schema = tuple((name, kind_of(value)) for name, value in items.items())
        if not self.is_schema(schema, "AGGREGATE", node.span) or self.problems:
            return None
        return _grouped(source, groups, found, items, over, schema)

    # ------------------------------------------------------------ SELECT

    def _select(self, select: tuple[Named | AllAttributes, ...], source: Stream) -> Stream | None:
        scope, before = Scope("SELECT", source.schema), len(self.problems)
        items: dict[str, Value] = {}
        for item in select:
            if isinstance(item, AllAttributes):
                for name, kind in source.schema:
                    if name in items:
                        self.problem(f"* has {name}, too", item.span, "give the other one another name with AS")
                    items[name] = Attribute("left", name, kind)
                continue
            value = self.value(item.expr, scope)
            if self.has_new_name(item, items) and value is not None:
                items[item.name] = value
        schema = tuple((name, kind_of(value)) for name, value in items.items())
        if not self.is_schema(schema, "SELECT", select[0].span) or len(self.problems) > before:
            return None
        return select_of(source, tuple(items.items()), schema)

    def has_new_name(self, item: Named, taken: Mapping[str, object]) -> bool:
        """Whether an item has a name that no other one has."""
        if not item.name:
            self.problem("this value needs a name", item.span, "write AS and a name behind it")
        elif item.name in taken:
            span = Span(item.span.end - len(item.name), item.span.end)
            self.problem(f"two attributes are named {item.name}", span, "give one another name with AS")
        else:
            return True
        return False

    # ------------------------------------------------------------ conditions and schemas

    def tested(self, expr: EventExpr | None, scope: Scope) -> Condition | None:
        """A condition that is not too large; one that is left out holds."""
        if expr is None:
            return ALWAYS
        condition = self.condition(expr, scope)
        if condition is not None and clauses_of(condition) > MAX_CLAUSES:
            message = f"this condition has more than {MAX_CLAUSES} clauses in disjunctive normal form"
            self.problem(message, expr.span, "write it as a UNION of FILTERs, or with fewer ORs")
            return None
        return condition

    def is_schema(self, schema: Schema, operator: str, span: Span) -> bool:
        """Whether an operator can give events these attributes."""
        names = [name for name, _ in schema]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            hint = f"rename one of them before, as in (SELECT {twice} AS a FROM ...)"
            self.problem(f"{operator} gives two attributes the name {twice}", span, hint)
        elif len(names) > MAX_ATTRIBUTES:
            self.problem(f"more than {MAX_ATTRIBUTES} attributes", span, "SELECT those that are needed")
        return twice is None and len(names) <= MAX_ATTRIBUTES


def _grouped(
    source: Stream,
    groups: Schema,
    found: Mapping[Aggregated, tuple[str, Value]],
    items: Mapping[str, Value],
    over: int | None,
    schema: Schema,
) -> Stream:
    """AGGREGATE, with a SELECT above it if there is more than aggregates by themselves."""
    alone = {value: name for name, value in items.items() if name not in dict(groups)}
    if list(alone) == [value for _, value in found.values()]:  # each item is an aggregate, and each another one
        names = {name: alone[value] for name, value in found.values()}
    else:
        names = {name: name for name, _ in found.values()}
    own = tuple((names[name], aggregated) for aggregated, (name, _) in found.items())
    below = groups + tuple((names[name], kind_of(value)) for name, value in found.values())
    aggregate = Aggregate(source, own, tuple(name for name, _ in groups), over, below)
    return aggregate if below == schema else select_of(aggregate, tuple(items.items()), schema)
