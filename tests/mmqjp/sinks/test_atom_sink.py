"""The kind `atom`: files that feed readers understand, with each output in the feed or an archive, whatever happens."""

from collections.abc import Iterable
from pathlib import Path

import feedparser
import pytest

import mmqjp.sinks.atom as atom
from common import files
from feeds.documents import Document
from feeds.tail import read_documents
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.present.item import ShownMatch
from mmqjp.sinks.atom import AtomSink
from mmqjp.sinks.definition import AtomOptions
from tests.generate.seeds import at_length
from tests.support.faults import Killed, Point, armed, killed
from tests.support.messages import TIME, match
from tests.support.sink_store import SinkStore, full

URL = "https://example.org/feeds/"


class Titled(AtomSink):
    """A sink that gets items with the outputs, as the deliverer gives them."""

    def write(self, outputs: Iterable[Output]) -> int:
        return self.write_matches(ShownMatch(one, match(one.seq, f"title {one.seq}").items) for one in outputs)


class Store(SinkStore[Titled]):
    """A store with a sink of the kind `atom`."""

    def __init__(self, path: Path, url: str = URL) -> None:
        super().__init__()
        self.path, self.options = path, AtomOptions(path, url)

    def opened(self, position: Position) -> Titled:
        return Titled("news", self.options, position, self.warnings.append, lambda: self.now)

    def feed(self, name: str = "feed.atom") -> feedparser.FeedParserDict:
        """A document, as feedparser reads it."""
        found = feedparser.parse((self.path / name).read_bytes())
        assert not found.bozo, found.bozo_exception
        return found

    def seqs(self, name: str = "feed.atom") -> list[int]:
        return [int(entry.title.removeprefix("title ")) for entry in self.feed(name).entries]

    def walked(self) -> list[int]:
        """All outputs that a reader finds which follows the links, newest first, each once."""
        name, found = "feed.atom", list[int]()
        while name:
            found += [seq for seq in self.seqs(name) if seq not in found]
            links = [link.href for link in self.feed(name).feed.links if link.rel == "prev-archive"]
            name = links[0].removeprefix(URL) if links else ""
        return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "feed")


def test_a_new_sink_has_a_feed_that_readers_can_subscribe_to(store):
    store.deliver()
    found = store.feed()
    assert found.feed.title == "mmqjp: news" and found.entries == [] and found.version == "atom10"
    assert [link.href for link in found.feed.links if link.rel == "self"] == [URL + "feed.atom"]


def test_the_feed_has_the_newest_and_all_that_no_archive_has(store):
    store.commit(199)
    store.deliver(at_a_time=17)
    assert store.seqs() == list(range(198, 99, -1)) and store.seqs("archive-0.atom") == list(range(99, -1, -1))
    store.commit(3)
    store.deliver(at_a_time=17)
    assert store.seqs() == list(range(201, 151, -1)) and len(list(store.path.iterdir())) == 3
    assert store.walked() == list(range(201, -1, -1))


def test_archives_have_what_the_sink_wants_and_empty_ones_are_skipped(store):
    store.commit(1_000, wanted=lambda seq: seq < 5 or seq % 250 == 0 or seq == 999)
    store.deliver(at_a_time=4)
    assert sorted(path.name for path in store.path.iterdir()) == [
        "archive-0.atom", "archive-2.atom", "archive-5.atom", "archive-7.atom", "archive-9.atom", "feed.atom"
    ]  # fmt: skip
    assert store.walked() == [999, 750, 500, 250, 4, 3, 2, 1, 0]


def test_entries_and_archives_never_change(store):
    store.commit(150)
    store.deliver(at_a_time=10)
    archive, entries = (store.path / "archive-0.atom").read_bytes(), store.feed().entries
    store.now += 1_000_000
    store.setting = Position(20).to_setting()
    store.open()
    store.commit(10)
    store.deliver(at_a_time=10)
    assert (store.path / "archive-0.atom").read_bytes() == archive
    assert store.feed().entries[-len(entries) :] == entries and store.walked() == list(range(159, -1, -1))


SEAMS: list[Point] = [
    (AtomSink, "prepare"),
    (AtomSink, "_write_archive"),
    (AtomSink, "_write_feed"),
    (files, "sync_file"),
    (Path, "replace"),
    (Store, "note"),
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("point", SEAMS, ids=[point[1] for point in SEAMS])
def test_a_kill_anywhere_loses_nothing_and_repeats_nothing(tmp_path, point, after):
    strikes = 0
    for calls in (1, 2, 4) if at_length() else (1,) if after else (1, 4):
        store = Store(tmp_path / str(calls))
        for count in (90, 70, 80):
            store.sink = None
            store.now += 1_000_000
            store.commit(count)
            try:
                with armed(point, killed, calls, after=after):
                    store.deliver(at_a_time=40)
            except Killed:
                strikes += 1
        store.sink = None
        store.deliver(at_a_time=40)
        assert store.walked() == list(range(239, -1, -1))
        assert sorted(store.path.glob("*.atom")) == [store.path / f"archive-{n}.atom" for n in (0, 1)] + [
            store.path / "feed.atom"
        ]
    assert strikes


def test_a_full_disk_takes_nothing_away(store):
    store.commit(95)
    store.deliver(at_a_time=95)
    store.commit(20)
    for calls in (1, 2):
        with armed((files, "sync_file"), full, calls), pytest.raises(OSError, match="No space"):
            store.deliver(at_a_time=20)
        assert store.seqs() == list(range(94, -1, -1)) and not list(store.path.glob(".*"))
    store.deliver(at_a_time=20)
    assert store.walked() == list(range(114, -1, -1))


def test_a_feed_that_others_remove_is_written_again(store):
    store.commit(3)
    store.deliver()
    (store.path / "feed.atom").unlink()
    store.commit(1)
    store.deliver()
    assert store.seqs() == [3, 2, 1, 0] and "was removed" in store.warnings[0]


def test_another_feed_is_not_overwritten(store):
    store.deliver()
    other = Store(store.path, "https://example.org/other/")
    with pytest.raises(FileExistsError, match="choose another directory, or move its files away"):
        other.deliver()
    (store.path / "feed.atom").write_text("<feed/>")
    with pytest.raises(FileExistsError, match="is of another feed"):
        store.open().prepare(store.pending)


def test_our_own_reader_reads_it_back(store):
    store.commit(3)
    store.deliver()
    found = list(read_documents([store.path / "feed.atom"], feeds="item"))
    assert len(found) == 3
    assert all(isinstance(document, Document) and b"<title>title " in document.xml for document in found)


def test_without_items_entries_have_the_ids_of_documents(tmp_path):
    store = Store(tmp_path / "feed")
    store.commit(1)
    sink = AtomSink("news", store.options, Position(), now=lambda: TIME)
    sink.prepare(store.pending)
    assert sink.write(store.outputs) == 1
    (entry,) = store.feed().entries
    assert entry.title == "q1" and "d0" in entry.content[0].value and atom.FEED == "feed.atom"
