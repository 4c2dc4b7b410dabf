"""The plan of all statements: a DAG of m-ops, and each statement a row of its last one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pattern_stage.columns import Column, Ints
from pattern_stage.definition import Definition, Form, Node, Operator
from pattern_stage.formula import rewritten, rewritten_condition
from pattern_stage.matching.template import sees_before, with_leaves
from pattern_stage.rows import Rows
from pattern_stage.rules import RULE_NAMES, Key, Placement, RuleName, placed
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import NearPattern, Pattern
from xscl.algebra.events import Aggregate, Filter, Fold, Kind, Next, Parameter, Schema, Select, Value

_NONE = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class MOp:
    """An operator of many statements at once. A source has none: it is `stream`, and its only row is 0."""

    number: int
    """Greater than those of its inputs."""
    key: Key
    inputs: tuple[int, ...]
    schema: Schema
    stream: str = ""
    placement: Placement | None = None
    definitions: list[Operator] = field(default_factory=list)
    """One for each shape of its rows. Their parameters are columns of the rows."""
    rows: Rows = field(default_factory=Rows)
    users: int = 0
    """How many forms use it."""
    shapes: dict[Definition, tuple[int, list[int]]] = field(default_factory=dict)
    """For each definition: its shape, and the columns of its parameters and of what keeps instances apart."""


@dataclass(slots=True)
class Bound:
    """A form in the plan: the m-op of each of its nodes, and the columns of the parameters there."""

    form: Form
    mops: tuple[MOp, ...]
    shapes: tuple[int, ...]
    places: tuple[Sequence[int], ...]
    statements: int = 0


Changes = dict[int, Ints]
"""For m-ops, by number: rows."""


class Plan:
    """The m-ops, and which rows they have. See `pattern_stage.adding` for how statements come into it."""

    def __init__(self, texts: Texts, rules: Iterable[RuleName] = RULE_NAMES) -> None:
        self.texts = texts
        self.rules = frozenset(rules)
        self.mops: dict[int, MOp] = {}
        """By number, inputs before those that read them."""
        self._by_key: dict[Key, MOp] = {}
        self._by_definition: dict[tuple[Definition, tuple[int, ...]], MOp] = {}
        self._partials: dict[Key, int] = {}
        """The numbers of what AGGREGATEs are made of together."""
        self._next = 0

    def __iter__(self) -> Iterator[MOp]:
        return iter(self.mops.values())

    def bind(self, form: Form) -> Bound:
        """Finds or makes the m-ops of a form."""
        found: list[tuple[MOp, int, Sequence[int]]] = []
        for node in form.nodes:
            found.append(self._place(node, tuple([found[place][0].number for place in node.inputs])))
        for mop, _, _ in found:
            mop.users += 1
        mops, shapes, places = zip(*found, strict=True)
        return Bound(form, mops, shapes, places)

    def partials(self) -> dict[int, list[MOp]]:
        """Returns the m-ops that are made of the same partial aggregates, where these are of several, each with the
        number of that."""
        groups: dict[Key, list[MOp]] = {}
        for mop in self:
            if mop.placement is not None and mop.placement.partial is not None:
                groups.setdefault(mop.placement.partial, []).append(mop)
        found = {}
        for key, mops in groups.items():
            if len(mops) > 1:
                if key not in self._partials:
                    self._partials[key] = self._next
                    self._next += 1
                found[self._partials[key]] = mops
        return found

    def unbind(self, bound: Bound) -> list[MOp]:
        """Lets go of the m-ops of a form without statements. Returns those that nobody uses any more."""
        for mop in bound.mops:
            mop.users -= 1
        gone = [mop for mop in dict.fromkeys(bound.mops) if mop.users == 0]
        for mop in gone:
            del self.mops[mop.number]
            del self._by_key[mop.key]
            for definition in mop.shapes:
                del self._by_definition[definition, mop.inputs]
        return gone

    def _place(self, node: Node, inputs: tuple[int, ...]) -> tuple[MOp, int, Sequence[int]]:
        definition = node.definition
        if definition is None:
            key: Key = ("source", node.stream, node.schema)
            return self._by_key.get(key) or self._make(MOp(self._next, key, (), node.schema, node.stream)), 0, []
        known = self._by_definition.get((definition, inputs))
        if known is not None:
            return known, *known.shapes[definition]
        placement = placed(definition, inputs, self.rules)
        mop = self._by_key.get(placement.key)
        if mop is None:
            mop = self._make(MOp(self._next, placement.key, inputs, node.schema, placement=placement))
        self._by_definition[definition, inputs] = mop
        found = mop.shapes.get(definition)
        if found is None:
            extra: list[Kind] = ["number"] * extra_columns(placement)
            places = mop.rows.places([*definition.kinds, *extra])
            mop.definitions.append(_with_columns(definition.operator, places))
            found = mop.shapes[definition] = (len(mop.definitions) - 1, places)
        return mop, *found

    def _make(self, mop: MOp) -> MOp:
        self._next += 1
        self.mops[mop.number] = mop
        self._by_key[mop.key] = mop
        return mop

    # ------------------------------------------------------------ rows

    def remove(self, groups: Sequence[tuple[Bound, Ints]]) -> Changes:
        """Removes statements, form by form given by their rows. Returns the rows that nobody uses any more.

        Their numbers are not given to others before `Rows.free`.
        """
        used: dict[int, list[Ints]] = {}
        for bound, rows in groups:
            for place, of in self.rows_of(bound, rows):
                if bound.mops[place].placement is not None:
                    used.setdefault(bound.mops[place].number, []).append(of)
            bound.statements -= len(rows)
        gone = {number: self.mops[number].rows.remove(np.concatenate(arrays)) for number, arrays in used.items()}
        return {number: rows for number, rows in gone.items() if len(rows)}

    def rows_of(self, bound: Bound, rows: Ints) -> list[tuple[int, Ints]]:
        """Returns the rows of statements in each node of their form, the last node first."""
        nodes = bound.form.nodes
        found: list[Ints] = [_NONE] * len(nodes)
        found[-1] = rows
        for place in range(len(nodes) - 1, -1, -1):
            mop = bound.mops[place]
            for side, at in enumerate(nodes[place].inputs):
                column = mop.rows.right if side else mop.rows.left
                found[at] = column[found[place]]
        return [(place, found[place]) for place in range(len(nodes) - 1, -1, -1)]

    def column(self, values: Sequence[str | float | None], kind: Kind) -> Column:
        """Returns constants as a column; None is NULL."""
        if kind == "string":
            return self.texts.codes(values)  # type: ignore[arg-type]  # texts
        return np.array(values, np.float64)


def is_aggregate(placement: Placement) -> bool:
    """Returns whether a placement is of AGGREGATE, whose rows tell apart since when they see events."""
    return isinstance(placement.definition.operator, Aggregate)


def tells_since(placement: Placement) -> bool:
    """Returns whether rows are told apart by since when they see events."""
    operator = placement.definition.operator
    return is_aggregate(placement) or (isinstance(operator, Pattern | NearPattern) and sees_before(operator))


def extra_columns(placement: Placement) -> int:
    """Returns how many columns keep what rows have apart, after those of the parameters."""
    aggregates = is_aggregate(placement)
    own_since, own_rows = aggregates and placement.own_since, aggregates and placement.own_rows
    return placement.own_left + placement.own_window + own_since + own_rows


def _with_columns(operator: Operator, places: Sequence[int]) -> Operator:
    """Returns an operator whose parameters are the columns at these places."""

    def leaf(value: Value) -> Value:
        return Parameter(places[value.index], value.kind) if isinstance(value, Parameter) else value

    match operator:
        case Select(source, items, schema):
            return Select(source, tuple((name, rewritten(value, leaf)) for name, value in items), schema)
        case Filter(source, condition):
            return Filter(source, rewritten_condition(condition, leaf))
        case Next(left, right, condition, within, names, schema):
            return Next(left, right, rewritten_condition(condition, leaf), within, names, schema)
        case Fold(left, right, chooses, continues, sets, within, names, schema):
            chooses, continues = rewritten_condition(chooses, leaf), rewritten_condition(continues, leaf)
            sets = tuple((name, rewritten(value, leaf)) for name, value in sets)
            return Fold(left, right, chooses, continues, sets, within, names, schema)
        case Aggregate(source, items, by, over, schema):
            items = tuple(
                (name, replace(one, args=tuple(rewritten(arg, leaf) for arg in one.args))) for name, one in items
            )
            return Aggregate(source, items, by, over, schema)
        case Pattern() | NearPattern():
            return with_leaves(operator, leaf)
        case _:
            return operator
