"""Checks and lowers event statements: a DEFINE EVENT to a tree pattern, and queries to the event algebra, with caching.

A definition's block is one pattern. An attribute with IN adds a branch that every match has; one with := adds none,
since the node is optional. Queries that differ only in constants and PUBLISH name share a skeleton (their text without
these; a number's sign is part of it), which is parsed once. They are also lowered once, unless the result depends on
the constants (by folding, window bounds, or merging of equal conditions): streams are resolved for two sets of probe
constants, and if filling the first with the second's constants gives the second, it becomes a template. A template
serves queries whose constants differ where equal ones would be merged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from graphlib import TopologicalSorter
from operator import itemgetter
from typing import Any

from common.bounds import UNITS
from common.tools import ClearedCache
from xscl.algebra import events as algebra
from xscl.algebra.events import Schema, value_kind
from xscl.algebra.joins import attach_branch, block_root, constant_operand_text, path_end
from xscl.algebra.values import (
    NOWHERE,
    ORDERS,
    PARTS,
    Call,
    Expr,
    Span,
    VarPath,
    derivation,
    is_number,
    parts_text,
    with_literal,
    xpath_number,
)
from xscl.builder import unquoted
from xscl.check import InPlace, find_cycles, query_problems
from xscl.check_expressions import blocks, name_span, of_several, paths_of
from xscl.event_forms import RESERVED, parts_of_kind, reorder_attributes, too_deep, unequal
from xscl.event_patterns import PatternResolver
from xscl.event_resolve import MAX_ATTRIBUTES, MAX_INPUTS, MOST_DIGITS, Resolver, Schemas
from xscl.lower import PatternBuilder, concat_parts
from xscl.skeletons import Fill, KnownTree, Skeleton, rebuilt
from xscl.syntax import NO_EVENTS, EventDefinition, EventQuery, EventStreams, Query, Script, Sequenced, names_read
from xscl.text import EVENT_NAME, Lines, Problem, window_us


def schemas_of(script: Script, known: EventStreams = NO_EVENTS) -> dict[str, Schema]:
    schemas, _ = _Checker(script, known, frozenset()).streams()
    return {name: schema for name, schema in schemas.items() if schema is not None}


def check_events(
    script: Script, lines: Lines, in_place: InPlace, *, known: EventStreams, failed: frozenset[str], stored: bool
) -> Iterator[Problem]:
    """Finds the problems of event statements, and of queries that read their streams, except for cycles. `known` are
    external streams that the script can read, and `failed` those of statements with syntax errors."""
    checker = _Checker(script, known, failed)
    prefixes = {prefix for prefix, _ in script.namespaces} | {"xml"}
    seen: dict[str, EventDefinition] = {}
    for definition in script.definitions:
        yield from _definition(definition, lines, prefixes, stored)
        span = name_span(definition, lines.text)
        if definition.name in seen:
            line, column = lines.place(name_span(seen[definition.name], lines.text).start)
            message = f"the event {definition.name} is already defined at {line}:{column}"
            yield Problem(message, span, "choose another name, or make the two one with UNION")
        seen.setdefault(definition.name, definition)
    yield from checker.publishers(in_place)
    yield from checker.documents(in_place)
    _, problems = checker.streams()
    yield from problems


def _definition(definition: EventDefinition, lines: Lines, prefixes: set[str], stored: bool) -> Iterator[Problem]:
    yield from _name(definition.name, name_span(definition, lines.text), "an event")
    attributes = definition.attributes
    if len(attributes) > MAX_ATTRIBUTES:
        span = attributes[MAX_ATTRIBUTES].span
        yield Problem(f"more than {MAX_ATTRIBUTES} attributes", span, "define two events, with fewer each")
        return
    taken: set[str] = set()
    for attribute in attributes:
        span = Span(attribute.span.start, attribute.span.start + len(attribute.name))
        yield from _name(attribute.name, span, "an attribute")
        if attribute.name in taken:
            yield Problem(f"two attributes are named {attribute.name}", span, "give one another name")
        taken.add(attribute.name)
        if attribute.each and not (isinstance(attribute.operand, VarPath) and attribute.operand.steps):
            hint = "write a path on a variable, as in IN i/category; a function of it in a SELECT over the events"
            yield Problem("IN takes a path", attribute.operand.span, hint)
        if (several := of_several(attribute.operand)) is not None:
            hint = "SELECT it in a query, and define events from what that PUBLISHes"
            yield Problem(f"an attribute has one value, and {several.name}() has several", several.span, hint)
    for problem in query_problems(definition.as_query(), lines, prefixes, stored=stored):
        yield Problem(problem.message.replace("in SELECT", "in a definition"), problem.span, problem.hint)


def _name(name: str, span: Span, what: str) -> Iterator[Problem]:
    if not EVENT_NAME.fullmatch(name):
        yield Problem(f"{name} cannot be the name of {what}", span, "use the letters A to Z, digits and _")
    elif name.lower() in RESERVED:
        yield Problem(f"{name} is a keyword of event statements", span, "choose another name")


class _Checker:
    def __init__(self, script: Script, known: EventStreams, failed: frozenset[str]) -> None:
        self._script, self._failed = script, failed
        self._defined = {definition.name: schema_of(definition) for definition in script.definitions}
        self._all_defined = {*known.defined, *self._defined}
        self._published: dict[str, list[EventQuery]] = {}
        for query in script.event_queries:
            if query.publish is not None:
                self._published.setdefault(query.publish, []).append(query)
        self._known: dict[str, Schema] = {**known.published, **known.defined}
        self._from_documents = sorted({query.publish for query in script.queries if query.publish is not None})

    def publishers(self, in_place: InPlace) -> Iterator[Problem]:
        for query in self._script.all_queries:
            name = query.publish
            if name in self._all_defined:
                message, hint = f"{name} is the name of a defined event", "PUBLISH under another name"
            elif name in self._published and isinstance(query, Query):
                message = f"event statements PUBLISH {name}, too"
                hint = "all that PUBLISH a name read documents, or all read events"
            else:
                continue
            yield Problem(message, name_span(in_place(query) if isinstance(query, Query) else query), hint)

    def documents(self, in_place: InPlace) -> Iterator[Problem]:
        read = [definition.block for definition in self._script.definitions]
        for query in self._script.queries:
            if any(block.stream in self._all_defined for block in blocks(query.source)):
                read += blocks(in_place(query).source)
        for block in read:
            if block.stream in self._all_defined:
                hint = "a path reads documents; name what the event is defined from, or the event alone"
                yield Problem(f"{block.stream} is a defined event, no stream of documents", block.span, hint)

    def streams(self) -> tuple[dict[str, Schema | None], list[Problem]]:
        self._problems = list[Problem]()
        self._schemas: dict[str, Schema | None] = {**self._known, **dict.fromkeys(self._failed), **self._defined}
        self._schemas.update(dict.fromkeys(self._published))
        for name in self._order():
            self._schemas[name] = self._schema(self._published[name])
        for query in self._script.event_queries:
            if query.publish is None:
                self._resolved(query)
        return self._schemas, self._problems

    def _order(self) -> Iterator[str]:
        """The names that event queries PUBLISH, in topological order, except those in cycles."""
        edges = {
            name: {read.name for query in queries for read in names_read(query.stream)} & self._published.keys()
            for name, queries in self._published.items()
        }
        in_cycles = {name for cycle in find_cycles(edges) for name in cycle}
        known = {name: reads - in_cycles for name, reads in edges.items() if name not in in_cycles}
        return iter(TopologicalSorter(known).static_order())

    def _schema(self, queries: list[EventQuery]) -> Schema | None:
        first: Schema | None = None
        for query in queries:
            schema = self._resolved(query)
            if first is not None and schema is not None and first != schema:
                difference = unequal(first, schema) or "their order"
                message = f"{query.publish} has other attributes here than in the statement before: {difference}"
                hint = "SELECT the same ones in the same order, or PUBLISH under another name"
                self._problems.append(Problem(message, name_span(query), hint))
            first = first or schema
        return first

    def _resolved(self, query: EventQuery) -> Schema | None:
        stream, found = resolve_known(query, self._schemas, self._from_documents)
        self._problems += [problem.moved(query.span.start) for problem in found]
        return None if stream is None else stream.schema


def resolve_event_query(
    query: EventQuery, schemas: Schemas, documents: Sequence[str] = ()
) -> tuple[algebra.Statement | None, list[Problem]]:
    """Returns a query's stream, and its problems in its own text. `documents` are document streams, for hints."""
    if problem := too_deep(query):
        return None, [problem]
    if isinstance(query.stream, Sequenced):
        patterns = PatternResolver(schemas, documents)
        return patterns.pattern(query, query.stream), patterns.problems
    resolver = Resolver(schemas, documents)
    stream = resolver.query(query.select, query.stream, query.within)
    if resolver.inputs > MAX_INPUTS:
        message = f"more than {MAX_INPUTS} inputs in one query"
        resolver.problem(message, query.stream.span, "PUBLISH a part of it, and read that stream")
    return (None if resolver.problems else stream), resolver.problems


MOST_KNOWN = 20_000  # maximum number of cached results

_known = ClearedCache[int, tuple[EventQuery, tuple[tuple[str, Schema | None], ...], algebra.Statement]](MOST_KNOWN)
"""Streams by the identity of the query, with the schemas that they depend on, since a query is resolved when it is
checked and again when it is lowered."""


def lower_definition(definition: EventDefinition, namespaces: Mapping[str, str]) -> algebra.EventPattern:
    """Lowers a checked definition to its pattern. `namespaces` are the URIs of prefixes."""
    build = PatternBuilder(namespaces)
    block = definition.block
    root = block.steps[-1].var or block_root(0)
    pattern = build.path(block.steps, last_var=root)
    variables = [root]
    ends: list[str] = []
    attributes: list[algebra.EventAttribute] = []
    for number, (attribute, (_, kind)) in enumerate(zip(definition.attributes, schema_of(definition), strict=True), 1):
        constant = constant_operand_text(attribute.operand)
        if constant is not None:
            attributes.append(algebra.EventAttribute(attribute.name, kind, None, constant=constant))
            continue
        functions, operand = _functions(attribute.operand, build)
        variables.append(operand.var)
        if attribute.each:
            end = path_end(number)
            pattern = attach_branch(pattern, operand.var, build.path(operand.steps, last_var=end))
            ends.append(end)
            attributes.append(algebra.EventAttribute(attribute.name, kind, end))
        else:
            path = build.path(operand.steps, last_var=algebra.ATTRIBUTE_END) if operand.steps else None
            attributes.append(algebra.EventAttribute(attribute.name, kind, operand.var, path, functions))
    return algebra.EventPattern(block.stream, pattern, tuple(dict.fromkeys((*variables, *ends))), tuple(attributes))


def _functions(operand: Expr, build: PatternBuilder) -> tuple[tuple[str, ...], VarPath]:
    if isinstance(operand, VarPath):
        return (), operand
    assert isinstance(operand, Call), "an attribute is a path, perhaps in functions"
    if operand.name == "concat":
        parts = parts_text(concat_parts(operand.args, build.part))
        return (with_literal(PARTS, parts),), VarPath(next(paths_of(operand)).var)
    name = derivation(operand)
    assert name is not None, "its functions derive values"
    inner, path = _functions(operand.args[0], build)
    return (*inner, name), path


Literal = str | float | int
_made = ClearedCache[int, tuple[EventQuery, KnownTree]](MOST_KNOWN)  # queries built from a skeleton, by identity


def made_of(query: EventQuery, known: KnownTree) -> None:
    """Records that a query was built from a skeleton."""
    _made[id(query)] = query, known


def resolve_known(
    query: EventQuery, schemas: Schemas, documents: Sequence[str] = ()
) -> tuple[algebra.Statement | None, list[Problem]]:
    """`resolve_event_query`, cached, and by template if possible. Problems may have places in a skeleton's query."""
    known = _known.get(id(query))
    if known is not None and all(schemas.get(name) == schema for name, schema in known[1]):
        return known[2], []
    made = _made.pop(id(query), None)
    stream = None if made is None else _stream(query, made[1], schemas)
    if stream is None:
        stream, problems = resolve_event_query(query, schemas, documents)
        if stream is None:
            return None, problems
    _known[id(query)] = query, tuple((read.name, schemas[read.name]) for read in names_read(query.stream)), stream
    return stream, []


def _stream(query: EventQuery, known: KnownTree, schemas: Schemas) -> algebra.Statement | None:
    skeleton = known.skeleton
    read: dict[str, Schema] = {}
    for name in names_read(query.stream):
        if (schema := schemas.get(name.name)) is None:
            return None
        read[name.name] = schema
    key = tuple(read.items())
    if key not in skeleton.streams:
        skeleton.streams[key] = _template(skeleton, read)
    template: _Template | None = skeleton.streams[key]
    return None if template is None else template.stream(known.literals)


@dataclass(frozen=True, eq=False, slots=True)
class _Template:
    """Builds streams. `numeric` strings must be numbers, and the values in each group of `apart` distinct."""

    make: Fill
    kinds: tuple[str, ...]
    numeric: frozenset[int]
    apart: tuple[tuple[Fill, ...], ...]

    def stream(self, literals: Sequence[str]) -> algebra.Statement | None:
        """The stream of a query with these literals; None if the template does not apply."""
        values: list[Literal] = []
        for slot, (kind, text) in enumerate(zip(self.kinds, literals, strict=True)):
            value = _value(kind, text)
            if value is None or (slot in self.numeric and math.isnan(xpath_number(str(value)))):
                return None
            values.append(value)
        for group in self.apart:
            if len({make(values) for make in group}) < len(group):
                return None
        stream: algebra.Statement = self.make(values)
        return stream


def _value(kind: str, text: str) -> Literal | None:
    if kind == "string":
        return unquoted(text)
    if kind in UNITS:
        return window_us(text, kind, NOWHERE) or None
    number = float(text) if len(text) < MOST_DIGITS else math.inf
    if not math.isfinite(number):
        return None
    return float(Fraction(text.rstrip(".")) / 100) if kind == "percentage" else number


# ---------------------------------------------------------------- how a template is found


def _template(skeleton: Skeleton, schemas: Mapping[str, Schema]) -> _Template | None:
    kinds = skeleton.kinds
    if any(kind not in ("string", "number", "percentage", *UNITS) for kind in kinds):
        return None
    ours = [_marks(kinds, falling) for falling in (False, True)]
    first, second = (resolve_event_query(skeleton.fill(marks), schemas)[0] for marks in ours)
    if first is None or second is None:
        return None
    maker = _StreamRecipe(kinds, [_value(kind, mark) for kind, mark in zip(kinds, ours[0], strict=True)])
    make = maker.of(first) or (lambda values: first)
    if maker.met != set(range(len(kinds))) or maker.depends:
        return None
    template = _Template(make, kinds, frozenset(maker.numeric), tuple(maker.apart))
    return template if template.stream(ours[1]) == second else None


def _marks(kinds: Sequence[str], falling: bool) -> list[str]:
    """Distinct numeric literals; those of windows are in ascending or descending order."""
    marks = []
    for slot, kind in enumerate(kinds):
        place = len(kinds) - slot if falling else slot + 3
        if kind in UNITS:
            marks.append(f"{place * UNITS['w'] // UNITS[kind]}")
        else:
            number = f"{700_001 + 2 * place}"
            marks.append(f'"{number}"' if kind == "string" else number)
    return marks


class _StreamRecipe:
    """Rebuilds the probes' stream with other literals. `depends`: the meaning of a part may depend on literals."""

    def __init__(self, kinds: Sequence[str], marks: Sequence[Literal | None]) -> None:
        self.met: set[int] = set()
        self.numeric: set[int] = set()
        self.apart: list[tuple[Fill, ...]] = []
        self.depends = False
        self._constants: dict[Literal, tuple[int, Fill]] = {}
        self._windows: dict[int, int] = {}
        for slot, (kind, mark) in enumerate(zip(kinds, marks, strict=True)):
            assert mark is not None
            if kind in UNITS:
                self._windows[int(mark)] = slot
                self._constants[int(mark) / 1e6] = slot, _seconds(slot)
                continue
            self._constants[mark] = slot, itemgetter(slot)
            if kind != "string":
                self._constants[0.0 - float(mark)] = slot, _negated(slot)

    def of(self, node: Any) -> Fill | None:
        match node:
            case algebra.Constant(value=value):
                if value not in self._constants:
                    return None
                constant_slot, value_of = self._constants[value]
                self.met.add(constant_slot)
                return lambda values: algebra.Constant(value_of(values))
            case int() if node in self._windows and not isinstance(node, bool):
                self.met.add(self._windows[node])
                return itemgetter(self._windows[node])
            case algebra.TextTest(name="matches" | "has-words" | "has-phrase"):
                self.depends = self.depends or self._holds(node.args[1:])  # not regular expressions, nor words
            case algebra.Comparison(op=op, left=left, right=right):
                for one, other in ((left, right), (right, left)):
                    is_read = op in ORDERS or value_kind(other) == "number"
                    mark = one.value if isinstance(one, algebra.Constant) else None
                    if is_read and isinstance(mark, str) and mark in self._constants:
                        self.numeric.add(self._constants[mark][0])
            case algebra.AllOf(args=args) | algebra.AnyOf(args=args):
                self._keep_apart(args)
            case algebra.Aggregate(items=items):
                self.depends = self.depends or self._holds(items)  # equal ones are merged
            case algebra.OfItems(aggregated=aggregated) | algebra.OfMatches(aggregated=aggregated):
                self.depends = self.depends or self._holds(aggregated)  # the same
            case algebra.Pattern(conjuncts=conjuncts, kills=kills):
                self._keep_apart(conjuncts)
                self._keep_apart(kills)
        return rebuilt(node, self.of)

    def _holds(self, node: Any) -> bool:
        return any(one.value in self._constants for one in parts_of_kind(node, algebra.Constant))

    def _keep_apart(self, args: tuple[Any, ...]) -> None:
        """Finds conditions that differ only in constants, since equal ones would be merged."""
        groups: dict[str, list[Fill]] = {}
        for arg in args:
            makes = [self._value_of(one.value) for one in parts_of_kind(arg, algebra.Constant)]
            groups.setdefault(repr(_without(arg)), []).append(_all_of(makes))
        self.apart += [tuple(group) for group in groups.values() if len(group) > 1]

    def _value_of(self, value: Literal) -> Fill:
        found = self._constants.get(value)
        return (lambda values: value) if found is None else found[1]


def _negated(slot: int) -> Fill:
    return lambda values: 0.0 - float(values[slot])


def _seconds(slot: int) -> Fill:
    return lambda values: int(values[slot]) / 1e6


def _all_of(makes: Sequence[Fill]) -> Fill:
    return lambda values: tuple(make(values) for make in makes)


def _without(node: Any) -> Any:
    if isinstance(node, algebra.Constant):
        return algebra.Constant
    if isinstance(node, tuple):
        return tuple(map(_without, node))
    if is_dataclass(node) and not isinstance(node, type):
        return type(node), *(_without(getattr(node, one.name)) for one in fields(node))
    return node


def schema_of(definition: EventDefinition) -> Schema:
    return tuple(
        (attribute.name, "number" if attribute.number or is_number(attribute.operand) else "string")
        for attribute in definition.attributes
    )


def lower_statement(query: EventQuery, schemas: Mapping[str, Schema]) -> algebra.Statement:
    """Lowers a checked query to its stream in normal form (see `xscl.event_forms`), or its pattern. `schemas` are those
    of its input streams; if the PUBLISHed one is among them, events have their attributes in that order."""
    stream, problems = resolve_known(query, schemas)
    assert stream is not None, problems
    if (schema := schemas.get(query.publish or "")) is None:
        return stream
    if isinstance(stream, algebra.Pattern | algebra.NearPattern):
        return replace(stream, schema=schema)
    return reorder_attributes(stream, schema)
