"""Looks up registered queries, event definitions and documents by SELECTs, as editable scripts or compiled for
explanations. Documents are found by id, or by a URL or title that only one has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar
from xml.sax.saxutils import escape

from common.bounds import END
from common.errors import InvalidValue
from common.tools import in_batches
from join_stage.store.protocol import StoreError
from mmqjp.documents.record import Record, record_of
from mmqjp.explain.terms import MOST_QUERIES, ReadableQuery
from mmqjp.present.item import WhyNot, item_of, truncate
from mmqjp.process import printable_line
from mmqjp.queries import stored
from mmqjp.queries.model import (
    EventSubscription,
    HasNormalForm,
    JoinSubscription,
    UnreadableQuery,
    has_absence,
    is_event_form,
)
from mmqjp.queries.registry import RegisteredDefinition
from mmqjp.tables import lookup
from mmqjp.tables.lookup import Row, SelectFn
from mmqjp.tables.schema import MOST_SOURCES
from xscl.algebra.events import Statement, read_by
from xscl.parser import parse_script
from xscl.story_queries import PAIRS
from xscl.syntax import NO_EVENTS, EventStreams, names_read
from xscl.text import XsclErrors, ended, typed_statements


def editable(sources: Sequence[str], definitions: Sequence[str] = (), events: EventStreams = NO_EVENTS) -> str:
    """Returns registered queries and the definitions they read as one script in its original form, for editing and
    subscribing again. `events` are the event streams they read. Omits what an original text itself defines.

    >>> texts = [f'DECLARE NAMESPACE a = "http://a/"; FROM S//a:{name}->x PUBLISH both' for name in ("one", "two")]
    >>> print(editable(texts), end="")
    DECLARE NAMESPACE a = "http://a/";
    <BLANKLINE>
    FROM S//a:one->x PUBLISH both;
    <BLANKLINE>
    FROM S//a:two->x PUBLISH both
    """
    if len(sources) == 1 and not definitions:
        return f"{sources[0]}\n"
    try:
        scripts = [parse_script(text, stored=True, events=events) for text in sources]
        own = {one.name for script in scripts for one in script.definitions}
        behind = [parse_script(text, stored=True) for text in definitions]
        scripts[:0] = [one for one in behind if one.definitions[0].name not in own]
        cut = [typed_statements(one.text, list({part.span: None for part in one.statements})) for one in scripts]
    except XsclErrors:  # from another version: editing it shows the mistakes
        return "\n\n".join(ended(text.strip()) for text in (*definitions, *sources)) + "\n"
    heads = dict.fromkeys(head.strip() for head, _ in cut if head)
    statements = [statement for _, some in cut for statement in some]
    return "\n\n".join([*heads, *map(ended, statements[:-1]), *statements[-1:]]) + "\n"


@dataclass(frozen=True, slots=True)
class QueryVersion:
    """A text of the queries with a name, and the time from which they had it, in microseconds."""

    at: int
    text: str


MOST_OF_NAME = 500  # maximum number of queries with a name that are read, the last removed ones
_NEAR = 100_000  # changes within this many microseconds count as one


def query_versions(select: SelectFn, name: str) -> list[QueryVersion]:
    """Returns the newest original texts of a registered name, the current one first; none if it has too many queries.
    Raises what `select` does."""
    rows = lookup.texts_of_name(select, name, MOST_OF_NAME)
    oldest = (rows[-1]["removed_at"] or END) if len(rows) == MOST_OF_NAME else 0
    typed: dict[int, list[tuple[int, str]]] = {row["qid"]: [(row["added_at"], row["text"])] for row in rows}
    for row in lookup.typed_texts_of(select, "qid", typed):
        typed[row["qid"]].append((row["noted_at"], row["source"]))
    removed = {row["qid"]: row["removed_at"] or END for row in rows}
    changes = {at for texts in typed.values() for at, _ in texts} | {at for at in removed.values() if at < END}
    found = list[QueryVersion]()
    later: int = END
    for at in sorted((one for one in changes if one >= oldest), reverse=True):
        if at + _NEAR > later:
            continue
        later = at
        until = at + _NEAR
        members = [qid for qid in sorted(typed) if typed[qid][0][0] < until <= removed[qid]]
        texts = [[text for noted, text in typed[qid] if noted < until][-1] for qid in members]
        if not texts:
            continue
        text = editable(texts)
        if found and found[-1].text == text:
            found.pop()
        found.append(QueryVersion(at, text))
        if len(found) > MOST_SOURCES:
            break
    return found[:MOST_SOURCES]


def exported(select: SelectFn, most: int) -> str:
    """Returns all registered queries and definitions as one script, in their original form. Raises InvalidValue if
    there are more than `most` queries, and what `select` does."""
    rows, known = lookup.texts_of_all(select, most + 1), definitions(select).values()
    if len(rows) > most:
        raise InvalidValue(f"there are more than {most:,} queries: write them with mmqjp list --xscl")
    noted = lookup.typed_texts_of(select, "qid", [row["qid"] for row in rows])
    typed: dict[int, str] = {row["qid"]: row["source"] for row in noted}
    stories = {row["name"] for row in rows if row["qid"] in typed and " STORIES{" in row["text"]}
    made = {name + PAIRS for name in stories}
    sources = [typed.get(row["qid"]) or str(row["text"]) for row in rows if row["name"] not in made]
    defined = lookup.typed_texts_of(select, "definition", [one.id for one in known])
    numbers: dict[int, str] = {row["definition"]: row["source"] for row in defined}
    return editable(sources, [numbers.get(one.id, one.text) for one in known], event_streams(select))


_DEFINITIONS = """SELECT id, text FROM definitions
WHERE id NOT IN (SELECT id FROM removed_definitions) ORDER BY id"""

_PUBLISHING = """SELECT min(text) AS text FROM added_queries
WHERE form LIKE 'events-%' AND qid NOT IN (SELECT qid FROM removed_queries) GROUP BY name ORDER BY name"""


def definitions(select: SelectFn) -> dict[str, RegisteredDefinition]:
    """Returns a store's definitions by name, except those that this version cannot read. Raises what `select` does."""
    found = {}
    for row in select(_DEFINITIONS).to_pylist():
        with suppress(UnreadableQuery):
            definition, script = stored.stored_definition(row["text"])
            found[definition.name] = stored.made(row["id"], row["text"], definition, script.namespaces)
    return found


def event_streams(select: SelectFn) -> EventStreams:
    """Raises what `definitions` does."""
    defined = {name: definition.schema for name, definition in definitions(select).items()}
    texts = select(_PUBLISHING)["text"].to_pylist()
    compiled = (one for one in stored.compile_readable(texts, defined) if not isinstance(one, UnreadableQuery))
    return EventStreams(defined, {one.publish: one.stream.schema for one in compiled if one.publish is not None})


@dataclass(frozen=True, slots=True)
class EventsRead:
    """What event queries read: `names` and `texts` of definitions (whole scripts), and `published` names, in order."""

    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    published: tuple[str, ...] = ()


NOTHING = EventsRead()


def events_read(select: SelectFn, name: str) -> EventsRead:
    """Returns what the registered event queries with a name read, without the hidden queries that stories expand to.
    Raises what `select` does, and StoreError or XsclErrors if this version cannot read a text."""
    rows = select(lookup.event_queries(name)).to_pylist()
    if not rows:
        return NOTHING
    script = parse_script(";\n".join(row["text"] for row in rows), stored=True, events=event_streams(select))
    read = {one.name for query in script.event_queries for one in names_read(query.stream)}
    defined = {key: definition for key, definition in sorted(definitions(select).items()) if key in read}
    typed = lookup.typed_texts_of(select, "definition", [one.id for one in defined.values()])
    sources = {row["definition"]: row["source"] for row in typed}
    published = tuple(sorted(read - defined.keys()))
    if lookup.typed_texts_of(select, "qid", [row["qid"] for row in rows]):
        defined = {key: one for key, one in defined.items() if one.pattern.stream != name + PAIRS}
    return EventsRead(tuple(defined), tuple(sources.get(one.id, one.text) for one in defined.values()), published)


AT_ONCE, CHARACTERS_AT_ONCE = 500, 8 << 20  # documents per read, and their characters of XML

MOST_CHARACTERS, MOST_CHARACTERS_OF_ONE = 64 << 20, 4 << 20
"""Maximum characters of XML read in all, and in one document; larger ones are omitted."""


def stored_records(select: SelectFn, wanted: Iterable[tuple[int, int]]) -> Iterator[Record]:
    """Yields documents in this order. `wanted` has their docids and sizes."""
    for some in in_batches(wanted, AT_ONCE, CHARACTERS_AT_ONCE, lambda one: one[1]):
        docids = [docid for docid, _ in some]
        rows = {row["docid"]: row for row in lookup.documents_by_docid(select, docids)}
        yield from (record_of(rows[docid]) for docid in docids if docid in rows)


def affordable(sizes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the docids and sizes, in characters, that fit the limits, the first ones first."""
    room, wanted = MOST_CHARACTERS, list[tuple[int, int]]()
    for docid, size in sizes:
        if size <= MOST_CHARACTERS_OF_ONE and size <= room:
            room -= size
            wanted.append((docid, size))
    return wanted


_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class KnownEvents:
    """An event query or PATTERN, and the definitions it reads, by name. Its other inputs are published."""

    query: EventSubscription
    stream: Statement
    definitions: Mapping[str, RegisteredDefinition]


def known_event_queries(select: SelectFn, name: str, form: str | None = None) -> list[KnownEvents]:
    """Returns at most 100 readable event queries of a name: registered ones, or, given `form`, also removed ones."""
    rows = [row for row in lookup.queries_named(select, name, MOST_QUERIES) if is_event_form(row["form"] or "")]
    wanted = [row for row in rows if (row["removed_at"] is None if form is None else row["form"] == form)]
    pauses = lookup.pauses_of(select, [row["qid"] for row in wanted])
    found: list[KnownEvents] = []
    for row in wanted:
        with suppress(StoreError):
            texts, definitions = _behind(select, name, row["text"], row["removed_at"])
            schemas = {one.name: one.schema for one in definitions.values()}
            compiled = stored.compile_stored([row["text"], *texts], schemas)[0]
            query = _subscription(EventSubscription, name, row, pauses, stored.StoredEventQuery(row["form"], compiled))
            own = {stream: definitions[stream] for stream in read_by(compiled.stream) if stream in definitions}
            found.append(KnownEvents(query, compiled.stream, own))
    return found


def _behind(
    select: SelectFn, own: str, text: str, removed_at: int | None
) -> tuple[list[str], dict[str, RegisteredDefinition]]:
    """Returns the texts of event queries upstream of a query named `own`, and all definitions, as of its removal."""
    publishing: dict[str, str] = {}
    definitions: dict[str, RegisteredDefinition] = {}
    known, new = set[str](), set(_NAME.findall(text))
    while new:
        known |= new
        for row in lookup.definitions_named(select, new):
            if (row["removed_at"] is None) if removed_at is None else (row["added_at"] < removed_at):
                definition, script = stored.stored_definition(row["text"])
                definitions[row["name"]] = stored.made(row["id"], row["text"], definition, script.namespaces)
        rows = lookup.event_queries_named(select, new - definitions.keys())
        publishing |= {row["name"]: row["text"] for row in rows}
        new = {name for row in rows for name in _NAME.findall(row["text"])} - known
    publishing.pop(own, None)
    return list(publishing.values()), definitions


def known_queries(select: SelectFn, name: str) -> list[JoinSubscription]:
    """Returns at most 100 readable registered queries of a name, without event queries and inner absences."""
    named = lookup.queries_named(select, name, MOST_QUERIES)
    rows = [row for row in named if row["removed_at"] is None and not is_event_form(row["form"] or "")]
    pauses, compiler = lookup.pauses_of(select, [row["qid"] for row in rows]), stored.Compiler()
    found = []
    for row in rows:
        with suppress(XsclErrors):
            readable = ReadableQuery.of(row["text"])
            if not has_absence(replace(readable.normal, absent=())):
                query = _subscription(JoinSubscription, name, row, pauses, stored.StoredQuery(row["text"], compiler))
                found.append(query)
    return found


AnySubscription = TypeVar("AnySubscription", JoinSubscription, EventSubscription)


def _subscription(
    kind: type[AnySubscription], name: str, row: Row, pauses: Iterable[Row], compiled: HasNormalForm
) -> AnySubscription:
    query = kind(
        row["qid"], name, row["text"], row["occurrence"], row["since"], row["window_us"], row["form"] or "", 0, compiled
    )
    query.replay(((one["docid"], one["reason"]) for one in pauses if one["qid"] == row["qid"]), 0)
    return query


MOST_WITH, LISTED, SHORTEST = 200, 3, 4
"""Maximum number of documents with a text that are searched for one with this URL or title, of those or of names that
are listed, and minimum length of the text."""


def named_records(
    select: SelectFn, name: str, asked: Sequence[str], streams: Collection[str], text: str
) -> list[Record] | WhyNot:
    """Returns the documents named in `asked`, or, if one is missing, the why-not answer for the query `name`. If
    several streams have an id, those in `streams` take precedence."""
    found = []
    for one in asked:
        rows = lookup.document_rows_by_id(select, [one]) or lookup.document_rows_by_id(select, [one := one.strip()])
        rows = [row for row in rows if row["stream"] in streams] or rows or _by_item(select, one)
        if len(rows) != 1:
            return WhyNot(name, *_missing(select, one, rows), text=text)
        found.append(record_of(rows[0]))
    return found


def _missing(select: SelectFn, asked: str, rows: Sequence[Row]) -> tuple[str, str, str]:
    """Returns kind, message and hint for a name that does not match exactly one document, but `rows`."""
    shown = f"{truncate(printable_line(asked), 80)!r}"
    if rows:
        listed = ", ".join(f"{row['id']} of {row['stream']}" for row in rows[:LISTED])
        return "document", f"{len(rows)} documents are {shown}: {listed}", "name one by its id"
    if (letter := lookup.dead_letter_of(select, asked)) is not None:
        return "dead letter", f"the document {shown} was rejected: {letter['reason']}", ""
    if lookup.is_dropped(select, asked):
        return "pruned", f"the document {shown} was dropped: it was no longer needed", ""
    hint = "ids are as in output lines; mmqjp show --state DIR shows documents with their ids"
    return "document", f"no stored document has the id, address or title {shown}", hint


def _by_item(select: SelectFn, asked: str) -> list[Row]:
    """Returns the documents with this URL or title."""
    wanted = printable_line(asked)
    if len(wanted) < SHORTEST:
        return []
    # The document may have other spaces: it is found by the longest word.
    found = lookup.documents_with(select, escape(max(asked.split(), key=len)), MOST_WITH)
    items = [item_of(row["id"], row["stream"], row["t0"], row["xml"]) for row in found]
    return [row for row, item in zip(found, items, strict=True) if wanted in (item.link, item.title)]
