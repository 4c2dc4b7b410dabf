"""The plan of all event statements: a DAG of m-ops, in which each statement is a row of its last m-op. An m-op's rows
are its distinct vectors of left row, right row and parameters, with use counts. The m-rules of the optimiser decide
which operators become one m-op and which rows one: each is a function of a placement, which says where a node of a
normal form goes, applied in the order of RULES when the first statement of a form comes; so a plan that grows statement
by statement equals one built at once. Statements are added m-op by m-op, inputs first, many forms at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any, Literal, cast, get_args

import numpy as np

from common.arrays import Ints
from common.bounds import LONGEST_WINDOW
from pattern_stage.columns import NO_ROWS, Column, number_distinct, spread
from pattern_stage.definition import (
    AlgebraOp,
    AnyPattern,
    Definition,
    FormNode,
    FormStatements,
    StatementForm,
    sees_before,
    with_leaves,
)
from pattern_stage.fan_out import Interned, grow_array
from pattern_stage.values import Texts
from xscl.algebra import events as algebra


class Rows(Interned):
    """The rows of an m-op, as columns; equal rows are one, with a use count. `left` and `right` are rows of the inputs,
    0 for a source or no input. `shape` is the index of a row's definition; `parameters` has the columns of all, NULL
    where unused. `within` is the greatest DUR of a result, or the OVER of an AGGREGATE, in microseconds. `apart`
    separates otherwise equal rows: of AGGREGATE, and of some patterns, it is the time after which the first part of
    visible events ends. `made` is a number in `sources`, which has the attributes of the two inputs whose texts
    functions make."""

    left: Ints
    right: Ints
    shape: Ints
    within: Ints
    apart: Ints

    def __init__(self) -> None:
        super().__init__(("left", "right", "shape", "within", "apart"))
        self.made = np.zeros(0, np.int64)
        self.sources: list[tuple[frozenset[str], ...]] = [(frozenset(), frozenset())]

    def places(self, kinds: Sequence[algebra.Kind]) -> list[int]:
        """Returns columns for the parameters of a definition, adding missing ones."""
        found: list[int] = []
        for kind in kinds:
            dtype = np.int64 if kind == "string" else np.float64
            taken = (at for at, column in enumerate(self.parameters) if at not in found and column.dtype == dtype)
            place = next(taken, len(self.parameters))
            if place == len(self.parameters):
                self.add_parameters([dtype])
            found.append(place)
        return found


RuleName = Literal["cse", "s_sigma", "s_alpha", "s_window", "channels", "c_alpha"]

RULE_NAMES: tuple[RuleName, ...] = get_args(RuleName)
"""All rules in order of application. A node to which none applies runs as it stands."""

MOpKey = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """The place of a node of a normal form: the m-op that `key` identifies, over these m-ops. `own_rows`: statements
    have rows of their own; otherwise equal rows are one. `own_left` and `own_window`: rows with different left rows or
    windows have their own instances. `own_since`: AGGREGATE rows with different since have their own windows. `partial`
    identifies shared partial aggregates; None if an AGGREGATE reads events. `hashed`: a static index finds rows."""

    definition: Definition
    inputs: tuple[int, ...]
    key: MOpKey
    own_rows: bool = True
    own_left: bool = True
    own_window: bool = True
    own_since: bool = True
    partial: MOpKey | None = None
    hashed: bool = False


def cse(placement: NodePlacement) -> NodePlacement:
    """s_;, s_μ and equal operators of all kinds: on equal inputs they are one row, counted (prefix merging)."""
    return replace(placement, own_rows=False)


def s_sigma(placement: NodePlacement) -> NodePlacement:
    """s_σ: all selections of a stream are one m-op with a static index; so are all NEXT, and all FOLD, over the same
    inputs with results of one schema, indexed by their conditions on right events."""
    match placement.definition.operator:
        case algebra.Filter():
            kind: MOpKey = ("σ",)
        case algebra.Latest(names=names, schema=schema):
            kind = ("latest before", names, schema)
        case algebra.Next(names=names, schema=schema):
            kind = (";", names, schema)
        case algebra.Fold(names=names, schema=schema):
            kind = ("μ", names, schema)
        case _:
            kind = (placement.definition,)
    return replace(placement, key=(*kind, placement.inputs), hashed=True)


def s_alpha(placement: NodePlacement) -> NodePlacement:
    """s_α: AGGREGATEs over one input aggregate simultaneous events once, in their finest groups, and roll up; except
    what needs each value, such as argmax and median, and what computes with constants."""
    operator = placement.definition.operator
    if not isinstance(operator, algebra.Aggregate) or placement.definition.kinds:
        return placement
    if any(one.name not in ("count", "sum", "avg", "min", "max") for _, one in operator.items):
        return placement
    return replace(placement, partial=("α", placement.inputs))


def s_window(placement: NodePlacement) -> NodePlacement:
    """s_W: operators that differ in the upper bound on DUR run at the largest; results are filtered."""
    if isinstance(placement.definition.operator, algebra.Next | algebra.Fold):
        return replace(placement, own_window=False)
    return placement


def channels(placement: NodePlacement) -> NodePlacement:
    """c_;, c_μ, c_σ and c_π: rows that differ only in left rows share instances, which have a membership."""
    return replace(placement, own_left=False)


def c_alpha(placement: NodePlacement) -> NodePlacement:
    """c_α: an AGGREGATE definition over one input stores each event once, for any OVER and since. Queries that began at
    different times have equal results once their windows have the same events. Not so for sessions: their ends depend
    on all events that a query sees."""
    if is_aggregate(placement) and not isinstance(placement.definition.operator, algebra.Sessions):
        return replace(placement, own_window=False, own_since=False)
    return placement


RULES = dict(zip(RULE_NAMES, (cse, s_sigma, s_alpha, s_window, channels, c_alpha), strict=True))


@dataclass(slots=True, eq=False)
class MOp:
    """An operator of many statements at once. A source has none: it is `stream`, and its only row is 0. Its number is
    greater than those of its inputs. `users` is the number of forms that use it."""

    number: int
    key: MOpKey
    inputs: tuple[int, ...]
    schema: algebra.Schema
    stream: str = ""
    placement: NodePlacement | None = None
    definitions: list[AlgebraOp] = field(default_factory=list)
    """One for each shape of its rows. Their parameters are columns of the rows."""
    rows: Rows = field(default_factory=Rows)
    users: int = 0
    shapes: dict[Definition, tuple[int, list[int]]] = field(default_factory=dict)
    """By definition: its shape, and the columns of its parameters and of what separates instances."""


@dataclass(slots=True)
class BoundForm:
    """A form in the plan: the m-op of each node, and its parameter columns."""

    form: StatementForm
    mops: tuple[MOp, ...]
    shapes: tuple[int, ...]
    places: tuple[Sequence[int], ...]
    statements: int = 0


Changes = dict[int, Ints]  # rows by m-op number


class EventPlan:
    def __init__(self, texts: Texts, rules: Iterable[RuleName] = RULE_NAMES) -> None:
        self.texts = texts
        self.rules = frozenset(rules)
        self.mops: dict[int, MOp] = {}  # by number, inputs before their readers
        self._by_key: dict[MOpKey, MOp] = {}
        self._by_definition: dict[tuple[Definition, tuple[int, ...]], MOp] = {}
        self._partials: dict[MOpKey, int] = {}  # the numbers of shared partial aggregates
        self._next = 0

    def __iter__(self) -> Iterator[MOp]:
        return iter(self.mops.values())

    def bind(self, form: StatementForm) -> BoundForm:
        """Finds or creates the m-ops of a form."""
        found: list[tuple[MOp, int, Sequence[int]]] = []
        for node in form.nodes:
            found.append(self._place(node, tuple([found[place][0].number for place in node.inputs])))
        for mop, _, _ in found:
            mop.users += 1
        mops, shapes, places = zip(*found, strict=True)
        return BoundForm(form, mops, shapes, places)

    def partials(self) -> dict[int, list[MOp]]:
        """Returns by number the m-ops that share partial aggregates, where there are several."""
        groups: dict[MOpKey, list[MOp]] = {}
        for mop in self:
            if mop.placement is not None and mop.placement.partial is not None:
                groups.setdefault(mop.placement.partial, []).append(mop)
        several = {key: mops for key, mops in groups.items() if len(mops) > 1}
        for key in [one for one in several if one not in self._partials]:
            self._partials[key] = self._next
            self._next += 1
        return {self._partials[key]: mops for key, mops in several.items()}

    def unbind(self, bound: BoundForm) -> list[MOp]:
        """Releases the m-ops of a form without statements. Returns the unused ones."""
        for mop in bound.mops:
            mop.users -= 1
        gone = [mop for mop in dict.fromkeys(bound.mops) if mop.users == 0]
        for mop in gone:
            del self.mops[mop.number]
            del self._by_key[mop.key]
            for definition in mop.shapes:
                del self._by_definition[definition, mop.inputs]
        return gone

    def _place(self, node: FormNode, inputs: tuple[int, ...]) -> tuple[MOp, int, Sequence[int]]:
        definition = node.definition
        if definition is None:
            key: MOpKey = ("source", node.stream, node.schema)
            return self._by_key.get(key) or self._make(MOp(self._next, key, (), node.schema, node.stream)), 0, []
        if (mop := self._by_definition.get((definition, inputs))) is None:
            placement = NodePlacement(definition, inputs, (definition, inputs))
            for name, rule in RULES.items():
                placement = rule(placement) if name in self.rules else placement
            if (mop := self._by_key.get(placement.key)) is None:
                mop = self._make(MOp(self._next, placement.key, inputs, node.schema, placement=placement))
            self._by_definition[definition, inputs] = mop
            extra: list[algebra.Kind] = ["number"] * len(extra_columns(placement))
            places = mop.rows.places([*definition.kinds, *extra])
            mop.definitions.append(_with_columns(definition.operator, places))
            mop.shapes[definition] = (len(mop.definitions) - 1, places)
        return mop, *mop.shapes[definition]

    def _make(self, mop: MOp) -> MOp:
        self._next += 1
        self.mops[mop.number] = mop
        self._by_key[mop.key] = mop
        return mop

    # ------------------------------------------------------------ rows

    def remove(self, groups: Sequence[tuple[BoundForm, Ints]]) -> Changes:
        """Removes statements, form by form. Returns the unused rows; `Rows.free` reuses their numbers."""
        used: dict[int, list[Ints]] = {}
        for bound, rows in groups:
            for place, of in self.rows_of(bound, rows):
                if bound.mops[place].placement is not None:
                    used.setdefault(bound.mops[place].number, []).append(of)
            bound.statements -= len(rows)
        gone = {number: self.mops[number].rows.release(np.concatenate(arrays)) for number, arrays in used.items()}
        return {number: rows for number, rows in gone.items() if len(rows)}

    def rows_of(self, bound: BoundForm, rows: Ints) -> list[tuple[int, Ints]]:
        """Returns the rows of statements in each node of their form, last node first."""
        nodes = bound.form.nodes
        found: list[Ints] = [NO_ROWS] * len(nodes)
        found[-1] = rows
        for place in range(len(nodes) - 1, -1, -1):
            mop = bound.mops[place]
            for side, at in enumerate(nodes[place].inputs):
                found[at] = (mop.rows.right if side else mop.rows.left)[found[place]]
        return [(place, found[place]) for place in range(len(nodes) - 1, -1, -1)]


def is_aggregate(placement: NodePlacement) -> bool:
    return isinstance(placement.definition.operator, algebra.Aggregate)


def extra_columns(placement: NodePlacement) -> list[str]:
    """Returns what separates rows, in columns behind those of the parameters."""
    aggregates = is_aggregate(placement)
    extra = {
        "left": placement.own_left,
        "within": placement.own_window,
        "since": aggregates and placement.own_since,
        "ids": aggregates and placement.own_rows,
    }
    return [name for name, is_own in extra.items() if is_own]


def _with_columns(operator: AlgebraOp, places: Sequence[int]) -> AlgebraOp:
    def leaf(value: algebra.Value) -> algebra.Value:
        return algebra.Parameter(places[value.index], value.kind) if isinstance(value, algebra.Parameter) else value

    if isinstance(operator, AnyPattern):
        return with_leaves(operator, leaf)

    def mapped(node: Any) -> Any:
        return algebra.map_leaves(node, leaf)

    kept = algebra.sources_of(operator), algebra.window_of(operator)
    return cast(AlgebraOp, algebra.with_parts(operator, *kept, mapped, mapped))


@dataclass(frozen=True, slots=True)
class _Part:
    bound: BoundForm
    group: FormStatements
    place: int
    first: int  # the place of the first statement among all
    begin: int  # the place of the first statement among those of the m-op
    inputs: tuple[int, ...]  # offsets of its inputs' rows among those of their m-ops

    @property
    def node(self) -> FormNode:
        return self.bound.form.nodes[self.place]

    def columns(self) -> list[Sequence[str | float]]:
        node, constants = self.node, self.group.constants
        if node.alike:
            rows = [node.sorted_values([row[slot] for slot in node.slots]) for row in constants]
            return list(zip(*rows, strict=True))
        return [[row[slot] for row in constants] for slot in node.slots]

    def windows(self) -> Iterable[int]:
        window = self.node.window
        return [of[window] for of in self.group.windows] if window >= 0 else repeat(LONGEST_WINDOW, len(self.group))


def add_statements(
    plan: EventPlan, groups: Sequence[tuple[BoundForm, FormStatements]], ids: Ints, since: Ints
) -> tuple[Ints, Changes]:
    """Adds statements, ids and since by group. Returns each one's row in its last m-op, and new rows by m-op."""
    parts: dict[int, list[_Part]] = {}
    sizes = defaultdict[int, int](int)
    last: dict[int, list[tuple[int, int, int]]] = {}
    """By last m-op and group: first statement, first row, and number of rows."""
    first = 0
    for bound, group in groups:
        begins = list[int]()
        for place, (node, mop) in enumerate(zip(bound.form.nodes, bound.mops, strict=True)):
            begins.append(sizes[mop.number])
            if mop.placement is not None:
                sizes[mop.number] += len(group)
                inputs = tuple([begins[at] for at in node.inputs])
                parts.setdefault(mop.number, []).append(_Part(bound, group, place, first, begins[-1], inputs))
        last.setdefault(bound.mops[-1].number, []).append((first, begins[-1], len(group)))
        bound.statements += len(group)
        first += len(group)
    found: Changes = {}
    new: Changes = {}
    for number in sorted(parts):
        mop = plan.mops[number]
        found[number], made, _ = mop.rows.intern(*_vectors(plan, mop, parts[number], found, ids, since))
        if len(made):
            new[number] = made
            _follow_texts(plan, mop, made)
    rows: Ints = np.zeros(len(ids), np.int64)
    for number, of_groups in last.items():
        if number in found:
            firsts, starts, counts = np.array(of_groups, np.int64).T
            rows[spread(firsts, counts)[0]] = found[number][spread(starts, counts)[0]]
    return rows, new


def _follow_texts(plan: EventPlan, mop: MOp, new: Ints) -> None:
    rows, sides = mop.rows, [[frozenset[str]()] * len(new)] * 2
    rows.made = grow_array(rows.made, rows.end)
    for side, number in enumerate(mop.inputs[:2]):
        source = plan.mops[number]
        if source.placement is not None:
            before = (rows.right if side else rows.left)[new]
            shapes, sources = source.rows.shape[before], source.rows.made[before]
            firsts, of = number_distinct([shapes, sources])
            pairs = zip(shapes[firsts].tolist(), sources[firsts].tolist(), strict=True)
            made = [algebra.made_texts(source.definitions[one], *source.rows.sources[texts]) for one, texts in pairs]
            sides[side] = [made[place] for place in of.tolist()]
    for row, pair in zip(new.tolist(), zip(*sides, strict=True), strict=True):
        if pair not in rows.sources:
            rows.sources.append(pair)
        rows.made[row] = rows.sources.index(pair)


def _vectors(
    plan: EventPlan, mop: MOp, parts: Sequence[_Part], found: Changes, ids: Ints, since: Ints
) -> tuple[list[Ints], list[Column]]:
    assert mop.placement is not None
    counts = np.array([len(part.group) for part in parts], np.int64)
    statements, _ = spread(np.array([part.first for part in parts], np.int64), counts)
    zeros = np.zeros(len(statements), np.int64)
    sides = [zeros, zeros]
    for side, number in enumerate(mop.inputs[:2]):
        if number in found:
            sides[side] = found[number][spread(np.array([part.inputs[side] for part in parts], np.int64), counts)[0]]
    shapes = np.repeat(np.array([part.bound.shapes[part.place] for part in parts], np.int64), counts)
    within = np.fromiter(chain.from_iterable(part.windows() for part in parts), np.int64, len(statements))
    since, ids = since[statements], ids[statements]
    apart, operator = ids if mop.placement.own_rows else zeros, mop.placement.definition.operator
    if sees_before(operator):
        apart = since
    constants: list[list[str | float | None]] = [[None] * len(statements) for _ in mop.rows.parameters]
    for part in parts:
        for place, values in zip(part.bound.places[part.place], part.columns(), strict=False):
            constants[place][part.begin : part.begin + len(part.group)] = values
    parameters = [
        plan.texts.codes(values) if column.dtype == np.int64 else np.array(values, np.float64)  # type: ignore[arg-type]  # texts
        for values, column in zip(constants, mop.rows.parameters, strict=True)
    ]
    extra = {"left": sides[0], "within": within, "since": since, "ids": ids}
    for at, name in enumerate(extra_columns(mop.placement)):
        column = extra[name].astype(np.float64)
        for part in parts:
            rows = slice(part.begin, part.begin + len(part.group))
            parameters[part.bound.places[part.place][len(part.node.slots) + at]][rows] = column[rows]
    return [*sides, shapes, within, apart], parameters
