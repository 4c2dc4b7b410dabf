"""Conditions in one order: clauses of atoms that are turned one way, so that equal ones are written alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_stage.clauses import TooManyClauses, clauses_of
from pattern_stage.formula import leaves, shape, values_of
from xscl.algebra.events import (
    AllOf,
    AnyOf,
    Atom,
    Attribute,
    Comparison,
    Condition,
    Constant,
    Duration,
    Gap,
    Parameter,
    Value,
)
from xscl.algebra.expressions import CompareOp

_TURNED: dict[CompareOp, CompareOp] = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}

_RANK = {"left": "0", "latest": "1", "right": "2"}


@dataclass(frozen=True, slots=True)
class Ordered:
    """A condition in its order, and which of its parameters (`alike`) may be exchanged, inner groups first.

    A group has vectors of parameters, all of one length.
    """

    condition: Condition
    alike: tuple[tuple[tuple[int, ...], ...], ...]


def ordered(condition: Condition) -> Ordered:
    """Returns a condition in disjunctive normal form, atoms turned and sorted. One with too many clauses stays."""
    try:
        clauses = clauses_of(condition)
    except TooManyClauses:
        return Ordered(condition, ())
    written = [{turned(atom): None for atom in clause} for clause in clauses]
    keyed = [sorted(((_key(atom), atom) for atom in clause), key=_first) for clause in written]
    keyed.sort(key=lambda clause: list(map(_first, clause)))
    alike = [group for clause in keyed for group in _alike([[pair] for pair in clause])]
    alike += _alike(keyed)
    if [] in keyed:
        return Ordered(AllOf(), ())
    sorted_clauses = [tuple([atom for _, atom in clause]) for clause in keyed]
    parts = tuple(clause[0] if len(clause) == 1 else AllOf(clause) for clause in sorted_clauses)
    return Ordered(parts[0] if len(parts) == 1 else AnyOf(parts), tuple(alike))


def turned(atom: Atom) -> Atom:
    """Returns an atom with what is constant on its right, else the left event before the right one."""
    if not isinstance(atom, Comparison):
        return atom
    if isinstance(atom.left, Attribute) and isinstance(atom.right, Parameter):
        return atom  # as most atoms are
    if _side(atom.left) <= _side(atom.right):
        return atom
    return Comparison(_TURNED[atom.op], atom.right, atom.left)


def _side(value: Value) -> tuple[str, str]:
    parts = [_RANK[leaf.part] for leaf in leaves(value) if isinstance(leaf, Attribute)]
    if parts:
        return min(parts), shape(value)
    varies = any(isinstance(leaf, Duration | Gap) for leaf in leaves(value))
    constant = any(isinstance(leaf, Parameter | Constant) for leaf in leaves(value))
    return ("3" if varies else "5" if constant else "4"), shape(value)


def _key(atom: Atom) -> str:
    return shape(atom)


_Keyed = tuple[str, Atom]
"""An atom with its key."""


def _first(pair: _Keyed) -> str:
    return pair[0]


def _alike(pieces: Sequence[Sequence[_Keyed]]) -> list[tuple[tuple[int, ...], ...]]:
    """Finds neighbours of one shape whose parameters can be exchanged."""
    groups: list[tuple[tuple[int, ...], ...]] = []
    start = 0
    shapes = [list(map(_first, piece)) for piece in pieces]
    for end in range(1, len(pieces) + 1):
        if end < len(pieces) and shapes[end] == shapes[start]:
            continue
        if end - start > 1:
            vectors = [_parameters([atom for _, atom in piece]) for piece in pieces[start:end]]
            flat = [number for vector in vectors for number in vector]
            if flat and len(set(flat)) == len(flat):
                groups.append(tuple(vectors))
        start = end
    return groups


def _parameters(atoms: Sequence[Atom]) -> tuple[int, ...]:
    return tuple(
        leaf.index
        for atom in atoms
        for value in values_of(atom)
        for leaf in leaves(value)
        if isinstance(leaf, Parameter)
    )
