"""The work of a peer, and its process. Uses the standard library only: a peer may have an interpreter of its own.

The directory of a case holds `case.json`, and for each batch a directory with the items as CSV files: `items`,
`authors`, and `links`. That of a task of event patterns holds `task.json` and `events.csv`. The process writes
`rows.csv` and, last, `report.json` there.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

_PROC = Path("/proc")
_PARENT, _USER, _SYSTEM = 1, 11, 12  # where the fields of /proc/PID/stat are, counted from the one after the name


def resident_bytes(root: int) -> int:
    """Bytes in memory of a process and its descendants; shared pages count for each of them. 0 if unknown."""
    size = 0
    for pid in process_tree(root):
        fields = process_file(pid, "statm").split()
        size += int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0
    return size


def processor_seconds(root: int) -> float:
    """Seconds of all processors of a process and its descendants, without those that have ended. 0 if unknown."""
    ticks = sum(int(fields[_USER]) + int(fields[_SYSTEM]) for pid in process_tree(root) if (fields := _stat(pid)))
    return ticks / os.sysconf("SC_CLK_TCK")


def process_tree(root: int) -> Iterator[int]:
    if not _PROC.is_dir():
        return
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[_PARENT]), []).append(int(entry.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _stat(pid: int) -> list[str]:
    return process_file(pid, "stat").rpartition(")")[2].split()  # the name, which comes before, may contain anything


def process_file(pid: int, name: str) -> str:
    """What /proc says of a process; "" if it has ended meanwhile."""
    try:
        return (_PROC / str(pid) / name).read_text("utf-8", errors="replace")
    except OSError:
        return ""


WishRow = tuple[str, int, int]  # the name of a wish and the numbers of two items, the earlier first
TABLES: dict[str, tuple[str, ...]] = {
    "items": ("doc", "t", "channel", "url", "title"),
    "authors": ("doc", "t", "channel", "author"),
    "links": ("doc", "t", "href"),
}
"""The columns of the shredded items."""

WISHES = ("name", "kind", "channel", "width")
NUMERIC = ("doc", "t", "width")  # the columns that are numbers; times are in microseconds
JOINS = {
    "title": ("items", "title", "items", "title"),
    "author": ("authors", "author", "authors", "author"),
    "mention": ("items", "url", "links", "href"),
}
"""For each kind of wish: table and column of the earlier item, and of the later one."""

FORMS = ("joined", "each")
"""Whether wishes are rows of a table of parameters, which is joined, or each is a join of its own."""

WISH_HOUR = 3_600_000_000


@dataclass(frozen=True)
class Wish:
    name: str
    kind: str
    channel: str
    width: int


@dataclass(frozen=True)
class PeerWork:
    """The work of a peer. `longest` has the longest window of each kind that may be asked for, in hours. `begins` is
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
        wanted = {wish.kind for wish in self.wishes}
        return [kind for kind in JOINS if kind in wanted]

    def write(self, directory: Path) -> None:
        (directory / "case.json").write_text(json.dumps(asdict(self)), encoding="utf-8")


@dataclass
class PeerReport:
    """Seconds until ready, of batches, of their processor time, until an added wish's first row; its own `details`."""

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
        """Adds a wish. Returns whether its rows over earlier items are out; else it gets those of the next batch."""

    def rows(self) -> Iterable[WishRow]:
        """All rows that were found. They may repeat."""

    def details(self) -> dict[str, float]:
        """Figures of its own about the time of `feed`."""

    def stop(self) -> None:
        """Ends what it started. May be called after an error."""


def measure_peer(peer: Peer, work: PeerWork, directory: Path) -> PeerReport:
    """Runs a peer. If a wish is added, it is added before the last batch."""
    report = PeerReport()
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


def read_work(directory: Path) -> PeerWork:
    found = json.loads((directory / "case.json").read_text("utf-8"))
    found["wishes"] = [Wish(**wish) for wish in found["wishes"]]
    found["added"] = Wish(**found["added"]) if found["added"] else None
    return PeerWork(**found)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        if header:
            writer.writerow(header)
        writer.writerows(rows)


def end_with_parent() -> None:
    """Ends this process and all in its group once its standard input is closed, as when its parent is killed."""

    def wait() -> None:
        while os.read(0, 1024):  # not by a buffered reader, whose lock would abort the end of the interpreter
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def serve_peer(make: Callable[[PeerWork, Path], Peer], directory: Path) -> None:
    """The program of a peer: measures it over the case in a directory."""
    work = read_work(directory)
    peer = make(work, directory)
    try:
        report = measure_peer(peer, work, directory)
    finally:
        peer.stop()
    _write_report(directory, asdict(report))


def _write_report(directory: Path, report: dict[str, object]) -> None:
    ready = directory / "report.part"
    ready.write_text(json.dumps(report), encoding="utf-8")
    ready.rename(directory / "report.json")


MARK, MARK_CHANNEL = 9_000_000_000, "mark"  # items with this number or a higher one are marks
ROWS_SECONDS = 120.0  # seconds after which missing rows are an error
QUIET, POLL = 0.05, 0.002


class RowsMissing(RuntimeError):
    """The peer did not write what it must find."""


def mark_wishes(kinds: Sequence[str]) -> list[Wish]:
    return [Wish(f"mark-{kind}", kind, MARK_CHANNEL, 1_000_000) for kind in kinds]


class WatchedDirectories:
    """The directories that a peer watches, for tables and for wishes. Marks, two items that match for each kind of
    wish, end each batch: a wish of their own gives them a row, which shows that the batch is complete."""

    def __init__(self, root: Path, *, header: bool) -> None:
        self._root, self._header, self._number = root, header, 0
        self._ready: dict[str, Path] = {}
        self._marks: list[int] = []
        for name in (*TABLES, "wishes"):
            (root / name).mkdir(parents=True)

    def path(self, table: str) -> Path:
        return self._root / table

    def prepare(self, batch: Path | None, kinds: Sequence[str], now: int) -> None:
        ready = self._ready
        for table, columns in TABLES.items():
            lines = [",".join(columns) + "\n"]
            if batch is not None:
                lines = (batch / f"{table}.csv").read_text("utf-8").splitlines(keepends=True)
            if table == "items" and len(lines) > 1:
                now = int(lines[-1].split(",")[1])
            ready[table] = self._root / f"{table}.part"
            ready[table].write_text("".join(lines[not self._header :]), encoding="utf-8")
        # The earlier mark of each kind; the later one is one higher.
        numbered = {kind: MARK + 2 * (self._number * len(JOINS) + place) for place, kind in enumerate(kinds)}
        for kind, doc in numbered.items():
            earlier, column, later, other = JOINS[kind]
            for table, key, at in ((earlier, column, 0), (later, other, 1)):
                values = {"doc": doc + at, "t": now + 1 + at, "channel": MARK_CHANNEL, key: f"mark {doc}"}
                with ready[table].open("a", encoding="utf-8") as out:
                    out.write(",".join(str(values.get(name, f"{doc} {at}")) for name in TABLES[table]) + "\n")
        self._marks = list(numbered.values())
        self._number += 1

    def publish(self) -> list[str]:
        """Lets the peer see what was prepared. Returns texts that its rows have when it is done."""
        for table, path in self._ready.items():
            path.rename(self._root / table / f"{self._number:04}.csv")
        return list(map(str, self._marks))

    def put_wishes(self, name: str, wishes: Sequence[Wish]) -> None:
        path = self._root / "wishes.part"
        rows = [(wish.name, wish.kind, wish.channel, wish.width) for wish in wishes]
        write_table(path, WISHES if self._header else (), rows)
        path.rename(self._root / "wishes" / f"{name}.csv")


class GrowingRows:
    def __init__(self, path: Path) -> None:
        self._path, self._read, self._rest = path, 0, b""

    def wait(self, *texts: str) -> float:
        """Waits for all texts, and until the file no longer grows. Returns when it last grew. Raises RowsMissing."""
        missing = {text.encode() for text in texts}
        begin = grown = time.perf_counter()
        while missing or time.perf_counter() - grown < QUIET:
            if new := self._new():
                grown = time.perf_counter()
                text = self._rest + new
                missing = {wanted for wanted in missing if wanted not in text}
                self._rest = text[-100:]
            elif time.perf_counter() - begin > ROWS_SECONDS:
                raise RowsMissing(f"rows did not come within {ROWS_SECONDS:.0f} s: {sorted(missing)}")
            else:
                time.sleep(POLL)
        return grown

    def _new(self) -> bytes:
        if not self._path.exists():
            return b""
        with self._path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        return new


TASK_TEMPLATES = ("first after", "rising runs")
EVENT_COLUMNS = ("id", "t", "kind", "k", "x")
"""Of an event: its number, its time in seconds, A or B, its key, and its value."""


@dataclass(frozen=True)
class PatternTask:
    """Statement i begins with an event of A whose x is at least `ranges[i][0]` and less than `ranges[i][1]`. first
    after: it is followed by the first event of B of its key with a greater x. rising runs: it is followed by events of
    A of its key as long as their x rises, by one at least, and by the next one, with which it no longer does."""

    template: str
    ranges: Sequence[tuple[float, float]]

    def write(self, directory: Path) -> None:
        (directory / "task.json").write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_task(directory: Path) -> PatternTask:
    found = json.loads((directory / "task.json").read_text("utf-8"))
    return PatternTask(found["template"], [(low, high) for low, high in found["ranges"]])


def task_ranges(count: int) -> list[tuple[float, float]]:
    """A tenth of all values of x, from 0 to 100, for each of `count` statements."""
    return [(90 * place / count, 90 * place / count + 10) for place in range(count)]


def finish_task(directory: Path, rows: Iterable[Sequence[object]]) -> None:
    """Writes the rows and the report: the processor time of this process, and of all that it has started, so far."""
    write_table(directory / "rows.csv", (), rows)
    _write_report(directory, {"processor": processor_seconds(os.getpid())})


def read_task_rows(directory: Path) -> set[tuple[int, ...]]:
    """The rows of a task: of each a statement and the numbers of its events, 0 where there is none."""
    with (directory / "rows.csv").open(newline="", encoding="utf-8") as lines:
        return {tuple(map(int, row)) for row in csv.reader(lines)}
