"""Why a single output came about: its match with all of its reason, and the outputs of other queries behind it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from common.errors import InputError
from join_stage.store.protocol import StoreError
from mmqjp.answers.output import Output, read_nodes
from mmqjp.documents.record import Record
from mmqjp.explain.findings import filters_of
from mmqjp.explain.node_names import is_pattern, named_reason
from mmqjp.explain.reasons import Reason, ReasonSearch, TooMuchWork
from mmqjp.explain.retrace.filled import Filling
from mmqjp.explain.why import MOST_QUERIES, MOST_STEPS
from mmqjp.present.event_why import EventWhy, event_why
from mmqjp.present.item import Item, item_of, missing_item
from mmqjp.present.match import Match
from mmqjp.present.pattern_why import pattern_why
from mmqjp.present.recent_answers import RecentAnswers
from mmqjp.present.remembered_documents import RememberedDocuments
from mmqjp.present.selected import selected
from mmqjp.queries.compile import CompiledQuery, Compiler
from mmqjp.queries.event_compile import is_bare, is_event_form
from mmqjp.tables.lookup import (
    Row,
    Select,
    documents_by_id,
    matches_of,
    output_by_id,
    output_by_seq,
    outputs_by_id,
    span_of_outputs,
    texts_of,
)

ID_LENGTH, LISTED = 32, 5
"""The length of an id in hexadecimal digits, and how many ids with one beginning an error lists."""

RECENT = 100_000
"""An output is first looked for among so many of the newest: those are asked for most."""

MOST_MATCHES = 100
"""At most so many of the matches behind an output are searched for its bindings."""

KEPT_TEXTS = 10_000
"""Of so many texts it is kept whether their outputs have values."""

_ID = re.compile(r"[0-9a-f]{1,32}")


class NoOutput(InputError, LookupError):
    """There is no output of an id or number, or there are several that begin so."""


@dataclass(frozen=True, slots=True)
class Fed:
    """An output of another query that fed this one: its id, and the query. `documents` are the places of its documents
    among those of the match."""

    id: str
    query: str
    documents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OutputWhy:
    """Why an output came about. `text` is that of its query, "" if it is not known. Of an event query, `events` says
    which events made it; None if that is not known."""

    match: Match
    fed: tuple[Fed, ...] = ()
    text: str = ""
    events: Filling | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object: that of the match, with `fed`, `text` and `events`."""
        events = None if self.events is None else self.events.to_dict()
        return self.match.to_dict() | {"fed": [asdict(one) for one in self.fed], "text": self.text, "events": events}

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> OutputWhy:
        """Returns what such an object says."""
        fed = tuple(Fed(one["id"], one["query"], tuple(one["documents"])) for one in found["fed"])
        events = None if found["events"] is None else Filling.from_dict(found["events"])
        return OutputWhy(Match.from_dict(found), fed, found["text"], events)


def why_output(
    select: Select,
    asked: str,
    group: int | None = None,
    recent: RecentAnswers | None = None,
    documents: RememberedDocuments | None = None,
) -> OutputWhy:
    """Returns why an output came about, given its id, a beginning of it that no other has, or its number (`seq`).

    `select` answers questions over the store. The output with an id is found faster if it is in `group`, whose first
    output has this number. `recent` and `documents` are what is remembered of the store. Takes at most a few seconds:
    what is too large to search has no reason.
    Raises NoOutput, and what `select` raises.
    """
    asked = asked.strip().lower()
    row, documents = None, documents or RememberedDocuments(select)
    if group is not None and _ID.fullmatch(asked):
        row = (recent and recent.output(asked, group)) or output_by_id(select, asked, group)
    row = row or _found(select, asked)
    output = Output(
        row["query"], row["t0"], row["t1"], tuple(row["documents"]), tuple(row["streams"]), read_nodes(row["nodes"]),
        row["xml"], row["id"], row["seq"],
    )  # fmt: skip
    docids = (matches_of(select, row) if "behind" not in row else row["behind"])[:MOST_MATCHES]
    records = documents.with_parts(docid for some in docids for docid in some)
    behind = [parts_of(some, records) for some in docids]
    texts = row.get("texts") or texts_of(select, output.query, row["form"], MOST_QUERIES)
    queries = {text: query for text in texts if (query := compiled(text)) is not None}
    sources = list(zip(output.documents, output.streams, strict=True))
    found = items_of(select, sources, records, documents)
    items = tuple(found[source] for source in sources)
    parts = next(filter(None, behind), ())
    reason, text = reason_of(output, behind, sources, queries)
    shown = selected(output.xml) if any(selects_values(text, row["form"]) for text in texts) else ()
    match, text = Match(output, items, reason, shown), text or next(iter(texts), "")
    if is_event_form(row["form"] or ""):
        if is_pattern(text):
            match = replace(match, reason=named_reason(output.nodes))
            return _of_events(match, text, pattern_why(select, output, row["form"]))
        return _of_events(match, text, event_why(select, output, row["form"]))
    return OutputWhy(match, _fed(parts), text)


def _found(select: Select, asked: str) -> Row:
    if asked.isdecimal() and len(asked) < ID_LENGTH - 13 and (row := output_by_seq(select, int(asked))) is not None:
        return row
    if not _ID.fullmatch(asked):
        raise NoOutput(f"{asked!r:.80} is neither the id of an output, nor the beginning of one, nor its number (seq)")
    found = _recent(select, asked) or outputs_by_id(select, asked, LISTED + 1)
    if not found:
        raise NoOutput(f"no output has the id {asked}, nor one that begins so; mmqjp matches shows what there is")
    if len(found) > 1:
        listed = ", ".join(f"{id} of {query}" for id, _, query in found[:LISTED])
        more = " and others" if len(found) > LISTED else ""
        raise NoOutput(f"several outputs have ids that begin with {asked}: {listed}{more}")
    id, seq, _ = found[0]
    row = output_by_id(select, id, seq)
    if row is None:
        raise NoOutput(f"the output {id} was dropped in the meantime")
    return row


def _recent(select: Select, asked: str) -> list[tuple[str, int, str]]:
    """Looks for a whole id, which one output alone has, among the newest outputs."""
    if len(asked) < ID_LENGTH:
        return []
    oldest, newest = span_of_outputs(select)
    return outputs_by_id(select, asked, 1, newest - RECENT) if newest - RECENT > oldest else []


def stored_parts(select: Select, behind: Sequence[tuple[int, ...]]) -> list[tuple[Record, ...]]:
    """Returns the documents of a query's blocks for each match, which is given by its docids; none for one of which a
    document is no longer stored."""
    records = RememberedDocuments(select).with_parts(docid for docids in behind for docid in docids)
    return [parts_of(docids, records) for docids in behind]


def items_of(
    select: Select, sources: Iterable[tuple[str, str]], records: Mapping[int, Record], documents: RememberedDocuments
) -> dict[tuple[str, str], Item]:
    """Returns the items of documents, by id and stream. Those that are not among `records` are asked for; `documents`
    remembers those that are."""
    wanted = set(sources)
    external = (((one.id, one.stream), one) for one in records.values() if one.kind == "external")
    found = {key: documents.item(one) for key, one in external if key in wanted}
    if missing := wanted - found.keys():
        for row in documents_by_id(select, {id for id, _ in missing}):
            key = row["id"], row["stream"]
            if row["kind"] == "external" and key in missing:
                found[key] = item_of(*key, row["t0"], row["xml"])
    return {key: found.get(key) or missing_item(*key) for key in wanted}


@lru_cache(KEPT_TEXTS)
def selects_values(text: str, form: str | None) -> bool:
    """Returns whether the outputs of a query, of which also the id of its form may be known, have values to show,
    instead of whole documents: those of event queries have, too. A query that this version cannot read has none."""
    query = compiled(text)
    return is_event_form(form or "") if query is None else not query.normal.star


def compiled(text: str) -> CompiledQuery | None:
    """Returns a stored query, or None if it is an event query, or if this version cannot read it."""
    with suppress(StoreError):
        return None if is_bare(text) else Compiler().compile_text(text)
    return None


def parts_of(docids: Sequence[int], records: Mapping[int, Record]) -> tuple[Record, ...]:
    """Returns the documents of the query's blocks; none if one of them is no longer stored."""
    if not all(docid in records and all(part in records for part in records[docid].parts) for docid in docids):
        return ()
    return tuple(records[part] for docid in docids for part in records[docid].parts)


def reason_of(
    output: Output,
    behind: Sequence[tuple[Record, ...]],
    sources: Sequence[tuple[str, str]],
    queries: Mapping[str, CompiledQuery],
    *,
    whole: bool = True,
) -> tuple[Reason | None, str]:
    """Returns the reason of an output, and the text of its query; None if it cannot be told. Unless it is to be
    `whole`, the reason of a join is the joined values and conditions alone."""
    places = {source: place for place, source in reversed([*enumerate(sources)])}  # the first place of each
    for parts in filter(None, behind):
        placed = [(part, places.get(part.sources[0], -1) if part.kind == "external" else -1) for part in parts]
        for text, query in queries.items():
            try:
                filters = filters_of(text) if whole or query.normal.op is None else None
                reason = ReasonSearch(query.normal, output.nodes, placed, MOST_STEPS).reason(filters)
            except TooMuchWork:
                return None, text
            if reason is not None:
                return reason, text
    return None, ""


def _of_events(match: Match, text: str, why: EventWhy | None) -> OutputWhy:
    if why is None:
        return OutputWhy(match, (), text)
    seen = (one for part in why.filling.parts for one in part.events if one.output)
    fed = {one.output: Fed(one.output, one.query, one.documents) for one in seen}
    return OutputWhy(replace(match, reason=why.reason), tuple(fed.values()), why.text, why.filling)


def _fed(parts: Sequence[Record]) -> tuple[Fed, ...]:
    found, place = list[Fed](), 0
    for part in parts:
        if part.kind == "published":
            found.append(Fed(part.id, part.stream, tuple(range(place, place + len(part.sources)))))
        place += len(part.sources)
    return tuple(found)
