"""Conditions: disjunctive normal form, canonical order of atoms, and text. A condition on pairs of events is split into
clauses, and the atoms of a clause by how they are tested. Clauses of atoms turned one way make equal conditions equal
as text. Chains of selections and renamings become one selection and one renaming."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal, TypeVar

from common.errors import InputError
from xscl.algebra import events as algebra
from xscl.algebra.values import CompareOp

MAX_CLAUSES = 64  # maximum number of clauses of a condition

Conjunction = tuple[algebra.Atom, ...]  # atoms that must all hold

Clauses = tuple[Conjunction, ...]  # a disjunction of conjunctions


class TooManyClauses(InputError, ValueError):
    """A condition has more than MAX_CLAUSES clauses in disjunctive normal form."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause of a condition on pairs of events. `static` atoms, about the right event and constants alone, go to the
    static index. `equalities` compare a value of the instance, with its parameters, to one of the right event; one of
    them can be hashed. `rest` is all else."""

    static: Conjunction
    equalities: tuple[tuple[algebra.Value, algebra.Value], ...]
    rest: Conjunction


def split_condition(condition: algebra.EventCondition, part: Literal["left", "right"] = "right") -> tuple[Clause, ...]:
    """Splits a condition into clauses, with atoms about `part` alone as static ones. Raises TooManyClauses. For an
    operator with one input, `part` is `left` and all atoms are static."""
    found = []
    for atoms in dnf_clauses(condition):
        static, equalities, rest = [], [], []
        for atom in atoms:
            if part == "left" or referenced_parts(atom) <= {part}:
                static.append(atom)
            elif equality := _dynamic_equality(atom):
                equalities.append(equality)
            else:
                rest.append(atom)
        found.append(Clause(tuple(static), tuple(equalities), tuple(rest)))
    return tuple(found)


def static_clauses(clauses: tuple[Clause, ...]) -> Clauses:
    """Returns the distinct static parts, as the static index takes them. An empty one always holds."""
    return tuple(dict.fromkeys(clause.static for clause in clauses))


def common_equalities(clauses: tuple[Clause, ...]) -> list[tuple[algebra.Value, algebra.Value]]:
    """Returns the equalities of both sides that every clause has; none of a condition that never holds."""
    first = clauses[0].equalities if clauses else ()
    return [one for one in first if all(one in other.equalities for other in clauses)]


def dnf_clauses(condition: algebra.EventCondition) -> Clauses:
    """Returns the disjunctive normal form, without repeated atoms and clauses, in order. Raises TooManyClauses."""
    return _distinct(_clauses(condition))


def _clauses(condition: algebra.EventCondition) -> Sequence[Conjunction]:
    match condition:
        case algebra.AllOf(args=args):
            found: Sequence[Conjunction] = ((),)
            for arg in args:
                clauses = _clauses(arg)
                found = [(*before, *after) for before in found for after in clauses]
                if len(found) > MAX_CLAUSES:
                    found = _distinct(found)
            return found
        case algebra.AnyOf(args=args):
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


def referenced_parts(node: algebra.EventCondition | algebra.Value) -> frozenset[algebra.Part]:
    """Returns whose attributes and times an atom or value mentions. DUR and GAP mention both sides."""
    parts: dict[type, set[algebra.Part]] = {algebra.Duration: {"left", "right"}, algebra.Gap: {"left", "right"}}
    found = (
        {leaf.part} if isinstance(leaf, algebra.Attribute) else parts.get(type(leaf), ())
        for leaf in algebra.leaves(node)
    )
    return frozenset().union(*found)


N = TypeVar("N", bound=algebra.EventCondition | algebra.Value)


def on_left(node: N) -> N:
    """Returns a condition or value of one event as one of the left event."""
    return algebra.map_leaves(node, _on_left)


def _on_left(of: algebra.Value) -> algebra.Value:
    if isinstance(of, algebra.Attribute) and of.part != "left":
        return algebra.Attribute("left", of.name, of.kind)
    return of


def _dynamic_equality(atom: algebra.Atom) -> tuple[algebra.Value, algebra.Value] | None:
    if not isinstance(atom, algebra.Comparison) or atom.op != "=":
        return None
    for one, other in ((atom.left, atom.right), (atom.right, atom.left)):
        if "right" not in referenced_parts(one) and referenced_parts(other) == {"right"} and not has_parameters(other):
            return one, other
    return None


EVENT_SIGNS = {"left": "$1", "latest": "$", "right": "$2"}


def expression_text(
    node: algebra.EventCondition | algebra.Value, parameter: Callable[[algebra.Parameter], str], bare: bool = False
) -> str:
    """Returns a condition or value in statement syntax; `bare` omits `$1.` before attributes, and has the literals of
    functions as arguments."""

    def text(part: algebra.EventCondition | algebra.Value) -> str:
        return expression_text(part, parameter, bare)

    match node:
        case algebra.Constant(number_or_text):
            return constant_text(number_or_text)
        case algebra.Parameter():
            return parameter(node)
        case algebra.Attribute(part, name):
            return name if bare else f"{EVENT_SIGNS[part]}.{name}"
        case algebra.Duration():
            return "DUR"
        case algebra.Gap():
            return "GAP"
        case algebra.Arithmetic(op, left, right):
            return f"({expression_text(left, parameter, bare)} {op} {expression_text(right, parameter, bare)})"
        case algebra.Function(name, args):
            function, _, literal = name.partition(" ") if bare else (name, "", "")
            written = [expression_text(arg, parameter, bare) for arg in args]
            return f"{function}({', '.join([*written, *([literal] if literal else [])])})"
        case algebra.Comparison(op, left, right):
            return f"{text(left)} {op} {text(right)}"
        case algebra.TextTest(name, args, negated):
            return f"{'NOT ' if negated else ''}{name}({', '.join(map(text, args))})"
        case algebra.NullTest(value, negated):
            return f"{text(value)} IS {'NOT ' if negated else ''}NULL"
        case algebra.AllOf(args):
            parts = (
                f"({text(arg)})" if isinstance(arg, algebra.AnyOf) and len(arg.args) > 1 else text(arg) for arg in args
            )
            return " AND ".join(parts) or "TRUE"
        case algebra.AnyOf(args):
            return " OR ".join(map(text, args)) or "FALSE"


def constant_text(value: str | float) -> str:
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    return f"{value:.15g}"


def shape(item: algebra.Value | algebra.EventCondition) -> str:
    """Returns the text in which all parameters of a kind look the same."""
    # A text and a number of one name are different attributes.
    kind = item.kind if isinstance(item, algebra.Attribute) else ""
    return expression_text(item, lambda one: f"?{one.kind}") + kind


def numeric(value: algebra.Value) -> algebra.Value:
    return value if algebra.value_kind(value) == "number" else algebra.Function("number", (value,), "number")


def has_parameters(node: algebra.EventCondition | algebra.Value) -> bool:
    """Returns whether a condition or value depends on the row."""
    return any(isinstance(leaf, algebra.Parameter) for leaf in algebra.leaves(node))


TURNED: dict[CompareOp, CompareOp] = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}

_RANK = {"left": "0", "latest": "1", "right": "2"}


@dataclass(frozen=True, slots=True)
class Ordered:
    """A canonical condition; `alike` are the groups of its interchangeable parameters, inner groups first. A group has
    parameter vectors of one length."""

    condition: algebra.EventCondition
    alike: tuple[tuple[tuple[int, ...], ...], ...]


def ordered(condition: algebra.EventCondition) -> Ordered:
    """Returns the disjunctive normal form with atoms turned and sorted. A condition with too many clauses stays."""
    try:
        clauses = dnf_clauses(condition)
    except TooManyClauses:
        return Ordered(condition, ())
    distinct = [dict.fromkeys(map(turned, clause)) for clause in clauses]
    keyed = [sorted(((shape(one), one) for one in clause), key=itemgetter(0)) for clause in distinct]
    keyed.sort(key=_shapes)
    alike = [group for clause in keyed for group in _alike([[pair] for pair in clause])]
    alike += _alike(keyed)
    if [] in keyed:
        return Ordered(algebra.AllOf(), ())
    parts = tuple(one[0][1] if len(one) == 1 else algebra.AllOf(tuple([atom for _, atom in one])) for one in keyed)
    return Ordered(parts[0] if len(parts) == 1 else algebra.AnyOf(parts), tuple(alike))


def turned(atom: algebra.Atom) -> algebra.Atom:
    """Returns an atom with constants on its right, else the left event before the right one."""
    if not isinstance(atom, algebra.Comparison):
        return atom
    if isinstance(atom.left, algebra.Attribute) and isinstance(atom.right, algebra.Parameter):
        return atom  # as most atoms are
    if _side(atom.left) <= _side(atom.right):
        return atom
    return algebra.Comparison(TURNED[atom.op], atom.right, atom.left)


def _side(value: algebra.Value) -> tuple[str, str]:
    parts = [_RANK[leaf.part] for leaf in algebra.leaves(value) if isinstance(leaf, algebra.Attribute)]
    if parts:
        return min(parts), shape(value)
    varies = any(isinstance(leaf, algebra.Duration | algebra.Gap) for leaf in algebra.leaves(value))
    constant = any(isinstance(leaf, algebra.Parameter | algebra.Constant) for leaf in algebra.leaves(value))
    return ("3" if varies else "5" if constant else "4"), shape(value)


_Keyed = tuple[str, algebra.Atom]  # an atom with its sort key


def _shapes(piece: Sequence[_Keyed]) -> list[str]:
    return [key for key, _ in piece]


def _alike(pieces: Sequence[Sequence[_Keyed]]) -> list[tuple[tuple[int, ...], ...]]:
    groups: list[tuple[tuple[int, ...], ...]] = []
    for _, found in groupby(pieces, _shapes):
        if len(several := list(found)) == 1:  # as nearly all are
            continue
        vectors = [
            tuple(one.index for _, atom in piece for one in algebra.leaves(atom) if isinstance(one, algebra.Parameter))
            for piece in several
        ]
        flat = [number for vector in vectors for number in vector]
        if flat and len(set(flat)) == len(flat):
            groups.append(tuple(vectors))
    return groups


MOST = 400  # chains of selections are merged as long as their expressions have at most this many leaves


def chain(
    stream: algebra.Stream,
) -> tuple[algebra.Stream, algebra.EventCondition, tuple[tuple[str, algebra.Value], ...] | None]:
    """Splits a chain into its source, the condition on it, and the items, None for all unchanged."""
    match stream:
        case algebra.Select(source, items):
            base, condition, inner = chain(source)
            if inner is None:
                return base, condition, items
            over = _over(inner)
            composed = tuple((name, algebra.map_leaves(value, over)) for name, value in items)
            if sum(1 for _, value in composed for _ in algebra.leaves(value)) > MOST:
                return source, algebra.AllOf(), items
            return base, condition, composed
        case algebra.Filter(source, condition):
            base, below, inner = chain(source)
            if inner is not None:
                condition = algebra.map_leaves(condition, _over(inner))
            if sum(1 for _ in algebra.leaves(condition)) > MOST:
                return source, stream.condition, None
            return base, algebra.AllOf((below, condition)), inner
        case _:
            return stream, algebra.AllOf(), None


def _over(items: tuple[tuple[str, algebra.Value], ...]) -> Callable[[algebra.Value], algebra.Value]:
    values = dict(items)
    return lambda leaf: values[leaf.name] if isinstance(leaf, algebra.Attribute) else leaf
