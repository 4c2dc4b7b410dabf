import gzip
import json
import os
import random
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from feeds.documents import Document, Reject
from feeds.feed import EntryForm
from feeds.history import History
from feeds.readers import Offset
from feeds.tail import Tail, judged, read_documents, read_waiting, waiting_files
from mmqjp.spark.source import (
    ROWS,
    FileReader,
    FileSource,
    PlanFiles,
    PlanPartition,
    SourcePath,
    decode_items,
    split_unreadable,
    uncommitted,
)
from tests.generate.seeds import seeds
from tests.support.files import archive
from tests.support.in_turn import in_turn

Sequence = list[tuple[str, str, int | None]]

NOW, DAY = 1_800_000_000_000_000, 86_400_000_000
RSS = "<rss><channel><title>t</title>{0}</channel></rss>"
ENTRY = "<item><title>{0}</title><guid>{1}</guid>{2}</item>"


class Crawl:
    """A directory of drops with sidecars and without, archives, JSON lines and XML, in folders, of any file times."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self._rng = directory, random.Random(seed)
        for number in range(25):
            rng = self._rng
            folder = directory / rng.choice([".", "a", "b", "b/c"])
            folder.mkdir(parents=True, exist_ok=True)
            rng.choice([self.drop, self.noted, self.noted, self.plain, self.archive, self.archive, self.lines])(
                folder, f"{rng.choice('xyz')}{number}"
            )
        (directory / ".hidden.xml").write_text("<a/>")
        (directory / "draft.xml.tmp").write_text("<a/>")
        (directory / "lone.json").write_text('{"url": "http://nobody/"}')
        for path in directory.rglob("*"):
            moment = self._rng.randint(1_500_000_000, 1_700_000_000)
            os.utime(path, (moment, moment))

    def _day(self) -> int:
        return self._rng.randint(1, 28)

    def _feed(self) -> str:
        """A version of one of two feeds, whose entries change, with their dates or without."""
        entries = ""
        for guid in self._rng.sample("ghij", 2):
            date = self._rng.choice(["", f"<pubDate>{self._day():02d} Mar 2026 00:00:00 GMT</pubDate>"])
            entries += ENTRY.format(f"T{self._rng.randint(0, 2)}", guid, date)
        return RSS.format(entries)

    def _address(self) -> str:
        return f"http://{self._rng.choice('fg')}/"

    def drop(self, folder: Path, name: str) -> None:
        path = folder / f"202603{self._day():02d}T120000Z-{name[1:]:0>12}.xml"
        path.write_text(self._feed())
        path.with_suffix(".json").write_text(json.dumps({"url": self._address()}))

    def noted(self, folder: Path, name: str) -> None:
        path = folder / f"{name}.xml"
        path.write_text(self._feed())
        notes = {"url": self._address(), "fetched_at": f"2026-03-{self._day():02d}T12:00:00Z"}
        path.with_suffix(".json").write_text(json.dumps(notes))

    def plain(self, folder: Path, name: str) -> None:
        (folder / f"{name}.xml").write_text(self._rng.choice([self._feed(), "<a>v</a>", "<broken"]))

    def archive(self, folder: Path, name: str) -> None:
        packed, count = self._rng.random() < 0.5, self._rng.randint(0, 3)
        feeds = ((self._address(), self._feed(), f"2026-03-{self._day():02d}T12:00:00Z") for _ in range(count))
        archive(folder / f"{name}.warc{'.gz' * packed}", *feeds)

    def lines(self, folder: Path, name: str) -> None:
        times: list[object] = [None, self._rng.randint(0, 9), f"2026-03-{self._day():02d}", 1_700_000_000]
        rows = [{"id": f"{name} {n}", "xml": "<a/>", "time": time} for n, time in enumerate(times)]
        given = ({key: value for key, value in row.items() if value is not None} for row in rows)
        text = "".join(json.dumps(row) + "\n" for row in given)
        if self._rng.random() < 0.5:
            (folder / f"{name}.jsonl").write_text(text + "no line\n")
        else:
            (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


def history() -> History:
    return History(most=3, lateness=DAY, keep=2 * DAY)


def sequence(items: list[Document | Reject]) -> Sequence:
    """The documents; of what is none, only that it was there: where it stood is told in other ways."""
    return [(i.id, i.stream, i.t0) if isinstance(i, Document) else ("reject", i.stream, i.time) for i in items]


def by_run(directory: Path, feeds: EntryForm | None) -> Sequence:
    return sequence(list(read_documents([directory], feeds=feeds, now=lambda: NOW, history=history())))


def by_stream(directory: Path, feeds: EntryForm | None) -> tuple[Sequence, dict[str, str]]:
    """What is read, and what is kept of it."""
    tail, known = Tail(directory, feeds=feeds, now=lambda: NOW), history()
    found = judged(read_waiting(waiting_files([tail], {}), lambda waiting, cause: pytest.fail(cause)), known)
    return sequence([read.item for read in found if read.item is not None]), known.changed()


def by_spark(
    directory: Path, feeds: EntryForm | None, plans: Path, most: int, *, again: bool
) -> tuple[Sequence, dict[str, str]]:
    """What the driver admits of what executors read, here in one process, in micro-batches of `most` items. With
    `again` each of them is first left in the middle."""
    found, kept = list[Document | Reject](), dict[str, str]()
    positions: dict[tuple[str, str], Offset] = {}
    files = FileSource((SourcePath(directory, feeds),), grain=100 if most > 1 else 1, tasks=3, most=most)
    reader, start = FileReader(files, lambda: positions, PlanFiles(plans), lambda: NOW), {"plan": 0}
    while (end := reader.latestOffset(start, ReadAllAvailable())) != start:
        shares = reader.partitions(start, end)
        made = [row for share in reversed(shares) if isinstance(share, PlanPartition) for row in reader.read(share)]
        rows, failed = split_unreadable(pa.Table.from_batches(made, ROWS).sort_by("place"))
        assert not failed
        text = pa.array([xml and xml.decode() for xml in rows["xml"].to_pylist()], pa.string())
        rows = rows.append_column("text", text).append_column("unread", pa.nulls(len(rows), pa.binary()))
        for count in (len(rows) // 3, len(rows)) if again else (len(rows),):
            known = history()
            known.load(kept)
            for read in islice(judged(decode_items(uncommitted(rows, positions)), known), count):
                positions[read.offset.source, read.offset.file] = read.offset
                found += [] if read.item is None else [read.item]
            kept |= known.changed()
        start = end
    return sequence(found), kept


@pytest.mark.parametrize(("seed", "feeds"), in_turn(seeds(3, 60), [None, "item", "raw"]))
def test_run_stream_and_spark_read_the_same(
    seed: int, feeds: EntryForm | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    crawl = Crawl(tmp_path / "crawl", seed).directory
    found, kept = by_stream(crawl, feeds)
    assert len([one for one in found if one[0] != "reject"]) > 10
    assert by_run(crawl, feeds) == found
    for place, (most, again) in enumerate(((1_000, False), (1, True), (3, seed % 2 == 0), (1, seed % 2 == 1))):
        if place == 3:  # a micro-batch takes an entry of a file
            monkeypatch.setattr("mmqjp.spark.source.LARGE", 100)
        assert by_spark(crawl, feeds, tmp_path / f"{place}", most, again=again) == (found, kept)
