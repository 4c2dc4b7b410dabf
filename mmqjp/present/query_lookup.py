"""Looks up registered queries, event definitions and documents by SELECTs over a store. Queries, absences and event
queries with the streams they read come back as editable scripts or compiled for explanations; documents are found by
id, or by a URL or title that only one has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

from common.tools import in_batches
from join_stage.store.protocol import StoreError
from mmqjp.documents.record import Record, record_of
from mmqjp.explain.terms import MOST_QUERIES, ReadableQuery
from mmqjp.present.item import WhyNot, item_of, truncate
from mmqjp.process import printable_line
from mmqjp.queries.compile import (
    Compiler,
    StoredEventQuery,
    StoredQuery,
    compile_readable,
    compile_stored,
    stored_definition,
)
from mmqjp.queries.model import HasNormalForm, Subscription, UnreadableQuery, has_absence, is_event_form
from mmqjp.queries.registry import RegisteredDefinition
from mmqjp.queries.stored import made
from mmqjp.tables.lookup import (
    Row,
    SelectFn,
    dead_letter_of,
    definitions_named,
    document_rows_by_id,
    documents_by_docid,
    documents_with,
    event_queries,
    event_queries_named,
    is_dropped,
    newest_documents,
    pauses_of,
    queries_named,
)
from xscl.algebra.events import Statement, read_by
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.problems import XsclErrors
from xscl.syntax import NO_EVENTS, EventStreams, Script, names_read


def editable(texts: Sequence[str], definitions: Sequence[str] = (), events: EventStreams = NO_EVENTS) -> str:
    """Returns one script of registered queries and the definitions they read, fit for editing and subscribing again.
    `events` are the event streams they read.

    >>> texts = [f'DECLARE NAMESPACE a = "http://a/"; FROM S//a:{name}->x PUBLISH both' for name in ("one", "two")]
    >>> print(editable(texts), end="")
    DECLARE NAMESPACE a = "http://a/";
    <BLANKLINE>
    FROM S//a:one->x PUBLISH both;
    <BLANKLINE>
    FROM S//a:two->x PUBLISH both
    """
    try:
        scripts = [parse_script(text, stored=True, events=events) for text in (*definitions, *texts)]
    except XsclErrors:  # of another version: whoever changes it sees what is wrong
        return _joined([*definitions, *texts])
    declared = dict.fromkeys(pair for script in scripts for pair in script.namespaces)
    statements = [to_xscl(one) for script in scripts for one in script.statements]
    return _joined([*(to_xscl(Script((), (pair,))) for pair in declared), *statements])


def _joined(texts: Sequence[str]) -> str:
    return ";\n\n".join(text.strip(" \n;") for text in texts) + "\n"


_DEFINITIONS = """SELECT id, text FROM definitions
WHERE id NOT IN (SELECT id FROM removed_definitions) ORDER BY id"""

_PUBLISHING = """SELECT min(text) AS text FROM added_queries
WHERE form LIKE 'events-%' AND qid NOT IN (SELECT qid FROM removed_queries) GROUP BY name ORDER BY name"""


def definitions(select: SelectFn) -> dict[str, RegisteredDefinition]:
    """Returns a store's definitions by name, except those that this version cannot read. Raises what `select` does."""
    found = {}
    for row in select(_DEFINITIONS).to_pylist():
        with suppress(UnreadableQuery):
            definition, script = stored_definition(row["text"])
            found[definition.name] = made(row["id"], row["text"], definition, script.namespaces)
    return found


def event_streams(select: SelectFn) -> EventStreams:
    """Raises what `definitions` does."""
    defined = {name: definition.schema for name, definition in definitions(select).items()}
    texts = select(_PUBLISHING)["text"].to_pylist()
    compiled = (one for one in compile_readable(texts, defined) if not isinstance(one, UnreadableQuery))
    published = {one.publish: one.stream.schema for one in compiled if one.publish is not None}
    return EventStreams(defined, published)


@dataclass(frozen=True, slots=True)
class EventsRead:
    """What event queries read: the `names` and `texts` of definitions, each a complete script, and the names of queries
    that are `published`, in order."""

    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    published: tuple[str, ...] = ()


NOTHING = EventsRead()


def events_read(select: SelectFn, name: str) -> EventsRead:
    """Returns what the registered event queries of a name read. Raises what `select` does, and StoreError or XsclErrors
    if this version cannot read a text."""
    texts = select(event_queries(name))["text"].to_pylist()
    if not texts:
        return NOTHING
    script = parse_script(";\n".join(texts), stored=True, events=event_streams(select))
    read = {one.name for query in script.event_queries for one in names_read(query.stream)}
    defined = {key: definition.text for key, definition in sorted(definitions(select).items()) if key in read}
    return EventsRead(tuple(defined), tuple(defined.values()), tuple(sorted(read - defined.keys())))


AT_ONCE, CHARACTERS_AT_ONCE = 500, 8 << 20
"""Documents per read, and their characters of XML."""

MOST_CHARACTERS, MOST_CHARACTERS_OF_ONE = 64 << 20, 4 << 20
"""Maximum characters of XML read in all, and in one document; larger ones are omitted."""


@dataclass
class DocumentScan:
    """The newest `most` documents of some streams. After `records`, `read` counts those read and `left_out` those
    omitted because of their size or the total."""

    select: SelectFn
    streams: Collection[str]
    most: int
    read: int = 0
    left_out: int = 0

    def records(self) -> Iterator[Record]:
        """Yields the documents, newest first."""
        sizes = newest_documents(self.select, self.streams, self.most)
        wanted = affordable(sizes)
        self.left_out = len(sizes) - len(wanted)
        for some in in_batches(wanted, AT_ONCE, CHARACTERS_AT_ONCE, lambda one: one[1]):
            rows = documents_by_docid(self.select, [docid for docid, _ in some])
            for row in sorted(rows, key=lambda row: row["docid"], reverse=True):
                self.read += 1
                yield record_of(row)


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

    query: Subscription
    stream: Statement
    definitions: Mapping[str, RegisteredDefinition]


def known_event_queries(select: SelectFn, name: str, form: str | None = None) -> list[KnownEvents]:
    """Returns at most 100 event queries of a name: registered ones, or, given `form`, also removed ones. Omits those
    that this version cannot read."""
    rows = [row for row in queries_named(select, name, MOST_QUERIES) if is_event_form(row["form"] or "")]
    wanted = [row for row in rows if (row["removed_at"] is None if form is None else row["form"] == form)]
    pauses = pauses_of(select, [row["qid"] for row in wanted])
    found: list[KnownEvents] = []
    for row in wanted:
        with suppress(StoreError):
            found.append(_known(select, name, row, pauses))
    return found


def _known(select: SelectFn, name: str, row: Row, pauses: Iterable[Row]) -> KnownEvents:
    texts, definitions = _behind(select, row["text"], row["removed_at"])
    schemas = {one.name: one.schema for one in definitions.values()}
    compiled = compile_stored([row["text"], *texts], schemas)[0]
    stored = StoredEventQuery(row["form"], compiled)
    query = _subscription(name, row, pauses, stored)
    read = read_by(compiled.stream)
    own = {name: one for name, one in definitions.items() if name in read}
    return KnownEvents(query, compiled.stream, own)


def _behind(select: SelectFn, text: str, removed_at: int | None) -> tuple[list[str], dict[str, RegisteredDefinition]]:
    """Returns the texts of all event queries upstream of a query, and the definitions of all, as of its removal."""
    publishing: dict[str, str] = {}
    definitions: dict[str, RegisteredDefinition] = {}
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


MOST_NAMES = 10_000
"""Maximum number of names searched for a similar one."""


@dataclass(frozen=True, slots=True)
class RegisteredQuery:
    query: Subscription
    readable: ReadableQuery


def known_queries(select: SelectFn, name: str) -> list[RegisteredQuery]:
    """Returns at most 100 registered queries of a name. Omits event queries, those with an absence inside, and those
    that this version cannot read."""
    found = []
    for query in _registered(select, name):
        with suppress(XsclErrors):
            readable = ReadableQuery.of(query.text)
            if not has_absence(replace(readable.normal, absent=())):
                found.append(RegisteredQuery(query, readable))
    return found


def _registered(select: SelectFn, name: str) -> Iterator[Subscription]:
    found = queries_named(select, name, MOST_QUERIES)
    rows = [row for row in found if row["removed_at"] is None and not is_event_form(row["form"] or "")]
    pauses = pauses_of(select, [row["qid"] for row in rows])
    compiler = Compiler()
    for row in rows:
        yield _subscription(name, row, pauses, StoredQuery(row["text"], compiler))


def _subscription(name: str, row: Row, pauses: Iterable[Row], compiled: HasNormalForm) -> Subscription:
    query = Subscription(
        row["qid"], name, row["text"], row["occurrence"], row["since"], row["window_us"], row["form"] or "", 0, compiled
    )
    query.replay(((one["docid"], one["reason"]) for one in pauses if one["qid"] == row["qid"]), 0)
    return query


MOST_WITH, LISTED, SHORTEST = 200, 3, 4
"""Maximum number of documents containing a text that are searched for one with this URL or title, maximum number
listed, and minimum length of the text."""


@dataclass(frozen=True, slots=True)
class NamedDocument:
    """The document a name refers to; if `record` is None, `kind` is "document", "dead letter" or "pruned", and
    `message` and `hint` say why."""

    record: Record | None
    kind: str = ""
    message: str = ""
    hint: str = ""


def named_document(select: SelectFn, asked: str, streams: Collection[str]) -> NamedDocument:
    """Returns the document that a text names. If several streams have its id, those in `streams` take precedence."""
    rows = document_rows_by_id(select, [asked]) or document_rows_by_id(select, [asked := asked.strip()])
    if len(rows) > 1:
        rows = [row for row in rows if row["stream"] in streams] or rows
    if not rows:
        rows = _by_item(select, asked)
    if len(rows) == 1:
        return NamedDocument(record_of(rows[0]))
    shown = f"{truncate(printable_line(asked), 80)!r}"
    if rows:
        listed = ", ".join(f"{row['id']} of {row['stream']}" for row in rows[:LISTED])
        return NamedDocument(None, "document", f"{len(rows)} documents are {shown}: {listed}", "name one by its id")
    if (letter := dead_letter_of(select, asked)) is not None:
        return NamedDocument(None, "dead letter", f"the document {shown} was refused: {letter['reason']}")
    if is_dropped(select, asked):
        return NamedDocument(None, "pruned", f"the document {shown} was dropped: nothing needed it any more")
    hint = "ids are those of output lines; mmqjp show --state DIR shows documents with theirs"
    return NamedDocument(None, "document", f"no kept document has the id, address or title {shown}", hint)


def named_records(
    select: SelectFn, name: str, asked: Sequence[str], streams: Collection[str], text: str
) -> list[Record] | WhyNot:
    """Returns the documents that texts name, or, if one is missing, the why-not answer for the query `name`."""
    found = []
    for one in asked:
        document = named_document(select, one, streams)
        if document.record is None:
            return WhyNot(name, document.kind, document.message, document.hint, text=text)
        found.append(document.record)
    return found


def _by_item(select: SelectFn, asked: str) -> list[Row]:
    wanted = printable_line(asked)
    if len(wanted) < SHORTEST:
        return []
    # Spaces may be others in the document: it is looked for by the longest word.
    word = max(asked.split(), key=len)
    found = documents_with(select, escape(word), MOST_WITH)
    return [row for row in found if _is(row, wanted)]


def _is(row: Row, wanted: str) -> bool:
    item = item_of(row["id"], row["stream"], row["t0"], row["xml"])
    return wanted in (item.link, item.title)
