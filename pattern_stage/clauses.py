"""Conditions in disjunctive normal form, and the atoms of a clause by what tests them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from common.errors import InputError
from xscl.algebra.events import (
    AllOf,
    AnyOf,
    Arithmetic,
    Atom,
    Attribute,
    Comparison,
    Condition,
    Duration,
    Function,
    Gap,
    NullTest,
    Parameter,
    Part,
    TextTest,
    Value,
)

MAX_CLAUSES = 64
"""How many clauses a condition may have."""

Conjunction = tuple[Atom, ...]
"""Atoms that must all hold."""

Clauses = tuple[Conjunction, ...]
"""Conjunctions of which any must hold."""


class TooManyClauses(InputError, ValueError):
    """A condition has more than MAX_CLAUSES clauses once its ORs stand outside its ANDs."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of a condition on pairs of events.

    `static` atoms are about the right event and constants alone: the static index tests them. `equalities` are those of
    a value of the instance, whose parameters it may mention, with a value of the right event: one of them can be
    hashed. `rest` is all else.
    """

    static: Conjunction
    equalities: tuple[tuple[Value, Value], ...]
    rest: Conjunction


def split_condition(condition: Condition, part: Literal["left", "right"] = "right") -> tuple[Clause, ...]:
    """Returns the clauses of a condition, with the atoms about the events of `part` alone apart from the others.

    Of an operator with one input, `part` is `left`, and all atoms are static.

    Raises:
        TooManyClauses: if there are more than MAX_CLAUSES.
    """
    return tuple(_clause(atoms, part) for atoms in clauses_of(condition))


def static_clauses(clauses: tuple[Clause, ...]) -> Clauses:
    """Returns the static part of each clause, as the static index takes it. An empty one holds always."""
    return tuple(dict.fromkeys(clause.static for clause in clauses))


def clauses_of(condition: Condition) -> Clauses:
    """Returns a condition in disjunctive normal form, without repeated atoms and clauses, in their order.

    Raises:
        TooManyClauses: if there are more than MAX_CLAUSES.
    """
    return _distinct(_clauses(condition))


def _clauses(condition: Condition) -> Sequence[Conjunction]:
    """The clauses; atoms and clauses may be repeated, as looking for equal ones takes long."""
    match condition:
        case AllOf(args=args):
            found: Sequence[Conjunction] = ((),)
            for arg in args:
                clauses = _clauses(arg)
                found = [(*before, *after) for before in found for after in clauses]
                if len(found) > MAX_CLAUSES:
                    found = _distinct(found)
            return found
        case AnyOf(args=args):
            either = [clause for arg in args for clause in _clauses(arg)]
            return either if len(either) <= MAX_CLAUSES else _distinct(either)
        case _:
            return ((condition,),)


def _distinct(clauses: Iterable[Conjunction]) -> Clauses:
    found: dict[Conjunction, None] = {}
    for clause in clauses:
        found[tuple(dict.fromkeys(clause)) if len(clause) > 1 else clause] = None
        if len(found) > MAX_CLAUSES:
            raise TooManyClauses(
                f"the condition has more than {MAX_CLAUSES} clauses once its ORs stand outside its ANDs: "
                "make two statements of it"
            )
    return tuple(found)


def parts_of(node: Atom | Value) -> frozenset[Part]:
    """Returns whose attributes and times an atom or value of a pair mentions. DUR and GAP mention both sides."""
    match node:
        case Attribute(part=part):
            return frozenset({part})
        case Duration() | Gap():
            return frozenset({"left", "right"})
    return frozenset().union(*map(parts_of, children(node)))


def mentions_parameters(node: Atom | Value) -> bool:
    """Returns whether an atom or value depends on the row."""
    return isinstance(node, Parameter) or any(map(mentions_parameters, children(node)))


def children(node: Atom | Value) -> tuple[Value, ...]:
    """Returns the values that an atom or value is made of."""
    match node:
        case Comparison(left=left, right=right) | Arithmetic(left=left, right=right):
            return left, right
        case TextTest(args=args) | Function(args=args):
            return args
        case NullTest(value=value):
            return (value,)
    return ()


def _clause(atoms: Conjunction, part: Literal["left", "right"]) -> Clause:
    static, equalities, rest = [], [], []
    for atom in atoms:
        if part == "left" or parts_of(atom) <= {part}:
            static.append(atom)
        elif equality := _dynamic_equality(atom):
            equalities.append(equality)
        else:
            rest.append(atom)
    return Clause(tuple(static), tuple(equalities), tuple(rest))


def _dynamic_equality(atom: Atom) -> tuple[Value, Value] | None:
    """An equality between the instance and the right event, in this order."""
    if not isinstance(atom, Comparison) or atom.op != "=":
        return None
    for one, other in ((atom.left, atom.right), (atom.right, atom.left)):
        if "right" not in parts_of(one) and parts_of(other) == {"right"} and not mentions_parameters(other):
            return one, other
    return None
