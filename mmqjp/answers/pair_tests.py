"""Pair tests: whether two documents satisfy a join in one order, whatever their times, and whether a match has a
mirror."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from mmqjp.answers.construct import Value
from mmqjp.answers.quota import Steps
from mmqjp.answers.residual import holds
from mmqjp.documents.record import Inputs, Record
from xpath_stage.binder import HELD, Node, Part, each_binding
from xscl.algebra.mirror import Mirror, needed
from xscl.algebra.normal import Conjunct, Side, Term
from xscl.algebra.pattern import naming

CHARACTERS_READ_PER_STEP = 256
"""A value that is compared costs one step per this many characters."""

MAX_CACHED = 100_000
"""The cache is cleared when it has this many pairs of documents."""


class Mirrors:
    """Tells which matches of JOIN UNORDERED are told by their mirrors. Caches what one match finds for other matches
    of the same step."""

    def __init__(self) -> None:
        self._tests: dict[Mirror, PairTest] = {}
        self._found: dict[tuple[Mirror, int, int], tuple[int, bool]] = {}

    def tell(self, mirror: Mirror | None, inputs: Inputs, steps: Steps) -> bool:
        """Returns whether a match has a mirror whose first document is less by (t1, stream, id). `mirror` is that of
        its join. Raises OutOfSteps."""
        if mirror is None or not _place(inputs[1]) < _place(inputs[0]):
            return False
        if mirror.always:
            return True
        key = mirror, inputs[0].docid, inputs[1].docid
        known = self._found.get(key)
        if known is not None:
            steps.take(known[0])
            return known[1]
        test = self._tests.get(mirror)
        if test is None:
            test = self._tests[mirror] = PairTest(mirror.conjuncts)
        before = steps.left
        found = test.holds(inputs[1], inputs[0], steps)
        if len(self._found) >= MAX_CACHED:
            self._found.clear()
        self._found[key] = before - steps.left, found
        return found


def _place(record: Record) -> tuple[int, str, str]:
    return record.t1, record.stream, record.id


class PairTest:
    """Tests pairs of documents against the conjunctive queries of a join."""

    def __init__(self, conjuncts: Iterable[Conjunct]) -> None:
        self._joins = [_Join(conjunct) for conjunct in conjuncts]

    def holds(self, left: Record, right: Record, steps: Steps) -> bool:
        """Returns whether the documents, of the streams that the sides read, satisfy one of the conjunctive queries.
        Raises OutOfSteps."""
        return any(join.holds(left, right, steps) for join in self._joins)


class _Join:
    """Finds the joint bindings of a conjunctive query in two documents, as far as it takes to know that there is
    one."""

    def __init__(self, conjunct: Conjunct) -> None:
        assert conjunct.right is not None, "a join has two inputs"
        self._left, self._right = _Bound(conjunct, conjunct.left), _Bound(conjunct, conjunct.right)
        equal = conjunct.equalities()
        self._ours, self._theirs = [one for one, _ in equal], [other for _, other in equal]
        self._residual = conjunct.residual

    def holds(self, left: Record, right: Record, steps: Steps) -> bool:
        by_values: dict[tuple[str, ...], list[Mapping[str, Node]]] = {}
        for bound in self._right.bindings(right, steps):
            steps.take(HELD)
            by_values.setdefault(_values(self._theirs, right, bound, steps), []).append(bound)
        if not by_values:
            return False
        for bound in self._left.bindings(left, steps):
            for other in by_values.get(_values(self._ours, left, bound, steps), ()):
                steps.take()
                joint = {var: (left, node) for var, node in bound.items()}
                joint |= {var: (right, node) for var, node in other.items()}
                text_of = partial(_text, joint, steps)
                if all(holds(expr, text_of) for expr in self._residual):
                    return True
        return False


class _Bound:
    """Finds what one side of a conjunctive query binds in a document, of the variables that decide."""

    def __init__(self, conjunct: Conjunct, side: Side) -> None:
        self._part = Part(naming(side.pattern, needed(conjunct)))
        self._tuple = None
        if side.hidden is not None:
            children = enumerate(side.pattern.children, 1)
            self._tuple = {child.var: (number, 0) for number, child in children if child.var}

    def bindings(self, record: Record, steps: Steps) -> Iterator[Mapping[str, Node]]:
        if self._tuple is not None:
            yield self._tuple
            return
        for binding in each_binding(self._part, record.tree, {}, steps.take):
            yield dict(binding)


def _values(terms: Sequence[Term], record: Record, bound: Mapping[str, Node], steps: Steps) -> tuple[str, ...]:
    return tuple(_read(Value(record, bound[term.var], term.functions), steps) for term in terms)


def _text(joint: Mapping[str, tuple[Record, Node]], steps: Steps, var: str) -> str:
    return _read(Value(*joint[var]), steps)


def _read(value: Value, steps: Steps) -> str:
    text = value.text()
    steps.take(len(text) // CHARACTERS_READ_PER_STEP)
    return text
