"""For peers that read directories and write a file: how to tell that all rows of a batch are out. Uses the standard
library only.

Two items that match come at the end of each batch, for each kind of wish. They get a row from a wish of their own. A
batch is done when these rows are out and the file has not grown for a moment; its time ends when the file grew last.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from bench.peer_worker import JOINS, TABLES, WISHES, Wish, write_table

MARK, MARK_CHANNEL = 9_000_000_000, "mark"
"""Items with this number or a higher one are marks."""
LONG = 120.0
"""Seconds after which rows are not waited for any more."""
QUIET, POLL = 0.05, 0.002


class RowsMissing(RuntimeError):
    """The peer did not write what it must find."""


def mark_wishes(kinds: Sequence[str]) -> list[Wish]:
    """A wish of each kind for the marks."""
    return [Wish(f"mark-{kind}", kind, MARK_CHANNEL, 1_000_000) for kind in kinds]


def marks(number: int, kinds: Sequence[str]) -> dict[str, int]:
    """The numbers of the earlier marks of batch `number`, by kind; the later ones are one higher."""
    return {kind: MARK + 2 * (number * len(JOINS) + place) for place, kind in enumerate(kinds)}


class Directories:
    """The directories that a peer watches, one for each table, and one for wishes."""

    def __init__(self, root: Path, *, header: bool) -> None:
        self._root, self._header, self._number = root, header, 0
        self._made: dict[str, Path] = {}
        self._marks: list[int] = []
        for name in (*TABLES, "wishes"):
            (root / name).mkdir(parents=True)

    def path(self, table: str) -> Path:
        return self._root / table

    def prepare(self, batch: Path | None, kinds: Sequence[str], now: int) -> None:
        """Copies the tables of a batch, if any, and appends its marks, with times after `now` and all items."""
        made = self._made
        for table, columns in TABLES.items():
            lines = [",".join(columns) + "\n"]
            if batch is not None:
                lines = (batch / f"{table}.csv").read_text("utf-8").splitlines(keepends=True)
            if table == "items" and len(lines) > 1:
                now = int(lines[-1].split(",")[1])
            made[table] = self._root / f"{table}.part"
            made[table].write_text("".join(lines[not self._header :]), encoding="utf-8")
        numbered = marks(self._number, kinds)
        for kind, doc in numbered.items():
            earlier, column, later, other = JOINS[kind]
            for table, key, at in ((earlier, column, 0), (later, other, 1)):
                values = {"doc": doc + at, "t": now + 1 + at, "channel": MARK_CHANNEL, key: f"mark {doc}"}
                with made[table].open("a", encoding="utf-8") as out:
                    out.write(",".join(str(values.get(name, f"{doc} {at}")) for name in TABLES[table]) + "\n")
        self._marks = list(numbered.values())
        self._number += 1

    def publish(self) -> list[str]:
        """Lets the peer see what was prepared. Returns texts that its rows have when it is done."""
        for table, path in self._made.items():
            path.rename(self._root / table / f"{self._number:04}.csv")
        return list(map(str, self._marks))

    def put_wishes(self, name: str, wishes: Sequence[Wish]) -> None:
        """Lets the peer see wishes."""
        path = self._root / "wishes.part"
        rows = [(wish.name, wish.kind, wish.channel, wish.width) for wish in wishes]
        write_table(path, WISHES, rows)
        if not self._header:
            path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[1:]), encoding="utf-8")
        path.rename(self._root / "wishes" / f"{name}.csv")


class Growing:
    """A file that a peer writes its rows to."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self._rest = path, 0, b""

    def wait(self, *texts: str) -> float:
        """Waits until each of the texts was written and the file does not grow. Returns when it grew last, as
        `time.perf_counter` does. Raises RowsMissing after a long time."""
        missing = {text.encode() for text in texts}
        begin = grown = time.perf_counter()
        while missing or time.perf_counter() - grown < QUIET:
            if new := self._new():
                grown = time.perf_counter()
                text = self._rest + new
                missing = {wanted for wanted in missing if wanted not in text}
                self._rest = text[-100:]
            elif time.perf_counter() - begin > LONG:
                raise RowsMissing(f"rows did not come within {LONG:.0f} s: {sorted(missing)}")
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
