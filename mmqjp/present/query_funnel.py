"""Why a query gives no output, or few: how many of the kept documents get past each of its stages."""

from __future__ import annotations

from dataclasses import dataclass

from mmqjp.documents.record import Record
from mmqjp.explain.funnel import Funnel, steps_for
from mmqjp.present.absence_funnel import absence_funnels
from mmqjp.present.event_funnel import event_funnels
from mmqjp.present.kept_documents import Kept
from mmqjp.present.known_event_queries import known_event_queries
from mmqjp.present.known_queries import Known, known_absences, known_queries
from mmqjp.present.query_funnels import QueryFunnel, QueryFunnels
from mmqjp.present.why_not import no_query
from mmqjp.tables.lookup import Select, count_outputs

MOST_DOCUMENTS, MOST_QUERIES_TRIED = 10_000, 10
"""So many of the newest kept documents are looked at, for so many of the queries of a name."""


def query_funnel(select: Select, name: str, most: int = MOST_DOCUMENTS) -> QueryFunnels:
    """Returns what the queries of a name find in kept documents, the newest of the streams that they read. `select`
    answers questions over the store. Raises what it does."""
    known = known_queries(select, name)[:MOST_QUERIES_TRIED]
    if not known and (events := known_event_queries(select, name)[:MOST_QUERIES_TRIED]):
        return event_funnels(select, name, events, most)
    if not known and (absences := known_absences(select, name)[:MOST_QUERIES_TRIED]):
        return absence_funnels(select, name, absences, most)
    if not known:
        message, hint = no_query(select, name)
        return QueryFunnels(name, message=message, hint=hint)
    kept = Kept(select, {block.stream for one in known for block in one.readable.blocks}, most)
    looking = [_Looking(one, Funnel(one.readable, steps=steps_for(len(known)))) for one in known]
    for record in kept.records():
        for one in looking:
            one.look(record)
    funnels = tuple(one.told() for one in looking)
    return QueryFunnels(name, kept.read, kept.left_out, count_outputs(select, name), funnels)


@dataclass(eq=False)
class _Looking:
    """A query that looks at documents."""

    known: Known
    funnel: Funnel
    unseen: int = 0

    def look(self, record: Record) -> None:
        blocks = self.known.readable.blocks
        wanted = [place for place, block in enumerate(blocks) if block.stream == record.stream]
        if wanted and not self.known.query.sees(record.appeared):
            self.unseen += 1
        elif wanted:
            self.funnel.look(record, wanted)

    def told(self) -> QueryFunnel:
        result = self.funnel.result()
        query = self.known.query
        return QueryFunnel(
            query.text, result.stages, result.found, result.ties, self.unseen, result.left_out, result.incomplete,
            query.paused or "",
        )  # fmt: skip
