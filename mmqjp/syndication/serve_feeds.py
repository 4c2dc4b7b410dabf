"""Answers requests for Atom feeds of queries: path parts and two headers in; status, headers and bytes out. There are
entity tags, and responses for moved, gone and revoked feeds. Entries are cached, as they do not change."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import sha256

from starlette.responses import PlainTextResponse, Response

from common.dates import SECOND
from common.tools import LruCache
from mmqjp.present.newest import shown_matches
from mmqjp.present.recent import OfFeed, RecentAnswers, is_newer
from mmqjp.present.recipients import StoredOutput
from mmqjp.process import printable_line
from mmqjp.syndication import atom
from mmqjp.tables import lookup

KEPT_CHARACTERS = 32 << 20  # maximum size of cached entries, in characters; the oldest are evicted

MOST_NAMES = 2_000  # maximum number of names whose feeds are cached
_MOST = atom.NEWEST + atom.SIZE  # maximum number of outputs in a feed: fewer than SIZE are in no archive


@dataclass(frozen=True, slots=True)
class FeedContents:
    """The entries of a query's feed or of an archive, newest first. `previous` is the number of the archive before
    them, which may be empty; None: there is none. `since` is when the query was first added, in microseconds."""

    entries: tuple[atom.AtomEntry, ...]
    previous: int | None
    since: int


@dataclass(frozen=True, slots=True)
class Earlier:
    """An archive is empty; this is the nearest earlier one that is not."""

    archive: int


@dataclass(frozen=True, slots=True)
class ArchiveGone:
    """An output of an archive was deleted."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A feed as of a version: how many of its newest outputs are shown, its newest archive, the last output."""

    found: OfFeed
    count: int
    archive: int | None
    last_seq: int


class StoreFeeds:
    """The feeds of a store's queries. Thread-safe; methods raise what reading the store raises."""

    def __init__(self, recent: RecentAnswers) -> None:
        self._recent = recent
        self._entries = LruCache[tuple[int, int, int], tuple[atom.AtomEntry, bool]](
            KEPT_CHARACTERS, lambda one: len(one[0].xml)
        )
        self._kept = LruCache[str, _Kept](MOST_NAMES)
        self._revoked: tuple[object, dict[str, int]] | None = None

    def newest(self, name: str) -> FeedContents | None:
        """Returns a query's feed: the newest NEWEST outputs, and all in no archive. None if the name never existed."""
        kept = self._kept.get(name)
        if kept is None or kept.found.version != self._recent.as_of():
            if (found := self._recent.of_feed(name, _MOST)) is None:
                return None
            kept = self._made(name, found, kept)
        entries, _ = self._entries_of(kept.found.told[: kept.count])
        ids = {entry.id for entry in entries}
        if len(ids) < len(entries):  # there are stories, of which each is told often
            for entry in self._entries_of(kept.found.told[kept.count :])[0]:
                entries += (entry,) if len(ids) < atom.NEWEST else ()
                ids.add(entry.id)
        return FeedContents(entries, kept.archive, kept.found.since)

    def archive(self, name: str, number: int) -> FeedContents | Earlier | ArchiveGone | None:
        """Returns an archive. None if there is no such query, or no such archive yet."""
        numbers = atom.archive_range(number)
        if number < 0 or (found := self._recent.of_feed(name, 0)) is None or numbers.stop > _last_seq(found) + 1:
            return None
        outputs = self._recent.between(numbers.start - 1, numbers.stop - 1, name)[::-1]
        (kept,) = self._recent.select(lookup.kept(numbers.start, numbers.stop))["kept"].to_pylist()
        if kept != atom.SIZE:  # then some may have been dropped before the others were read
            return ArchiveGone()
        if not outputs:
            before = self._seq_before(name, numbers.start)
            return FeedContents((), None, found.since) if before is None else Earlier(atom.archive_of(before))
        entries, is_whole = self._entries_of(outputs)
        return FeedContents(entries, number - 1 if number else None, found.since) if is_whole else ArchiveGone()

    def revoked(self, name: str) -> int:
        return self.revoked_links().get(atom.setting_of(name), 0)

    def revoked_links(self) -> dict[str, int]:
        """Returns how often links were revoked, by the names of their settings."""
        version, known = self._recent.version(), self._revoked
        if known is None or is_newer(version, known[0]):
            rows = self._recent.select(lookup.settings_sql(atom.SETTING)).to_pylist()
            known = self._revoked = version, {row["key"]: int(row["value"]) for row in rows}
        return known[1]

    def _entries_of(self, outputs: Sequence[StoredOutput]) -> tuple[tuple[atom.AtomEntry, ...], bool]:
        """Returns the entries of outputs, and whether they are complete: documents and commit times may be deleted."""
        found = self._entries.found(one.key for one in outputs)
        new = [one for one in outputs if one.key not in found]
        for one, match in zip(new, shown_matches(self._recent, new, reasons=False), strict=True):
            committed_at = one.answer.committed_at
            is_whole = committed_at is not None and all(item.is_kept for item in match.items)
            entry = atom.entry_of(match, one.answer.t1 if committed_at is None else committed_at)
            found[one.key] = entry, is_whole
            self._entries.put(one.key, found[one.key])
        return tuple(found[one.key][0] for one in outputs), all(found[one.key][1] for one in outputs)

    def _made(self, name: str, new: OfFeed, known: _Kept | None) -> _Kept:
        last_seq = _last_seq(new)
        begin = atom.unarchived_from(last_seq)
        count = self._count(name, new.told, begin)
        if known is not None and known.found.drops == new.drops and atom.unarchived_from(known.last_seq) == begin:
            archive = known.archive
        else:  # unless there are fewer new outputs than were looked for, so that these are all
            is_more = any(one.answer.first_seq < begin for one in new.told)
            seq = self._seq_before(name, begin, new.told) if is_more else None
            archive = None if seq is None else atom.archive_of(seq)
        found = _Kept(new, count, archive, last_seq)
        self._kept.put(name, found)
        return found

    def _count(self, name: str, outputs: Sequence[StoredOutput], begin: int) -> int:
        """Returns how many of the newest outputs are in a feed: NEWEST, or all numbered from `begin` on."""
        later = sum(one.answer.first_seq >= begin for one in outputs)
        groups = {one.answer.first_seq for one in outputs if one.answer.first_seq < begin <= one.answer.last_seq}
        for group in groups:  # one that is archived in part: its outputs are numbered
            later += sum(number >= begin for number in self._recent.numbers(name, group).values())
        return max(atom.NEWEST, later)

    def _seq_before(self, name: str, before: int, outputs: Sequence[StoredOutput] = ()) -> int | None:
        """Returns a query's greatest output number below another, or one in its archive, given the newest outputs."""
        newest = self._recent.newest
        while outputs := [one for one in outputs if one.answer.first_seq < before][:1] or newest(
            name, (before, -1, -1), 1
        ):
            first, last = outputs[0].answer.first_seq, outputs[0].answer.last_seq
            if last < before and atom.archive_of(first) == atom.archive_of(last):
                return first
            numbers = [number for number in self._recent.numbers(name, first).values() if number < before]
            if numbers:
                return numbers[-1]
            before = first
        return None


def _last_seq(found: OfFeed) -> int:
    noted: list[int] = json.loads(found.numbers or "[]")
    return max([found.greatest, *(number - 1 for number in noted[3:4])])


_NO_CACHE = "private, no-cache"
_FOR_GOOD = "private, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class FeedRequest:
    """A request for a query's feed, or an archive by number, with two headers, "" if missing."""

    key: str
    name: str
    archive: int | None = None
    if_none_match: str = ""
    if_modified_since: str = ""


@dataclass(frozen=True, slots=True)
class FeedPages:
    """Answers requests. `url` is the site's address without a final slash, `now` the clock in microseconds."""

    feeds: StoreFeeds
    links: atom.Links
    url: str
    now: Callable[[], int]

    def answer(self, request: FeedRequest) -> Response:
        made_at = self.links.revoked_before(request.name, request.key)
        if made_at is None:
            return _error(404, "there is no feed at this address")
        if made_at != self.feeds.revoked(request.name):
            return _error(410, "the link of this feed was revoked")
        if request.archive is not None:
            return self._archive(request, request.archive)
        found = self.feeds.newest(request.name)
        return _error(404, "no query has this name") if found is None else self._document(request, found, _NO_CACHE)

    def _archive(self, request: FeedRequest, number: int) -> Response:
        found = self.feeds.archive(request.name, number)
        if found is None:
            return _error(404, "there is no such archive, or not yet")
        if isinstance(found, ArchiveGone):
            return _error(410, "what stood in this archive was dropped")
        if isinstance(found, Earlier):
            return _error(301, "nothing is in this archive", {"Location": self._address(request, found.archive)})
        # The archive before it may be empty, and then leads to the next one that is not. Which one that is must not
        # stand here: it could not be told any more when that is dropped.
        return self._document(request, found, _FOR_GOOD)

    def _address(self, request: FeedRequest, archive: int | None = None) -> str:
        return self.url + atom.feed_path(request.key, request.name, archive)

    def _document(self, request: FeedRequest, found: FeedContents, caching: str) -> Response:
        """Returns a document or 304. Omits the date in the second of a commit, when it is ambiguous."""
        id, title = self.links.feed_id(request.name), printable_line(request.name)
        feed = atom.AtomFeed(id, title, self._address(request), found.since)
        previous = None if found.previous is None else self._address(request, found.previous)
        archive = None if request.archive is None else self._address(request, request.archive)
        document = atom.feed_document(feed, found.entries, previous, archive)
        modified = found.entries[0].committed_at if found.entries else found.since
        tag = f'"{sha256(document).hexdigest()[:32]}"'
        date = http_date(modified) if modified // SECOND < self.now() // SECOND else None
        headers = {"ETag": tag, "Cache-Control": caching} | ({} if date is None else {"Last-Modified": date})
        known = [one.strip().removeprefix("W/") for one in request.if_none_match.split(",")]
        is_known = tag in known or "*" in known
        if not request.if_none_match:
            is_known = date is not None and request.if_modified_since == date
        if is_known:
            return Response(None, 304, headers)
        return Response(document, 200, headers, f"{atom.MEDIA_TYPE}; charset=utf-8")


def http_date(microseconds: int) -> str | None:
    """Returns an HTTP date, to the second; None outside of the years 1 to 9999."""
    try:
        return format_datetime(datetime.fromtimestamp(microseconds // SECOND, UTC), usegmt=True)
    except (OverflowError, ValueError, OSError):
        return None


def _error(status: int, text: str, more: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, {"Cache-Control": _NO_CACHE} | dict(more or {}))
