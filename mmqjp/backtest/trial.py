"""Runs a script over documents in an engine in memory, and says again and again what was found so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from feeds.document import Document
from mmqjp.answers.stored_outputs import outputs_in
from mmqjp.backtest.result import DAY_US, Backtest, QueryResult, day_text
from mmqjp.explain.estimates import Estimates, estimates
from mmqjp.present.read import MatchReader
from mmqjp.queries.model import Owner, Subscription
from mmqjp.session import Session

DOCUMENTS = pa.schema(
    [("id", pa.string()), ("stream", pa.string()), ("t0", pa.int64()), ("t1", pa.int64()), ("xml", pa.binary())]
)
"""Documents, as a back-test gets them."""

LATEST = 10
"""How many of the last outputs are shown."""

MOST_DAYS = 400
"""The maximum number of days whose outputs are counted one by one: the last ones that have some."""

LONGEST_XML = 100_000
"""Longer output documents are left out of what is shown, in characters."""

FIRST, MOST, LONG = 50, 5_000, 1.0
"""How many documents are processed together at first and at the most, and how many seconds they may take."""

BETWEEN = 1.0
"""The least number of seconds between two reports. They take at most a tenth of the time."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to run: a script, and the texts of registered queries that it reads. `seconds` and `memory`, in bytes, are
    the limits that the work heeds itself."""

    text: str
    publishers: tuple[str, ...]
    seconds: float
    memory: int


def try_script(
    request: Request,
    batches: Iterator[pa.RecordBatch],
    clock: Callable[[], float],
    memory: Callable[[], int],
) -> Iterator[Backtest]:
    """Runs a script over batches of DOCUMENTS. Yields what was found so far, the last time with everything.

    `clock` returns seconds, and `memory` the bytes in use. Raises what `Engine.subscribe` does.
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
            if now - start >= request.seconds:
                yield trial.last_report(f"it took more than {request.seconds:g} s")
                return
            if memory() > request.memory:
                yield trial.last_report(f"it needed more than {request.memory >> 20:,} MiB of memory")
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
    """Cuts batches into parts that take about as long as LONG, going by what the last one took.

    So there is a report soon, and an end in time, also if a few documents take long.
    """
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
    """A script in an engine, and what was counted beside it."""

    def __init__(self, engine: Session, request: Request) -> None:
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
        """Answers event queries, over all documents."""
        self._engine.finish()
        self._paused |= self._engine.take_paused()

    def last_report(self, cut_short: str) -> Backtest:
        """What was found when it ended too soon. Event queries are answered over what was tried."""
        self.finish()
        return self.report(cut_short, final=True)

    def report(self, cut_short: str | None, *, final: bool = False) -> Backtest:
        """What was found so far. Estimates are made at the end only."""
        rows = self._engine.sql(
            f"SELECT query, CAST(floor(t1 / {DAY_US}) AS BIGINT) AS day, count(*) AS n FROM outputs GROUP BY ALL",
            trusted=True,
        ).to_pylist()
        own = [row for row in rows if row["query"] in self._names]
        by_name: dict[str, int] = {}
        by_day: dict[int, int] = {}
        for row in own:
            by_name[row["query"]] = by_name.get(row["query"], 0) + row["n"]
            by_day[row["day"]] = by_day.get(row["day"], 0) + row["n"]
        pairs = _pairs(self._engine, self._names) if final else {}
        seen = self._engine.counters()
        result = Backtest(
            documents=seen.documents,
            refused=seen.dead_letters,
            since=self._since,
            until=self._until,
            queries=tuple(
                QueryResult(name, by_name.get(name, 0), self._paused.get(name), pairs.get(name)) for name in self._names
            ),
            days=tuple((day_text(day), by_day[day]) for day in sorted(by_day)[-MOST_DAYS:]),
            seconds=self.seconds,
            cut_short=cut_short,
        )
        return replace(result, latest=tuple(self._latest())) if own else result

    def _latest(self) -> Iterator[Any]:
        """The last outputs of the script, the newest first; the same ones whatever the batches are."""
        names = ", ".join(_text(name) for name in self._names)
        rows = self._engine.sql(
            f"SELECT * FROM outputs WHERE query IN ({names}) ORDER BY t1 DESC, query, id LIMIT {LATEST}", trusted=True
        )
        for match in MatchReader(self._engine).matches(outputs_in(rows)):
            long = len(match.output.xml) > LONGEST_XML
            yield replace(match, output=replace(match.output, xml="")) if long else match


def _pairs(engine: Session, names: tuple[str, ...]) -> Mapping[str, float]:
    """The pairs that a new document is expected to bring for the rarest joins of the queries of each name that is one
    of queries over documents."""
    guess = estimates(engine)
    if guess is None:
        return {}
    named = {name: engine.registry.named(name) for name in names}
    return {
        name: _pairs_of(engine, guess, queries)
        for name, queries in named.items()
        if not any(query.is_events for query in queries)
    }


def _pairs_of(engine: Session, guess: Estimates, queries: list[Subscription]) -> float:
    owners: list[Owner] = [*queries]
    for query in queries:
        owners += engine.registry.inner_joins(query)
    rows = {target.row: target.template for owner in owners for target in owner.targets}
    found = 0.0
    for row, template in rows.items():
        rarest = guess.of_row(engine.catalog.templates[template], engine.catalog.variables_of(row))
        found += rarest[0] if rarest else 0.0
    return found


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
