"""Why documents give no output of a query: looks up the query and the documents, and says what is in the way."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from feeds.dates import iso_utc
from mmqjp.explain.funnel import steps_for
from mmqjp.explain.verdict import orders, verdict
from mmqjp.present.event_why_not import event_why_not
from mmqjp.present.known_event_queries import KnownEvents, KnownPattern, known_event_queries
from mmqjp.present.known_queries import MOST_NAMES, known_absences, known_queries
from mmqjp.present.named_documents import named_records
from mmqjp.present.why_not_absence import why_not_absence
from mmqjp.present.why_not_kept import with_kept
from mmqjp.present.why_not_result import WhyNot, items_of
from mmqjp.present.why_not_whole import shown_verdict
from mmqjp.queries.event_compile import is_event_form
from mmqjp.tables.lookup import Select, names_of_queries, queries_named

LISTED = 3
"""So many names of queries are listed."""


def why_not(select: Select, name: str, asked: Sequence[str]) -> WhyNot:
    """Returns why documents give no output of the queries of a name. Each is given by its id, or by an address or title
    that only one kept document has. `select` answers questions over the store. Raises what it does."""
    known = known_queries(select, name)
    if not known and (events := known_event_queries(select, name)):
        return _of_events(select, name, events, asked)
    if not known and (absences := known_absences(select, name)):
        return why_not_absence(select, name, absences, asked)
    if not known:
        return WhyNot(name, "query", *no_query(select, name))
    read = {block.stream for one in known for block in one.readable.blocks}
    records = named_records(select, name, asked, read, known[0].query.text)
    if isinstance(records, WhyNot):
        return records
    blocks = max(len(one.readable.blocks) for one in known)
    if len(records) > blocks:
        what = f"{len(records)} documents are named, and the query reads {blocks}"
        return WhyNot(name, "blocks", what, text=known[0].query.text, items=items_of(records))
    whole = [one for one in known if len(one.readable.blocks) == len(records)]
    if not whole:
        return with_kept(select, name, [one for one in known if len(one.readable.blocks) > len(records)], records)
    tries = [(one, order) for one in whole for order in orders(records, len(records))]
    found = [
        verdict(one.query, one.readable, [record for record in order if record is not None], steps_for(len(tries)))
        for one, order in tries
    ]
    return shown_verdict(select, name, found)


def _of_events(select: Select, name: str, known: Sequence[KnownEvents | KnownPattern], asked: Sequence[str]) -> WhyNot:
    streams = {definition.pattern.stream for one in known for definition in one.definitions.values()}
    records = named_records(select, name, asked, streams, known[0].query.text)
    if isinstance(records, WhyNot):
        return records
    return event_why_not(select, name, known, list({record.docid: record for record in records}.values()))


def no_query(select: Select, name: str) -> tuple[str, str]:
    """Returns why there is no query of a name, and what to do."""
    removed = [row for row in queries_named(select, name, 1) if row["removed_at"] is not None]
    if removed:
        return f"the query {name} was removed at {iso_utc(removed[0]['removed_at'])}", "subscribe it again"
    if any(not is_event_form(row["form"] or "") for row in queries_named(select, name, 1)):
        what = f"{name} tells what did not come inside of a longer query, which why-not does not look into"
        return what, "try it with the operator without NOT: what that matches are the partners"
    if queries_named(select, name, 1):
        return f"this version cannot read {name}", "subscribe it again"
    names = names_of_queries(select, MOST_NAMES)
    near = get_close_matches(name, names, 1)
    listed = ", ".join(names[:LISTED]) + (" and others" if len(names) > LISTED else "")
    hint = f"did you mean {near[0]}?" if near else f"there are {listed}" if names else "subscribe one"
    return f"no query is called {name}", hint
