"""The registered queries of a name as a store has them, read by SELECTs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from mmqjp.explain.readable import ReadableQuery
from mmqjp.explain.why import MOST_QUERIES
from mmqjp.queries.compile import Compiler, StoredQuery
from mmqjp.queries.event_compile import is_event_form
from mmqjp.queries.model import Subscription
from mmqjp.tables.lookup import Select, pauses_of, queries_named
from xscl import XsclErrors

MOST_NAMES = 10_000
"""Among so many names one is looked for that was meant."""


@dataclass(frozen=True, slots=True)
class Known:
    """A registered query."""

    query: Subscription
    readable: ReadableQuery


def known_queries(select: Select, name: str) -> list[Known]:
    """Returns the registered queries of a name, at most 100 of them. Event queries are left out, those with absences,
    and those that this version cannot read."""
    return list(_known(select, name))


def _known(select: Select, name: str) -> Iterator[Known]:
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
        if query.waits:
            continue
        with suppress(XsclErrors):
            yield Known(query, ReadableQuery.of(text))
