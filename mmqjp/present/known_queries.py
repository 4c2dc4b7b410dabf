"""The registered queries of a name as a store has them, read by SELECTs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from mmqjp.explain.readable import ReadableQuery
from mmqjp.explain.why import MOST_QUERIES
from mmqjp.queries.compile import Compiler, StoredQuery
from mmqjp.queries.event_compile import is_event_form
from mmqjp.queries.model import Subscription, has_absence
from mmqjp.tables.lookup import Select, pauses_of, queries_named
from xscl import XsclErrors, parse_script, to_xscl
from xscl.algebra.normal import NEGATED
from xscl.scope import blocks
from xscl.syntax import Join

MOST_NAMES = 10_000
"""Among so many names one is looked for that was meant."""


@dataclass(frozen=True, slots=True)
class Known:
    """A registered query."""

    query: Subscription
    readable: ReadableQuery


@dataclass(frozen=True, slots=True)
class KnownAbsence:
    """A registered query that tells what did not come. `left` is its left input alone, and `partners` the query that
    would tell what did come: there the blocks of the left input are at `places`."""

    query: Subscription
    left: ReadableQuery
    partners: ReadableQuery
    places: range

    @property
    def common_variables(self) -> set[str]:
        """The variables of the left input that it has with whatever disjunct finds partners."""
        sides = [one.right if self.places.start else one.left for one in self.partners.normal.conjuncts]
        common = [set(side.pattern.variables()) for side in sides if side is not None]
        return set.intersection(*common) & set(self.left.normal.conjuncts[0].left.pattern.variables())


def known_queries(select: Select, name: str) -> list[Known]:
    """Returns the registered queries of a name, at most 100 of them. Event queries are left out, those with absences,
    and those that this version cannot read."""
    found = []
    for query in _registered(select, name):
        with suppress(XsclErrors):
            if not query.waits:
                found.append(Known(query, ReadableQuery.of(query.text)))
    return found


def known_absences(select: Select, name: str) -> list[KnownAbsence]:
    """Returns the registered queries of a name, at most 100 of them, that are absences of inputs without absences."""
    found = []
    for query in _registered(select, name):
        with suppress(XsclErrors):
            if query.waits and (text := partner_text(query.text)) is not None:
                readable, partners = ReadableQuery.of(query.text), ReadableQuery.of(text)
                source, normal = readable.query.source, readable.normal
                assert isinstance(source, Join), "an absence is a join"
                left = replace(normal, op=None, window=None, conjuncts=normal.conjuncts[:1], absent=())
                count = len(blocks(source.left))
                first = len(partners.blocks) - count if source.op == "NOT PRECEDED BY" else 0
                places = range(first, first + count)
                found.append(KnownAbsence(query, replace(readable, normal=left), partners, places))
    return found


def partner_text(text: str) -> str | None:
    """Returns the text of the query whose matches are those of the left input of an absence with its partners; None if
    it is no absence, or its inputs have some.

    >>> partner_text("S//a->x NOT PRECEDED BY {x = y, 1 h} S//b->y")
    'FROM S//b->y FOLLOWED BY {x = y, 1 h} S//a->x'
    """
    script = parse_script(text, stored=True)
    query = script.queries[0]
    match query.source:
        case Join(op="NOT PRECEDED BY", left=left, right=right):
            source = replace(query.source, op="FOLLOWED BY", left=right, right=left)
        case Join(op=op) if op in NEGATED:
            source = replace(query.source, op="JOIN" if op == "NOT JOIN" else "FOLLOWED BY")
        case _:
            return None
    positive = to_xscl(replace(script, queries=(replace(query, source=source, once=None),)))
    return None if has_absence(Compiler().compile_text(positive).normal) else positive


def _registered(select: Select, name: str) -> Iterator[Subscription]:
    found = queries_named(select, name, MOST_QUERIES)
    rows = [row for row in found if row["removed_at"] is None and not is_event_form(row["form"] or "")]
    pauses = pauses_of(select, [row["qid"] for row in rows])
    compiler = Compiler()
    for row in rows:
        text = row["text"]
        compiled = StoredQuery(text, compiler)
        query = Subscription(
            row["qid"], name, text, row["occurrence"], row["since"], row["window_us"], row["form"] or "", 0, compiled
        )
        for pause in pauses:
            if pause["qid"] == row["qid"]:
                if pause["reason"] is None:
                    query.resume(pause["docid"], 0)
                else:
                    query.pause(pause["docid"], pause["reason"])
        yield query
