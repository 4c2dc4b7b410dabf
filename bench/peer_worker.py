"""What a peer is given and must do, and the process that runs one. Uses the standard library only, because a peer may
have an interpreter of its own.

The directory of a case holds `case.json`, and for each batch a directory with the items shredded into three CSV files:
`items`, `authors`, and `links`. The process writes `rows.csv` and, last, `report.json` there.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from bench.process_tree import processor_seconds

Row = tuple[str, int, int]
"""The name of a wish and the numbers of two items, the earlier first."""

TABLES: dict[str, tuple[str, ...]] = {
    "items": ("doc", "t", "channel", "url", "title"),
    "authors": ("doc", "t", "channel", "author"),
    "links": ("doc", "t", "href"),
}
"""The columns of the shredded items. `doc` and `t`, in microseconds, are numbers."""

WISHES = ("name", "kind", "channel", "width")

JOINS = {
    "title": ("items", "title", "items", "title"),
    "author": ("authors", "author", "authors", "author"),
    "mention": ("items", "url", "links", "href"),
}
"""For each kind of wish: table and column of the earlier item, and of the later one."""

FORMS = ("joined", "each")
"""Whether wishes are rows of a table of parameters, which is joined, or each is a join of its own."""


@dataclass(frozen=True)
class Wish:
    """A query: an item of `channel`, and then one that shares something with it within `width` microseconds."""

    name: str
    kind: str
    channel: str
    width: int


@dataclass(frozen=True)
class Work:
    """What a peer is given. `longest` has the longest window of each kind that may be asked for, in hours. `begins` is
    before the first item, in microseconds; `launched` is when the process was, in seconds."""

    wishes: Sequence[Wish]
    longest: dict[str, int]
    begins: int
    batches: Sequence[str]
    form: str
    added: Wish | None
    launched: float

    @property
    def kinds(self) -> list[str]:
        """The kinds that are asked for, which are those that a program needs joins for."""
        asked = {wish.kind for wish in self.wishes}
        return [kind for kind in JOINS if kind in asked]


@dataclass
class Report:
    """What was measured: seconds from the launch until the peer was ready, of each batch, of their processor time, and
    until the first row of an added wish. `details` are the peer's own figures."""

    start: float = 0.0
    batches: list[float] = field(default_factory=list)
    processor: float = 0.0
    added: float | None = None
    details: dict[str, float] = field(default_factory=dict)


class Peer(Protocol):
    """A system that answers wishes. It writes its rows to a file as they are found."""

    def start(self) -> None:
        """Returns when the first item can come."""

    def prepare(self, batch: Path) -> None:
        """Gets a batch ready to be fed, which is not measured."""

    def feed(self) -> float:
        """Takes in the batch. Returns the seconds from its shredded rows to the last of its result rows."""

    def add(self, wish: Wish) -> bool:
        """Adds a wish. Returns whether its rows over earlier items are out now; otherwise it gets those that the next
        batch completes."""

    def rows(self) -> Iterable[Row]:
        """All rows that were found. They may repeat."""

    def details(self) -> dict[str, float]:
        """Figures of its own about the time of `feed`."""

    def stop(self) -> None:
        """Ends what it started. May be called after an error."""


def measured(peer: Peer, work: Work, directory: Path) -> Report:
    """Runs a peer. If a wish is added, it is added before the last batch."""
    report = Report()
    peer.start()
    report.start = time.time() - work.launched
    *batches, last = (directory / name for name in work.batches)
    for batch in batches:
        peer.prepare(batch)
        before = processor_seconds(os.getpid())
        report.batches.append(peer.feed())
        report.processor += processor_seconds(os.getpid()) - before
    report.details = peer.details()
    peer.prepare(last)
    begin = time.perf_counter()
    if work.added is not None and peer.add(work.added):
        report.added = time.perf_counter() - begin
        begin = time.perf_counter()
    peer.feed()
    if work.added is not None and report.added is None:
        report.added = time.perf_counter() - begin
    with (directory / "rows.csv").open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows(peer.rows())
    return report


def write_work(work: Work, directory: Path) -> None:
    (directory / "case.json").write_text(json.dumps(asdict(work)), encoding="utf-8")


def read_work(directory: Path) -> Work:
    found = json.loads((directory / "case.json").read_text("utf-8"))
    found["wishes"] = [Wish(**wish) for wish in found["wishes"]]
    found["added"] = Wish(**found["added"]) if found["added"] else None
    return Work(**found)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def end_with_parent() -> None:
    """Ends this process and all in its group once its standard input is closed, as when its parent is killed."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def serve(make: Callable[[Work, Path], Peer]) -> None:
    """The main function of a peer's module: measures it over the case in the directory of the first argument."""
    end_with_parent()
    directory = Path(sys.argv[1])
    work = read_work(directory)
    peer = make(work, directory)
    try:
        report = measured(peer, work, directory)
    finally:
        peer.stop()
    ready = directory / "report.part"
    ready.write_text(json.dumps(asdict(report)), encoding="utf-8")
    ready.rename(directory / "report.json")
