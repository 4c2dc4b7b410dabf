"""The wishes as XSCL queries on our engine, on DuckDB, in this process: from the XML of items to rows in a file."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.expert_workload import Parameters, script
from bench.peer_worker import Row, Wish, Work, serve
from bench.realistic_split import PartTimes
from bench.workload import HOUR
from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.process import gc_frozen

BEFORE_JOINS = ("admission and parse", "stage 1")
"""The parts that the peers do not have, because they get shredded rows."""


class Ours:
    """Our engine, as a peer of the others."""

    def __init__(self, work: Work, directory: Path) -> None:
        self._work = work
        self._found = directory / "found.csv"
        self._out = self._found.open("w", newline="", encoding="utf-8")
        self._documents: list[Document] = []
        self._engine: Session | None = None
        self._split: PartTimes | None = None

    def start(self) -> None:
        self._engine = Session("duckdb", quiet=True)
        self._engine.subscribe(script(map(_parameters, self._work.wishes)))
        self._engine.process([])  # what registration leaves to the first batch
        self._split = PartTimes(self._engine)

    def prepare(self, batch: Path) -> None:
        self._documents = list(read_documents(batch / "documents.jsonl"))

    def feed(self) -> float:
        assert self._engine is not None
        with gc_frozen():
            begin = time.perf_counter()
            self._write(self._engine.process(self._documents))
            return time.perf_counter() - begin

    def add(self, wish: Wish) -> bool:
        assert self._engine is not None
        last = self._engine.last_seq
        text = f"{_parameters(wish).xscl} PUBLISH {wish.name};"
        self._engine.subscribe(text, add=True, backfill=True)
        self._write(self._engine.outputs(after=last))
        return True

    def rows(self) -> Iterator[Row]:
        self._out.flush()
        with self._found.open(newline="", encoding="utf-8") as lines:
            for name, left, right in csv.reader(lines):
                yield name, int(left), int(right)

    def details(self) -> dict[str, float]:
        assert self._split is not None
        self._split.stop()
        return {part: seconds for part, seconds in self._split.seconds.items() if part != "rest"}

    def stop(self) -> None:
        self._out.close()
        if self._engine is not None:
            self._engine.close()

    def _write(self, outputs: Iterable[Output]) -> None:
        rows = ((output.query, *(name.removeprefix("item-") for name in output.documents)) for output in outputs)
        csv.writer(self._out).writerows(rows)
        self._out.flush()


def read_documents(path: Path) -> Iterator[Document]:
    """Yields what `write_documents` wrote."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            given = json.loads(line)
            yield Document(given["id"], given["xml"], time=given["time"])


def write_documents(documents: Iterable[Document], path: Path) -> None:
    with path.open("w", encoding="utf-8") as out:
        for document in documents:
            given = {"id": document.id, "time": document.t0, "xml": document.xml}
            out.write(json.dumps(given) + "\n")


def _parameters(wish: Wish) -> Parameters:
    return Parameters(wish.name, wish.kind, wish.channel, wish.width // HOUR)


if __name__ == "__main__":
    serve(Ours)
