"""Reasons: searches the documents of an output for the bindings that made it, and says which conditions held."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mmqjp.answers.construct import Value
from mmqjp.answers.output import node_order
from mmqjp.answers.residual import holds
from mmqjp.documents.record import Record
from mmqjp.explain.terms import leaf_sides
from xpath_stage.binder import Node, Part, Path, each_binding
from xscl import to_xscl
from xscl.algebra.expressions import And, Call, Compare, Expr, Not, Or, VarPath
from xscl.algebra.functions import derive
from xscl.algebra.normal import Conjunct, NormalQuery, Side, Term, variables_of
from xscl.algebra.pattern import PatternNode

CHARACTERS_PER_STEP = 256
"""Reading a node's text costs a step for this many characters."""


_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Around the number of a variable in a text. They are no characters, so no query has them."""

_NUMBERED = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class TooMuchWork(Exception):
    """The search takes too long."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A node that took part: the name of its element, or of an attribute like "link/@href", its text, and the functions
    applied to the text, the innermost first. `document` is the place of its document in the output's `documents`; None
    for a node of another query's output."""

    name: str
    text: str
    functions: tuple[str, ...] = ()
    document: int | None = None

    @property
    def value(self) -> str:
        """The text with the functions applied."""
        value = self.text
        for name in self.functions:
            value = derive(name, value)
        return value


@dataclass(frozen=True, slots=True)
class JoinedValue:
    """A value join that held: its operands, whose values are equal."""

    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Condition:
    """Another condition on the documents that held: its text in parts, with the nodes where the query has variables."""

    parts: tuple[str | Operand, ...]

    @property
    def text(self) -> str:
        """The condition, in which nodes stand by their names."""
        return "".join(part if isinstance(part, str) else part.name for part in self.parts)


@dataclass(frozen=True, slots=True)
class Reason:
    """What made an output: the value joins, those of inner joins first, and other conditions. A filter has neither."""

    joined: tuple[JoinedValue, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def __add__(self, other: Reason) -> Reason:
        return Reason(self.joined + other.joined, self.conditions + other.conditions)


NO_REASON = Reason()

_Bound = tuple[Record, int, Node]
"""A record, its place among the documents of the output (-1 for a published one), and a node of it."""

_Binding = Mapping[str, _Bound]


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

    def reason(self) -> Reason | None:
        """Returns the reason of a joint binding with the output's nodes, or None if there is none."""
        for conjunct in self._normal.conjuncts:
            if sum(1 for _ in leaf_sides(conjunct)) == len(self._parts):
                for binding, reason in self._joint(conjunct, self._parts, self._selected):
                    if self._has_the_nodes(binding):
                        return reason
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
        self, conjunct: Conjunct, parts: Sequence[tuple[Record, int]], selected: Mapping[str, int | str]
    ) -> Iterator[tuple[_Binding, Reason]]:
        """Yields the joint bindings of a conjunctive query over its documents, and why each holds."""
        left_count = _blocks(conjunct.left)
        lefts = self._side(conjunct.left, parts[:left_count], selected)
        if conjunct.right is None:
            yield from ((binding, reason + self._held(conjunct, binding)) for binding, reason in lefts)
            return
        rights = defaultdict(list)
        for binding, reason in self._side(conjunct.right, parts[left_count:], selected):
            rights[self._values(binding, [right for _, right in conjunct.joins])].append((binding, reason))
        for binding, reason in lefts:
            for other, inner in rights.get(self._values(binding, [left for left, _ in conjunct.joins]), ()):
                self._take(1)
                both = {**binding, **other}
                text_of = partial(self._text_of, both)
                if all(holds(expr, text_of) for expr in conjunct.residual):
                    yield both, reason + inner + self._held(conjunct, both)

    def _side(
        self, side: Side, parts: Sequence[tuple[Record, int]], selected: Mapping[str, int | str]
    ) -> Iterator[tuple[_Binding, Reason]]:
        if side.hidden is None:
            ((record, place),) = parts
            fixed = dict(_fixed(side.pattern, record, selected))
            for found in each_binding(Part(side.pattern), record.tree, fixed, self._take):
                yield {var: (record, place, node) for var, node in found}, NO_REASON
            return
        # Maps the inner join's names of variables to the outer ones. Variables without one are not visible outside.
        carried = [child.var for child in side.pattern.children]
        names = {inner: outer for inner, outer in zip(side.hidden.variables, carried, strict=True) if outer}
        within = {inner: selected[outer] for inner, outer in names.items() if outer in selected}
        for conjunct in side.hidden.conjuncts:
            for binding, reason in self._joint(conjunct, parts, within):
                yield {names[var]: bound for var, bound in binding.items() if var in names}, reason

    def _held(self, conjunct: Conjunct, binding: _Binding) -> Reason:
        joined = tuple(JoinedValue(*(self._operand(binding, term) for term in pair)) for pair in conjunct.joins)
        return Reason(joined, tuple(self._condition(expr, binding) for expr in conjunct.residual))

    def _condition(self, expr: Expr, binding: _Binding) -> Condition:
        variables = list(dict.fromkeys(variables_of(expr)))
        text = to_xscl(_with_names(expr, lambda var: f"{_OPEN}{variables.index(var)}{_CLOSE}"))
        parts: list[str | Operand] = []
        for place, part in enumerate(_NUMBERED.split(text)):
            if place % 2:
                parts.append(self._operand(binding, Term(variables[int(part)])))
            elif part:
                parts.append(part)
        return Condition(tuple(parts))

    def _operand(self, binding: _Binding, term: Term) -> Operand:
        record, place, (element, attribute) = binding[term.var]
        name = _local(str(record.tree.elements[element].tag))
        if attribute:
            name += "/@" + _local(record.tree.attribute(element, attribute)[0])
        return Operand(name, self._text(binding[term.var]), term.functions, None if place < 0 else place)

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


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _with_names(expr: Expr, name_of: Callable[[str], str]) -> Expr:
    """A condition in which variables have other names."""
    match expr:
        case VarPath(var=var):
            return VarPath(name_of(var))
        case Call(name=name, args=args):
            return Call(name, tuple(_with_names(arg, name_of) for arg in args))
        case Compare(op=op, left=left, right=right):
            return Compare(op, _with_names(left, name_of), _with_names(right, name_of))
        case And(args=args):
            return And(tuple(_with_names(arg, name_of) for arg in args))
        case Or(args=args):
            return Or(tuple(_with_names(arg, name_of) for arg in args))
        case Not(arg=arg):
            return Not(_with_names(arg, name_of))
    return expr
