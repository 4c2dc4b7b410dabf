"""Tries the equalities of join predicates on documents: how many values either side has, and how many both have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mmqjp.explain.nearness import nearest_of
from mmqjp.explain.sample import Sample, TooLong, applied, texts
from xscl import to_xscl
from xscl.algebra.expressions import And, Call, Compare, Expr, Or, Span, Step, VarPath
from xscl.algebra.functions import derivation
from xscl.algebra.pattern import PatternNode, attach, naming
from xscl.lower_paths import PatternBuilder
from xscl.syntax import Block, Input, Join, SelectItems, SubQuery

TRIED = (("lower-case",), ("normalize-space",), ("normalize-space", "lower-case"), ("canonical-url",))
"""The functions that might make values equal that mean the same, the innermost first."""

_END = "end"

Values = dict[str, list[tuple[str, int]]]
"""Texts, each with at most two documents that have it: their streams and numbers in them."""


@dataclass(frozen=True, slots=True)
class JoinTrial:
    """What an equality found. `left` and `right` count distinct values; `shared` those that two different documents
    have. If there are none, `functions` around both sides would give `shared_then`; or else the texts that are `near`
    are nearest, which `instead` finds."""

    span: Span
    left: int
    right: int
    shared: int
    functions: tuple[str, ...] = ()
    shared_then: int = 0
    near: tuple[str, str] = ("", "")
    instead: str = ""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A node of a block, or of a path from there, with functions applied to its text, the innermost first."""

    block: int
    var: str
    steps: tuple[Step, ...] = ()
    functions: tuple[str, ...] = ()


_Scope = Mapping[str, _Operand]


def try_joins(source: Input, sample: Sample, namespaces: Mapping[str, str]) -> list[JoinTrial]:
    """Tries each equality between two blocks of a source, which has spans. Windows and other conditions of the joins
    are not looked at, nor is a name that a `SELECT *` in parentheses makes."""
    trial = _Trial(sample, namespaces)
    trial.scope(source)
    return trial.found


class _Trial:
    """Collects what the equalities of one source `found`."""

    def __init__(self, sample: Sample, namespaces: Mapping[str, str]) -> None:
        self._sample, self._build = sample, PatternBuilder(namespaces)
        self._blocks: list[tuple[Block, PatternNode]] = []
        self.found: list[JoinTrial] = []

    def scope(self, source: Input) -> _Scope:
        """Tries the equalities of a source. Returns what its names stand for."""
        match source:
            case Block():
                pattern = self._build.path(source.steps)
                self._blocks.append((source, pattern))
                number = len(self._blocks) - 1
                return {var: _Operand(number, var) for var in pattern.variables()}
            case Join():
                left = self.scope(source.left)
                names = {**left, **self.scope(source.right)}
                for equality in _equalities(source.pred):
                    one, other = _operand(equality.left, names), _operand(equality.right, names)
                    if one and other and one.block != other.block:
                        self.found.append(self._try(equality, one, other))
                return names
            case SubQuery():
                names = dict(self.scope(source.source))
                if isinstance(source.select, SelectItems):
                    items = ((item.name, _operand(item.operand, names)) for item in source.select.items)
                    return {name: operand for name, operand in items if operand}
                return names

    def _try(self, equality: Compare, one: _Operand, other: _Operand) -> JoinTrial:
        left, right = self._values(one), self._values(other)
        both = shared(left, right)
        if not both:
            functions, then = mended(left, right)
            found = None if functions else nearest_of(left, right)
            if found is not None:
                instead = f"near({to_xscl(equality.left)}, {to_xscl(equality.right)}, {found[1]})"
                return JoinTrial(equality.span, len(left), len(right), 0, near=found[0], instead=instead)
            return JoinTrial(equality.span, len(left), len(right), 0, functions, then)
        return JoinTrial(equality.span, len(left), len(right), both)

    def _values(self, operand: _Operand) -> Values:
        block, pattern = self._blocks[operand.block]
        name = operand.var
        if operand.steps:
            pattern = attach(pattern, name, self._build.path(operand.steps, last_var=_END))
            name = _END
        pattern = naming(pattern, (name,))
        values: Values = {}
        for number, tree in enumerate(self._sample.of(block.stream)):
            try:
                for text in set(texts(pattern, tree)):
                    note(values, applied(text, operand.functions), [(block.stream, number)])
            except TooLong:
                continue
        return values


def note(values: Values, text: str, documents: Sequence[tuple[str, int]]) -> None:
    """Notes that documents have a value."""
    known = values.setdefault(text, [])
    known += [one for one in documents if one not in known][: 2 - len(known)]


def shared(left: Values, right: Values) -> int:
    """How many values are in two different documents."""
    return sum(1 for text, ones in left.items() if any(one != other for one in ones for other in right.get(text, ())))


def mended(left: Values, right: Values) -> tuple[tuple[str, ...], int]:
    """The functions, the innermost first, that would make values of two sides equal, and how many; () and 0 if none
    would."""
    for functions in TRIED:
        if then := shared(_derived(left, functions), _derived(right, functions)):
            return functions, then
    return (), 0


def _derived(values: Values, functions: tuple[str, ...]) -> Values:
    found: Values = {}
    for text, documents in values.items():
        if derived := applied(text, functions):
            note(found, derived, documents)
    return found


def _equalities(expr: Expr) -> Iterator[Compare]:
    match expr:
        case Compare(op="="):
            yield expr
        case And() | Or():
            for arg in expr.args:
                yield from _equalities(arg)


def _operand(expr: Expr, names: _Scope) -> _Operand | None:
    match expr:
        case VarPath(var=var, steps=steps) if var in names:
            known = names[var]
            return None if known.functions and steps else replace(known, steps=(*known.steps, *steps))
        case Call(args=(arg, *_)) if name := derivation(expr):
            inner = _operand(arg, names)
            return inner and replace(inner, functions=(*inner.functions, name))
    return None
