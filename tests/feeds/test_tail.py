import gzip
import json
import os
import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from feeds import readers
from feeds.documents import Document, Reject, SourceError
from feeds.files import RACY, files_below
from feeds.history import History
from feeds.readers import ALL_READ, Offset
from feeds.tail import Listing, Tail, judged, read_waiting, waiting_files
from mmqjp.engine import Session
from mmqjp.tables.schema import CommitMetadata
from tests.generate.seeds import seeds
from tests.support.files import archive, write
from tests.support.in_turn import in_turn
from tests.support.rotating import Rotating
from tests.support.service import Directory, Events, StopAfter
from tests.support.unreadable import failing, shut

FEED = "<rss><channel><title>t</title><item><title>{0}</title><guid>{0}</guid></item></channel></rss>"


def line(id: str) -> str:
    return json.dumps({"id": id, "time": 1, "xml": "<a/>"})


def archive_of(path: Path, *titles: str) -> None:
    archive(path, *((f"http://{title}/", FEED.format(title), "2026-01-01T18:00:00Z") for title in titles))


class Reader:
    """Reads a source as a service does, remembering positions, and what could not be read."""

    def __init__(self, *tails: Tail, positions: dict[tuple[str, str], Offset] | None = None) -> None:
        self.tails, self.positions = tails, {} if positions is None else positions
        self.failed: dict[str, str] = {}
        self.history = History()

    def read(self, most: int = 1000) -> list[Document | Reject]:
        found: list[Document | Reject] = []
        self.failed.clear()
        files = waiting_files(self.tails, self.positions)
        items = read_waiting(files, lambda waiting, cause: self.failed.update({waiting.file: cause}))
        for read in judged(items, self.history):
            if len(found) == most:
                return found
            self.positions[read.offset.source, read.offset.file] = read.offset
            if read.item is not None:
                found.append(read.item)
        return found

    def ids(self, most: int = 1000) -> list[str]:
        return [item.id for item in self.read(most)]


def test_lines_are_read_as_they_come_and_anew_when_they_are_written_anew(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    reader = Reader(Tail(tmp_path))
    path.write_text(f"{line('a')}\n\n{line('b')}\n{line('c')[:10]}")
    assert reader.ids() == ["a", "b"] and reader.ids() == []
    path.write_text(f"{line('a')}\n\n{line('b')}\n{line('c')}")  # whole, though its line may not be ended yet
    assert reader.ids() == ["c"]
    with path.open("a") as file:
        file.write(f"\n{line('d')}\nno json\n")
    assert [type(item) for item in reader.read()] == [Document, Reject]
    assert reader.ids() == []
    path.write_text(f"{line('e')}\n")
    assert reader.ids() == ["e"] and reader.ids() == []


def test_other_files_are_read_once_and_drafts_only_where_they_are_named(tmp_path: Path):
    for name in ("T/x.xml", ".y.xml", "y.xml.tmp", "y.xml.part", "y.txt"):
        write(tmp_path / name, "<a/>")
    reader = Reader(Tail(tmp_path))
    (document,) = reader.read()
    assert isinstance(document, Document) and (document.id, document.stream) == ("T/x.xml", "T")
    assert reader.ids() == [] and Reader(Tail(tmp_path / ".y.xml")).ids() == [".y.xml"]
    (tmp_path / ".y.xml").rename(tmp_path / "y.xml")
    assert reader.ids() == ["y.xml"]


def test_files_are_read_in_order_of_the_fetch(tmp_path: Path):
    first, second = tmp_path / "one", tmp_path / "two"
    for path, modified in (
        (first / "z.xml", 5),  # by the sidecar
        (first / "20260102T000000Z-0123456789abcdef.xml", 9_000_000_000),  # by its name
        (second / "20260101T120000500000Z-0123456789abcdef.xml", 1),
        (second / "m.xml", 1_000_000_000),  # by its time
    ):
        write(path, FEED.format(path.stem), modified)
    (first / "z.json").write_text(json.dumps({"url": "http://z/", "fetched_at": "2026-01-01T00:00:00Z"}))
    archive_of(second / "x.warc", "warc")
    reader = Reader(Tail(first, feeds="item"), Tail(second, feeds="item"))
    got = [id.split()[1] for id in reader.ids()]
    assert got == ["m", "z", "20260101T120000500000Z-0123456789abcdef", "warc", "20260102T000000Z-0123456789abcdef"]


def test_an_offset_that_did_not_count_the_ends_of_fetches_repeats_no_entry(tmp_path: Path):
    archive_of(tmp_path / "x.warc", *"abc")
    reader = Reader(Tail(tmp_path, feeds="item"))
    assert [id.split()[1] for id in reader.ids(2)] == ["a", "b"]
    source = str(tmp_path)
    reader.positions[source, "x.warc"] = Offset(source, "x.warc", 2)  # as older stores have it
    assert [id.split()[1] for id in reader.ids()] == ["c"] and reader.positions[source, "x.warc"].position == ALL_READ


DAY = "2026-01-01T00:00:00Z"


def test_a_sidecar_is_no_document_whether_its_feed_is_there_or_not(tmp_path: Path):
    (tmp_path / "x.json").write_text(json.dumps({"url": "http://x/", "fetched_at": DAY}))
    reader = Reader(Tail(tmp_path, feeds="item"))
    assert reader.read() == []
    (tmp_path / "x.xml").write_text(FEED.format("e"))
    assert Reader(Tail(tmp_path / "x.json", feeds="item")).read() == []
    assert [id.split()[0] for id in reader.ids()] == ["http://x/"]
    others = (
        {"url": "http://x", "name": "foo"},
        {"source": "abc"},
        {"feed_url": "u", "title": "T"},
        {"fetched_at": DAY},
    )
    for number, other in enumerate(("neither", *map(json.dumps, others))):
        (tmp_path / f"y{number}.json").write_text(other)
    assert [type(item) for item in reader.read()] == [Reject] * 5


WARC = b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n"
KINDS = {"x.jsonl": line("x.jsonl").encode(), "x.xml": b"<a/>", "x.warc": WARC}
KINDS |= {"x.jsonl.gz": gzip.compress(line("x.jsonl.gz").encode())}


@pytest.mark.parametrize("name", KINDS)
def test_what_cannot_be_opened_is_told_and_read_when_it_can_be_and_the_others_go_on(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(KINDS[name])
    (tmp_path / "y.jsonl").write_text(line("y") + "\n")
    reader = Reader(Tail(tmp_path))
    with shut(tmp_path / name):
        assert reader.ids() == ["y"] and reader.failed == {name: "cannot be read: Permission denied"}
        assert reader.ids() == [] and set(reader.failed) == {name}
        assert (str(tmp_path), name) not in reader.positions
    assert reader.ids() == ([] if name == "x.warc" else [name]) and not reader.failed
    assert (str(tmp_path), name) in reader.positions or name == "x.warc"
    assert reader.ids() == [] and not reader.failed


@pytest.mark.parametrize("name", [name for name in KINDS if name != "x.warc"])
def test_a_file_on_a_bad_sector_is_read_as_far_as_it_goes_and_then_further(tmp_path: Path, name: str):
    data = gzip.compress(b"".join(os.urandom(200).hex().encode() + b"\n" for _ in range(900)))
    raw = b"".join(line(f"{n}").encode() + b"\n" for n in range(5)) if name == "x.jsonl" else data
    (tmp_path / name).write_bytes(raw)
    reader = Reader(Tail(tmp_path))
    with failing(tmp_path / name, len(raw) * 2 // 3):
        first = reader.ids()
        assert "Input/output error" in reader.failed[name]
        assert reader.ids() == [] and name in reader.failed
    rest = reader.ids()
    assert len(first + rest) == len(set(first + rest)) == (1 if name == "x.xml" else 5 if name == "x.jsonl" else 900)


def test_a_directory_that_cannot_be_listed_is_told_and_nothing_of_it_forgotten(tmp_path: Path):
    for name in ("shut", "open"):
        write(tmp_path / name / "x.xml", "<a/>")
    reader = Reader(tail := Tail(tmp_path))
    with shut(tmp_path / "shut"):
        assert reader.ids() == ["open/x.xml"] and reader.failed == {"shut": "cannot be read: Permission denied"}
        assert tail.names() is None, "it is not known what is there"
    assert reader.ids() == ["shut/x.xml"] and tail.names() == {"shut/x.xml", "open/x.xml"}


def test_what_is_malformed_is_a_dead_letter_once_and_what_vanishes_is_told(tmp_path: Path):
    (tmp_path / "u.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "v.warc.gz").write_bytes(b"no archive")
    reader = Reader(Tail(tmp_path))
    assert [type(item) for item in reader.read()] == [Reject, Reject] and not reader.failed
    assert reader.read() == []
    (tmp_path / "x.xml").write_text("<a/>")
    (tmp_path / "y.jsonl").write_text(line("a"))
    (tmp_path / "z.jsonl").write_text(line("z"))
    told: list[str] = []
    files = waiting_files([Tail(tmp_path)], reader.positions)
    for name in ("x.xml", "y.jsonl"):
        (tmp_path / name).unlink()
    items = list(judged(read_waiting(files, lambda waiting, cause: told.append(waiting.file)), History()))
    assert [read.item.id for read in items if read.item] == ["z"] and sorted(told) == ["x.xml", "y.jsonl"]


def test_a_later_version_of_a_feed_waits_for_one_that_cannot_be_read(tmp_path: Path):
    def fetch(day: int, url: str, title: str) -> Path:
        path = tmp_path / f"2026010{day}T000000Z-0123456789ab.xml"
        path.with_suffix(".json").write_text(json.dumps({"url": url}))
        path.write_text(FEED.format("g").replace("<title>g", f"<title>{title}"))
        return path

    first = fetch(1, "http://f/", "old")
    fetch(2, "http://g/", "other")
    fetch(3, "http://f/", "new")

    def times(*blocked: Path) -> list[tuple[str, int]]:
        reader = Reader(Tail(tmp_path, feeds="item"))
        with shut(*blocked):
            found = reader.read()
        found += reader.read()
        return sorted((item.id, item.t0) for item in found if isinstance(item, Document))

    assert len(times()) == 3 and times(first) == times()
    assert times(first.with_suffix(".json")) == times(), "its address is known from its sidecar alone"


def test_known_files_are_left_out_wherever_they_are_and_names_are_those_below_the_directory(tmp_path: Path):
    for name in ("a.xml", "ä/a.xml", "ä/b.xml", "c.txt"):
        write(tmp_path / name, "<a/>")
    (tmp_path / "gone.xml").symlink_to(tmp_path / "none")
    listed = Listing(tmp_path, feeds=False)
    assert names(listed) == ["a.xml", "ä/a.xml", "ä/b.xml"]
    assert names(listed, "a.xml", "ä", "ä/b.xml") == ["ä/a.xml"]
    assert (tmp_path / "ä" / "a.xml", "ä/a.xml") in files_below(tmp_path, lambda name: name.endswith("xml"))
    assert list(files_below(tmp_path / "none", lambda name: True)) == [(tmp_path / "none", "none")]
    with pytest.raises(SourceError, match="no such file or directory"):
        Tail(tmp_path / "none")


def names(listed: Listing, *known: str) -> list[str]:
    return [file.name for file in listed.files(known.__contains__)]


def test_a_sidecar_is_read_once_as_long_as_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reading = Mock(wraps=readers.read_sidecar)
    monkeypatch.setattr("feeds.readers.read_sidecar", reading)
    (tmp_path / "a.json").write_text('{"url": "http://a/"}')
    (tmp_path / "a.rss").write_text("<rss/>")
    listed = Listing(tmp_path, feeds=True)
    assert names(listed) == names(listed) == ["a.rss"] and reading.call_count == 1
    (tmp_path / "a.json").unlink()
    assert names(listed) == ["a.rss"]
    (tmp_path / "a.json").write_text('{"version": "https://jsonfeed.org/version/1.1", "items": []}')
    assert names(listed) == ["a.json", "a.rss"], "it is a feed now"


# ---------------------------------------------------------------- files that are moved, copied, cut and made anew


def line_of(item: Document | Reject) -> str:
    if isinstance(item, Document):
        return item.id
    return str(item.raw).partition('"id": ')[2].partition('"')[2].partition('"')[0]


@pytest.mark.parametrize(("seed", "single"), in_turn(seeds(2, 200), [False, True]))
def test_each_line_is_read_once_whatever_becomes_of_its_file(
    seed: int, single: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rng = random.Random(seed)
    # With 20 ms, the times of files show that they have changed, and what was seen counts while the test runs.
    monkeypatch.setattr("feeds.files.RACY", rng.choice([RACY, 20_000_000]))
    found: Counter[str] = Counter()
    path = tmp_path / "x.jsonl"
    path.touch()
    reader = Reader(Tail(path if single else tmp_path))

    def look(most: int = 10**6) -> None:
        nonlocal reader
        if rng.random() < 0.3 and path.exists():
            reader = Reader(Tail(path if single else tmp_path), positions=reader.positions)
        found.update(map(line_of, reader.read(most)))

    writer = Rotating(tmp_path, rng, look, long=bool(seed % 2), kinds=not single)
    for _ in range(40):
        writer.act()
        if rng.random() < 0.4:
            with shut(*writer.to_shut()):
                look(rng.choice([1, 2, 5, 10**6]))
        if rng.random() < 0.3:
            look(rng.choice([1, 3, 10**6]))
    look()
    look()
    assert found == Counter(f"d{number}" for number in range(len(writer.lines)))


def test_what_cannot_be_read_is_told_once_by_a_service_and_read_by_it_later(tmp_path: Path):
    place, events = Directory(tmp_path), Events()
    place.drop("1.jsonl", range(3))
    place.drop("2.jsonl", range(3, 6))

    class Opening(StopAfter):
        """After three looks, the file can be opened."""

        def is_set(self) -> bool:
            if self.left == 20:
                closed.close()
            return super().is_set()

    with ExitStack() as closed, Session("duckdb", state=place.state) as engine:
        closed.enter_context(shut(place.drops / "1.jsonl"))
        engine.subscribe("S/a PUBLISH all")
        place.service(engine, events).run(0.0, Opening(30))
        kept = [row["id"] for row in engine.sql("SELECT id FROM documents ORDER BY docid").to_pylist()]
    assert kept == ["d3", "d4", "d5", "d0", "d1", "d2"]
    assert [name for name, _ in events if "readable" in name] == ["unreadable", "readable"]
    (told,) = events.named("unreadable")
    assert told == {"file": "1.jsonl", "reason": "cannot be read: Permission denied"}
    assert not list(events.named("dead-letter"))


def test_a_store_that_was_written_without_marks_goes_on(tmp_path: Path):
    place = Directory(tmp_path)
    place.drop("1.jsonl", range(3))
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe("S/a PUBLISH all")
        size = (place.drops / "1.jsonl").stat().st_size
        engine.commit_metadata(CommitMetadata((Offset(str(place.drops), "1.jsonl", size),)))
    place.drop("1.jsonl", range(5))
    place.run()
    assert [json.loads(line)["documents"] for line in place.output.read_text().splitlines()] == [["d3"], ["d4"]]


def test_what_could_not_be_looked_into_is_looked_into_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("feeds.files.RACY", -(10**12))
    path, copied = tmp_path / "1.jsonl", tmp_path / "1.jsonl.old"
    path.write_text(f"{line('d0')}\n")
    reader = Reader(Tail(tmp_path))
    assert reader.ids() == ["d0"]
    copied.write_text(f"{path.read_text()}{line('d1')}\n")
    path.unlink()
    (tail,), known = reader.tails, reader.positions
    with shut(copied):
        assert not list(tail.waiting(known))
    assert [waiting.file for waiting in tail.waiting(known)] == ["1.jsonl.old", "1.jsonl.old"]
