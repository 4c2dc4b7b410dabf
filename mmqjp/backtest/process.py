"""The process of a back-test: runs a script over documents from standard input, in an in-memory engine, and writes
reports as lines of JSON. Reports follow each other until the last, which is complete. The process limits its own time
and memory."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa

from common import child
from common.errors import InputError
from common.tools import from_json
from feeds.documents import Document
from mmqjp.answers.fan_out import outputs_in
from mmqjp.backtest.script import DAY_US, DOCUMENTS, Backtest, QueryResult, TrialRequest, day_text
from mmqjp.engine import Session
from mmqjp.explain.plan import estimates
from mmqjp.present.newest import shown_outputs
from mmqjp.queries.model import Owner
from mmqjp.tables.lookup import quote_literal

LATEST, MOST_DAYS, LONGEST_XML = 10, 400, 100_000
"""Outputs shown, their longest document in characters, and the last days with outputs that are counted one by one."""

FIRST, MOST, LONG = 50, 5_000, 1.0
"""First and maximum number of documents per part, and its target seconds."""

BETWEEN = 1.0
"""Minimum seconds between two reports, which take at most a tenth of the time."""


def try_script(
    request: TrialRequest, batches: Iterator[pa.RecordBatch], clock: Callable[[], float], memory: Callable[[], int]
) -> Iterator[Backtest]:
    """Runs a script over batches of DOCUMENTS. Yields progress reports; the last is complete.

    `clock` returns seconds, `memory` bytes in use. Raises what `Engine.subscribe` does.
    """
    start = told = clock()
    with Session("duckdb", quiet=True, settle=None) as engine:
        trial = _Trial(engine, request)
        for batch in _in_parts(batches, trial):
            begun = clock()
            trial.process(batch)
            now = clock()
            trial.took = now - begun
            trial.seconds += trial.took
            cut_short = None
            if now - start >= request.seconds:
                cut_short = f"it took more than {request.seconds:g} s"
            elif memory() > request.memory:
                cut_short = f"it needed more than {request.memory >> 20:,} MiB of memory"
            if cut_short is not None:
                trial.finish()
                yield trial.report(cut_short, final=True)
                return
            if now - told >= BETWEEN and now - told >= 10 * trial.report_seconds:
                found = trial.report(None)
                told = clock()
                trial.report_seconds = told - now
                yield found
        begun = clock()
        trial.finish()
        trial.seconds += clock() - begun
        yield trial.report(None, final=True)


def _in_parts(batches: Iterator[pa.RecordBatch], trial: _Trial) -> Iterator[pa.RecordBatch]:
    """Cuts batches into parts of about LONG seconds, by the last one's pace, so that reports and the end come in time
    even if a few documents are slow."""
    size = FIRST
    for batch in batches:
        first = 0
        while first < batch.num_rows:
            part = batch.slice(first, size)
            first += part.num_rows
            yield part
            if trial.took > LONG:
                size = max(1, size // 2)
            elif trial.took < LONG / 4:
                size = min(2 * size, MOST)


class _Trial:
    def __init__(self, engine: Session, request: TrialRequest) -> None:
        self._engine = engine
        for text in request.publishers:
            engine.subscribe(text, add=True)
        self._names = tuple(dict.fromkeys(engine.subscribe(request.text)))
        self._paused: dict[str, str] = {}
        self._since: int | None = None
        self._until: int | None = None
        self.seconds = self.took = self.report_seconds = 0.0

    def process(self, batch: pa.RecordBatch) -> None:
        columns = (batch[name].to_pylist() for name in DOCUMENTS.names)
        rows = list(zip(*columns, strict=True))
        self._engine.process(Document(id, xml, stream, (t0, t1)) for id, stream, t0, t1, xml in rows)
        self._paused |= self._engine.take_paused()
        for _, _, t0, t1, _ in rows:
            self._since = t0 if self._since is None else min(self._since, t0)
            self._until = t1 if self._until is None else max(self._until, t1)

    def finish(self) -> None:
        self._engine.finish()
        self._paused |= self._engine.take_paused()

    def report(self, cut_short: str | None, *, final: bool = False) -> Backtest:
        """Estimates are computed in the final report only."""
        rows = self._engine.sql(
            f"SELECT query, CAST(floor(t1 / {DAY_US}) AS BIGINT) AS day, count(*) AS n FROM outputs GROUP BY ALL",
            trusted=True,
        ).to_pylist()
        own = [row for row in rows if row["query"] in self._names]
        by_name, by_day = Counter[str](), Counter[int]()
        for row in own:
            by_name[row["query"]] += row["n"]
            by_day[row["day"]] += row["n"]
        pairs = _pairs(self._engine, self._names) if final else {}
        seen = self._engine.counters()
        result = Backtest(
            documents=seen.documents,
            refused=seen.dead_letters,
            since=self._since,
            until=self._until,
            queries=tuple(
                QueryResult(name, by_name[name], self._paused.get(name), pairs.get(name)) for name in self._names
            ),
            days=tuple((day_text(day), by_day[day]) for day in sorted(by_day)[-MOST_DAYS:]),
            seconds=self.seconds,
            cut_short=cut_short,
        )
        return replace(result, latest=tuple(self._latest())) if own else result

    def _latest(self) -> Iterator[Any]:
        names = ", ".join(map(quote_literal, self._names))
        rows = self._engine.sql(
            f"SELECT * FROM outputs WHERE query IN ({names}) ORDER BY t1 DESC, query, id LIMIT {LATEST}", trusted=True
        )
        for match in shown_outputs(self._engine, outputs_in(rows)):
            long = len(match.output.xml) > LONGEST_XML
            yield replace(match, output=replace(match.output, xml="")) if long else match


def _pairs(engine: Session, names: tuple[str, ...]) -> Mapping[str, float]:
    guess, catalog = estimates(engine), engine.registry.catalog
    found: dict[str, float] = {}
    for name in names:
        queries = engine.registry.named(name)
        if guess is None or any(query.is_events for query in queries):
            continue
        owners: list[Owner] = [*queries, *chain.from_iterable(map(engine.registry.inner_joins, queries))]
        rows = {target.row: target.template for owner in owners for target in owner.targets}
        rarest = (guess.of_row(catalog.templates[rows[row]], catalog.variables_of(row)) for row in rows)
        found[name] = sum(one[0] for one in rarest if one)
    return found


NICE = 10
"""Niceness of the process."""

MORE_MEMORY, MORE_SECONDS = 2 << 30, 30
"""What the system's limits allow beyond the request's: bytes of data, and CPU seconds per core."""

TOO_LARGE = 1.25
"""Multiple of `memory` above which the process ends within a batch."""


def main() -> None:
    """Runs one request. Each output line is a JSON object: a `result` so far; finally `done`, or why the script was
    `refused` or the work `failed`. The arguments identify the parent process."""
    answer = _Answer()
    os.nice(NICE)
    child.end_with_parent(int(sys.argv[1]))
    request = from_json(TrialRequest, json.loads(sys.stdin.buffer.readline()))
    child.lower(resource.RLIMIT_CORE, 0)
    child.lower(resource.RLIMIT_DATA, request.memory + MORE_MEMORY)
    child.lower(resource.RLIMIT_CPU, int(request.seconds + MORE_SECONDS) * (os.cpu_count() or 1))
    child.end_when(partial(_is_too_large, request.memory, answer))
    try:
        with pa.ipc.open_stream(sys.stdin.buffer) as batches:
            for result in try_script(request, iter(batches), time.monotonic, _peak_memory):
                answer.write(result=result.to_dict())
        answer.write(done=True)
    except BrokenPipeError:
        return  # nobody waits any more
    except InputError as error:
        answer.write(refused=str(error).strip())
    except Exception as error:
        answer.write(failed=str(error).strip() or type(error).__name__)


class _Answer:
    """Standard output; any thread may write whole lines."""

    def __init__(self) -> None:
        self._lock, self._file = Lock(), os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # what libraries print is no answer

    def write(self, **found: object) -> None:
        with self._lock:
            print(json.dumps(found), file=self._file, flush=True)


def _is_too_large(memory: int, answer: _Answer) -> bool:
    if _peak_memory() <= memory * TOO_LARGE:
        return False
    answer.write(failed=f"it needed more than {memory >> 20:,} MiB of memory")
    return True


def _peak_memory() -> int:
    """Peak memory in bytes. `getrusage` would count that of the parent, possibly a large service."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


if __name__ == "__main__":
    main()
