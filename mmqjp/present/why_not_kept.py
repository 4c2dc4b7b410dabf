"""What is said of fewer documents than a query has blocks: they are tried with the documents that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from mmqjp.documents.record import Record
from mmqjp.explain.funnel import Funnel, steps_for
from mmqjp.explain.verdict import MOST_LISTED, Verdict, of_result, orders, verdict
from mmqjp.present.kept_documents import Kept
from mmqjp.present.known_queries import Known
from mmqjp.present.why_not_result import Near, WhyNot, items_of
from mmqjp.present.why_not_whole import shown_verdict
from mmqjp.tables.lookup import Select, ids_with

MOST_NEAREST, MOST_TRIED = 3, 20
"""So many choices of documents are shown that came nearest; of those that match so many are looked at one by one."""

MOST_KEPT, MOST_QUERIES_TRIED = 10_000, 10
"""So many of the newest kept documents are tried, with so many of the queries of a name."""


@dataclass(frozen=True, eq=False)
class _Try:
    """A way in which the documents stand in the blocks of a query. Kept documents go into the others."""

    known: Known
    placed: tuple[Record | None, ...]
    funnel: Funnel

    def look(self, record: Record) -> None:
        """Looks at a kept document."""
        if self.known.query.sees(record.appeared):
            blocks = self.known.readable.blocks
            free = [place for place, given in enumerate(self.placed) if given is None]
            self.funnel.look(record, [place for place in free if blocks[place].stream == record.stream])


def with_kept(select: Select, name: str, known: Sequence[Known], records: Sequence[Record]) -> WhyNot:
    """Returns what is said of documents together with those that are kept, of queries with more blocks."""
    stored = ids_with(select, name, {id for record in records for id, _ in record.sources}, MOST_LISTED + 1)
    if stored:
        more = "more than " if len(stored) > MOST_LISTED else ""
        many = min(len(stored), MOST_LISTED)
        what = f"{more}{many} output{'' if many == 1 else 's'} with other documents"
        text = known[0].query.text
        return WhyNot(name, "output", what, text=text, items=items_of(records), outputs=tuple(stored[:MOST_LISTED]))
    found: list[tuple[Verdict, Known]] = []
    placed: list[tuple[Known, tuple[Record | None, ...]]] = []
    for one in known[:MOST_QUERIES_TRIED]:
        if one.query.sees([at for record in records for at in record.appeared]):
            placed += ((one, places) for places in orders(records, len(one.readable.blocks)))
        else:
            found.append((verdict(one.query, one.readable, records), one))
    steps = steps_for(len(placed))
    tries = [_begun(one, places, steps) for one, places in placed]
    streams = {block.stream for one in tries for block in one.known.readable.blocks}
    kept = Kept(select, streams, MOST_KEPT)
    for record in kept.records() if tries else ():
        for one_try in tries:
            one_try.look(record)
    for one_try in tries:
        query, result = one_try.known.query, one_try.funnel.result()
        if not result.rows:
            found.append((of_result(query, one_try.placed, result), one_try.known))
            continue
        choices = {row.docids: row.documents for row in result.rows}
        some = islice(choices.values(), MOST_TRIED)
        verdicts = [verdict(query, one_try.known.readable, one, steps_for(MOST_TRIED)) for one in some]
        return replace(shown_verdict(select, name, verdicts), tried=kept.read)
    best, of = max(found, key=lambda pair: pair[0].rank)
    return WhyNot(
        name,
        best.kind,
        best.message,
        best.hint,
        best.part,
        best.query.text,
        items_of(best.documents),
        (),
        best.stages,
        _nearest(best, of),
        kept.read,
    )


def _begun(known: Known, placed: tuple[Record | None, ...], steps: int) -> _Try:
    funnel = Funnel(known.readable, steps=steps)
    for block, record in enumerate(placed):
        if record is not None:
            funnel.look(record, (block,))
    return _Try(known, placed, funnel)


def _nearest(best: Verdict, one: Known) -> tuple[Near, ...]:
    """The documents that came nearest, closest in time first."""
    pairs = sorted(
        best.found.before, key=lambda pair: max(pair[0].t1, pair[1].t1) - min(pair[0].t0, pair[1].t0)
    )  # stable: those whose values are nearest stay first
    chosen: dict[tuple[int, ...], tuple[Record, ...]] = {}
    for left, right in pairs:
        chosen.setdefault(left.docids + right.docids, left.documents + right.documents)
    found = []
    for documents in islice(chosen.values(), MOST_NEAREST):
        said = best
        if len(documents) == len(one.readable.blocks):
            said = verdict(one.query, one.readable, documents, steps_for(MOST_NEAREST))
        found.append(Near(items_of(documents), said.kind, said.part, said.message, said.hint))
    return tuple(found)
