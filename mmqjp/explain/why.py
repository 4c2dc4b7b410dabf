"""Why an output came about: the values that made its documents join, found again in the kept documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mmqjp.answers.construct import Value
from mmqjp.answers.output import Output
from mmqjp.answers.residual import holds
from mmqjp.documents.records import Record
from mmqjp.explain.terms import leaf_sides
from mmqjp.session import Session
from mmqjp.tables.answers import DOCIDS_OF_OUTPUTS
from xpath_stage.binder import Node, bindings
from xscl.algebra.normal import Conjunct, NormalQuery, Side, Term

_Place = Mapping[str, tuple[Record, Node]]


@dataclass(frozen=True, slots=True)
class JoinedValue:
    """A value join that held: the terms as the query names them (an inner join's may have lost theirs), the value."""

    terms: tuple[Term, ...]
    value: str


class Evidence:
    """Looks up why outputs came about, in the matches that an engine holds now."""

    def __init__(self, engine: Session) -> None:
        self._records = engine.records
        self._normal: dict[str, list[NormalQuery]] = defaultdict(list)
        for subscription in engine.registry.subscriptions.values():
            self._normal[subscription.name].append(subscription.normal)
        self._matches: dict[int, list[list[int]]] = defaultdict(list)
        rows = engine.sql(DOCIDS_OF_OUTPUTS, trusted=True)
        for row in rows.to_pylist():
            self._matches[row["seq"]].append([row["docid1"]] + ([] if row["docid2"] is None else [row["docid2"]]))

    def of(self, output: Output) -> tuple[JoinedValue, ...]:
        """The value joins behind an output, inner ones first; none for a filter's."""
        for docids in self._matches[output.seq]:
            parts = [self._records[part] for docid in docids for part in self._records[docid].parts]
            for normal in self._normal[output.query]:
                for conjunct in normal.conjuncts:
                    for place, joined in _joint(conjunct, parts):
                        if _nodes(normal, place) == dict(output.nodes):
                            return joined
        return ()


def _nodes(normal: NormalQuery, place: _Place) -> dict[str, int | str]:
    return {
        entry.key: Value(*place[entry.value.var]).json_id() for entry in normal.entries if isinstance(entry.value, Term)
    }


def _joint(conjunct: Conjunct, parts: Sequence[Record]) -> Iterator[tuple[_Place, tuple[JoinedValue, ...]]]:
    """The joint bindings of a conjunctive query over given documents, one for each of its blocks."""
    sides, offset = [], 0
    for side in conjunct.sides():
        blocks = _blocks(side)
        sides.append(list(_side(side, parts[offset : offset + blocks])))
        offset += blocks
    for choice in product(*sides):
        place = {var: bound for one, _ in choice for var, bound in one.items()}
        joined = [
            ((left, right), _text(place, left))
            for left, right in conjunct.joins
            if _text(place, left) == _text(place, right)
        ]
        if len(joined) == len(conjunct.joins) and all(
            holds(expr, lambda var, place=place: Value(*place[var]).text())  # type: ignore[misc]
            for expr in conjunct.residual
        ):
            inner = [value for _, values in choice for value in values]
            yield place, (*inner, *(JoinedValue(*found) for found in joined))


def _side(side: Side, parts: Sequence[Record]) -> Iterator[tuple[_Place, tuple[JoinedValue, ...]]]:
    if side.hidden is None:
        (record,) = parts
        for binding in bindings(side.pattern, record.tree):
            yield {var: (record, node) for var, node in binding}, ()
        return
    # The inner join's own names for the variables that it hands on; the others are nobody's outside.
    carried = [child.var for child in side.pattern.children]
    names = {inner: outer for inner, outer in zip(side.hidden.variables, carried, strict=True) if outer}
    for conjunct in side.hidden.conjuncts:
        for place, joined in _joint(conjunct, parts):
            yield (
                {names[var]: bound for var, bound in place.items() if var in names},
                tuple(
                    JoinedValue(
                        tuple(Term(names[t.var], t.functions) for t in found.terms if t.var in names), found.value
                    )
                    for found in joined
                ),
            )


def _blocks(side: Side) -> int:
    return 1 if side.hidden is None else sum(1 for _ in leaf_sides(side.hidden.conjuncts[0]))


def _text(place: _Place, term: Term) -> str:
    return Value(*place[term.var], term.functions).text()
