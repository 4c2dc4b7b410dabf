"""Answers requests for Atom feeds of queries: path parts and two headers in; status, headers and bytes out. There are
entity tags, and responses for moved, gone and revoked feeds. Outputs, archives and documents are read by SQL; entries
are cached, as they do not change."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from lxml import etree

from common.tools import in_batches
from common.xml import xml_parser
from mmqjp.answers.output import Body, Output
from mmqjp.present.item import ShownItem, ShownMatch, item_of, missing_item, selected_values
from mmqjp.present.output_why import selects_values, source_items
from mmqjp.present.recent import OfFeed, RecentAnswers, RememberedDocuments, is_newer
from mmqjp.present.recipients import AnswerRow, Member
from mmqjp.process import printable_line
from mmqjp.queries.model import Identity
from mmqjp.syndication.atom import (
    MEDIA_TYPE,
    NEWEST,
    SETTING,
    SIZE,
    AtomEntry,
    AtomFeed,
    Links,
    archive_document,
    archive_of,
    archive_path,
    archive_range,
    entry_of,
    feed_document,
    feed_path,
    setting_of,
    unarchived_from,
)
from mmqjp.tables import lookup

KEPT_CHARACTERS = 32 << 20
"""Maximum size of cached entries, in characters; the oldest are evicted."""

SQL_CHARACTERS = 80_000
"""Maximum characters of document ids in a SELECT."""

MOST_TOGETHER = 200
"""Maximum number of documents read together."""

_Select = Callable[[str], pa.Table]
"""Returns the rows of SQL."""

_Document = tuple[str, str]
"""The stream and id of a document."""

_Output = tuple[int, int, int]
"""The answer and qid of an output, and its number if it is of an earlier format."""


class Delivered(NamedTuple):
    """An output of a query in the tables: an answer (-1: of an earlier format) and its recipient. Its number is between
    `first` and `last`."""

    answer: int
    qid: int
    first: int
    last: int


class EntryReader:
    """Reads entries. Thread-safe."""

    def __init__(self, select: _Select, documents: RememberedDocuments | None = None) -> None:
        self._select, self._documents = select, documents or RememberedDocuments(select)
        self._lock = Lock()
        self._kept: OrderedDict[_Output, tuple[AtomEntry, bool]] = OrderedDict()
        self._characters = 0
        self._has_select: dict[int, bool] = {}

    def of(
        self, told: Sequence[Delivered], remembered: Mapping[tuple[int, int], tuple[AnswerRow, Member]] | None = None
    ) -> tuple[tuple[AtomEntry, ...], bool]:
        """Returns the entries of outputs, in order, and whether they are complete: documents and commit times may be
        deleted. `remembered` outputs, by answer and qid, are not read."""
        found = {key: kept for key in map(_key, told) if (kept := self._known(key)) is not None}
        known = {} if remembered is None else remembered
        new = [known[key[:2]] for key in map(_key, told) if key not in found and key[:2] in known]
        for answer, member, entry, is_whole in self._of_remembered(new):
            key = answer.answer, member.qid, -1
            found[key] = entry, is_whole
            self._keep(key, entry, is_whole)
        if wanted := [one for one in told if _key(one) not in found]:
            matches = list(self._matches(wanted))
            items = self._items(match.output for _, match, _ in matches)
            for one, match, committed_at in matches:
                output = match.output
                keys = zip(output.streams, output.documents, strict=True)
                shown = tuple(items.get(key) or missing_item(key[1], key[0]) for key in keys)
                entry = entry_of(replace(match, items=shown), output.t1 if committed_at is None else committed_at)
                found[_key(one)] = entry, committed_at is not None and all(item.is_kept for item in shown)
                self._keep(_key(one), *found[_key(one)])
        # An output may be dropped between two questions.
        there = [found[key] for key in map(_key, told) if key in found]
        return tuple(entry for entry, _ in there), len(there) == len(told) and all(is_whole for _, is_whole in there)

    # ------------------------------------------------------------ outputs

    def _of_remembered(
        self, remembered: Sequence[tuple[AnswerRow, Member]]
    ) -> Iterator[tuple[AnswerRow, Member, AtomEntry, bool]]:
        """Yields the entries of outputs of queries without values, and whether they are complete."""
        some = [(answer, member) for answer, member in remembered if not self._selects(member)]
        records = self._documents.with_parts(
            docid for answer, _ in some for docids in answer.behind for docid in docids
        )
        sources = {answer.answer: list(zip(answer.documents, answer.streams, strict=True)) for answer, _ in some}
        items = source_items(
            self._select, (source for few in sources.values() for source in few), records, self._documents
        )
        for answer, member in some:
            id, shown = member.identity.id(answer.choice.encode()), tuple(items[one] for one in sources[answer.answer])
            output = Output(member.name, answer.t0, answer.t1, answer.documents, answer.streams, {}, "", id)
            committed_at = answer.t1 if answer.committed_at is None else answer.committed_at
            is_whole = answer.committed_at is not None and all(item.is_kept for item in shown)
            yield answer, member, entry_of(ShownMatch(output, shown), committed_at), is_whole

    def _selects(self, member: Member) -> bool:
        if (known := self._has_select.get(member.qid)) is None:
            known = self._has_select[member.qid] = selects_values(member.text, member.form)
        return known

    def _matches(self, told: Sequence[Delivered]) -> Iterator[tuple[Delivered, ShownMatch, int | None]]:
        """Yields outputs without items, and their commit times (None: no longer stored)."""
        later = {(one.answer, one.qid): one for one in told if one.answer >= 0}
        earlier = {one.first: one for one in told if one.answer < 0}
        if later:
            selecting = self._selecting({qid for _, qid in later})
            for row in self._select(lookup.outputs_of(later, selecting)).to_pylist():
                one = later[row["answer"], row["qid"]]
                xml = "" if row["tail"] is None else Body(row["head"], row["tail"]).xml(row["query"])
                id = Identity(row["identity"]).id(row["choice"].encode())
                yield (
                    one,
                    ShownMatch(_output(row, id, xml), (), None, selected_values(xml) if xml else ()),
                    row["committed_at"],
                )
        if earlier:
            for row in self._select(lookup.earlier_outputs_of(earlier)).to_pylist():
                yield earlier[row["seq"]], ShownMatch(_output(row, row["id"], ""), ()), row["committed_at"]

    def _selecting(self, qids: set[int]) -> list[int]:
        if unknown := qids - self._has_select.keys():
            for row in self._select(lookup.query_texts_sql(sorted(unknown))).to_pylist():
                self._has_select[row["qid"]] = selects_values(row["text"], row["form"])
        return sorted(qid for qid in qids if self._has_select.get(qid))

    # ------------------------------------------------------------ items

    def _items(self, outputs: Iterable[Output]) -> dict[_Document, ShownItem]:
        some = list(outputs)
        wanted = {key for one in some for key in zip(one.streams, one.documents, strict=True)}
        ids = sorted({id for _, id in wanted if len(id) < SQL_CHARACTERS and "\0" not in id})
        first, last = min((one.t0 for one in some), default=0), max((one.t1 for one in some), default=0)
        found: dict[_Document, ShownItem] = {}
        for few in in_batches(ids, MOST_TOGETHER, SQL_CHARACTERS, lambda id: len(id) + 8):
            for row in self._select(lookup.documents_of(few, first, last)).to_pylist():
                if (row["stream"], row["id"]) in wanted:
                    found[row["stream"], row["id"]] = _item(**row)
        return found

    # ------------------------------------------------------------ what is kept

    def _known(self, key: _Output) -> tuple[AtomEntry, bool] | None:
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
            return kept

    def _keep(self, key: _Output, entry: AtomEntry, is_whole: bool) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = entry, is_whole
                self._characters += len(entry.xml)
            while self._characters > KEPT_CHARACTERS:
                self._characters -= len(self._kept.popitem(last=False)[1][0].xml)


def _key(one: Delivered) -> _Output:
    return one.answer, one.qid, one.first if one.answer < 0 else -1


def _output(row: dict[str, Any], id: str, xml: str) -> Output:
    documents, streams = tuple(row["documents"]), tuple(row["streams"])
    return Output(row["query"], row["t0"], row["t1"], documents, streams, {}, xml, id)


def _item(stream: str, id: str, t0: int, xml: str, is_cut: bool) -> ShownItem:
    """Returns an item. A truncated document is read as far as possible: titles and URLs come first."""
    if is_cut:
        beginning = etree.fromstring(xml.encode(), xml_parser(trusted=True, recover=True))
        xml = etree.tostring(beginning, encoding="unicode")
    return item_of(id, stream, t0, xml)


MOST_ROWS, SECONDS = 100_000, 10.0
"""Limits of a SELECT."""

MOST_NAMES = 2_000
"""Maximum number of names whose feeds are cached."""

_MOST = NEWEST + SIZE
"""Maximum number of outputs in a feed: fewer than SIZE are in no archive."""


class Reader(Protocol):
    """Reads the tables of a store on DuckDB, or of a Spark store from its files."""

    def select(self, sql: str, limit: int, seconds: float) -> pa.Table:
        """Returns up to `limit` rows of a SELECT within `seconds`."""

    def version(self) -> object:
        """Returns a value that changes with each batch."""


@dataclass(frozen=True, slots=True)
class FeedContents:
    """The contents of a query's feed, newest first, and the number of the newest archive (None: none). `since` is when
    the query was first added, in microseconds."""

    entries: tuple[AtomEntry, ...]
    archive: int | None
    since: int


@dataclass(frozen=True, slots=True)
class Archived:
    """The contents of an archive, newest first. `more`: earlier archives may follow, as its number is not 0 and it is
    not the empty end of the chain."""

    entries: tuple[AtomEntry, ...]
    more: bool
    since: int


@dataclass(frozen=True, slots=True)
class Earlier:
    """An archive is empty; this is the nearest earlier one that is not."""

    archive: int


@dataclass(frozen=True, slots=True)
class ArchiveGone:
    """An output of an archive was deleted."""


@dataclass(frozen=True, slots=True)
class _Heading:
    """A version's data for all feeds: the number of the last output ever committed, and the greatest stored. `drops`
    changes after deletions; it is negative if outputs came from the cache. `stored` counts the outputs, if requested.
    """

    version: object
    last_seq: int
    greatest: int
    drops: int
    stored: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """A feed as of a heading: the newest outputs, the first `count` of which are in it; the newest archive's number;
    and when the query was first added."""

    heading: _Heading
    told: list[Delivered]
    count: int
    archive: int | None
    since: int


class StoreFeeds:
    """The feeds of a store's queries. Thread-safe; methods raise what the reader raises."""

    def __init__(self, reader: Reader, recent: RecentAnswers | None = None) -> None:
        self._reader, self._recent = reader, recent
        documents = None if recent is None else recent.documents
        self._entries = EntryReader(lambda sql: reader.select(sql, MOST_ROWS, SECONDS), documents)
        self._lock = Lock()
        self._heading = _Heading(None, -1, -1, 0, 0)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._revoked: tuple[object, dict[str, int]] | None = None

    def newest(self, name: str) -> FeedContents | None:
        """Returns a query's feed: the newest NEWEST outputs, and all in no archive. None if the name never existed."""
        found = None if self._recent is None else self._recent.of_feed(name, _MOST)
        kept = self._remembered(name, found) or self._as_of(name, self._current())
        if kept is None:
            return None
        known = {} if found is None else {(one.answer, member.qid): (one, member) for one, member in found.told}
        entries, _ = self._entries.of(kept.told[: kept.count], known)
        return FeedContents(entries, kept.archive, kept.since)

    def archive(self, name: str, number: int) -> Archived | Earlier | ArchiveGone | None:
        """Returns an archive. None if there is no such query, or no such archive yet."""
        numbers, heading = archive_range(number), self._current()
        if number < 0 or numbers.stop > heading.last_seq + 1 or (since := self._since(name)) is None:
            return None
        if self._number(lookup.kept(numbers.start, numbers.stop)) != SIZE:
            return ArchiveGone()
        told = self._told(lookup.between(name, numbers.start, numbers.stop))
        if not told:
            before = self._seq_before(name, numbers.start)
            return Archived((), False, since) if before is None else Earlier(archive_of(before))
        entries, is_whole = self._entries.of(told)
        return Archived(entries, number > 0, since) if is_whole else ArchiveGone()

    def look(self) -> None:
        self._revoked_links()

    def revoked(self, name: str) -> int:
        return self._revoked_links().get(setting_of(name), 0)

    def _revoked_links(self) -> dict[str, int]:
        version = self._reader.version()
        with self._lock:
            known = self._revoked
        if known is None or is_newer(version, known[0]):
            rows = self._reader.select(lookup.settings_sql(SETTING), MOST_ROWS, SECONDS).to_pylist()
            known = version, {row["key"]: int(row["value"]) for row in rows}
            with self._lock:
                self._revoked = known
        return known[1]

    # ------------------------------------------------------------ outputs

    def _remembered(self, name: str, found: OfFeed | None) -> _Kept | None:
        if found is None or found.since is None:
            return None
        last_seq = _last_seq(found.greatest, found.numbers)
        heading = _Heading(found.version, last_seq, found.greatest, -1 - found.drops, 0)
        with self._lock:
            known = self._kept.get(name)
        if known is not None and known.heading == heading:
            return known
        told = [Delivered(one.answer, member.qid, one.first_seq, one.last_seq) for one, member in found.told]
        return self._made(name, heading, told, found.since, known)

    def _as_of(self, name: str, heading: _Heading) -> _Kept | None:
        with self._lock:
            known = self._kept.get(name)
        if known is not None and known.heading == heading:
            return known
        if (since := self._since(name) if known is None else known.since) is None:
            return None
        if known is not None and known.heading.drops != heading.drops:
            known = None  # what was read may have gone
        before, after = ([], -1) if known is None else (known.told, known.heading.greatest)
        told = [*self._told(lookup.newest(name, after, heading.greatest + 1, _MOST)), *before][:_MOST]
        return self._made(name, heading, told, since, known)

    def _made(self, name: str, heading: _Heading, told: list[Delivered], since: int, known: _Kept | None) -> _Kept:
        begin = unarchived_from(heading.last_seq)
        count = self._count(name, told, begin, heading.greatest + 1)
        is_same = known is not None and known.heading.drops == heading.drops
        if known is not None and is_same and unarchived_from(known.heading.last_seq) == begin:
            archive = known.archive
        else:
            archive = self._archive_before(name, told, begin)
        found = _Kept(heading, told, count, archive, since)
        with self._lock:
            self._kept[name] = found
            self._kept.move_to_end(name)
            while len(self._kept) > MOST_NAMES:
                self._kept.popitem(last=False)
        return found

    def _count(self, name: str, told: list[Delivered], begin: int, end: int) -> int:
        """Returns how many of the newest outputs are in a feed: NEWEST, or all with `begin` <= seq < `end`."""
        later = sum(one.first >= begin for one in told)
        parted = next((one.first for one in told[NEWEST:] if one.first < begin <= one.last), None)
        if parted is not None:  # a group that is archived in part: its outputs are numbered
            if (numbers := self._numbers(name, parted)) is None:
                return max(NEWEST, len(self._told(lookup.between(name, begin, end))))
            later += sum(number >= begin for number in numbers)
        return max(NEWEST, later)

    def _archive_before(self, name: str, told: list[Delivered], begin: int) -> int | None:
        """Returns the number of the newest non-empty archive."""
        newest = next((one for one in told if one.first < begin), None)
        if newest is None:
            return None  # there are fewer new outputs than were looked for, so that is all
        for first, last in dict.fromkeys((one.first, one.last) for one in told if one.first < begin):
            if last < begin and archive_of(first) == archive_of(last):
                return archive_of(first)
            if (numbers := self._numbers(name, first)) is None:
                break
            if before := [number for number in numbers if number < begin]:
                return archive_of(before[-1])
        seq = self._seq_before(name, begin)
        return None if seq is None else archive_of(seq)

    def _numbers(self, name: str, group: int) -> list[int] | None:
        return None if self._recent is None else self._recent.numbers(name, group)

    def _seq_before(self, name: str, before: int) -> int | None:
        """Returns the greatest output number of a query below a number, or another in the same archive."""
        while told := self._told(lookup.newest(name, -1, before, 1)):
            (one,) = told
            if one.last < before and archive_of(one.first) == archive_of(one.last):
                return one.first
            seq = self._number(lookup.last_in_group(name, one.first, before))
            if seq is not None:
                return seq
            before = one.first
        return None

    # ------------------------------------------------------------ questions

    def _current(self) -> _Heading:
        version = self._reader.version()
        with self._lock:
            known = self._heading
            if known.version == version:
                return known
        (row,) = self._reader.select(lookup.feed_totals_sql(known.greatest), 1, SECONDS).to_pylist()
        greatest = max(-1 if row[key] is None else row[key] for key in ("seq", "earlier"))
        drops = known.drops + (row["known"] != known.stored)
        found = _Heading(version, _last_seq(greatest, row["numbers"]), greatest, drops, row["stored"])
        with self._lock:
            if self._heading is known:
                self._heading = found
        return found

    def _since(self, name: str) -> int | None:
        return self._number(lookup.first_added_sql(name)) if name.isprintable() else None  # no query has another name

    def _number(self, sql: str) -> int | None:
        (number,) = self._reader.select(sql, 1, SECONDS).columns[0].to_pylist()
        return None if number is None else int(number)

    def _told(self, sql: str) -> list[Delivered]:
        found = self._reader.select(sql, MOST_ROWS, SECONDS)
        return [Delivered(*row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)]


def _last_seq(greatest: int, numbers: str | None) -> int:
    """The number of the last output ever committed, given the greatest stored one."""
    noted: list[int] = json.loads(numbers or "[]")
    return max([greatest, *(number - 1 for number in noted[3:4])])


SECOND = 1_000_000

_NO_CACHE = "private, no-cache"
_FOR_GOOD = "private, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class FeedRequest:
    """A request for a query's feed, or an archive by number. `if_none_match` and `if_modified_since` are these headers,
    "" if missing."""

    key: str
    name: str
    archive: int | None = None
    if_none_match: str = ""
    if_modified_since: str = ""


@dataclass(frozen=True, slots=True)
class FeedResponse:
    """A response; HEAD omits the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class FeedPages:
    """Answers requests. `url` is the site's address without a final slash, `now` the clock in microseconds."""

    feeds: StoreFeeds
    links: Links
    url: str
    now: Callable[[], int]

    def answer(self, request: FeedRequest) -> FeedResponse:
        """Raises what the reader of the feeds raises."""
        made_at = self.links.revoked_before(request.name, request.key)
        if made_at is None:
            return _error(404, "there is no feed at this address")
        if made_at != self.feeds.revoked(request.name):
            return _error(410, "the link of this feed was revoked")
        return self._newest(request) if request.archive is None else self._archive(request, request.archive)

    def _newest(self, request: FeedRequest) -> FeedResponse:
        found = self.feeds.newest(request.name)
        if found is None:
            return _error(404, "no query has this name")
        feed = self._feed(request, found.since)
        archive = None if found.archive is None else self._archive_address(request, found.archive)
        document = feed_document(feed, found.entries, archive)
        return _document(request, document, _modified(found.entries, found.since), _NO_CACHE, self.now())

    def _archive(self, request: FeedRequest, number: int) -> FeedResponse:
        found = self.feeds.archive(request.name, number)
        if found is None:
            return _error(404, "there is no such archive, or not yet")
        if isinstance(found, ArchiveGone):
            return _error(410, "what stood in this archive was dropped")
        if isinstance(found, Earlier):
            address = self._archive_address(request, found.archive)
            return _error(301, "nothing is in this archive", {"Location": address})
        # The archive before it may be empty, and then leads to the next one that is not. Which one that is must not
        # stand here: it could not be told any more when that is dropped.
        previous = self._archive_address(request, number - 1) if found.more else None
        feed = self._feed(request, found.since)
        document = archive_document(feed, found.entries, self._archive_address(request, number), previous)
        return _document(request, document, _modified(found.entries, found.since), _FOR_GOOD, self.now())

    def _feed(self, request: FeedRequest, since: int) -> AtomFeed:
        id = self.links.feed_id(request.name)
        return AtomFeed(id, printable_line(request.name), self.url + feed_path(request.key, request.name), since)

    def _archive_address(self, request: FeedRequest, number: int) -> str:
        return self.url + archive_path(request.key, request.name, number)


def is_unchanged(request: FeedRequest, tag: str, modified: str | None) -> bool:
    """Whether the client has the document, by entity tag or, without one, by date."""
    if request.if_none_match:
        known = [one.strip().removeprefix("W/") for one in request.if_none_match.split(",")]
        return tag in known or "*" in known
    return modified is not None and request.if_modified_since == modified


def http_date(microseconds: int) -> str | None:
    """Returns an HTTP date, to the second; None outside of the years 1 to 9999."""
    try:
        return format_datetime(datetime.fromtimestamp(microseconds // SECOND, UTC), usegmt=True)
    except (OverflowError, ValueError, OSError):
        return None


def _modified(entries: tuple[AtomEntry, ...], since: int) -> int:
    return entries[0].committed_at if entries else since


def _document(request: FeedRequest, document: bytes, modified: int, caching: str, now: int) -> FeedResponse:
    """Returns a document or 304. Omits the date in the second of a commit, when it is ambiguous."""
    tag = f'"{sha256(document).hexdigest()[:32]}"'
    date = http_date(modified) if modified // SECOND < now // SECOND else None
    headers = {"ETag": tag, "Cache-Control": caching} | ({} if date is None else {"Last-Modified": date})
    if is_unchanged(request, tag, date):
        return FeedResponse(304, headers)
    return FeedResponse(200, {"Content-Type": f"{MEDIA_TYPE}; charset=utf-8"} | headers, document)


def _error(status: int, text: str, more: Mapping[str, str] | None = None) -> FeedResponse:
    headers = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": _NO_CACHE} | dict(more or {})
    return FeedResponse(status, headers, f"{text}\n".encode())
