"""The normal form of a stream: operators with parameters for constants, in common to statements of one shape."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from common.quick import quick
from pattern_stage.canonical import Ordered, ordered
from pattern_stage.chains import chain
from pattern_stage.formula import rewritten, rewritten_condition
from pattern_stage.matching.template import inputs as inputs_of
from pattern_stage.matching.template import with_leaves
from pattern_stage.taking import Taken
from xscl.algebra.event_sequences import NearPattern, Pattern, Statement
from xscl.algebra.events import (
    Aggregate,
    AllOf,
    Attribute,
    Condition,
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

Operator = Select | Filter | Union | Next | Fold | Aggregate | Pattern | NearPattern


@quick
@dataclass(frozen=True, slots=True)
class Definition:
    """An operator whose inputs are schemas, with parameters in place of constants.

    A window is none: a row has it. So `within` is None, and of an AGGREGATE with OVER it is 0.
    """

    operator: Operator
    kinds: tuple[Kind, ...]
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        """As often as a definition is looked up, that of its expressions is computed once."""
        if not self._hash:
            object.__setattr__(self, "_hash", hash((self.operator, self.kinds)) or 1)
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        """Another process has other hashes."""
        return Definition, (self.operator, self.kinds)

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


@dataclass(slots=True, eq=False)
class _Unit:
    """The nodes of a piece, which the forms that have it share. Its first nodes are the inputs."""

    number: int
    template: Statement
    nodes: tuple[Node, ...]
    users: int = 0
    placed: dict[tuple[object, ...], Node] = field(default_factory=dict)
    """The nodes as they stand in forms."""

    def node(self, at: int, inputs: tuple[int, ...], first: int, window: int) -> Node:
        """Returns a node as it stands in a form: over these inputs, from this constant on, with this window."""
        key = at, inputs, first, window
        found = self.placed.get(key)
        if found is None:
            node = self.nodes[at]
            slots = tuple(slot + first for slot in node.slots)
            mine = window if node.window >= 0 else -1
            found = self.placed[key] = Node(node.definition, "", node.schema, inputs, slots, node.alike, mine)
        return found


class Forms:
    """The normal forms of the shapes of statements, each made once, of pieces that are made once."""

    def __init__(self) -> None:
        self._units: dict[Statement, _Unit] = {}
        self._next = 0
        self._forms: dict[tuple[int, ...], Form] = {}
        self._made_of: dict[int, tuple[tuple[int, ...], tuple[_Unit, ...]]] = {}
        """By the identity of a form: its key, and its units."""

    def form(self, stream: Statement) -> tuple[Form, tuple[str | float, ...], tuple[int, ...]]:
        """Returns the normal form of a stream, and its constants and windows, in microseconds."""
        taken = Taken()
        taken.add(stream)
        units, numbers = [], list[int]()
        for piece in taken.pieces:
            unit = self._units.get(piece.template)
            if unit is None:
                unit = self._units[piece.template] = _Unit(self._next, piece.template, normal(piece.template))
                self._next += 1
            units.append(unit)
            numbers += (unit.number, *piece.inputs, piece.window)
        key = tuple(numbers)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = _form(taken, units)
            self._made_of[id(form)] = key, tuple(units)
            for unit in units:
                unit.users += 1
        return form, tuple(taken.constants), tuple(taken.windows)

    def forget(self, form: Form) -> None:
        """Forgets a form, of which there is no statement any more."""
        key, units = self._made_of.pop(id(form))
        del self._forms[key]
        for unit in units:
            unit.users -= 1
            if unit.users == 0:
                del self._units[unit.template]


def _form(taken: Taken, units: Sequence[_Unit]) -> Form:
    """Puts the nodes of pieces together. Equal ones are one."""
    nodes: list[Node] = []
    last: list[int] = []
    for piece, unit in zip(taken.pieces, units, strict=True):
        if not piece.inputs:
            last.append(_place(unit.nodes[0], nodes))
            continue
        places = [last[place] for place in piece.inputs]
        for at in range(len(places), len(unit.nodes)):
            node = unit.nodes[at]
            inputs = tuple(places[place] for place in node.inputs)
            if node.definition is not None and isinstance(node.definition.operator, Union):
                inputs = (min(inputs), max(inputs))
            places.append(_place(unit.node(at, inputs, piece.first, piece.window), nodes))
        last.append(places[-1])
    kinds: tuple[Kind, ...] = tuple("string" if isinstance(one, str) else "number" for one in taken.constants)
    return Form(tuple(nodes), nodes[-1].schema, kinds, len(taken.windows))


def normal(template: Statement) -> tuple[Node, ...]:
    """Returns the nodes of a piece, its inputs first."""
    if isinstance(template, Pattern | NearPattern):
        return _normal_pattern(template)
    if isinstance(template, Events):
        return (Node(None, template.stream, template.schema, (), ()),)
    nodes: list[Node] = []
    for name, stream in zip(("left", "right"), _sources(template), strict=False):
        nodes.append(Node(None, name, stream.schema, (), ()))
    _add(template, nodes)
    return tuple(nodes)


def _normal_pattern(template: Pattern | NearPattern) -> tuple[Node, ...]:
    sources = sorted(inputs_of(template), key=lambda one: int(one[0]))
    nodes = [Node(None, name, schema, (), ()) for name, schema in sources]
    slots = _Slots()
    bare = with_leaves(template, slots.value)
    window = -1 if template.within is None else template.within
    node = Node(
        Definition(bare, tuple(slots.slots.values())),
        "",
        template.schema,
        tuple(range(len(sources))),
        tuple(slots.slots),
        window=window,
    )
    return (*nodes, node)


def _sources(template: Stream) -> tuple[Stream, ...]:
    """Returns the streams that a piece is over; a source's is itself."""
    match template:
        case Union(left, right) | Next(left, right) | Fold(left, right):
            return left, right
        case Aggregate(source):
            return (source,)
        case Select(source) | Filter(source):
            return _sources(source)
    return (template,)


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
    source, condition, items = chain(stream)
    place = _add(source, nodes)
    if condition != AllOf():
        slots = _Slots()
        place = _node(Filter(_input(source, "left"), slots.condition(condition)), (place,), slots, nodes)
    if items is not None and not _is_identity(items, source.schema):
        slots = _Slots()
        values = tuple((name, slots.value(value)) for name, value in items)
        place = _node(Select(_input(source, "left"), values, stream.schema), (place,), slots, nodes)
    return place


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
    for place, other in enumerate(nodes):
        if other is node or (other.inputs == node.inputs and other.slots == node.slots and other == node):
            return place
    nodes.append(node)
    return len(nodes) - 1
