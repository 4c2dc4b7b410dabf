import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from feeds import confined, readers
from feeds.confined import HurriedError
from feeds.documents import Document, Reject, SourceError
from feeds.files import RACY, files_below
from feeds.history import History
from feeds.readers import ALL_READ, Offset, ReplacedError
from feeds.tail import TURN, Listing, ReadItem, Tail, Turns, WaitingFile, judged, waiting_files
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
        for tail in self.tails:
            some = tail.among([*map(str, tail.path.rglob("*"))], self.positions)
            is_listed = not any(waiting.path.is_dir() for waiting in files)
            assert some is None or sorted(some) == [one for one in files if one.tail is tail] or not is_listed
        items = Turns(None).read(files, lambda waiting, cause: self.failed.update({waiting.file: cause}))
        for read in judged(items, self.history):
            if len(found) == most:
                return found
            self.positions[read.offset.source, read.offset.file] = read.offset
            if isinstance(read.item, Document | Reject):
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


def test_a_sidecar_is_no_document_whether_its_feed_is_there_or_not(tmp_path: Path):
    (tmp_path / "x.json").write_text('{"url": "http://x/", "fetched_at": "2026-01-01T00:00:00Z"}')
    reader = Reader(Tail(tmp_path, feeds="item"))
    assert reader.read() == []
    (tmp_path / "x.xml").write_text(FEED.format("e"))
    assert Reader(Tail(tmp_path / "x.json", feeds="item")).read() == []
    assert [id.split()[0] for id in reader.ids()] == ["http://x/"]
    others = ["neither", '{"url": "http://x", "name": "foo"}', '{"source": "abc"}', '{"feed_url": "u", "title": "T"}']
    others.append('{"fetched_at": "2026-01-01T00:00:00Z"}')
    for number, other in enumerate(others):
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
    items = list(judged(Turns(None).read(files, lambda waiting, cause: told.append(waiting.file)), History()))
    assert [read.item.id for read in items if isinstance(read.item, Document)] == ["z"] and sorted(told) == [
        "x.xml",
        "y.jsonl",
    ]


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
def test_each_line_is_read_once(seed: int, single: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


# ------------------------- files of one feed do not hold up those of others: time is a number, and the parser a fake


@dataclass(frozen=True)
class File:
    """A version of a feed: when it arrives, and the seconds that parsing it and each of its items take."""

    feed: str
    arrived: float
    parse: float
    item: float
    items: int
    error: Exception | None = None


@dataclass
class World:
    """A tail of files, a clock, and the processor that the slow lane has to itself."""

    files: dict[str, File]
    now: float = 0.0
    has_feeds: bool = True
    lane: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    done: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def read(self, waiting: WaitingFile, stop: object = None, fingerprint: str = "") -> Iterator[ReadItem[Any]]:
        file = self.files[waiting.file]
        hurry = confined._hurry.get()
        if hurry is None and self.lane:
            pass  # in the slow lane, whose time is its own
        elif hurry is not None and file.parse > hurry:
            self.now += hurry
            raise HurriedError
        else:
            self.now += file.parse
        for number in range(waiting.start.position, file.items):
            found = Reject(waiting.file, "S", None, "", b"")
            yield ReadItem(found, Offset(waiting.source, waiting.file, number + 1))
        if file.error is not None:
            raise file.error
        yield ReadItem(None, Offset(waiting.source, waiting.file, ALL_READ))

    def start(self, work: Callable[[], None]) -> None:
        self.lane.append((self.now + 30, work))

    def waiting(self) -> list[WaitingFile]:
        names = [name for name, file in self.files.items() if file.arrived <= self.now and not self._is_read(name)]
        return [
            WaitingFile(True, int(self.files[name].arrived), "s", name, Path(name), cast(Any, self), at, None, False)
            for name in sorted(names, key=lambda name: self.files[name].arrived)
            for at in [Offset("s", name, len(self.done.get(name, ())))]
        ]

    def _is_read(self, name: str) -> bool:
        return ALL_READ in (position for position, _ in self.done.get(name, ()))

    def run(self, turns: Turns, until: float, *, wait: bool = False) -> None:
        def tell(waiting: WaitingFile, cause: str) -> None:
            self.told.append(f"{waiting.file} {cause}")

        while self.now < until and not all(map(self._is_read, self.files)):
            for due, work in list(self.lane):
                if due <= self.now or wait:
                    work()
                    self.lane.remove((due, work))
            for read in turns.read(self.waiting(), tell, wait=wait):
                self.done.setdefault(read.offset.file, []).append((read.offset.position, self.now))
                self.now += self.files[read.offset.file].item
            if not turns.is_ready():
                self.now += 0.1


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's name begins with that of its feed."""
    monkeypatch.setattr(readers, "feed_address", lambda path: path.name.partition(" ")[0])


def turns_in(
    world: World, turn: int | None = TURN, start: Callable[[Callable[[], None]], object] | None = None
) -> Turns:
    return Turns(turn, lambda: world.now, start or world.start)


@pytest.mark.usefixtures("addresses")
@pytest.mark.parametrize("seed", seeds(2, 300))
def test_files_of_one_feed_delay_another_s_by_a_few_seconds_at_most(seed: int) -> None:
    rng = random.Random(seed)
    bad = [
        File("bad", rng.uniform(0, 60), rng.choice((0.1, 5, 40)), rng.choice((0.0, 0.05, 1.0)), rng.randrange(0, 900))
        for _ in range(rng.randrange(1, 20))
    ]
    good = [File(f"good{n % 5}", rng.uniform(0, 120), 0.01, 0.01, rng.randrange(1, 5)) for n in range(50)]
    world = World({f"{file.feed} {n}": file for n, file in enumerate([*bad, *good])})
    world.run(turns_in(world), 30_000)
    for name, file in world.files.items():
        positions = [position for position, _ in world.done[name]]
        assert positions == [*range(1, file.items + 1), ALL_READ]
        if file in good:
            # A turn of what is parsed, and one of what is already there, both ended by an item of a second.
            assert world.done[name][-1][1] - file.arrived < 2 * TURN + 3
    ends = {name: times[-1][1] for name, times in world.done.items()}
    for feed in {file.feed for file in world.files.values()}:  # the versions of a feed come in their order
        versions = sorted((file.arrived, ends[name]) for name, file in world.files.items() if file.feed == feed)
        assert [end for _, end in versions] == sorted(end for _, end in versions)


@pytest.mark.usefixtures("addresses")
def test_who_waits_gets_everything_and_who_has_no_turns_in_order() -> None:
    files = {f"f{n} {n}": File(f"f{n}", n / 100, parse, 0, 3) for n, parse in enumerate((0.1, 9, 0.1, 9))}
    for turns, order in ((None, [0, 1, 2, 3]), (TURN, [0, 2, 1, 3])):
        world = World(dict(files), now=1)
        world.run(turns_in(world, turns, lambda work: work()), 1_000, wait=True)
        assert list(world.done) == [f"f{n} {n}" for n in order]


@pytest.mark.usefixtures("addresses")
def test_a_file_that_cannot_be_read_in_the_slow_lane_is_told_and_waits_with_its_feed() -> None:
    shut = PermissionError(13, "Permission denied")
    world = World({"a 1": File("a", 0, 9, 0, 1, shut), "a 2": File("a", 1, 0, 0, 1), "b 3": File("b", 1, 0, 0, 1)})
    world.run(turns_in(world), 40)
    assert world.done.keys() == {"a 1", "b 3"} and world.done["a 1"][0][0] == 1
    assert set(world.told) == {"a 1 cannot be read: Permission denied"}
    for error, raised in ((ReplacedError("new"), None), (KeyError("where"), KeyError), (OSError("bad"), OSError)):
        world = World({"a 1": File("a", 0, 9, 0, 0, error)})
        if raised is None:
            world.run(turns_in(world), 40)
            assert world.told == []
        else:
            with pytest.raises(raised):
                world.run(turns_in(world), 40)
