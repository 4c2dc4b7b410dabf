"""Sinks of files: each output once, whatever ends the process, fills the disk or happens to the files."""

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, cast

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
from mmqjp.answers.fan_out import Position
from mmqjp.answers.output import Output
from mmqjp.present.item import ShownMatch
from mmqjp.process import json_line
from mmqjp.sinks import files
from mmqjp.sinks.definition import AtomOptions, ParquetOptions, read_sink
from mmqjp.sinks.files import AtomSink, GrowingFile, Pipe, WholeFile, open_destination, open_sink
from mmqjp.sinks.parquet import ParquetFile, ParquetSink
from mmqjp.sinks.secrets import Secrets
from mmqjp.sinks.sink import Sink
from tests.generate.seeds import at_length
from tests.support.atom import ATOM, link
from tests.support.faults import Killed, Point, armed, killed
from tests.support.messages import TIME, match, output

HOUR = 3_600_000_000
URL = "https://example.org/feeds/"


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SinkStore:
    """Committed outputs, the position that is noted (`setting`), and a sink that gets them as from the deliverer."""

    counts: ClassVar[tuple[int, ...]]
    """How much is committed before each kill."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outputs: list[Output] = []
        self.setting: str | None = None
        self.now = TIME
        self.warnings: list[str] = []
        self.sink: Any = None
        self.written = -1

    def opened(self, position: Position) -> Sink:
        raise NotImplementedError

    def seqs(self) -> list[int]:
        """The numbers of the outputs that a reader finds."""
        raise NotImplementedError

    def commit(self, count: int, *, wanted: Callable[[int], bool] = lambda seq: True) -> None:
        start = len(self.outputs)
        self.outputs += [output(seq, "q1" if wanted(seq) else "q2") for seq in range(start, start + count)]

    def wanted(self, after: int) -> Iterator[Output]:
        return (one for one in self.outputs if one.seq > after and one.query == "q1")

    def pending(self) -> Iterator[Output]:
        return self.wanted(Position.from_setting(self.setting).acked)

    def open(self) -> Any:
        position = Position.from_setting(self.setting)
        self.written = position.acked
        self.sink = self.opened(position)
        return self.sink

    def note(self) -> None:
        self.setting = self.sink.position().to_setting()

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
        self.setting = Position(acked, Position.from_setting(self.setting).details).to_setting()
        self.open()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())


class Lines(SinkStore):
    counts = (7, 6, 5)

    def opened(self, position: Position) -> Sink:
        given = read_sink("x", {"kind": "jsonl", "path": "out.jsonl"}, self.path, file="x.toml")
        self.path.mkdir(exist_ok=True)
        return cast(Sink, open_destination(Secrets(), given, position, self.warnings.append))

    def seqs(self) -> list[int]:
        return [json.loads(line)["seq"] for line in (self.path / "out.jsonl").read_text().splitlines()]


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
        return [row["seq"] for row in rows(self.path, "ORDER BY filename, file_row_number")]


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

SEAMS: dict[type[SinkStore], list[Point]] = {
    Lines: [
        *((GrowingFile, name) for name in ("prepare", "write", "_write", "_put")),
        (files, "_cut_back"),
        (os, "write"),
        (os, "fsync"),
    ],
    Parquet: [
        *((ParquetSink, name) for name in ("prepare", "write")),
        *((ParquetFile, name) for name in ("__init__", "add", "_write_group", "finish")),
        *((parquet_file, name) for name in ("sync_file", "sync_directory")),
        *((Path, name) for name in ("rename", "unlink", "mkdir")),
    ],
    Atom: [
        *((AtomSink, name) for name in ("prepare", "_write_archive", "_write_feed")),
        (common_files, "sync_file"),
        (Path, "replace"),
    ],
}
WRITES: list[tuple[type[SinkStore], Point, int]] = [
    *((Parquet, (ParquetFile, name), 1) for name in ("__init__", "add", "_write_group")),
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


def test_lines_that_are_asked_for_again_are_appended(tmp_path):
    store = Lines(tmp_path / "out")
    store.commit(3)
    store.deliver()
    store.ask_again(0)
    store.deliver()
    assert store.seqs() == [0, 1, 2, 1, 2]


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
    feed.setting = Position(20).to_setting()
    feed.open()
    feed.commit(10)
    feed.deliver(at_a_time=10)
    assert (feed.path / "archive-0.atom").read_bytes() == archive
    assert entries()[-len(before) :] == before and feed.seqs() == list(range(160))


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


def rows(directory: Path, more: str = "") -> list[dict[str, Any]]:
    if not list(directory.glob("*.parquet")):
        return []
    found = duckdb.sql(f"SELECT * FROM '{directory}/*.parquet' {more}")
    assert found is not None
    return list(found.to_arrow_table().to_pylist())


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
    odd = replace(
        output(0), documents=("d1", "ü\U0001f600\0"), streams=("S", "T"), nodes={"x": 1, "y": "2/@a"}, xml="<é/>"
    )
    store.outputs = [odd]
    store.finish()
    (row,) = rows(store.path)
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


def outputs(*numbers: int) -> list[Output]:
    return [Output("q", n, n, (f"d{n}",), ("S",), {"a": 0}, "<match/>", f"i{n}", n) for n in numbers]


@given(
    st.text(), st.lists(st.text(), max_size=3), st.dictionaries(st.text(), st.integers(0) | st.text()), st.integers()
)
def test_a_line_is_what_json_writes(text: str, texts: list[str], nodes: dict[str, int | str], number: int):
    output = Output(text, number, number + 1, tuple(texts), tuple(reversed(texts)), nodes, text, text, number)
    assert output.to_line() == json_line(output.to_dict())
    assert json.loads(output.to_line()) == output.to_dict()


class Target:
    """A file of output lines, with what is noted of it."""

    def __init__(self, directory: Path) -> None:
        self.path, self.noted = directory / "out.jsonl", Position()
        self.told: list[str] = []

    def open(self) -> GrowingFile:
        return GrowingFile(self.path, self.noted, self.told.append)

    def take_up(self, *left: int) -> GrowingFile:
        """What a process does at its start, if outputs are left."""
        lines = self.open()
        if lines.prepare(lambda: outputs(*left)):
            self.noted = lines.position()
        return lines

    def write(self, *numbers: int, noted: bool = True) -> None:
        """A process that writes outputs, and notes it or is killed before."""
        lines = self.take_up(*numbers)
        lines.write(outputs(*numbers))
        if noted:
            self.noted = lines.position()
        lines.close()

    def numbers(self, path: Path | None = None) -> list[int]:
        return [json.loads(line)["t0"] for line in (path or self.path).read_text().splitlines()]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


def test_what_others_wrote_stays(target: Target):
    target.write(1)
    with target.path.open("a") as file:
        file.write('{"t0": 7}\n{"t0": 8}')
    target.write(2, noted=False)
    target.write(2)
    assert target.numbers() == [1, 7, 8, 2]
    assert len(target.told) == 1 and "19 bytes from others" in target.told[0]
    target.write(3, noted=False)
    with target.path.open("a") as file:
        file.write('{"t0": 9}\n')
    target.take_up(3)  # which stands before what is not ours
    assert target.numbers() == [1, 7, 8, 2, 3, 9]


@pytest.mark.parametrize("left", [0, 1, None])
def test_a_file_that_was_cut_or_replaced_is_appended_to(target: Target, left: int | None, tmp_path: Path):
    target.write(1, 2)
    if left is None:
        (tmp_path / "mine").write_text('{"t0": 10}\n' * 40)
        (tmp_path / "mine").replace(target.path)
        before, said = [10] * 40, "another file"
    else:
        lines = target.path.read_bytes().splitlines(keepends=True)[:left]
        target.path.write_bytes(b"".join(lines))
        before, said = [1, 2][:left], f"was cut to {len(b''.join(lines))} of"
    for noted in (False, True):
        target.write(3, 4, 5, noted=noted)
    assert target.numbers() == [*before, 3, 4, 5]
    assert len(target.told) == 1 and said in target.told[0]


def test_another_file_gets_what_is_left_and_the_first_one_loses_it(target: Target):
    target.write(1)
    target.write(2, noted=False)
    first, target.path = target.path, target.path.with_name("other.jsonl")
    target.write(2, 3, noted=False)
    target.write(2, 3)
    assert (target.numbers(first), target.numbers()) == ([1], [2, 3])
    target.path = first
    target.write(4)
    assert target.numbers() == [1, 4] and target.told == []


def test_standard_output_takes_over_from_a_file(target: Target, tmp_path: Path):
    target.write(1)
    target.write(2, noted=False)
    pipe = Pipe(Path(os.devnull), target.noted)
    assert pipe.prepare(lambda: outputs(2)) and not pipe.prepare(tuple)
    assert target.numbers() == [1]
    with target.path.open("a") as file:
        file.write('{"t0": 7}\n')
    target.noted = pipe.position()
    target.write(3)
    assert target.numbers() == [1, 7, 3]
    pipe.close()


@pytest.mark.parametrize("removed", [False, True])
def test_lines_go_on_in_a_new_file_when_the_old_one_is_moved_away(target: Target, removed: bool):
    lines = target.take_up()
    lines.write(outputs(1))
    old = target.path.with_name("out.jsonl.1")
    target.path.replace(old)
    if removed:
        old.unlink()
    assert lines.prepare(tuple) and not lines.prepare(tuple)
    target.noted = lines.position()
    lines.write(outputs(2))  # killed
    target.write(2)
    assert target.numbers() == [2] and (removed or target.numbers(old) == [1])
    assert len(target.told) == 1 and "was gone" in target.told[0]


def test_a_file_of_others_that_got_the_number_of_a_removed_one_is_not_touched(target: Target, tmp_path: Path):
    target.write(noted=True)
    place = target.noted.details
    target.path.unlink()
    (tmp_path / "mine").write_bytes(b"my own data")
    target.noted = replace(target.noted, details={**place, "inode": (tmp_path / "mine").stat().st_ino})
    target.write(1)
    assert (tmp_path / "mine").read_bytes() == b"my own data" and target.numbers() == [1]


def test_where_no_new_file_can_be_made_the_moved_one_goes_on(target: Target, monkeypatch: pytest.MonkeyPatch):
    lines = target.take_up()
    old = target.path.with_name("out.jsonl.1")
    target.path.replace(old)

    def denied(*arguments: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target.path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", denied)
        assert not lines.prepare(tuple)
        lines.write(outputs(1))
        old_bytes = old.read_bytes()
        old.unlink()
        with pytest.raises(PermissionError):
            lines.prepare(tuple)
    assert old_bytes.count(b"\n") == 1
    assert lines.prepare(tuple)


@pytest.mark.parametrize("room", [0, 10, 100])
def test_a_line_that_is_not_written_whole_is_withdrawn(target: Target, room: int, monkeypatch: pytest.MonkeyPatch):
    target.write(1)
    write = os.write

    def full(handle: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(handle, data[:room])
        room -= written
        return written

    lines = target.take_up()
    before = target.path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space") as raised:
            lines.write(outputs(2, 3))
    assert raised.value.filename == str(target.path)
    assert target.path.read_bytes() == before and lines.position() == target.noted
    lines.write(outputs(2, 3))
    assert target.numbers() == [1, 2, 3]


def test_notes_of_older_versions_have_no_inode(target: Target):
    target.write(1)
    place = target.noted.details
    target.noted = replace(target.noted, details={"file": place["file"], "bytes": place["bytes"]})
    target.write(2, noted=False)
    target.write(2)
    assert target.numbers() == [1, 2] and target.told == []


def test_long_lines_go_out_in_parts(target: Target):
    long = [Output("q", n, n, ("d",), ("S",), {"a": 0}, "x" * 300_000) for n in range(9)]
    lines = target.take_up()
    assert lines.write(iter(long)) == 9
    assert target.numbers() == list(range(9)) and lines.position().details["bytes"] == target.path.stat().st_size


def test_a_whole_file_is_there_when_all_is_written_and_what_is_no_file_is_written_to(target: Target, tmp_path: Path):
    def broken() -> Iterable[Output]:
        yield from outputs(1)
        raise ZeroDivisionError

    target.path.write_text("old")
    lines = WholeFile(target.path)
    with pytest.raises(ZeroDivisionError):
        lines.write(broken())
    assert [path.name for path in target.path.parent.iterdir()] == ["out.jsonl"] and target.path.read_text() == "old"
    assert lines.write(outputs(1, 2)) == 2
    assert target.numbers() == [1, 2]
    assert isinstance(open_sink(Path(os.devnull), Position()), Pipe)
    assert isinstance(open_sink(tmp_path / "new", Position(), growing=False), WholeFile)
    with pytest.raises(FileNotFoundError):
        GrowingFile(tmp_path / "no" / "out", Position()).prepare(tuple)


def test_what_others_left_incomplete_is_ended_by_the_next_line_only(tmp_path: Path):
    path = tmp_path / "out"
    path.write_text("half")
    sink = GrowingFile(path, Position())
    sink.prepare(tuple)
    assert sink.write([]) == 0 and path.read_text() == "half"
    assert sink.write([Output("q", 0, 0, ("d",), ("S",), {}, "<m/>", "id", 0)]) == 1
    assert path.read_text().startswith('half\n{"') and path.read_text().endswith("}\n")
    sink.close()
