"""Why a query that tells what did not come gives no output, or few: how many of the kept documents its left input
matches, how many of these have no partner, and of how many that is decided."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from mmqjp.answers.absence.decided import ABSENCES, Decided
from mmqjp.answers.absence.waiting import Entry
from mmqjp.documents.record import Record
from mmqjp.explain.block_rows import Row
from mmqjp.explain.funnel import Funnel, steps_for
from mmqjp.explain.funnel_stage import Stage
from mmqjp.present.kept_documents import Kept
from mmqjp.present.known_queries import KnownAbsence
from mmqjp.present.query_funnels import QueryFunnel, QueryFunnels
from mmqjp.tables.feed_sql import settings
from mmqjp.tables.lookup import Select, count_outputs


def absence_funnels(select: Select, name: str, known: Sequence[KnownAbsence], most: int) -> QueryFunnels:
    """Returns what the absences of a name, of which there is one at least, find in kept documents: so many of the
    newest ones. Raises what `select` does."""
    kept = Kept(select, {block.stream for one in known for block in one.partners.blocks}, most)
    looking = [_Looking(one, steps_for(2 * len(known))) for one in known]
    for record in kept.records():
        for one in looking:
            one.look(record)
    rows = select(settings(ABSENCES)).to_pylist()
    decided = Decided.from_setting(next((row["value"] for row in rows if row["key"] == ABSENCES), None))
    funnels = tuple(one.told(decided) for one in looking)
    return QueryFunnels(name, kept.read, kept.left_out, count_outputs(select, name), funnels)


class _Looking:
    """An absence that looks at documents: with the funnel of its left input, and that of what has a partner."""

    def __init__(self, known: KnownAbsence, steps: int) -> None:
        self._known, self._unseen = known, 0
        self._variables = known.common_variables
        self._left = Funnel(known.left, keep=self._variables, steps=steps)
        self._partners = Funnel(known.partners, keep=self._variables, steps=steps)

    def look(self, record: Record) -> None:
        blocks, places = self._known.partners.blocks, self._known.places
        wanted = [place for place, block in enumerate(blocks) if block.stream == record.stream]
        if wanted and not self._known.query.sees(record.appeared):
            self._unseen += 1
        elif wanted:
            self._left.look(record, [places.index(place) for place in wanted if place in places])
            self._partners.look(record, wanted)

    def told(self, decided: Decided) -> QueryFunnel:
        query, normal = self._known.query, self._known.query.normal
        assert normal.op is not None, "an absence is a join"
        left, partners = self._left.result(), self._partners.result()
        have_one = {self._bound(row, self._known.places) for row in partners.rows}
        everywhere = range(len(self._known.places))
        alone = {row.docids: row for row in left.rows if self._bound(row, everywhere) not in have_one}
        stages = left.stages
        if left.rows:
            stages += (_alone(normal.op, alone),)
        stream, done = normal.conjuncts[1].left.stream, 0
        for row in alone.values():
            entry = Entry(row.t0, max(row.docids), ())
            done += decided.told_before(stream, normal.op, normal.window or 0, entry) > query.qid
        if alone:
            still = "" if done else "nothing came so far, and what is not late still may"
            stages += (Stage("decided", f"the watermark of {stream}", done, message=still),)
        return QueryFunnel(
            query.text, stages, done, 0, self._unseen, left.left_out, left.incomplete or partners.incomplete,
            query.paused or "",
        )  # fmt: skip

    def _bound(self, row: Row, places: range) -> Hashable:
        """What tells a match of the left input from others."""
        documents = tuple(row.documents[place].docid for place in places)
        return documents, frozenset((var, one.node) for var, one in row.bound.items() if var in self._variables)


def _alone(op: str, alone: Collection[object]) -> Stage:
    return Stage("alone", op, len(alone), message="" if alone else "each of them has a partner among kept documents")
