"""The wishes on Pathway: a dataflow in its Python framework, which runs on its Rust engine in this process.

`joined` is the form of an expert: for each kind, an interval join of the items with the longest window, whose pairs
are joined with the wishes. The wishes are a stream too, so one can be added while it runs. `each` has an interval join
for each wish, with its constants. Nothing is forgotten: what is late is told by the newest time of either side, and
the files of items and links are read one after the other, so links would be lost. Items and wishes are files in
directories that Pathway looks into, and rows are written to a file, all by its own connectors.
"""

from __future__ import annotations

import csv
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peer_files import MARK, Directories, Growing, mark_wishes
from bench.peer_worker import JOINS, TABLES, WISHES, Row, Wish, Work, serve

NUMBERS = ("doc", "t", "width")
HOUR = 3_600_000_000
COMMIT_MS = 20


class Pathway:
    """The peer."""

    def __init__(self, work: Work, directory: Path) -> None:
        self._work = work
        self._wishes = [*work.wishes, *mark_wishes(work.kinds)]
        self._in = Directories(directory / "pathway", header=True)
        self._found = directory / "found.csv"
        self._out = Growing(self._found)
        self._tables: dict[str, Any] = {}
        self._pathway: Any = None

    def start(self) -> None:
        logging.disable(logging.WARNING)
        import pathway

        self._pathway = pathway
        for name, columns in {**TABLES, "wishes": WISHES}.items():
            types = {column: int if column in NUMBERS else str for column in columns}
            schema = pathway.schema_from_types(**types)
            self._tables[name] = pathway.io.csv.read(
                self._in.path(name), schema=schema, mode="streaming", autocommit_duration_ms=COMMIT_MS
            )
        found = list(self._joined() if self._work.form == "joined" else self._each())
        pathway.io.csv.write(pathway.Table.concat_reindex(*found), self._found)
        self._in.put_wishes("first", self._wishes)
        run = threading.Thread(target=pathway.run, kwargs={"monitoring_level": pathway.MonitoringLevel.NONE})
        run.daemon = True  # Pathway runs until its process ends
        run.start()
        self._in.prepare(None, self._work.kinds, self._work.begins)
        self.feed()

    def prepare(self, batch: Path) -> None:
        self._in.prepare(batch, self._work.kinds, self._work.begins)

    def feed(self) -> float:
        begin = time.perf_counter()
        return self._out.wait(*self._in.publish()) - begin

    def add(self, wish: Wish) -> bool:
        self._in.put_wishes("added", [wish])
        self._out.wait(wish.name)
        return True

    def rows(self) -> Iterator[Row]:
        with self._found.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if int(row["l"]) < MARK:
                    yield row["name"], int(row["l"]), int(row["r"])

    def details(self) -> dict[str, float]:
        return {}

    def stop(self) -> None:
        """Nothing to do: the engine's thread ends with the process."""

    def _joined(self) -> Iterator[Any]:
        all_wishes = self._tables["wishes"]
        for kind in self._work.kinds:
            pairs = self._pairs(kind, self._work.longest[kind] * HOUR)
            wishes = all_wishes.filter(all_wishes.kind == kind)
            both = pairs.join(wishes, pairs.channel == wishes.channel).select(
                name=wishes.name, l=pairs.l, r=pairs.r, d=pairs.d, width=wishes.width
            )
            yield both.filter(both.d <= both.width).without("d", "width")

    def _each(self) -> Iterator[Any]:
        for wish in self._wishes:
            yield self._pairs(wish.kind, wish.width, wish.channel).select(
                name=wish.name, l=self._pathway.this.l, r=self._pathway.this.r
            )

    def _pairs(self, kind: str, width: int, channel: str | None = None) -> Any:
        temporal = self._pathway.temporal
        earlier, column, later, other = JOINS[kind]
        left, right = self._tables[earlier], self._tables[later].copy()
        if channel is not None:
            left = left.filter(left.channel == channel)
        joined = left.interval_join(
            right,
            left.t,
            right.t,
            temporal.interval(1, width),
            left[column] == right[other],
        )
        return joined.select(channel=left.channel, l=left.doc, r=right.doc, d=right.t - left.t)


if __name__ == "__main__":
    serve(Pathway)
