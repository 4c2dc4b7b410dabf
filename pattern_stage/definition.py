"""The normal form of a stream: operators with parameters for constants, in common to statements of one shape."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from common.quick import quick
from pattern_stage.canonical import Ordered, ordered
from pattern_stage.formula import rewritten, rewritten_condition, size
from xscl.algebra.events import (
    Aggregate,
    AllOf,
    Attribute,
    Condition,
    Constant,
    Events,
    Filter,
    Fold,
    Kind,
    Next,
    Parameter,
    Schema,
    Select,
    Stream,
    Union,
    Value,
)

T = TypeVar("T")

MOST = 400
"""A chain of selections is made one as long as its expressions have at most so many leaves."""

Operator = Select | Filter | Union | Next | Fold | Aggregate


@quick
@dataclass(frozen=True, slots=True)
class Definition:
    """An operator whose inputs are schemas, with parameters in place of constants.

    A window is none: a row has it. So `within` is None, and of an AGGREGATE with OVER it is 0.
    """

    operator: Operator
    kinds: tuple[Kind, ...]

    @property
    def schema(self) -> Schema:
        """The attributes of its results."""
        return self.operator.schema

    @property
    def name(self) -> str:
        """A name that is the same in every process."""
        return hashlib.sha256(repr((self.operator, self.kinds)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Node:
    """An operator of a normal form, or a source: then `definition` is None and `stream` its name."""

    definition: Definition | None
    stream: str
    schema: Schema
    inputs: tuple[int, ...]
    """The places of its inputs in the normal form."""
    slots: tuple[int, ...]
    """The constants that are its parameters."""
    alike: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Groups of vectors of parameters that may be exchanged with one another, inner groups first."""
    window: int = -1
    """Which window of the statement is its WITHIN or OVER; -1 for none."""

    def sorted_values(self, parameters: Sequence[str | float]) -> list[str | float]:
        """Returns parameters with those that may be exchanged in their order."""
        values = list(parameters)
        for group in self.alike:
            vectors = sorted(tuple(values[place] for place in places) for places in group)
            for places, vector in zip(group, vectors, strict=True):
                for place, value in zip(places, vector, strict=True):
                    values[place] = value
        return values


@dataclass(frozen=True, slots=True)
class Form:
    """The normal form of all statements that differ in constants alone. The last node has the results."""

    nodes: tuple[Node, ...]
    schema: Schema
    kinds: tuple[Kind, ...]
    """Of the constants of a statement."""
    windows: int
    """How many windows a statement has."""


class Forms:
    """The normal forms of the shapes of statements, each made once."""

    def __init__(self) -> None:
        self._forms: dict[Stream, Form] = {}
        self._templates: dict[int, Stream] = {}

    def form(self, stream: Stream) -> tuple[Form, tuple[str | float, ...], tuple[int, ...]]:
        """Returns the normal form of a stream, and its constants and windows, in microseconds."""
        taken = Taken()
        template = taken.template(stream)
        form = self._forms.get(template)
        if form is None:
            kinds: tuple[Kind, ...] = tuple("string" if isinstance(one, str) else "number" for one in taken.constants)
            form = self._forms[template] = normal(template, kinds, len(taken.windows))
            self._templates[id(form)] = template
        return form, tuple(taken.constants), tuple(taken.windows)

    def forget(self, form: Form) -> None:
        """Forgets a form, of which there is no statement any more."""
        del self._forms[self._templates.pop(id(form))]


@dataclass(slots=True)
class Taken:
    """The constants and windows that were taken out of a stream, in their order."""

    constants: list[str | float] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)

    def template(self, stream: Stream) -> Stream:
        """Returns a stream with parameters for its constants, and with windows that are numbered."""
        match stream:
            case Events():
                return stream
            case Select(source, items, schema):
                source = self.template(source)
                return Select(source, tuple((name, rewritten(value, self._leaf)) for name, value in items), schema)
            case Filter(source, condition):
                source = self.template(source)
                return Filter(source, rewritten_condition(condition, self._leaf))
            case Union(left, right):
                return Union(self.template(left), self.template(right))
            case Next(left, right, condition, within, names, schema):
                left, right = self.template(left), self.template(right)
                condition = rewritten_condition(condition, self._leaf)
                return Next(left, right, condition, self._window(within), names, schema)
            case Fold(left, right, chooses, continues, sets, within, names, schema):
                left, right = self.template(left), self.template(right)
                chooses = rewritten_condition(chooses, self._leaf)
                continues = rewritten_condition(continues, self._leaf)
                sets = tuple((name, rewritten(value, self._leaf)) for name, value in sets)
                return Fold(left, right, chooses, continues, sets, self._window(within), names, schema)
            case Aggregate(source, items, by, over, schema):
                source = self.template(source)
                items = tuple(
                    (name, replace(one, args=tuple(rewritten(arg, self._leaf) for arg in one.args)))
                    for name, one in items
                )
                return Aggregate(source, items, by, self._window(over), schema)

    def _leaf(self, value: Value) -> Value:
        if not isinstance(value, Constant):
            return value
        constant = value.value if isinstance(value.value, str) else float(value.value)
        self.constants.append(constant)
        return Parameter(len(self.constants) - 1, "string" if isinstance(constant, str) else "number")

    def _window(self, window: int | None) -> int | None:
        if window is None:
            return None
        if window not in self.windows:
            self.windows.append(window)
        return self.windows.index(window)


def normal(template: Stream, kinds: tuple[Kind, ...], windows: int) -> Form:
    """Returns the normal form of a stream whose constants are parameters and whose windows are numbers."""
    nodes: list[Node] = []
    _add(template, nodes)
    return Form(tuple(nodes), template.schema, kinds, windows)


def _add(stream: Stream, nodes: list[Node]) -> int:
    """Adds the nodes of a stream, inputs first. Equal ones are one. Returns the place of the last."""
    match stream:
        case Events(name, schema):
            return _place(Node(None, name, schema, (), ()), nodes)
        case Select() | Filter():
            return _add_chain(stream, nodes)
        case Union(left, right):
            inputs = (_add(left, nodes), _add(right, nodes))
            inputs = (min(inputs), max(inputs))
            return _node(Union(_input(left, "left"), _input(right, "right")), inputs, _Slots(), nodes)
        case Next(left, right, condition, within, names, schema):
            inputs = (_add(left, nodes), _add(right, nodes))
            slots = _Slots()
            condition = slots.condition(condition)
            bare = Next(_input(left, "left"), _input(right, "right"), condition, None, names, schema)
            return _node(bare, inputs, slots, nodes, within)
        case Fold(left, right, chooses, continues, sets, within, names, schema):
            inputs = (_add(left, nodes), _add(right, nodes))
            slots = _Slots()
            chooses, continues = slots.condition(chooses), slots.condition(continues)
            sets = tuple((name, slots.value(value)) for name, value in sets)
            start, then = _input(left, "left"), _input(right, "right")
            return _node(Fold(start, then, chooses, continues, sets, None, names, schema), inputs, slots, nodes, within)
        case Aggregate(source, items, by, over, schema):
            place = _add(source, nodes)
            slots = _Slots()
            items = tuple((name, replace(one, args=tuple(slots.value(arg) for arg in one.args))) for name, one in items)
            bare_over = None if over is None else 0
            aggregate = Aggregate(_input(source, "left"), items, by, bare_over, schema)
            return _node(aggregate, (place,), slots, nodes, over)


def _add_chain(stream: Select | Filter, nodes: list[Node]) -> int:
    """Adds a chain of selections and renamings as one selection, and one renaming of its results."""
    source, condition, items = _chain(stream)
    place = _add(source, nodes)
    if condition != AllOf():
        slots = _Slots()
        place = _node(Filter(_input(source, "left"), slots.condition(condition)), (place,), slots, nodes)
    if items is not None and not _is_identity(items, source.schema):
        slots = _Slots()
        values = tuple((name, slots.value(value)) for name, value in items)
        place = _node(Select(_input(source, "left"), values, stream.schema), (place,), slots, nodes)
    return place


def _chain(stream: Stream) -> tuple[Stream, Condition, tuple[tuple[str, Value], ...] | None]:
    """Takes a chain apart: what it is over, the condition there, and the items, None for all as they are."""
    match stream:
        case Select(source, items):
            base, condition, inner = _chain(source)
            if inner is None:
                return base, condition, items
            over = _over(inner)
            composed = tuple((name, rewritten(value, over)) for name, value in items)
            if sum(size(value) for _, value in composed) > MOST:
                return source, AllOf(), items
            return base, condition, composed
        case Filter(source, condition):
            base, below, inner = _chain(source)
            if inner is not None:
                condition = rewritten_condition(condition, _over(inner))
            if size(condition) > MOST:
                return source, stream.condition, None
            return base, AllOf((below, condition)), inner
        case _:
            return stream, AllOf(), None


def _over(items: tuple[tuple[str, Value], ...]) -> Callable[[Value], Value]:
    values = dict(items)
    return lambda leaf: values[leaf.name] if isinstance(leaf, Attribute) else leaf


def _is_identity(items: tuple[tuple[str, Value], ...], schema: Schema) -> bool:
    return tuple((name, Attribute("left", name, kind)) for name, kind in schema) == items


class _Slots:
    """Numbers the parameters of an operator in the order in which its expressions mention them."""

    def __init__(self) -> None:
        self.slots: dict[int, Kind] = {}
        self._mentions = Counter[int]()
        self._ordered: list[Ordered] = []

    def value(self, value: Value) -> Value:
        return rewritten(value, self._leaf)

    def condition(self, condition: Condition) -> Condition:
        found = ordered(condition)
        self._ordered.append(found)
        return rewritten_condition(found.condition, self._leaf)

    def alike(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Returns which parameters may be exchanged: what stands in two places may not."""
        at = {slot: place for place, slot in enumerate(self.slots)}
        groups = [group for one in self._ordered for group in one.alike]
        return tuple(
            tuple(tuple(at[slot] for slot in slots) for slots in group)
            for group in groups
            if all(self._mentions[slot] == 1 for slots in group for slot in slots)
        )

    def _leaf(self, leaf: Value) -> Value:
        if not isinstance(leaf, Parameter):
            return leaf
        self.slots.setdefault(leaf.index, leaf.kind)
        self._mentions[leaf.index] += 1
        return Parameter(list(self.slots).index(leaf.index), leaf.kind)


def _input(stream: Stream, name: str) -> Events:
    return Events(name, stream.schema)


def _node(
    operator: Operator, inputs: tuple[int, ...], slots: _Slots, nodes: list[Node], window: int | None = None
) -> int:
    definition = Definition(operator, tuple(slots.slots.values()))
    number = -1 if window is None else window
    node = Node(definition, "", operator.schema, inputs, tuple(slots.slots), slots.alike(), number)
    return _place(node, nodes)


def _place(node: Node, nodes: list[Node]) -> int:
    if node not in nodes:
        nodes.append(node)
    return nodes.index(node)
