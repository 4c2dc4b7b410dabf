"""Feeds of the queries of a store: which outputs stand in a feed and in its archives, read through a reader of SQL."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import pyarrow as pa

from mmqjp.present.recent_answers import OfFeed, RecentAnswers, is_newer
from mmqjp.syndication.archives import NEWEST, SIZE, archive_of, numbers_of, unarchived_from
from mmqjp.syndication.entries import Entry
from mmqjp.syndication.links import SETTING, setting_of
from mmqjp.syndication.read_entries import EntryReader, Told
from mmqjp.tables import feed_sql

MOST_ROWS, SECONDS = 100_000, 10.0
"""The bounds of a question."""

MOST_NAMES = 2_000
"""It is kept of so many names which outputs stand in their feeds."""

_MOST = NEWEST + SIZE
"""The most outputs in a feed: fewer than SIZE are in no archive."""


class Reader(Protocol):
    """Reads the tables of a store on DuckDB, or of one on Spark from its files."""

    def select(self, sql: str, limit: int, seconds: float) -> pa.Table:
        """Returns the rows of a SELECT. It may have up to `limit` rows and take so many seconds."""

    def version(self) -> object:
        """Returns something that is another once there is a newer batch."""


@dataclass(frozen=True, slots=True)
class Newest:
    """What stands in the feed of a query, the newest first, and the number of the newest archive, None if there is
    none. `since` is when the query was first added, in microseconds."""

    entries: tuple[Entry, ...]
    archive: int | None
    since: int


@dataclass(frozen=True, slots=True)
class Archived:
    """What stands in an archive, the newest first. `more` says that others may come before it: its number is not 0, and
    it is not the empty one that ends the chain."""

    entries: tuple[Entry, ...]
    more: bool
    since: int


@dataclass(frozen=True, slots=True)
class Earlier:
    """An archive is empty. The nearest one before it that is not has this number."""

    archive: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Something that stood in an archive was dropped."""


@dataclass(frozen=True, slots=True)
class _Heading:
    """What holds for all feeds at a version: the number of the last output that was ever committed, and the greatest
    that is stored. `drops` is another number once something was dropped: it is negative if the outputs were remembered.
    `stored` counts what is there, if it was asked for."""

    version: object
    last_seq: int
    greatest: int
    drops: int
    stored: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """A feed as of a heading: the newest outputs of a query, as many as may be needed, of which the first `count` stand
    in it; the number of the newest archive; and when the query was first added."""

    heading: _Heading
    told: list[Told]
    count: int
    archive: int | None
    since: int


class StoreFeeds:
    """The feeds of the queries of a store. Methods may be called in any thread, and raise what the reader raises."""

    def __init__(self, reader: Reader, recent: RecentAnswers | None = None) -> None:
        """What is `recent` is not asked for."""
        self._reader, self._recent = reader, recent
        documents = None if recent is None else recent.documents
        self._entries = EntryReader(lambda sql: reader.select(sql, MOST_ROWS, SECONDS), documents)
        self._lock = Lock()
        self._heading = _Heading(None, -1, -1, 0, 0)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._revoked: tuple[object, dict[str, int]] | None = None

    def newest(self, name: str) -> Newest | None:
        """Returns what stands in the feed of a query: the newest NEWEST outputs, and all that are in no archive. None
        if no query ever had the name."""
        found = None if self._recent is None else self._recent.of_feed(name, _MOST)
        kept = self._remembered(name, found) or self._as_of(name, self._current())
        if kept is None:
            return None
        known = {} if found is None else {(one.answer, member.qid): (one, member) for one, member in found.told}
        entries, _ = self._entries.of(kept.told[: kept.count], known)
        return Newest(entries, kept.archive, kept.since)

    def archive(self, name: str, number: int) -> Archived | Earlier | Gone | None:
        """Returns an archive of a query. None if there is no such query, or not yet such an archive."""
        numbers, heading = numbers_of(number), self._current()
        if number < 0 or numbers.stop > heading.last_seq + 1 or (since := self._since(name)) is None:
            return None
        if self._number(feed_sql.kept(numbers.start, numbers.stop)) != SIZE:
            return Gone()
        told = self._told(feed_sql.between(name, numbers.start, numbers.stop))
        if not told:
            before = self._seq_before(name, numbers.start)
            return Archived((), False, since) if before is None else Earlier(archive_of(before))
        entries, is_whole = self._entries.of(told)
        return Archived(entries, number > 0, since) if is_whole else Gone()

    def look(self) -> None:
        """Reads which links were revoked, unless there is nothing newer."""
        self._revoked_links()

    def revoked(self, name: str) -> int:
        """Returns how often the link of a feed was revoked."""
        return self._revoked_links().get(setting_of(name), 0)

    def _revoked_links(self) -> dict[str, int]:
        version = self._reader.version()
        with self._lock:
            known = self._revoked
        if known is None or is_newer(version, known[0]):
            rows = self._reader.select(feed_sql.settings(SETTING), MOST_ROWS, SECONDS).to_pylist()
            known = version, {row["key"]: int(row["value"]) for row in rows}
            with self._lock:
                self._revoked = known
        return known[1]

    # ------------------------------------------------------------ outputs

    def _remembered(self, name: str, found: OfFeed | None) -> _Kept | None:
        """Returns the outputs in a feed if they are all remembered."""
        if found is None or found.since is None:
            return None
        last_seq = _last_seq(found.greatest, found.numbers)
        heading = _Heading(found.version, last_seq, found.greatest, -1 - found.drops, 0)
        with self._lock:
            known = self._kept.get(name)
        if known is not None and known.heading == heading:
            return known
        told = [Told(one.answer, member.qid, one.first_seq, one.last_seq) for one, member in found.told]
        return self._made(name, heading, told, found.since, known)

    def _as_of(self, name: str, heading: _Heading) -> _Kept | None:
        """Returns the outputs in a feed. Reads those that are new since it was asked for."""
        with self._lock:
            known = self._kept.get(name)
        if known is not None and known.heading == heading:
            return known
        if (since := self._since(name) if known is None else known.since) is None:
            return None
        if known is not None and known.heading.drops != heading.drops:
            known = None  # what was read may have gone
        before, after = ([], -1) if known is None else (known.told, known.heading.greatest)
        told = [*self._told(feed_sql.newest(name, after, heading.greatest + 1, _MOST)), *before][:_MOST]
        return self._made(name, heading, told, since, known)

    def _made(self, name: str, heading: _Heading, told: list[Told], since: int, known: _Kept | None) -> _Kept:
        """Returns and keeps a feed with its newest outputs, given what was known of it."""
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

    def _count(self, name: str, told: list[Told], begin: int, end: int) -> int:
        """Returns how many of the newest outputs stand in a feed: NEWEST, or all with `begin` <= seq < `end`."""
        later = sum(one.first >= begin for one in told)
        parted = next((one.first for one in told[NEWEST:] if one.first < begin <= one.last), None)
        if parted is not None:  # a group that is archived in part: its outputs are numbered
            if (numbers := self._numbers(name, parted)) is None:
                return max(NEWEST, len(self._told(feed_sql.between(name, begin, end))))
            later += sum(number >= begin for number in numbers)
        return max(NEWEST, later)

    def _archive_before(self, name: str, told: list[Told], begin: int) -> int | None:
        """Returns the number of the newest archive that is not empty."""
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
        """Returns the numbers of the outputs of a name in a group, if they are remembered."""
        return None if self._recent is None else self._recent.numbers(name, group)

    def _seq_before(self, name: str, before: int) -> int | None:
        """Returns the greatest number of an output of a query below a number, or another of the same archive."""
        while told := self._told(feed_sql.newest(name, -1, before, 1)):
            (one,) = told
            if one.last < before and archive_of(one.first) == archive_of(one.last):
                return one.first
            seq = self._number(feed_sql.last_in_group(name, one.first, before))
            if seq is not None:
                return seq
            before = one.first
        return None

    # ------------------------------------------------------------ questions

    def _current(self) -> _Heading:
        """Returns the heading of the newest version."""
        version = self._reader.version()
        with self._lock:
            known = self._heading
            if known.version == version:
                return known
        (row,) = self._reader.select(feed_sql.heading(known.greatest), 1, SECONDS).to_pylist()
        greatest = max(-1 if row[key] is None else row[key] for key in ("seq", "earlier"))
        drops = known.drops + (row["known"] != known.stored)
        found = _Heading(version, _last_seq(greatest, row["numbers"]), greatest, drops, row["stored"])
        with self._lock:
            if self._heading is known:
                self._heading = found
        return found

    def _since(self, name: str) -> int | None:
        """Returns when the first query of a name was added."""
        return self._number(feed_sql.since(name)) if name.isprintable() else None  # no query has another name

    def _number(self, sql: str) -> int | None:
        (number,) = self._reader.select(sql, 1, SECONDS).columns[0].to_pylist()
        return None if number is None else int(number)

    def _told(self, sql: str) -> list[Told]:
        found = self._reader.select(sql, MOST_ROWS, SECONDS)
        return [Told(*row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)]


def _last_seq(greatest: int, numbers: str | None) -> int:
    """The number of the last output that was ever committed, given the greatest one that is stored."""
    noted: list[int] = json.loads(numbers or "[]")
    return max([greatest, *(number - 1 for number in noted[3:4])])
