"""Explains why an output came about: finds the values that its documents share in the stored documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from mmqjp.answers.construct import Value
from mmqjp.answers.joint import JointBinding
from mmqjp.answers.output import Output
from mmqjp.answers.residual import holds
from mmqjp.documents.record import Record
from mmqjp.explain.terms import leaf_sides
from mmqjp.session import Session
from xpath_stage.binder import bindings
from xscl.algebra.normal import Conjunct, NormalQuery, Side, Term


@dataclass(frozen=True, slots=True)
class JoinedValue:
    """A value join that held: the terms as the query names them, and the value.

    A term of an inner join is missing if the query does not see its variable.
    """

    terms: tuple[Term, ...]
    value: str


class Evidence:
    """Finds the value joins behind outputs in the matches that an engine stores."""

    def __init__(self, engine: Session) -> None:
        self._records = engine.records
        self._normal: dict[str, list[NormalQuery]] = defaultdict(list)
        for subscription in engine.registry.subscriptions.values():
            self._normal[subscription.name].append(subscription.normal)
        self._engine = engine

    def of(self, output: Output) -> tuple[JoinedValue, ...]:
        """Returns the value joins behind an output, inner ones first. A filter has none."""
        for docids in self._engine.documents_behind(output):
            parts = [self._records[part] for docid in docids for part in self._records[docid].parts]
            for normal in self._normal[output.query]:
                for conjunct in normal.conjuncts:
                    for binding, joined in _joint(conjunct, parts):
                        if _nodes(normal, binding) == dict(output.nodes):
                            return joined
        return ()


def _nodes(normal: NormalQuery, binding: JointBinding) -> dict[str, int | str]:
    return {
        entry.key: Value(*binding[entry.value.var]).json_id()
        for entry in normal.entries
        if isinstance(entry.value, Term)
    }


def _joint(conjunct: Conjunct, parts: Sequence[Record]) -> Iterator[tuple[JointBinding, tuple[JoinedValue, ...]]]:
    """Yields the joint bindings of a conjunctive query over documents, one per block, with the value joins that
    hold."""
    sides, offset = [], 0
    for side in conjunct.sides():
        blocks = _blocks(side)
        sides.append(list(_side(side, parts[offset : offset + blocks])))
        offset += blocks
    for choice in product(*sides):
        binding = {var: bound for one, _ in choice for var, bound in one.items()}
        joined = [
            ((left, right), _text(binding, left))
            for left, right in conjunct.joins
            if _text(binding, left) == _text(binding, right)
        ]
        if len(joined) == len(conjunct.joins) and all(
            holds(expr, lambda var, binding=binding: Value(*binding[var]).text())  # type: ignore[misc]  # mypy infers no lambda with a default
            for expr in conjunct.residual
        ):
            inner = [value for _, values in choice for value in values]
            yield binding, (*inner, *(JoinedValue(*found) for found in joined))


def _side(side: Side, parts: Sequence[Record]) -> Iterator[tuple[JointBinding, tuple[JoinedValue, ...]]]:
    if side.hidden is None:
        (record,) = parts
        for found in bindings(side.pattern, record.tree):
            yield {var: (record, node) for var, node in found}, ()
        return
    # Maps the inner join's names of variables to the outer ones. Variables without one are not visible outside.
    carried = [child.var for child in side.pattern.children]
    names = {inner: outer for inner, outer in zip(side.hidden.variables, carried, strict=True) if outer}
    for conjunct in side.hidden.conjuncts:
        for binding, joined in _joint(conjunct, parts):
            yield (
                {names[var]: bound for var, bound in binding.items() if var in names},
                tuple(
                    JoinedValue(
                        tuple(Term(names[t.var], t.functions) for t in held.terms if t.var in names), held.value
                    )
                    for held in joined
                ),
            )


def _blocks(side: Side) -> int:
    return 1 if side.hidden is None else sum(1 for _ in leaf_sides(side.hidden.conjuncts[0]))


def _text(binding: JointBinding, term: Term) -> str:
    return Value(*binding[term.var], term.functions).text()
