"""Reasons: searches the documents of an output for the bindings that made it, and says which conditions held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from mmqjp.answers.absence.times import over_at
from mmqjp.answers.construct import Value
from mmqjp.answers.output import node_order
from mmqjp.answers.residual import holds
from mmqjp.documents.record import Record
from mmqjp.explain.findings import Filters, findings
from mmqjp.explain.lacking import lacking
from mmqjp.explain.operands import Condition, JoinedValue, Operand, in_parts, operand_of
from mmqjp.explain.terms import leaf_sides
from xpath_stage.binder import Node, Part, Path, each_binding
from xscl.algebra.expressions import Expr
from xscl.algebra.functions import derive
from xscl.algebra.normal import Absent, Conjunct, Hidden, JoinOp, NormalQuery, Side, Term, variables_of
from xscl.algebra.pattern import PatternNode

CHARACTERS_PER_STEP = 256
"""Reading a node's text costs a step for this many characters."""


class TooMuchWork(Exception):
    """The search takes too long."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When the inputs of a join were, in microseconds: from the beginning of the left one to the end of the right one.
    The join's `op` and `window`, None for INF, allow it. A chain has one of each of its joins."""

    op: JoinOp
    window: int | None
    left: tuple[int, int]
    right: tuple[int, int]

    @property
    def distance(self) -> int:
        """The time from the earlier beginning to the later end, which the window bounds."""
        return max(self.left[1], self.right[1]) - min(self.left[0], self.right[0])

    @property
    def gap(self) -> int:
        """How long after the end of the left input the right one begins. Negative if it begins before that."""
        return self.right[0] - self.left[1]


@dataclass(frozen=True, slots=True)
class Reason:
    """What made an output: the value joins, those of inner joins first, and other conditions of joins. Those of
    absences say what nothing had. If it is asked for, also when the inputs of the joins were, and the conditions on
    single documents in the `filters` of blocks."""

    joined: tuple[JoinedValue, ...] = ()
    conditions: tuple[Condition, ...] = ()
    timings: tuple[Timing, ...] = ()
    filters: tuple[Condition, ...] = ()


_Bound = tuple[Record, int, Node]
"""A record, its place among the documents of the output (-1 for a published one), and a node of it."""

_Binding = Mapping[str, _Bound]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A document that a block matched."""

    side: Side
    record: Record
    place: int
    nodes: Mapping[str, Node]


@dataclass(frozen=True, slots=True)
class _Held:
    """A joint binding of two inputs, which are as they were in time."""

    conjunct: Conjunct
    binding: _Binding
    timing: Timing | None


@dataclass(frozen=True, slots=True)
class _Lacked:
    """A joint binding of the left input of an absence, and the time of its documents."""

    op: JoinOp
    window: int | None
    absent: Sequence[Absent]
    binding: _Binding
    times: tuple[int, int]


_Trail = tuple[_Leaf | _Held | _Lacked, ...]
"""What was bound on the way to a joint binding, that of inner joins first."""

_Joint = tuple[_Binding, _Trail, tuple[int, int]]
"""A joint binding, its trail, and the time of its documents."""


class ReasonSearch:
    """Searches the documents of one output. `parts` has the documents of the query's blocks, each with its place among
    the documents of the output. At most `steps` steps are taken: then TooMuchWork is raised."""

    def __init__(
        self, normal: NormalQuery, nodes: Mapping[str, int | str], parts: Sequence[tuple[Record, int]], steps: int
    ) -> None:
        self._normal, self._nodes, self._parts, self._steps = normal, nodes, parts, steps
        self._texts: dict[tuple[int, Node], str] = {}
        self._selected = {
            entry.value.var: nodes[entry.key]
            for entry in normal.entries
            if isinstance(entry.value, Term) and entry.key in nodes
        }

    def reason(self, filters: Filters | None = None) -> Reason | None:
        """Returns the reason of a joint binding with the output's nodes, or None if there is none. With the `filters`
        of the query's text, all is in it that a Reason has."""
        for conjunct in _that_are_there(self._normal):
            if sum(1 for _ in leaf_sides(conjunct)) == len(self._parts):
                for binding, trail, _ in self._joint(conjunct, self._parts, self._selected, self._normal):
                    if self._has_the_nodes(binding):
                        return self._told(trail, filters)
        return None

    def _take(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TooMuchWork

    def _has_the_nodes(self, binding: _Binding) -> bool:
        found = {
            entry.key: Value(binding[entry.value.var][0], binding[entry.value.var][2]).json_id()
            for entry in self._normal.entries
            if isinstance(entry.value, Term)
        }
        return found == self._nodes

    def _joint(
        self,
        conjunct: Conjunct,
        parts: Sequence[tuple[Record, int]],
        selected: Mapping[str, int | str],
        of: NormalQuery | Hidden,
    ) -> Iterator[_Joint]:
        """Yields the joint bindings of a conjunctive query over its documents. It is one `of` a query or an inner
        join."""
        left_count = _blocks(conjunct.left)
        lefts = self._side(conjunct.left, parts[:left_count], selected)
        if conjunct.right is None:
            for binding, trail, times in lefts:
                if of.absent and of.op is not None:
                    lacked = _Lacked(of.op, of.window, of.absent, binding, times)
                    yield binding, (*trail, lacked), (times[0], over_at(of.op, of.window or 0, *times))
                else:
                    yield binding, (*trail, _Held(conjunct, binding, None)), times
            return
        equal = conjunct.equalities()
        rights = defaultdict(list)
        for found in self._side(conjunct.right, parts[left_count:], selected):
            rights[self._values(found[0], [right for _, right in equal])].append(found)
        for binding, trail, left in lefts:
            for other, inner, right in rights.get(self._values(binding, [left for left, _ in equal]), ()):
                self._take(1)
                both = {**binding, **other}
                text_of = partial(self._text_of, both)
                if all(holds(expr, text_of) for expr in conjunct.residual):
                    timing = None if of.op is None else Timing(of.op, of.window, left, right)
                    times = min(left[0], right[0]), max(left[1], right[1])
                    yield both, (*trail, *inner, _Held(conjunct, both, timing)), times

    def _side(
        self, side: Side, parts: Sequence[tuple[Record, int]], selected: Mapping[str, int | str]
    ) -> Iterator[_Joint]:
        if side.hidden is None:
            ((record, place),) = parts
            fixed = dict(_fixed(side.pattern, record, selected))
            for found in each_binding(Part(side.pattern), record.tree, fixed, self._take):
                nodes = dict(found)
                binding: _Binding = {var: (record, place, node) for var, node in found}
                yield binding, (_Leaf(side, record, place, nodes),), (record.t0, record.t1)
            return
        # Maps the inner join's names of variables to the outer ones. Variables without one are not visible outside.
        hidden, carried = side.hidden, [child.var for child in side.pattern.children]
        names = {inner: outer for inner, outer in zip(hidden.variables, carried, strict=True) if outer}
        within = {inner: selected[outer] for inner, outer in names.items() if outer in selected}
        for conjunct in _that_are_there(hidden):
            for binding, trail, times in self._joint(conjunct, parts, within, hidden):
                yield {names[var]: bound for var, bound in binding.items() if var in names}, trail, times

    def _told(self, trail: _Trail, filters: Filters | None) -> Reason:
        joined: list[JoinedValue] = []
        conditions: list[Condition] = []
        timings: list[Timing] = []
        for step in trail:
            if isinstance(step, _Held):
                pairs = step.conjunct.equalities()
                joined += (JoinedValue(*(self._operand(step.binding, term) for term in pair)) for pair in pairs)
                conditions += (self._condition(expr, step.binding) for expr in step.conjunct.residual)
                timings += () if step.timing is None or filters is None else (step.timing,)
            elif isinstance(step, _Lacked):
                wanted = set[str]().union(*(one.variables() for one in step.absent))
                operands = {var: self._operand(step.binding, Term(var)) for var in wanted if var in step.binding}
                conditions.append(lacking(step.op, step.window, step.absent, operands, step.times))
        found = () if filters is None else tuple(self._findings(trail, filters))
        return Reason(tuple(joined), tuple(conditions), tuple(timings), found)

    def _findings(self, trail: _Trail, filters: Filters) -> Iterator[Condition]:
        """Yields the conditions on single documents, as far as the steps go: the reason holds without them."""
        with suppress(TooMuchWork):
            for step in trail:
                if isinstance(step, _Leaf):
                    tree = step.record.tree
                    yield from findings(step.side.pattern, tree, step.nodes, filters, step.place, self._take)

    def _condition(self, expr: Expr, binding: _Binding) -> Condition:
        return Condition(in_parts(expr, {var: self._operand(binding, Term(var)) for var in variables_of(expr)}))

    def _operand(self, binding: _Binding, term: Term) -> Operand:
        record, place, node = binding[term.var]
        return operand_of(record.tree, node, term.functions, place, self._text(binding[term.var]))

    def _values(self, binding: _Binding, terms: Sequence[Term]) -> tuple[str, ...]:
        values = []
        for term in terms:
            value = self._text(binding[term.var])
            for name in term.functions:
                value = derive(name, value)
            values.append(value)
        return tuple(values)

    def _text_of(self, binding: _Binding, var: str) -> str:
        return self._text(binding[var])

    def _text(self, bound: _Bound) -> str:
        record, _, node = bound
        key = record.docid, node
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = record.tree.string_value(*node)
        self._take(1 + len(found) // CHARACTERS_PER_STEP)
        return found


def _that_are_there(of: NormalQuery | Hidden) -> Sequence[Conjunct]:
    """The conjunctive queries whose documents are those of an output: of an absence, its left input."""
    return of.conjuncts[:1] if of.absent else of.conjuncts


def _blocks(side: Side) -> int:
    return 1 if side.hidden is None else sum(1 for _ in leaf_sides(side.hidden.conjuncts[0]))


def _fixed(
    pattern: PatternNode, record: Record, selected: Mapping[str, int | str], path: Path = ()
) -> Iterator[tuple[Path, Node]]:
    """Yields the nodes that SELECT variables of a pattern have in the output."""
    node = selected.get(pattern.var) if pattern.var else None
    if node is not None:
        element, attribute = node_order(node)
        if not attribute:
            yield path, (element, 0)
        elif element < len(record.tree.elements):
            names = [str(name) for name in record.tree.elements[element].attrib]
            if attribute[1:] in names:
                yield path, (element, names.index(attribute[1:]) + 1)
    for number, child in enumerate(pattern.children):
        yield from _fixed(child, record, selected, (*path, number))
