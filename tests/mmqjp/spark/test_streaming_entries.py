"""Entries of feeds in micro-batches: executors tell what was seen, and the driver's history what comes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from feeds.documents import Document, Reject
from feeds.history import History
from feeds.readers import Offset
from feeds.tail import ReadItem, Tail, judged, waiting_files
from mmqjp.spark import source as plans
from mmqjp.spark import source as source_module
from mmqjp.spark.source import (
    ROWS,
    FileReader,
    FileSource,
    PlanFiles,
    PlanPartition,
    SourcePath,
    decode_items,
    uncommitted,
)

HOUR = 3600 * 1_000_000
ENTRY = "<item><title>{0} {1}</title><guid>{0}</guid><pubDate>Mon, 0{0} Jan 2024 00:00:00 GMT</pubDate></item>"

Seen = list[tuple[str, int] | str]


def fetch(drops: Path, day: int, entries: str, url: str = "http://f/") -> None:
    """A fetch of a day of January, of entries by their numbers, in capitals where they have changed."""
    stem = f"202401{day:02d}T000000Z-0123456789ab"
    (drops / f"{stem}.json").write_text(json.dumps({"url": url, "fetched_at": f"2024-01-{day:02d}T00:00:00Z"}))
    listed = "".join(ENTRY.format(int(entry, 36) % 9 + 1, entry) for entry in entries)
    (drops / f"{stem}.xml").write_text(f"<rss><channel><title>t</title>{listed}</channel></rss>")


@pytest.fixture
def drops(tmp_path: Path) -> Path:
    """Fetches of two feeds, the first of them empty; entries change, and come back."""
    drops = tmp_path / "drops"
    drops.mkdir()
    fetch(drops, 10, "")
    fetch(drops, 11, "123", "http://g/")
    for day, entries in enumerate(("123", "12a34", "1234", "b2a456", "6"), 12):
        fetch(drops, day, entries)
    (drops / "20240120T000000Z-0123456789ab.xml").write_text("<no feed>")
    (drops / "20240121T000000Z-0123456789ab.json").write_text("{")
    (drops / "20240121T000000Z-0123456789ab.xml").write_text("<rss><channel/></rss>")
    return drops


def history() -> History:
    return History(most=3, lateness=HOUR, keep=2 * 24 * HOUR)


def seen(found: Iterator[ReadItem[Document | Reject]]) -> Seen:
    """The documents with their times, and why there are no others."""
    items = (read.item for read in found if read.item is not None)
    return [(item.id, item.t0) if isinstance(item, Document) else item.reason for item in items]


def here(drops: Path, known: History) -> Seen:
    """What a service reads that has all in one process."""
    tail = Tail(drops, feeds="item")
    return seen(judged((read for waiting in waiting_files([tail], {}) for read in waiting.read()), known))


class Spark:
    """What Spark does with the same files, a micro-batch after the other."""

    def __init__(self, drops: Path, plans: Path, most: int) -> None:
        self.positions: dict[tuple[str, str], Offset] = {}
        self.kept: dict[str, str] = {}
        source = FileSource((SourcePath(drops, feeds="item"),), most=most, grain=1, tasks=3)
        self._reader = FileReader(source, lambda: self.positions, PlanFiles(plans))
        self._start = {"plan": 0}

    def rows(self) -> Iterator[pa.Table]:
        while (end := self._reader.latestOffset(self._start, None)) != self._start:  # type: ignore[arg-type]
            shares = self._reader.partitions(self._start, end)
            read = [
                row
                for share in reversed(shares)
                if isinstance(share, PlanPartition)
                for row in self._reader.read(share)
            ]
            rows = pa.Table.from_batches(read, ROWS).sort_by("place")
            text = pa.array([xml and xml.decode() for xml in rows["xml"].to_pylist()], pa.string())
            yield rows.append_column("text", text).append_column("unread", pa.nulls(len(rows), pa.binary()))
            self._start = end

    def read(self, *, again: bool = False) -> Seen:
        """All that there is; with `again` each micro-batch is left in the middle, and then comes again."""
        found: Seen = []
        for rows in self.rows():
            for last in (False, True) if again else (True,):
                known = history()
                known.load(self.kept)
                waiting = decode_items(uncommitted(rows, self.positions))
                found += seen(self._committed(judged(waiting, known), last, len(rows)))
                self.kept |= known.changed()
        return found

    def _committed(
        self, items: Iterator[ReadItem[Document | Reject]], last: bool, rows: int
    ) -> Iterator[ReadItem[Document | Reject]]:
        for read in items if last else islice(items, rows // 3):
            self.positions[read.offset.source, read.offset.file] = read.offset
            yield read


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("most", [1, 3, 100])
def test_the_same_entries_are_documents_of_the_same_times(most: int, again: bool, drops: Path, tmp_path: Path):
    known, spark = history(), Spark(drops, tmp_path / "plans", most)
    expected = here(drops, known)
    assert len([one for one in expected if isinstance(one, tuple)]) > 10 and any(isinstance(e, str) for e in expected)
    assert spark.read(again=again) == expected
    assert spark.kept == known.changed()


def test_a_feed_that_is_read_on_goes_on_with_its_next_entry(
    drops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for module in (source_module, plans):
        monkeypatch.setattr(module, "LARGE", 300)  # a micro-batch takes an entry or two of a file
    known, spark = history(), Spark(drops, tmp_path / "plans", 1)
    expected = here(drops, known)
    assert spark.read() == expected
    assert spark.kept == known.changed()
