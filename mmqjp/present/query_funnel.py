"""Why a query gives no output, or few: how many of the kept documents get past each of its stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mmqjp.documents.record import Record
from mmqjp.explain.funnel import Funnel, steps_for
from mmqjp.explain.funnel_stage import Stage
from mmqjp.present.kept_documents import Kept
from mmqjp.present.known_queries import Known, known_queries
from mmqjp.present.why_not import no_query
from mmqjp.tables.lookup import Select, count_outputs

MOST_DOCUMENTS, MOST_QUERIES_TRIED = 10_000, 10
"""So many of the newest kept documents are looked at, for so many of the queries of a name."""


@dataclass(frozen=True, slots=True)
class QueryFunnel:
    """How many of the kept documents get past each stage of a query. `found` is how many choices of documents pass all;
    `ties` how many only equal times keep from that (FOLLOWED BY). `unseen` documents came before the query was
    registered or while it was paused, and `left_out` are too large to search. `paused` is the reason if it is paused.
    If it is `incomplete`, there was too much to look at all."""

    text: str
    stages: tuple[Stage, ...]
    found: int = 0
    ties: int = 0
    unseen: int = 0
    left_out: int = 0
    incomplete: bool = False
    paused: str = ""

    @property
    def failed(self) -> Stage | None:
        """The first stage that nothing passes."""
        return next((stage for stage in self.stages if not stage.found), None)


@dataclass(frozen=True, slots=True)
class QueryFunnels:
    """What the queries of a name find in kept documents. `documents` were looked at, and `left_out` are too large for
    that. `outputs` are stored. If there is no such query, `message` and `hint` say so."""

    query: str
    documents: int = 0
    left_out: int = 0
    outputs: int = 0
    funnels: tuple[QueryFunnel, ...] = ()
    message: str = ""
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> QueryFunnels:
        """Returns what such an object says."""
        funnels = tuple(
            QueryFunnel(**one | {"stages": tuple(map(Stage.from_dict, one["stages"]))}) for one in found["funnels"]
        )
        return QueryFunnels(**dict(found) | {"funnels": funnels})


def query_funnel(select: Select, name: str, most: int = MOST_DOCUMENTS) -> QueryFunnels:
    """Returns what the queries of a name find in kept documents, the newest of the streams that they read. `select`
    answers questions over the store. Raises what it does."""
    known = known_queries(select, name)[:MOST_QUERIES_TRIED]
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
