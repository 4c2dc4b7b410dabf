"""The sink kind `atom`: a feed and its archives as files, for any server of static directories."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from common.files import drafts, whole_file
from feeds.documents import Now, now_us
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.present.item import ShownMatch, missing_item
from mmqjp.sinks.definition import AtomOptions
from mmqjp.sinks.sink import Pending, Sink, Warn
from mmqjp.syndication.atom import NEWEST, AtomEntry, AtomFeed, archive_of, entry_of, feed_document, unarchived_from

FEED = "feed.atom"  # the file with the newest entries

_ARCHIVE = re.compile(r"archive-(\d{1,17})\.atom")
_ENTRY = re.compile(r"<!-- (\d+) (-?\d+) --><entry>.*</entry>")


class AtomSink(Sink):
    """The files of a feed: FEED has the newest outputs and all that are in no archive, `archive-K.atom` those of a full
    archive. Archives never change. Entries live in the files alone; rewriting them after a kill changes nothing."""

    shows_items = True

    def __init__(self, name: str, options: AtomOptions, position: Position, warn: Warn, now: Now = now_us) -> None:
        address = options.url + FEED
        id = uuid5(NAMESPACE_URL, f"mmqjp:{address}").urn
        self._feed = AtomFeed(id, options.title or f"mmqjp: {name}", address, now())
        self._options, self._warn, self._now = options, warn, now
        self._acked = position.acked
        self._entries: dict[int, AtomEntry] | None = None
        self._archives: set[int] = set()

    def prepare(self, pending: Pending) -> bool:
        """Reads the files, removes leftovers of a killed process, and creates a missing feed. Raises OSError."""
        path = self._options.path / FEED
        if self._entries is not None and path.exists():
            return False
        if not self._options.path.is_dir():
            self._options.path.mkdir()
        for draft in drafts(self._options.path):
            if draft.name.startswith((f".{FEED}.", ".archive-")):
                draft.unlink(missing_ok=True)
        found = (_ARCHIVE.fullmatch(one.name) for one in self._options.path.iterdir())
        self._archives = {int(one[1]) for one in found if one is not None}
        if path.exists():
            self._entries = self._read(path)
        else:
            if self._entries is not None:
                self._warn(f"{path} was removed: it is written again")
            self._entries = self._entries or {}
            self._write_feed(self._entries)
        return False

    def write(self, outputs: Iterable[Output]) -> int:
        """Writes outputs without their items. Raises OSError."""
        matches = (ShownMatch(one, tuple(map(missing_item, one.documents, one.streams))) for one in outputs)
        return self.write_matches(matches)

    def write_matches(self, matches: Iterable[ShownMatch]) -> int:
        """Writes outputs with their items: first the archives they fill, then the feed. Raises OSError."""
        assert self._entries is not None, "prepare comes first"
        entries, count, last = dict(self._entries), 0, self._acked
        for match in matches:
            seq = match.output.seq
            count, last = count + 1, max(last, seq)
            if seq not in entries and archive_of(seq) in self._archives:  # by a process that was killed then
                entries |= self._read(self._options.path / _archive_name(archive_of(seq)))
            if seq not in entries:
                entry = entry_of(match, self._now())
                entries[seq] = replace(entry, xml=f"<!-- {seq} {entry.committed_at} -->{entry.xml}")
        begin = unarchived_from(max([last, *entries]))
        for archive in sorted({archive_of(seq) for seq in entries if seq < begin} - self._archives):
            self._write_archive(archive, {seq: one for seq, one in entries.items() if archive_of(seq) == archive})
        newest = sorted(entries, reverse=True)
        kept = {seq: entries[seq] for place, seq in enumerate(newest) if place < NEWEST or seq >= begin}
        if count:
            self._write_feed(kept)
        self._entries, self._acked = kept, last
        return count

    def position(self) -> Position:
        return Position(self._acked)

    def _write_archive(self, archive: int, entries: Mapping[int, AtomEntry]) -> None:
        name, before = _archive_name(archive), self._archive_before(archive)
        self._put(name, feed_document(self._feed, _newest_first(entries), before, self._options.url + name))
        self._archives.add(archive)

    def _write_feed(self, entries: Mapping[int, AtomEntry]) -> None:
        before = self._archive_before(max(self._archives, default=0) + 1)
        self._put(FEED, feed_document(self._feed, _newest_first(entries), before))

    def _archive_before(self, archive: int) -> str | None:
        before = max((one for one in self._archives if one < archive), default=None)
        return None if before is None else self._options.url + _archive_name(before)

    def _put(self, name: str, content: bytes) -> None:
        with whole_file(self._options.path / name) as file:
            file.write(content)

    def _read(self, path: Path) -> dict[int, AtomEntry]:
        """Returns the entries of a file. Raises FileExistsError if it is of another feed."""
        text = path.read_text("utf-8", "replace")
        if f"\n<id>{self._feed.id}</id>\n" not in text:
            cause = f"{path} is of another feed, or of this one at another address"
            raise FileExistsError(f"{cause}: choose another directory, or move its files away")
        found = (_ENTRY.fullmatch(line) for line in text.split("\n"))
        return {int(one[1]): AtomEntry(int(one[2]), one[0]) for one in found if one is not None}


def _newest_first(entries: Mapping[int, AtomEntry]) -> list[AtomEntry]:
    return [entries[seq] for seq in sorted(entries, reverse=True)]


def _archive_name(archive: int) -> str:
    return f"archive-{archive}.atom"
