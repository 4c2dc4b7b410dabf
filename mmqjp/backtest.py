"""Back-tests: prepares a script, selects its documents, runs it in a process of its own, and words the result.
Preparation finds the registered queries and external streams that the script reads, and what it would add to those
registered. Documents come in order of arrival, from a store or a reader, and go to the process's standard input; it is
killed on timeout or cancellation. The process (python -m mmqjp.backtest) runs the script in an in-memory engine, limits
its own time and memory, and writes reports as lines of JSON; the last is complete."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date, timedelta
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from threading import Event, Lock, Thread
from typing import IO, Any

import pyarrow as pa

from common import child
from common.arrays import batch_of_rows, rows_of
from common.dates import DAY
from common.errors import InputError, OperationalError
from common.tools import JsonRecord, from_json, in_batches, reachable
from feeds.documents import VISITS_STREAM, Document, Reject, SourceItem, Visit, with_visit_documents
from feeds.history import size_of
from join_stage.store.protocol import QuestionInterrupted
from mmqjp.answers.fan_out import outputs_in
from mmqjp.engine import Session
from mmqjp.explain.plan import estimates
from mmqjp.present.item import ShownMatch, TimeFormat
from mmqjp.present.newest import shown_outputs
from mmqjp.present.why_not import QueryFunnels, query_funnel
from mmqjp.process import pluralise
from mmqjp.queries.model import EventSubscription, Owner, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.queries.stored import CompiledEvents, definition_text
from mmqjp.tables.lookup import SelectFn, quote_literal
from mmqjp.tables.schema import HIDDEN_SEQS, INT, TEXT, schema
from templates.catalog import needs_of
from xscl.algebra.joins import Conjunct
from xscl.check_expressions import blocks
from xscl.event_lower import schemas_of
from xscl.lower import normalize
from xscl.parser import parse_script
from xscl.syntax import Script, names_read

BACKTEST_SECONDS, MEMORY = 60.0, 1 << 30  # limits of a back-test, in seconds and bytes
RECENT_DAYS, FEWEST_TIMED = 30, 500
"""Days over which daily outputs are averaged, and documents below which there is no timing: startup dominates."""


def day_text(number: int) -> str:
    """Formats a day, counted from 1970, as `2026-01-31`; clamps to the calendar's range."""
    first, last, epoch = (day.toordinal() for day in (date.min, date.max, date(1970, 1, 1)))
    return date.fromordinal(min(max(number + epoch, first), last)).isoformat()


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of the queries of a name. `paused` is the reason if they exceeded their quota. `pairs` is the expected
    number of node pairs per new document for the rarest value join of each row of R_T; None if unknown."""

    name: str
    outputs: int = 0
    paused: str | None = None
    pairs: float | None = None


@dataclass(frozen=True, slots=True)
class Novelty:
    """What a script needs and how much of it is new: patterns of stage 1, templates, rows of R_T, event definitions,
    and event queries (those that differ in name only count once).

    `same_event_queries` are registered too, but their results depend on when they first saw events: they run for the
    script alone and count neither as new nor as shared.
    """

    patterns: int = 0
    new_patterns: int = 0
    templates: int = 0
    new_templates: int = 0
    rows: int = 0
    new_rows: int = 0
    definitions: int = 0
    new_definitions: int = 0
    event_queries: int = 0
    new_event_queries: int = 0
    same_event_queries: int = 0

    @property
    def is_shared(self) -> bool:
        joins = self.new_patterns or self.new_templates or self.new_rows
        return not (joins or self.new_definitions or self.new_event_queries or self.same_event_queries)


@dataclass(frozen=True, slots=True)
class Backtest:
    """The result of a back-test.

    `documents` were tried, of `kept` on the script's streams; `refused` were unreadable. They begin from `since` to
    `until`, in microseconds. `queries` has a result per name, `days` the outputs by UTC day of their end
    (`2026-01-31`), and `latest` the last outputs, newest first. `seconds` is the engine's time. `publishers` are
    registered queries run along because the script reads them. `cut_short` says why not all documents were tried, or
    None. `funnels` say what is in the way of each name without outputs.
    """

    documents: int = 0
    kept: int = 0
    refused: int = 0
    since: int | None = None
    until: int | None = None
    queries: tuple[QueryResult, ...] = ()
    days: tuple[tuple[str, int], ...] = ()
    latest: tuple[ShownMatch, ...] = ()
    seconds: float = 0.0
    publishers: tuple[str, ...] = ()
    novelty: Novelty = field(default_factory=Novelty)
    cut_short: str | None = None
    funnels: tuple[QueryFunnels, ...] = ()

    @property
    def outputs(self) -> int:
        return sum(query.outputs for query in self.queries)

    @property
    def recent_days(self) -> int:
        """Days that `outputs_a_day` averages over: at most RECENT_DAYS, since feed entries may be far older."""
        if self.since is None or self.until is None:
            return 0
        return min(self.until // DAY - self.since // DAY + 1, RECENT_DAYS)

    @property
    def outputs_a_day(self) -> float:
        """Average over the `recent_days`."""
        if self.until is None:
            return 0.0
        first = day_text(self.until // DAY - self.recent_days + 1)
        return sum(count for day, count in self.days if day >= first) / self.recent_days

    @property
    def milliseconds(self) -> float | None:
        """Milliseconds per 1,000 documents; None if too few were tried."""
        return 1_000_000 * self.seconds / self.documents if self.documents >= FEWEST_TIMED else None

    def to_dict(self) -> dict[str, Any]:
        computed = ("outputs", "outputs_a_day", "recent_days", "milliseconds")
        return {
            **asdict(replace(self, latest=())),
            **{name: getattr(self, name) for name in computed},
            "days": [{"day": day, "outputs": count} for day, count in self.days],
            "novelty": asdict(self.novelty) | {"is_shared": self.novelty.is_shared},
            "latest": [match.to_dict() for match in self.latest],
        }

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Backtest:
        latest = tuple(map(ShownMatch.from_dict, found["latest"]))
        return replace(from_json(Backtest, {**found, "latest": ()}), latest=latest)


DOCUMENTS = schema(id=TEXT, stream=TEXT, t0=INT, t1=INT, xml=pa.binary(), feed=TEXT, outcome=TEXT)
"""Documents, and visits of feeds, which have an `outcome`; at `t0`."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A script, and texts of registered queries that it reads, with limits in seconds and bytes for the process."""

    text: str
    publishers: tuple[str, ...]
    seconds: float = BACKTEST_SECONDS
    memory: int = MEMORY


MOST_DOCUMENTS, MOST_CHARACTERS = 100_000, 256 << 20
"""Maximum number of documents, and of characters of XML, tried of a store: the newest."""

PAGE_DOCUMENTS, PAGE_CHARACTERS = 1_000, 4 << 20  # maximum size of a page that is read and sent
MOST_STREAMS = 100  # with more streams, documents are not filtered by stream
_PLAIN = re.compile(r"[\w.-]+")  # names that need no quoting in any SQL dialect


@dataclass(frozen=True, slots=True)
class BacktestDocuments:
    """A store's documents: `batches` yields the newest `chosen` of `total` on the streams."""

    total: int
    chosen: int
    batches: Iterator[pa.RecordBatch]


def select_newest_documents(
    ask: SelectFn, streams: Collection[str], most: int, most_characters: int
) -> BacktestDocuments:
    """Returns the newest external documents of some streams, at most `most` and `most_characters`. Batches are read
    lazily; documents pruned meanwhile are missing. Raises what `ask` does."""
    wanted = "kind = 'external'"
    if len(streams) <= MOST_STREAMS and all(map(_PLAIN.fullmatch, streams)):
        names = ", ".join(f"'{stream}'" for stream in sorted(streams))
        wanted += f" AND stream IN ({names or 'NULL'})"
    (total,) = ask(f"SELECT count(*) AS n FROM documents WHERE {wanted}")["n"].to_pylist()
    newest = f"SELECT docid FROM documents WHERE {wanted} ORDER BY docid DESC LIMIT {most}"
    (first,) = ask(f"SELECT min(docid) AS first FROM ({newest})")["first"].to_pylist()
    if first is None:
        return BacktestDocuments(total, 0, iter(()))
    those = f"documents WHERE {wanted} AND docid >= {first}"
    rows = ask(f"SELECT docid, length(xml) AS size FROM {those} ORDER BY docid DESC")
    chosen = next(in_batches(rows.to_pylist(), most, most_characters, itemgetter("size")), [])

    def batches() -> Iterator[pa.RecordBatch]:
        # The docids of external documents are in the order of their arrival.
        for page in in_batches(reversed(chosen), PAGE_DOCUMENTS, PAGE_CHARACTERS, itemgetter("size")):
            among = f"{wanted} AND docid >= {page[0]['docid']} AND docid <= {page[-1]['docid']}"
            columns = "id, stream, t0, t1, xml, '' AS feed, '' AS outcome"
            found = ask(f"SELECT {columns} FROM documents WHERE {among} ORDER BY docid")
            yield from found.cast(DOCUMENTS).to_batches()

    return BacktestDocuments(total, len(chosen), batches())


def read_batches(items: Iterable[SourceItem], streams: Collection[str], seen: Counter[str]) -> Iterator[pa.RecordBatch]:
    """Counts the documents that are `given`, and what is `refused`."""

    def wanted() -> Iterator[Document | Visit]:
        for item in with_visit_documents(items):
            if isinstance(item, Reject):
                seen["refused"] += 1
            elif item.stream in streams or (isinstance(item, Visit) and VISITS_STREAM in streams):
                seen["given"] += isinstance(item, Document)
                yield item

    for batch in in_batches(wanted(), PAGE_DOCUMENTS, PAGE_CHARACTERS, size_of):
        yield batch_of_rows(map(_row, batch), DOCUMENTS)


def _row(item: Document | Visit) -> tuple[object, ...]:
    if isinstance(item, Visit):
        return "", item.stream, item.time, item.time, b"", item.feed, item.outcome
    return item.id, item.stream, item.t0, item.t1, item.xml_bytes(), item.feed, ""


def items_of(batch: pa.RecordBatch) -> Iterator[Document | Visit]:
    for id, stream, t0, t1, xml, feed, outcome in rows_of(batch, *DOCUMENTS.names):
        yield Visit(feed, t0, outcome, stream) if outcome else Document(id, xml, stream, (t0, t1), feed=feed or "")


MOST_QUERIES = 1_000  # maximum number of queries in a back-test


class TooManyQueries(InputError, ValueError):
    """A script exceeds the maximum number of queries of a back-test."""


@dataclass(frozen=True, slots=True)
class PreparedScript(JsonRecord):
    """A script's text, names and texts of the registered queries that it reads, and the external streams to read.
    `novelty` is what it adds to those registered."""

    text: str
    publishers: tuple[tuple[str, str], ...]
    streams: frozenset[str]
    novelty: Novelty

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"streams": sorted(self.streams)}


def prepared(text: str, registry: Registry) -> PreparedScript:
    """Prepares a script without changing `registry`; thread-safe. Queries that the script PUBLISHes replace registered
    ones of the same name. Raises XsclErrors, TooManyQueries."""
    script = parse_script(text, events=registry.events.streams())
    count = len(script.queries) + len(script.event_queries)
    if count > MOST_QUERIES:
        cause = f"the script has {count:,} queries, and a back-test tries {MOST_QUERIES:,}"
        raise TooManyQueries(f"{cause}: leave some out")
    publishers, definitions = dict[Subscription, None](), dict[str, str]()
    made = script.published() | {definition.name for definition in script.definitions}
    outside: set[str] = set()

    def behind(stream: str) -> set[str]:
        if stream in made:
            return set()
        if (definition := registry.events.definitions.get(stream)) is not None:
            definitions[definition.name] = definition.text
            return {definition.pattern.stream}
        makers = [query for query in registry.named(stream) if query.publishes]
        if not makers:
            outside.add(stream)
        active = [query for query in makers if query.active]
        publishers.update(dict.fromkeys(active))
        events = [set(registry.events.reads(q)) for q in active if isinstance(q, EventSubscription)]
        joins = (parse_script(q.text, stored=True) for q in active if not q.is_events)
        return set().union(*events, *map(_streams_read, joins))

    reachable(_streams_read(script), behind)
    # Definitions come before event queries, which are one script.
    texts = [*definitions.items(), *((one.name, one.text) for one in publishers if not one.is_events)]
    if events := [one for one in publishers if one.is_events]:
        texts.append((", ".join(dict.fromkeys(one.name for one in events)), ";\n".join(one.text for one in events)))
    return PreparedScript(text, tuple(texts), frozenset(outside), _novelty(script, registry))


def _streams_read(script: Script) -> set[str]:
    read = {block.stream for query in script.queries for block in blocks(query.source)}
    read |= {definition.block.stream for definition in script.definitions}
    return read | {name.name for query in script.event_queries for name in names_read(query.stream)}


def _novelty(script: Script, registry: Registry) -> Novelty:
    namespaces = dict(script.namespaces)
    conjuncts = [c for query in script.queries for c in _all(normalize(query, namespaces).conjuncts)]
    needs = needs_of(registry.catalog, conjuncts)
    counts = ((len(some), sum(some.values())) for some in (needs.patterns, needs.templates, needs.rows))
    return Novelty(*chain(*counts, _new_events(script, registry)))


def _new_events(script: Script, registry: Registry) -> tuple[int, int, int, int, int]:
    """Counts definitions, new ones, forms of event queries, new ones, and those registered as of another time."""
    if not script.has_events:
        return 0, 0, 0, 0, 0
    known = {name: one.text for name, one in registry.events.definitions.items()}
    new = [one for one in script.definitions if known.get(one.name) != definition_text(one, script)]
    schemas = schemas_of(script, registry.events.streams())
    compiled = (CompiledEvents(query, schemas) for query in script.event_queries)
    forms = {one.form_id: one.stream for one in compiled}
    others = [stream for form, stream in forms.items() if registry.form(form) is None]
    same = sum(registry.events.runs(stream) for stream in others)
    return len(script.definitions), len(new), len(forms), len(others) - same, same


def _all(conjuncts: tuple[Conjunct, ...]) -> Iterator[Conjunct]:
    for conjunct in conjuncts:
        yield conjunct
        for side in conjunct.sides():
            if side.hidden is not None:
                yield from _all(side.hidden.conjuncts)


OWN_SHARE = 0.9  # fraction of its time after which the process stops by itself, between two batches
POLL = 0.05  # seconds between two polls of the process

WORKER = (sys.executable, "-P", "-m", "mmqjp.backtest")
"""Command of the process. Nothing in the working directory is imported."""

_one_at_a_time = Lock()


class BacktestRefused(InputError, ValueError):
    """A script that cannot be run; the message says why."""


class BacktestFailed(OperationalError, RuntimeError):
    """A back-test without a result; the message says why."""


def run_process(
    request: TrialRequest,
    batches: Iterable[pa.RecordBatch],
    *,
    stop: Event | None = None,
    clock: Callable[[], float] = time.monotonic,
    command: Sequence[str] = WORKER,
) -> Backtest:
    """Runs a request over batches of DOCUMENTS, which another thread reads.

    If it exceeds `request.seconds`, or its process is killed, the result is the last progress report, cut short. Runs
    are serialized within this process. `stop` cancels.

    Raises BacktestRefused, BacktestFailed, QuestionInterrupted if cancelled, and what iterating `batches` raises.
    """
    stop = stop or Event()
    while not _one_at_a_time.acquire(timeout=POLL):
        _check_wanted(stop)
    try:
        return _Running(request, batches, clock, command).result(stop)
    finally:
        _one_at_a_time.release()


def _check_wanted(stop: Event) -> None:
    if stop.is_set():
        raise QuestionInterrupted("nobody waits for the back-test any more")


class _Running:
    def __init__(
        self, request: TrialRequest, batches: Iterable[pa.RecordBatch], clock: Callable[[], float], argv: Sequence[str]
    ) -> None:
        self._request, self._batches, self._clock = request, batches, clock
        self._start = clock()
        self._reported: Backtest | None = None
        self._refused: str | None = None
        self._failed: str | None = None
        self._done = self._over = False
        self._unread: BaseException | None = None
        self._process = child.start([*argv, str(os.getpid())])
        assert self._process.stdin is not None and self._process.stdout is not None
        self._writer = Thread(target=self._write, args=(self._process.stdin,), name="mmqjp back-test", daemon=True)
        self._reader = Thread(target=self._read, args=(self._process.stdout,), name="mmqjp back-test", daemon=True)

    def result(self, stop: Event) -> Backtest:
        """Waits for the result and the end of the process."""
        self._writer.start()
        self._reader.start()
        late = False
        try:
            while self._reader.is_alive() and not stop.is_set() and self._unread is None:
                late = self._clock() - self._start >= self._request.seconds
                if late:
                    break
                self._reader.join(POLL)
        finally:
            self._over = True
            status = self._process.poll() if self._reader.is_alive() else self._process.wait()
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._writer.join()
        return self._outcome(stop, late=late, status=status)

    def _outcome(self, stop: Event, *, late: bool, status: int | None) -> Backtest:
        if self._refused is not None:
            raise BacktestRefused(self._refused)
        if self._unread is not None:
            raise self._unread
        _check_wanted(stop)
        if self._done and self._reported is not None:
            return self._reported
        why = self._failed or f"its process ended (status {status})"
        if late and self._failed is None:
            why = f"it took more than {self._request.seconds:g} s"
        if self._reported is None:
            raise BacktestFailed(f"the back-test has no result: {why} before the first documents were done")
        return replace(self._reported, cut_short=why)

    def _write(self, pipe: IO[bytes]) -> None:
        asked = asdict(replace(self._request, seconds=self._request.seconds * OWN_SHARE))
        try:
            with suppress(BrokenPipeError), pipe:  # its end tells more
                pipe.write(json.dumps(asked).encode() + b"\n")
                with pa.ipc.new_stream(pipe, DOCUMENTS) as stream:
                    for batch in self._batches:
                        if self._over:
                            return
                        stream.write_batch(batch)
        except BaseException as error:  # whoever asked gets it
            if not self._over:
                self._unread = error

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                try:
                    found = json.loads(line)
                except ValueError:
                    return  # the process was killed while it wrote
                if "result" in found:
                    self._reported = Backtest.from_dict(found["result"])
                self._done = "done" in found
                self._refused, self._failed = found.get("refused"), found.get("failed")


def backtest_store(
    script: PreparedScript, ask: SelectFn, stop: Event, most: int = MOST_DOCUMENTS, characters: int = MOST_CHARACTERS
) -> Backtest:
    """Back-tests over a store's newest documents. `stop` cancels. Raises what `run_process` and `ask` do."""
    kept = select_newest_documents(ask, script.streams, most, characters)
    found = _run(script, kept.batches, stop)
    cut = found.cut_short
    if cut is None and kept.chosen < kept.total:
        cut = f"only the newest {kept.chosen:,} documents are tried"
    return replace(found, kept=kept.total, cut_short=cut)


def backtest_documents(script: PreparedScript, items: Iterable[SourceItem]) -> Backtest:
    """Back-tests over documents and visits as they are read. Raises what `run_process` does."""
    seen = Counter[str]()
    found = _run(script, read_batches(items, script.streams, seen))
    return replace(found, kept=seen["given"], refused=found.refused + seen["refused"])


def _run(script: PreparedScript, batches: Iterable[pa.RecordBatch], stop: Event | None = None) -> Backtest:
    found = run_process(TrialRequest(script.text, tuple(text for _, text in script.publishers)), batches, stop=stop)
    names = tuple(dict.fromkeys(name for name, _ in script.publishers))
    return replace(found, novelty=script.novelty, publishers=names)


def summary(result: Backtest, clock: TimeFormat) -> Iterator[str]:
    of = f" of {result.kept:,}" if result.kept > result.documents else ""
    times = ""
    if result.since is not None and result.until is not None:
        times = f", from {clock.minute(result.since)} to {clock.minute(result.until)} {clock.zone_at(result.until)}"
    refused = f"; {result.refused:,} could not be read" if result.refused else ""
    yield f"tried on {pluralise(result.documents, 'document')}{of}{times}{refused}"
    if result.publishers:
        yield f"together with the registered queries that it reads: {', '.join(result.publishers)}"
    if result.cut_short is not None:
        yield f"cut short: {result.cut_short}"
    yield f"{pluralise(result.outputs, 'output')}" + (f"; {a_day(result)}" if result.documents else "")
    yield novelty(result.novelty)
    if result.milliseconds is not None:
        yield f"1,000 documents take {result.milliseconds:,.0f} ms"


DAYS = 60  # number of days shown, up to that of the last output


def days_of(trial: Backtest) -> list[tuple[str, int]]:
    """Returns the last DAYS days with their outputs; none if there was no output."""
    found = dict(trial.days)
    last = date.fromisoformat(max(found)) if found else date.min
    days = (str(last - timedelta(days=back)) for back in reversed(range(DAYS if found else 0)))
    return [(day, found.get(day, 0)) for day in days]


def a_day(result: Backtest) -> str:
    return f"{result.outputs_a_day:,.1f} a day in the last {pluralise(result.recent_days, 'day')}"


def novelty(found: Novelty) -> str:
    if found.is_shared:
        return "nothing new: registered queries have the same patterns and joins, and it costs only its outputs"
    joins = (
        (found.new_patterns, found.patterns, "pattern", "patterns"),
        (found.new_templates, found.templates, "template", "templates"),
        (found.new_rows, found.rows, "row", "rows"),
    )
    events = (
        (found.new_definitions, found.definitions, "definition", "definitions"),
        (found.new_event_queries, found.event_queries, "event query", "event queries"),
    )
    same = ""
    if found.same_event_queries:
        count = pluralise(found.same_event_queries, "event query", "event queries")
        same = f"; {count} would not share the work of the same one, whose results depend on since when it sees events"
    has_events = found.definitions or found.event_queries
    parts = joins * bool(found.rows or not has_events) + events * bool(has_events)
    return "new: " + ", ".join(f"{new:,} of {pluralise(all, *noun)}" for new, all, *noun in parts) + same


LATEST, MOST_DAYS, LONGEST_XML, MOST_FUNNELS = 10, 400, 100_000, 10
"""Outputs shown, the last days with outputs that are counted one by one, the longest document shown, in characters, and
names without outputs of which the funnel is shown."""

FIRST, MOST, LONG = 50, 5_000, 1.0  # first and maximum number of documents per part, and its target seconds

BETWEEN = 1.0  # minimum seconds between two reports, which take at most a tenth of the time


def try_script(
    request: TrialRequest, batches: Iterator[pa.RecordBatch], clock: Callable[[], float], memory: Callable[[], int]
) -> Iterator[Backtest]:
    """Runs a script over batches of DOCUMENTS. Yields progress reports; the last is complete.

    `clock` returns seconds, `memory` bytes in use. Raises what `Engine.subscribe` does.
    """
    start = reported = clock()
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
            if now - reported >= BETWEEN and now - reported >= 10 * trial.report_seconds:
                found = trial.report(None)
                reported = clock()
                trial.report_seconds = reported - now
                yield found
        begun = clock()
        trial.finish()
        trial.seconds += clock() - begun
        yield trial.report(None, final=True)


def _in_parts(batches: Iterator[pa.RecordBatch], trial: _Trial) -> Iterator[pa.RecordBatch]:
    """Cuts batches into parts of about LONG seconds, by the last one's pace: reports and the end come in time."""
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


_SHOWN = f"(SELECT * FROM outputs WHERE seq NOT IN ({HIDDEN_SEQS}))"


class _Trial:
    def __init__(self, engine: Session, request: TrialRequest) -> None:
        self._engine = engine
        for text in request.publishers:
            engine.subscribe(text, add=True)
        names, named = dict.fromkeys(engine.subscribe(request.text)), engine.registry.named
        self._names = tuple(name for name in names if not all(query.is_hidden for query in named(name)))
        self._paused: dict[str, str] = {}
        self._since: int | None = None
        self._until: int | None = None
        self.seconds = self.took = self.report_seconds = 0.0

    def process(self, batch: pa.RecordBatch) -> None:
        items = list(items_of(batch))
        self._engine.process(items)
        self._paused |= self._engine.take_paused()
        for one in items:
            if isinstance(one, Document):
                self._since = one.t0 if self._since is None else min(self._since, one.t0)
                self._until = one.t1 if self._until is None else max(self._until, one.t1)

    def finish(self) -> None:
        self._engine.finish()
        self._paused |= self._engine.take_paused()

    def report(self, cut_short: str | None, *, final: bool = False) -> Backtest:
        """Estimates are computed in the final report only."""
        sql = f"SELECT query, CAST(floor(t1 / {DAY}) AS BIGINT) AS day, count(*) AS n FROM {_SHOWN} GROUP BY ALL"
        rows = self._engine.sql(sql, trusted=True).to_pylist()
        own = [row for row in rows if row["query"] in self._names]
        by_name, by_day = Counter[str](), Counter[int]()
        for row in own:
            by_name[row["query"]] += row["n"]
            by_day[row["day"]] += row["n"]
        pairs = _pairs(self._engine, self._names) if final else {}
        without = [name for name in self._names if final and not by_name[name]][:MOST_FUNNELS]
        seen, paused = self._engine.counters(), self._paused
        results = (QueryResult(name, by_name[name], paused.get(name), pairs.get(name)) for name in self._names)
        result = Backtest(
            documents=seen.documents,
            refused=seen.dead_letters,
            since=self._since,
            until=self._until,
            queries=tuple(results),
            days=tuple((day_text(day), by_day[day]) for day in sorted(by_day)[-MOST_DAYS:]),
            seconds=self.seconds,
            cut_short=cut_short,
            funnels=tuple(query_funnel(partial(self._engine.sql, trusted=True), name) for name in without),
        )
        return replace(result, latest=tuple(self._latest())) if own else result

    def _latest(self) -> Iterator[Any]:
        names = ", ".join(map(quote_literal, self._names))
        sql = f"SELECT * FROM {_SHOWN} WHERE query IN ({names}) ORDER BY t1 DESC, query, id LIMIT {LATEST}"
        rows = self._engine.sql(sql, trusted=True)
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


NICE = 10  # niceness of the process

MORE_MEMORY, MORE_SECONDS = 2 << 30, 30
"""What the system's limits allow beyond the request's: bytes of data, and CPU seconds per core."""

TOO_LARGE = 1.25  # multiple of `memory` above which the process ends within a batch


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
        os.dup2(2, 1)  # what libraries print is not an answer

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
