"""Event queries as a store has them, with the definitions of the events that they read, read by SELECTs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from join_stage.store.protocol import StoreError
from mmqjp.explain.why import MOST_QUERIES
from mmqjp.queries.event_compile import StoredEvents, compile_stored, is_event_form, read_by, stored_definition
from mmqjp.queries.event_statements import Definition
from mmqjp.queries.model import Subscription
from mmqjp.queries.stored_definitions import made
from mmqjp.tables.event_lookup import definitions_named, event_queries_named
from mmqjp.tables.lookup import Row, Select, pauses_of, queries_named
from xscl.algebra.event_sequences import NearPattern, Pattern
from xscl.algebra.events import Stream

_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class KnownEvents:
    """An event query: what its operators are, and the definitions that it reads, by name. What it reads else, others
    publish."""

    query: Subscription
    stream: Stream
    definitions: Mapping[str, Definition]


@dataclass(frozen=True, slots=True)
class KnownPattern:
    """A PATTERN statement: what it looks for, and the definitions that it reads, by name. What it reads else, others
    publish."""

    query: Subscription
    stream: Pattern | NearPattern
    definitions: Mapping[str, Definition]


def known_event_queries(select: Select, name: str, form: str | None = None) -> list[KnownEvents | KnownPattern]:
    """Returns the event queries of a name, at most 100 of them: those that are registered, or, with their `form`, also
    removed ones. Those that this version cannot read are left out."""
    rows = [row for row in queries_named(select, name, MOST_QUERIES) if is_event_form(row["form"] or "")]
    wanted = [row for row in rows if (row["removed_at"] is None if form is None else row["form"] == form)]
    pauses = pauses_of(select, [row["qid"] for row in wanted])
    found: list[KnownEvents | KnownPattern] = []
    for row in wanted:
        with suppress(StoreError):
            found.append(_known(select, name, row, pauses))
    return found


def _known(select: Select, name: str, row: Row, pauses: Iterable[Row]) -> KnownEvents | KnownPattern:
    texts, definitions = _behind(select, row["text"], row["removed_at"])
    schemas = {one.name: one.schema for one in definitions.values()}
    compiled = compile_stored([row["text"], *texts], schemas)[0]
    stored = StoredEvents(row["form"], compiled)
    query = Subscription(row["qid"], name, row["text"], row["occurrence"], row["since"], None, row["form"], 0, stored)
    for pause in pauses:
        if pause["qid"] == row["qid"]:
            if pause["reason"] is None:
                query.resume(pause["docid"], 0)
            else:
                query.pause(pause["docid"], pause["reason"])
    read = read_by(compiled.stream)
    own = {name: one for name, one in definitions.items() if name in read}
    if isinstance(compiled.stream, Pattern | NearPattern):
        return KnownPattern(query, compiled.stream, own)
    return KnownEvents(query, compiled.stream, own)


def _behind(select: Select, text: str, removed_at: int | None) -> tuple[list[str], dict[str, Definition]]:
    """Returns the texts of event queries that publish what a query reads, and what is behind these, and the definitions
    of all, as they were before the query was removed."""
    publishing: dict[str, str] = {}
    definitions: dict[str, Definition] = {}
    known, new = set[str](), set(_NAME.findall(text))
    while new:
        known |= new
        found: list[str] = []
        for row in definitions_named(select, new):
            if removed_at is None and row["removed_at"] is not None:
                continue
            if removed_at is None or row["added_at"] < removed_at:
                definition, script = stored_definition(row["text"])
                definitions[row["name"]] = made(row["id"], row["text"], definition, script.namespaces)
        for row in event_queries_named(select, new - definitions.keys()):
            publishing[row["name"]] = row["text"]
            found.append(row["text"])
        new = set(_names(found)) - known
    own = text.rpartition(" PUBLISH ")[2]
    return [text for name, text in publishing.items() if name != own], definitions


def _names(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _NAME.findall(text)
