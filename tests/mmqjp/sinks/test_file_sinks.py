"""Sinks of files and standard output: each output once, whatever ends the process, fills the disk or happens to the
files; and standard output that is closed, full, or without a reader."""

import errno
import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

import duckdb
import feedparser
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

import mmqjp.sinks.parquet as parquet_file
from common import files as common_files
from feeds.documents import Document
from feeds.tail import read_documents
from join_stage.store.protocol import DUCKDB_FILE
from mmqjp.answers.fan_out import Position
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.present.item import ShownMatch
from mmqjp.process import json_line
from mmqjp.sinks import files
from mmqjp.sinks.definition import AtomOptions, ParquetOptions, read_sink
from mmqjp.sinks.files import AtomSink, GrowingFile, Pipe, WholeFile, open_destination, open_sink
from mmqjp.sinks.parquet import ParquetFile, ParquetSink
from mmqjp.sinks.secrets import Secrets
from mmqjp.sinks.sink import Sink
from tests.generate.seeds import at_length
from tests.processes import nursery
from tests.processes.programs import command, in_terminal, without_files
from tests.support.atom import ATOM, link
from tests.support.cli import LINES, PROGRAM, mmqjp, write_documents, write_queries
from tests.support.faults import Killed, Point, armed, killed
from tests.support.messages import TIME, match, output, story
from tests.support.service import PAIRS, Directory, events_of

HOUR = 3_600_000_000
URL = "https://example.org/feeds/"


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SinkStore:
    """Committed outputs, the position that is noted, and a sink that gets them as from the deliverer."""

    counts: ClassVar[tuple[int, ...]]
    """How much is committed before each kill."""
    opened: Callable[[Position], Sink]
    seqs: Callable[[], list[int]]
    """The numbers of the outputs that a reader finds."""

    def __init__(self, path: Path) -> None:
        self.path, self.noted, self.now, self.written = path, Position(), TIME, -1
        self.outputs, self.warnings = list[Output](), list[str]()
        self.sink: Any = None

    def commit(self, count: int, *, wanted: Callable[[int], bool] = lambda seq: True) -> None:
        start = len(self.outputs)
        self.outputs += [output(seq, "q1" if wanted(seq) else "q2") for seq in range(start, start + count)]

    def wanted(self, after: int) -> Iterator[Output]:
        return (one for one in self.outputs if one.seq > after and one.query == "q1")

    def pending(self) -> Iterator[Output]:
        return self.wanted(self.noted.acked)

    def open(self) -> Any:
        self.written = self.noted.acked
        self.sink = self.opened(self.noted)
        return self.sink

    def note(self) -> None:
        self.noted = Position.from_setting(self.sink.position().to_setting())

    def deliver(self, at_a_time: int = 2) -> None:
        """Hands over what the sink has not got, some at a time, and notes the position after each."""
        sink = self.sink or self.open()
        while True:
            if sink.prepare(self.pending):
                self.note()
            some = list(self.wanted(self.written))[:at_a_time]
            assert sink.write(some) == len(some)
            if some:
                self.written = some[-1].seq
            self.note()
            if not some:
                return

    def finish(self) -> None:
        """Delivers, and closes what is open by the time."""
        self.deliver(max(2, self.counts[0] // 2))
        self.now += 2 * HOUR
        self.deliver()

    def abandon(self) -> None:
        """What a killed process does: nothing is closed."""
        self.sink = None

    def ask_again(self, acked: int) -> None:
        self.noted = replace(self.noted, acked=acked)
        self.open()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())


class Lines(SinkStore):
    counts = (7, 6, 5)
    body = "xml"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.file = path / "out.jsonl"

    def opened(self, position: Position) -> Sink:
        given = read_sink("x", {"kind": "jsonl", "path": str(self.file), "body": self.body}, self.path, file="x.toml")
        self.path.mkdir(exist_ok=True)
        return cast(Sink, open_destination(Secrets(), given, position, self.warnings.append))

    def take_up(self, *left: int) -> Any:
        """What a process does at its start, if outputs are left."""
        self.outputs = list(map(output, left))
        sink = self.open()
        if sink.prepare(self.pending):
            self.note()
        return sink

    def write(self, *numbers: int, noted: bool = True) -> None:
        """A process that writes outputs, and notes it or is killed before."""
        sink = self.take_up(*numbers)
        sink.write(self.outputs)
        if noted:
            self.note()
        sink.close()

    def seqs(self, file: Path | None = None) -> list[int]:
        return [json.loads(line)["seq"] for line in (file or self.file).read_text().splitlines()]


class JsonBodies(Lines):
    body = "json"

    def seqs(self, file: Path | None = None) -> list[int]:
        assert all("json" in json.loads(line) for line in (file or self.file).read_text().splitlines())
        return super().seqs(file)


class Parquet(SinkStore):
    counts = (7, 6, 5, 4)
    rows = 5

    def opened(self, position: Position) -> Sink:
        return ParquetSink(ParquetOptions(self.path, self.rows, HOUR), position, self.warnings.append, lambda: self.now)

    def abandon(self) -> None:
        if self.sink is not None and self.sink._file is not None:
            self.sink._file._writer.is_open = False
        super().abandon()

    def seqs(self) -> list[int]:
        return [seq for file in sorted(self.path.glob("*.parquet")) for seq in pq.read_table(file)["seq"].to_pylist()]


class Titled(AtomSink):
    """A sink that gets items with the outputs, as the deliverer gives them."""

    def write(self, outputs: Iterable[Output]) -> int:
        return self.write_matches(ShownMatch(one, match(one.seq, f"title {one.seq}").items) for one in outputs)


class Atom(SinkStore):
    counts = (90, 70, 80)
    url = URL

    def opened(self, position: Position) -> Sink:
        return Titled("news", AtomOptions(self.path, self.url), position, self.warnings.append, lambda: self.now)

    def root(self, name: str = "feed.atom") -> etree._Element:
        return etree.fromstring((self.path / name).read_bytes())

    def shown(self, name: str = "feed.atom") -> list[int]:
        titles = (entry.findtext(f"{ATOM}title", "") for entry in self.root(name).iter(f"{ATOM}entry"))
        return [int(title.removeprefix("title ")) for title in titles]

    def seqs(self) -> list[int]:
        """All outputs that a reader finds which follows the links, each once."""
        name, found = "feed.atom", list[int]()
        while name:
            found += [seq for seq in self.shown(name) if seq not in found]
            name = (link(self.root(name), "prev-archive") or "").removeprefix(URL)
        return found[::-1]


@pytest.mark.parametrize(
    ("kind", "more", "made"),
    [("jsonl", {}, GrowingFile), ("parquet", {"rows": 9}, ParquetSink), ("atom", {"url": URL}, AtomSink)],
)
def test_a_live_sink_of_files_lies_in_the_directory_of_all(tmp_path, kind, more, made):
    given = read_sink("x", {"kind": kind, "path": "out", **more}, tmp_path / "sinks")
    sink = open_destination(Secrets(), given, Position(), print)
    assert isinstance(sink, made) and (tmp_path / "sinks").is_dir()
    cast(Sink, sink).close()


# ------------------------------------------------------------ kills and full disks


def points(owner: Any, names: str) -> list[Point]:
    return [(owner, name) for name in names.split()]


SEAMS: dict[type[SinkStore], list[Point]] = {
    Lines: [*points(GrowingFile, "prepare write _write _put"), (files, "_cut_back"), *points(os, "write fsync")],
    JsonBodies: [(files, "_cut_back"), *points(os, "write fsync")],
    Parquet: [
        *points(ParquetSink, "prepare write"), *points(ParquetFile, "__init__ add _write_group finish"),
        *points(parquet_file, "sync_file sync_directory"), *points(Path, "rename unlink mkdir"),
    ],
    Atom: [*points(AtomSink, "prepare _write_archive _write_feed"), (common_files, "sync_file"), (Path, "replace")],
}  # fmt: skip
WRITES: list[tuple[type[SinkStore], Point, int]] = [
    *((Parquet, point, 1) for point in points(ParquetFile, "__init__ add _write_group")),
    *((Parquet, point, 1) for point in ((parquet_file, "sync_file"), (Path, "rename"))),
    *((Atom, (common_files, "sync_file"), call) for call in (1, 2)),
]


def named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value[1] if isinstance(value, tuple) else value)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("kind", "point"), [(kind, point) for kind in SEAMS for point in [*SEAMS[kind], (kind, "note")]], ids=named
)
def test_a_kill_anywhere_loses_nothing_and_repeats_nothing(tmp_path, kind, point, after, monkeypatch):
    for owner, name in ((GrowingFile, "_truncate"), (ParquetFile, "abandon"), (ParquetSink, "_give_up")):
        monkeypatch.setattr(owner, name, lambda *_: None)  # what cleans up does not run in a process that is killed
    strikes = 0
    for calls in range(1, 8) if at_length() else (1, 2, 4):
        store = kind(tmp_path / str(calls))
        for count in kind.counts:
            store.abandon()
            store.now += 1_000_000
            store.commit(count, wanted=lambda seq: seq % 3 != 2)
            try:
                with armed(point, killed, calls, after=after):
                    store.deliver(max(2, count // 2 - 1))
                    store.deliver()
            except Killed:
                strikes += 1
        store.abandon()
        store.finish()
        assert store.seqs() == [seq for seq in range(sum(kind.counts)) if seq % 3 != 2]
        assert not [name for name in store.names() if name.startswith(".")]
    assert strikes or (point[1], after) == ("_cut_back", True)  # it seldom has something to cut


@pytest.mark.parametrize(("kind", "point", "calls"), WRITES, ids=named)
def test_a_full_disk_takes_nothing_away(tmp_path, kind, point, calls):
    store = kind(tmp_path / "out")
    store.commit(kind.counts[0])
    store.deliver(kind.counts[0] // 3)
    store.commit(sum(kind.counts))
    before = store.seqs()
    with armed(point, full, calls), pytest.raises(OSError, match="No space"):
        store.finish()
    assert store.seqs()[: len(before)] == before
    assert not list(store.path.glob(".*"))  # which makes room
    store.finish()
    assert store.seqs() == list(range(len(store.outputs)))


@pytest.mark.parametrize("kind", [Parquet, Atom])
def test_a_directory_of_another_sink_or_of_a_state_that_is_gone_is_refused(tmp_path, kind):
    store, other = kind(tmp_path / "out"), kind(tmp_path / "out")
    other.url = "https://example.org/other/"
    for one in (store, other):
        one.commit(6)
    store.deliver()
    with pytest.raises(FileExistsError, match="choose another directory, or move its files away"):
        other.deliver()
    assert store.seqs() == list(range(6))


# ------------------------------------------------------------ feeds


@pytest.fixture
def feed(tmp_path: Path) -> Atom:
    return Atom(tmp_path / "feed")


def test_a_new_sink_has_a_feed_that_readers_can_subscribe_to(feed):
    feed.deliver()
    found = feedparser.parse((feed.path / "feed.atom").read_bytes())
    assert not found.bozo and found.feed.title == "mmqjp: news" and found.entries == [] and found.version == "atom10"
    assert [link.href for link in found.feed.links if link.rel == "self"] == [URL + "feed.atom"]
    feed.commit(3)
    feed.deliver()
    found = list(read_documents([feed.path / "feed.atom"], feeds="item"))
    assert len(found) == 3
    assert all(isinstance(document, Document) and b"<title>title " in document.xml for document in found)


def test_archives_have_what_the_sink_wants_and_empty_ones_are_skipped(feed):
    feed.commit(1_000, wanted=lambda seq: seq < 5 or seq % 250 == 0 or seq == 999)
    feed.deliver(at_a_time=4)
    assert feed.names() == [*(f"archive-{number}.atom" for number in (0, 2, 5, 7, 9)), "feed.atom"]
    assert feed.seqs() == [0, 1, 2, 3, 4, 250, 500, 750, 999]


def test_entries_and_archives_never_change(feed):
    def entries() -> list[bytes]:
        return [etree.tostring(entry) for entry in feed.root().iter(f"{ATOM}entry")]

    feed.commit(150)
    feed.deliver(at_a_time=10)
    archive, before = (feed.path / "archive-0.atom").read_bytes(), entries()
    feed.now += 1_000_000
    feed.noted = Position(20)
    feed.open()
    feed.commit(10)
    feed.deliver(at_a_time=10)
    assert (feed.path / "archive-0.atom").read_bytes() == archive
    assert entries()[-len(before) :] == before and feed.seqs() == list(range(160))


def test_a_feed_has_each_story_once_and_archives_what_it_told_then(feed):
    sink = AtomSink("news", AtomOptions(feed.path, URL), Position(), feed.warnings.append, lambda: feed.now)
    sink.prepare(feed.pending)
    for seq in range(210):
        sink.write_matches([story(seq, f"{seq % 60 if seq < 120 else 7:032x}", seq + 2)])
    found = [(feedparser.parse((feed.path / name).read_bytes()).entries) for name in ("feed.atom", "archive-1.atom")]
    assert [len({entry.id for entry in some}) for some in found] == [len(some) for some in found] == [50, 21]
    assert "211 documents" in found[0][0].summary


def test_a_feed_that_others_remove_is_written_again_and_another_is_not_overwritten(feed):
    feed.commit(3)
    feed.deliver()
    (feed.path / "feed.atom").unlink()
    feed.commit(1)
    feed.deliver()
    assert feed.shown() == [3, 2, 1, 0] and "was removed" in feed.warnings[0]
    (feed.path / "feed.atom").write_text("<feed/>")
    with pytest.raises(FileExistsError, match="is of another feed"):
        feed.open().prepare(feed.pending)


def test_without_items_entries_have_the_ids_of_documents(feed):
    feed.commit(1)
    sink = AtomSink("news", AtomOptions(feed.path, URL), Position(), print, lambda: TIME)
    sink.prepare(feed.pending)
    assert sink.write(feed.outputs) == 1
    (entry,) = feed.root().iter(f"{ATOM}entry")
    assert entry.findtext(f"{ATOM}title") == "q1" and "d0" in entry.findtext(f"{ATOM}content", "")


# ------------------------------------------------------------ Parquet


@pytest.fixture
def store(tmp_path: Path) -> Parquet:
    return Parquet(tmp_path / "out")


def name(first: int, last: int) -> str:
    return f"{first:012d}-{last:012d}.parquet"


def test_a_file_is_closed_when_it_is_old_also_over_restarts_and_without_outputs(store):
    store.commit(1)
    store.deliver()
    store.now += HOUR - 1
    store.open()
    store.deliver()
    assert store.sink.closes_at == TIME + HOUR and store.seqs() == []
    store.now += 1
    store.deliver()
    assert store.seqs() == [0] and store.sink.closes_at is None and store.names() == [name(0, 0)]


def test_columns_are_those_of_an_output_line_with_times_as_such(store):
    odd = replace(output(0, xml="<é/>"), documents=("d1", "ü\U0001f600\0"), nodes={"x": 1, "y": "2/@a"})
    store.outputs = [odd]
    store.finish()
    (row,) = duckdb.read_parquet(f"{store.path}/*.parquet").to_arrow_table().to_pylist()
    assert list(row) == list(odd.to_dict())
    moment = datetime.fromtimestamp(TIME / 1e6, UTC)
    assert row == odd.to_dict() | {"t0": moment, "t1": moment, "nodes": '{"x": 1, "y": "2/@a"}'}


def test_rows_are_written_in_groups_as_they_come(store, monkeypatch):
    monkeypatch.setattr(parquet_file, "GROUP_ROWS", 4)
    store.rows = 10
    store.commit(10)
    store.finish()
    (path,) = store.path.glob("*.parquet")
    assert [pq.ParquetFile(path).metadata.row_group(n).num_rows for n in range(3)] == [4, 4, 2]


def test_what_is_asked_for_again_takes_the_place_of_what_was_there(store):
    store.commit(12)
    store.finish()
    assert store.names() == [name(0, 5), name(6, 11)]
    store.ask_again(3)
    store.finish()
    assert store.seqs() == list(range(12)) and store.names()[0] == name(0, 3)


def test_a_draft_that_others_remove_or_replace_is_written_again(store):
    store.commit(3)
    store.deliver()
    (draft,) = store.path.glob(".*")
    draft.unlink()
    store.commit(1)
    store.deliver()
    assert len(store.warnings) == 1 and "was removed or replaced" in store.warnings[0]
    (store.path / "x").write_text("x")
    (store.path / "x").replace(draft)
    store.finish()
    assert store.seqs() == list(range(4)) and len(store.warnings) == 2


def test_a_directory_that_is_removed_is_made_again(store):
    store.commit(8)
    store.deliver()
    for path in store.path.iterdir():
        path.unlink()
    store.path.rmdir()
    store.finish()
    assert store.seqs() == [6, 7]
    with pytest.raises(FileNotFoundError):
        Parquet(store.path / "missing" / "out").deliver()


def test_files_of_others_stay(store):
    store.commit(7)
    store.deliver()
    own = (store.path / name(0, 5)).read_bytes()
    others = {name(100, 105): b"not parquet", "x.parquet": own, "note.txt": b"a"}
    table = pq.read_table(store.path / name(0, 5)).replace_schema_metadata({"mmqjp.sink": "another"})
    pq.write_table(table, store.path / name(200, 205))
    for other, content in others.items():
        (store.path / other).write_bytes(content)
    store.open()
    store.finish()
    assert {*others, name(200, 205), name(0, 5), name(6, 6)} == set(store.names())


def test_a_name_that_others_have_taken_is_an_error_until_it_is_free(store):
    store.commit(7)
    store.deliver()
    (store.path / name(6, 6)).write_bytes(b"theirs")
    with pytest.raises(FileExistsError, match="is there already, and is not ours"):
        store.finish()
    (store.path / name(6, 6)).unlink()
    store.finish()
    assert store.seqs() == list(range(7))


# ------------------------------------------------------------ lines


@given(
    st.text(), st.lists(st.text(), max_size=3), st.dictionaries(st.text(), st.integers(0) | st.text()), st.integers()
)
def test_a_line_is_what_json_writes(text: str, texts: list[str], nodes: dict[str, int | str], number: int):
    output = Output(text, number, number + 1, tuple(texts), tuple(reversed(texts)), nodes, text, text, number)
    assert output.to_line() == json_line(output.to_dict())
    assert json.loads(output.to_line()) == output.to_dict()


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    return Lines(tmp_path)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_what_others_wrote_stays(lines):
    lines.write(1)
    append(lines.file, '{"seq": 7}\n{"seq": 8}')
    lines.write()
    assert lines.file.read_text().endswith("8}"), "what others left incomplete is ended by the next line only"
    lines.write(2, noted=False)
    lines.write(2)
    assert lines.seqs() == [1, 7, 8, 2]
    assert len(lines.warnings) == 1 and "21 bytes from others" in lines.warnings[0]
    lines.write(3, noted=False)
    append(lines.file, '{"seq": 9}\n')
    lines.take_up(3)  # which stands before what is not ours
    assert lines.seqs() == [1, 7, 8, 2, 3, 9]


@pytest.mark.parametrize("left", [0, 1, None])
def test_a_file_that_was_cut_or_replaced_is_appended_to(lines, left, tmp_path):
    lines.write(1, 2)
    if left is None:
        (tmp_path / "mine").write_text('{"seq": 10}\n' * 40)
        (tmp_path / "mine").replace(lines.file)
        said = "another file"
    else:
        os.truncate(lines.file, len(b"".join(lines.file.read_bytes().splitlines(keepends=True)[:left])))
        said = f"was cut to {lines.file.stat().st_size} of"
    before = lines.seqs()
    for noted in (False, True):
        lines.write(3, 4, 5, noted=noted)
    assert lines.seqs() == [*before, 3, 4, 5]
    assert len(lines.warnings) == 1 and said in lines.warnings[0]


def test_another_file_gets_what_is_left_and_the_first_one_loses_it(lines):
    lines.write(1)
    lines.write(2, noted=False)
    first, lines.file = lines.file, lines.file.with_name("other.jsonl")
    lines.write(2, 3, noted=False)
    lines.write(2, 3)
    assert (lines.seqs(first), lines.seqs()) == ([1], [2, 3])
    lines.file = first
    lines.write(4)
    assert lines.seqs() == [1, 4] and lines.warnings == []


def test_standard_output_takes_over_from_a_file(lines):
    lines.write(1)
    lines.write(2, noted=False)
    pipe = Pipe(Path(os.devnull), lines.noted)
    assert pipe.prepare(lambda: [output(2)]) and not pipe.prepare(tuple)
    assert lines.seqs() == [1]
    append(lines.file, '{"seq": 7}\n')
    lines.noted = pipe.position()
    lines.write(3)
    assert lines.seqs() == [1, 7, 3]
    pipe.close()


@pytest.mark.parametrize("removed", [False, True])
def test_lines_go_on_in_a_new_file_when_the_old_one_is_moved_away(lines, removed):
    sink = lines.take_up()
    sink.write([output(1)])
    old = lines.file.with_name("out.jsonl.1")
    lines.file.replace(old)
    if removed:
        old.unlink()
    assert sink.prepare(tuple) and not sink.prepare(tuple)
    lines.note()
    sink.write([output(2)])  # killed
    lines.write(2)
    assert lines.seqs() == [2] and (removed or lines.seqs(old) == [1])
    assert len(lines.warnings) == 1 and "was gone" in lines.warnings[0]


def test_a_file_of_others_that_got_the_number_of_a_removed_one_is_not_touched(lines, tmp_path):
    lines.write()
    lines.file.unlink()
    (tmp_path / "mine").write_bytes(b"my own data")
    lines.noted.details["inode"] = (tmp_path / "mine").stat().st_ino
    lines.write(1)
    assert (tmp_path / "mine").read_bytes() == b"my own data" and lines.seqs() == [1]


def test_where_no_new_file_can_be_made_the_moved_one_goes_on(lines, monkeypatch):
    sink = lines.take_up()
    old = lines.file.with_name("out.jsonl.1")
    lines.file.replace(old)

    def denied(*arguments: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(lines.file))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", denied)
        assert not sink.prepare(tuple)
        sink.write([output(1)])
        assert lines.seqs(old) == [1]
        old.unlink()
        with pytest.raises(PermissionError):
            sink.prepare(tuple)
    assert sink.prepare(tuple)


@pytest.mark.parametrize("room", [0, 10, 100])
def test_a_line_that_is_not_written_whole_is_withdrawn(lines, room, monkeypatch):
    lines.write(1)
    write = os.write

    def partly(handle: int, data: bytes) -> int:
        nonlocal room
        if not room:
            full()
        written = write(handle, data[:room])
        room -= written
        return written

    sink = lines.take_up(2, 3)
    before = lines.file.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", partly)
        with pytest.raises(OSError, match="No space") as raised:
            sink.write(lines.outputs)
    assert raised.value.filename == str(lines.file)
    assert lines.file.read_bytes() == before and sink.position() == lines.noted
    sink.write(lines.outputs)
    assert lines.seqs() == [1, 2, 3]


def test_lines_that_are_asked_for_again_are_appended(lines):
    lines.write(0, 1, 2)
    lines.ask_again(0)
    lines.write(1, 2)
    assert lines.seqs() == [0, 1, 2, 1, 2]


def test_notes_of_older_versions_have_no_inode(lines):
    lines.write(1)
    del lines.noted.details["inode"]
    lines.write(2, noted=False)
    lines.write(2)
    assert lines.seqs() == [1, 2] and lines.warnings == []


def test_long_lines_go_out_in_parts(lines):
    sink = lines.take_up()
    assert sink.write(output(n, xml="x" * 300_000) for n in range(9)) == 9
    assert lines.seqs() == list(range(9)) and sink.position().details["bytes"] == lines.file.stat().st_size


def test_a_whole_file_is_there_when_all_is_written_and_what_is_no_file_is_written_to(lines, tmp_path):
    def broken() -> Iterator[Output]:
        yield output(1)
        raise ZeroDivisionError

    lines.file.write_text("old")
    sink = WholeFile(lines.file)
    with pytest.raises(ZeroDivisionError):
        sink.write(broken())
    assert lines.names() == ["out.jsonl"] and lines.file.read_text() == "old"
    assert sink.write(map(output, (1, 2))) == 2
    assert lines.seqs() == [1, 2]
    assert isinstance(open_sink(Path(os.devnull), Position()), Pipe)
    assert isinstance(open_sink(tmp_path / "new", Position(), growing=False), WholeFile)
    with pytest.raises(FileNotFoundError):
        GrowingFile(tmp_path / "no" / "out", Position()).prepare(tuple)


# ------------------------------------------------------------ the output of processes: killed, left by the terminal


def test_what_an_earlier_process_left_is_written_once_although_it_is_killed_then(place: Directory):
    place.drop("1.jsonl", range(3))
    place.run(PAIRS)
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS.replace("pairs", "more"), backfill=True)
    place.output = place.path / "new.jsonl"
    place.output.write_text("what was there\n")
    for _ in range(2):
        dying = armed((GrowingFile, "write"), killed, after=True)
        with Session("duckdb", state=place.state) as engine, dying, pytest.raises(Killed):
            place.service(engine)
        assert place.output.read_text().count("more") == 2 * 3  # the query stands in a line twice
    place.run()
    first, *lines = place.output.read_text().splitlines()
    assert first == "what was there" and len(lines) == 3


def test_sighup_opens_the_output_of_the_command_anew_and_a_closed_terminal_ends_it(place: Directory):
    place.run(PAIRS)
    place.drop("1.jsonl", range(3))
    terminal, slave = pty.openpty()
    arguments = place.arguments("--trigger", "10ms", "--output", place.output)
    with nursery.start(in_terminal, os.ttyname(slave), *arguments) as process:
        next(events_of(process, "batch"))
        place.output.rename(place.path / "out.jsonl.1")
        process.send_signal(signal.SIGHUP)
        assert "was gone: appending to a new file" in next(events_of(process, "output"))["what"]
        place.drop("2.jsonl", range(3, 6))
        next(events_of(process, "batch"))
        os.close(slave)
        os.close(terminal)
        assert next(events_of(process, "stopped"))["documents"] == 6
    assert process.returncode == 0
    old = (place.path / "out.jsonl.1").read_text().splitlines()
    assert (len(old), len(place.pairs())) == (3, 12)
    pairs = {*place.pairs(), *(tuple(json.loads(line)["documents"]) for line in old)}
    assert pairs == {(f"d{a}", f"d{b}") for a, b in combinations(range(6), 2)}


# ------------------------------------------------------------ standard output that is closed, full, or without a reader

CLOSED = "mmqjp: error: standard output: closed; open it, or redirect it\n"


def program(*arguments: object, out: BinaryIO) -> tuple[int, str]:
    with nursery.start(command, *arguments, out=out) as process:
        assert process.stderr is not None
        return process.wait(), process.stderr.read()


@pytest.fixture
def run(tmp_path: Path) -> list[object]:
    documents = write_documents(tmp_path / "documents.jsonl")
    return ["run", "--engine", "duckdb", "--queries", write_queries(tmp_path), "--documents", documents]


def test_a_closed_standard_output_is_said_and_a_file_needs_no_standard_files(tmp_path: Path, run: list[object]):
    for arguments in (run, ["check", write_queries(tmp_path)]):
        done = nursery.run(without_files, 1, 2, *arguments)
        assert (done.returncode, done.stderr) == (1, CLOSED)
    asked = [*PROGRAM, "--version"]
    version = subprocess.run(asked, check=False, stderr=-1, text=True, preexec_fn=lambda: os.close(1))
    assert (version.returncode, version.stderr) == (1, CLOSED)
    target = tmp_path / "out.jsonl"
    assert nursery.run(without_files, 0, 3, *run, "--output", target).returncode == 0
    assert target.read_text().splitlines() == LINES


@pytest.mark.parametrize("asked", ["run", pytest.param("check", marks=pytest.mark.soak), "--help"])
def test_a_full_standard_output_is_said(tmp_path: Path, run: list[object], asked: str):
    arguments = {"run": run, "check": ["check", write_queries(tmp_path)]}.get(asked, [asked])
    with Path("/dev/full").open("wb") as full:
        status, errors = program(*arguments, out=full)
    assert status == 1 and errors.endswith("No space left on device; free some disk space, or write elsewhere\n")
    assert errors.startswith("mmqjp: error: ") and errors.count("\n") == 1


def test_a_service_says_that_its_reader_has_gone_and_writes_it_again(place: Directory):
    write_documents(place.drops / "documents.jsonl")
    queries = write_queries(place.path)
    arguments = place.arguments("--queries", queries, "--trigger", "available-now", "--lateness", "INF")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        status, errors = program(*arguments, out=pipe)
    assert status == 1
    said = "mmqjp: error: the reader of standard output has gone; lines that it missed are written after a restart"
    assert errors.splitlines()[1:] == [said]
    assert mmqjp(*arguments, "--output", place.output).exit_code == 0
    assert place.output.read_text().splitlines() == LINES


# DuckDB's file is there: what is less than it cuts into blocks that are in use, as no full disk does.
@pytest.mark.parametrize(("more", "documents"), [(20_000, 150), pytest.param(300_000, 150, marks=pytest.mark.soak)])
def test_a_service_whose_files_cannot_grow_says_so_and_goes_on(more: int, documents: int, place: Directory):
    options = ["--trigger", "available-now", "--batch-size", "5", "--lateness", "INF", "--output", place.output]
    arguments = place.arguments(*options)
    place.run(PAIRS)
    place.drop("1.jsonl", range(documents), text="v" * 2_000)
    done = nursery.run(command, *arguments, most=(place.state / DUCKDB_FILE).stat().st_size + more)
    (error,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert done.returncode == 1 and error.startswith("mmqjp: error: ") and "unexpected" not in error
    assert "File too large" in error and str(place.path) in error and "make room" in error
    done = nursery.run(command, *arguments)
    assert done.returncode == 0, done.stderr
    pairs = place.pairs()
    assert len(pairs) == len(set(pairs)) == sum(min(10, documents - 1 - n) for n in range(documents))
