"""Back-tests: prepares a script, selects its documents, runs it in a process of its own, and words the result.
Preparation finds the registered queries and external streams that the script reads, and what it would add to those
registered. Documents come in order of arrival, from a store or a reader, and go to the process's standard input; it is
killed on timeout or cancellation."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from operator import itemgetter
from threading import Event, Lock, Thread
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from common import child
from common.arrays import batch_of_rows
from common.errors import InputError, OperationalError
from common.tools import JsonRecord, from_json, in_batches, reachable
from feeds.documents import Document, Reject
from join_stage.store.protocol import Question, QuestionInterrupted
from mmqjp.present.item import ShownMatch, TimeFormat
from mmqjp.process import pluralise
from mmqjp.queries.compile import CompiledEvents, definition_text
from mmqjp.queries.model import Subscription
from mmqjp.queries.registry import Registry
from templates.catalog import needs_of
from xscl.algebra.joins import Conjunct
from xscl.check_events import schemas_of
from xscl.check_expressions import blocks
from xscl.lower import normalize
from xscl.parser import parse_script
from xscl.syntax import Script, names_read

if TYPE_CHECKING:
    from mmqjp.engine import Session

DAY_US = 86_400_000_000
"""Microseconds per day."""

RECENT_DAYS = 30
"""Days over which daily outputs are averaged."""

FEWEST_TIMED = 500
"""Fewer documents give no timing: startup dominates."""


def day_text(number: int) -> str:
    """Formats a day, counted from 1970, as `2026-01-31`; clamps to the calendar's range."""
    first, last = date.min.toordinal(), date.max.toordinal()
    return date.fromordinal(min(max(number + _EPOCH, first), last)).isoformat()


_EPOCH = date(1970, 1, 1).toordinal()


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
    None.
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

    @property
    def outputs(self) -> int:
        return sum(query.outputs for query in self.queries)

    @property
    def recent_days(self) -> int:
        """Days that `outputs_a_day` averages over: at most RECENT_DAYS, since feed entries may be far older."""
        if self.since is None or self.until is None:
            return 0
        return min(self.until // DAY_US - self.since // DAY_US + 1, RECENT_DAYS)

    @property
    def outputs_a_day(self) -> float:
        """Average over the `recent_days`."""
        if self.until is None:
            return 0.0
        first = day_text(self.until // DAY_US - self.recent_days + 1)
        return sum(count for day, count in self.days if day >= first) / self.recent_days

    @property
    def milliseconds(self) -> float | None:
        """Milliseconds per 1,000 documents; None if too few were tried."""
        return 1_000_000 * self.seconds / self.documents if self.documents >= FEWEST_TIMED else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "documents": self.documents,
            "kept": self.kept,
            "refused": self.refused,
            "since": self.since,
            "until": self.until,
            "outputs": self.outputs,
            "outputs_a_day": self.outputs_a_day,
            "recent_days": self.recent_days,
            "milliseconds": self.milliseconds,
            "seconds": self.seconds,
            "queries": [asdict(query) for query in self.queries],
            "days": [{"day": day, "outputs": count} for day, count in self.days],
            "novelty": asdict(self.novelty) | {"is_shared": self.novelty.is_shared},
            "publishers": list(self.publishers),
            "latest": [match.to_dict() for match in self.latest],
            "cut_short": self.cut_short,
        }

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Backtest:
        latest = tuple(map(ShownMatch.from_dict, found["latest"]))
        return replace(from_json(Backtest, {**found, "latest": ()}), latest=latest)


DOCUMENTS = pa.schema(
    [("id", pa.string()), ("stream", pa.string()), ("t0", pa.int64()), ("t1", pa.int64()), ("xml", pa.binary())]
)


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A script, and the texts of registered queries that it reads. `seconds` and `memory`, in bytes, are limits that
    the process enforces itself."""

    text: str
    publishers: tuple[str, ...]
    seconds: float
    memory: int


MOST_DOCUMENTS, MOST_CHARACTERS = 100_000, 256 << 20
"""Maximum number of documents, and of characters of XML, tried of a store: the newest."""

PAGE_DOCUMENTS, PAGE_CHARACTERS = 1_000, 4 << 20
"""Maximum size of a page that is read and sent."""

MOST_STREAMS = 100
"""With more streams, documents are not filtered by stream."""

_PLAIN = re.compile(r"[\w.-]+")
"""Names that need no quoting in any SQL dialect."""

_RunSql = Callable[[str], pa.Table]


@dataclass(frozen=True, slots=True)
class BacktestDocuments:
    """A store's documents: `batches` yields the newest `chosen` of `total` on the streams."""

    total: int
    chosen: int
    batches: Iterator[pa.RecordBatch]


def select_newest_documents(
    ask: _RunSql, streams: Collection[str], most: int = MOST_DOCUMENTS, most_characters: int = MOST_CHARACTERS
) -> BacktestDocuments:
    """Returns the newest external documents of some streams, at most `most` and `most_characters`. Batches are read
    lazily; documents pruned meanwhile are missing. Raises what `ask` does."""
    wanted = "kind = 'external'"
    if len(streams) <= MOST_STREAMS and all(map(_PLAIN.fullmatch, streams)):
        names = ", ".join(f"'{stream}'" for stream in sorted(streams))
        wanted += f" AND stream IN ({names or 'NULL'})"
    (total,) = ask(f"SELECT count(*) AS n FROM documents WHERE {wanted}")["n"].to_pylist()
    (first,) = ask(
        f"SELECT min(docid) AS first FROM (SELECT docid FROM documents WHERE {wanted} ORDER BY docid DESC LIMIT {most})"
    )["first"].to_pylist()
    if first is None:
        return BacktestDocuments(total, 0, iter(()))
    rows = ask(
        f"SELECT docid, length(xml) AS size FROM documents WHERE {wanted} AND docid >= {first} ORDER BY docid DESC"
    )
    chosen = next(in_batches(rows.to_pylist(), most, most_characters, itemgetter("size")), [])
    pages = in_batches(reversed(chosen), PAGE_DOCUMENTS, PAGE_CHARACTERS, itemgetter("size"))
    return BacktestDocuments(
        total, len(chosen), _read_pages(ask, wanted, ((page[0]["docid"], page[-1]["docid"]) for page in pages))
    )


def _read_pages(ask: _RunSql, wanted: str, pages: Iterable[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
    # The docids of external documents are in the order of their arrival.
    for first, last in pages:
        found = ask(
            f"SELECT {', '.join(DOCUMENTS.names)} FROM documents "
            f"WHERE {wanted} AND docid >= {first} AND docid <= {last} ORDER BY docid"
        )
        yield from found.cast(DOCUMENTS).to_batches()


def read_batches(
    documents: Iterable[Document | Reject], streams: Collection[str], refuse: Callable[[], object]
) -> Iterator[pa.RecordBatch]:
    def wanted() -> Iterator[Document]:
        for document in documents:
            if isinstance(document, Reject):
                refuse()
            elif document.stream in streams:
                yield document

    for batch in in_batches(wanted(), PAGE_DOCUMENTS, PAGE_CHARACTERS, lambda document: len(document.xml)):
        yield batch_of_rows(((one.id, one.stream, one.t0, one.t1, one.xml_bytes()) for one in batch), DOCUMENTS)


MOST_QUERIES = 1_000
"""Maximum number of queries in a back-test."""


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
        raise TooManyQueries(
            f"the script has {count:,} queries, and a back-test tries {MOST_QUERIES:,}: leave some out"
        )
    publishers: dict[Subscription, None] = {}
    definitions: dict[str, str] = {}
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
        return set().union(*(registry.events.reads(q) if q.is_events else _streams_of(q.text) for q in active))

    reachable(_streams_read(script), behind)
    return PreparedScript(text, tuple(_texts(publishers, definitions)), frozenset(outside), _novelty(script, registry))


def _texts(publishers: Iterable[Subscription], definitions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields names and texts: definitions before event queries, each as one script."""
    yield from definitions.items()
    yield from ((one.name, one.text) for one in publishers if not one.is_events)
    if events := [one for one in publishers if one.is_events]:
        names = ", ".join(dict.fromkeys(one.name for one in events))
        yield names, ";\n".join(one.text for one in events)


def _streams_of(text: str) -> set[str]:
    return _streams_read(parse_script(text, stored=True))


def _streams_read(script: Script) -> set[str]:
    read = {block.stream for query in script.queries for block in blocks(query.source)}
    read |= {definition.block.stream for definition in script.definitions}
    return read | {name.name for query in script.event_queries for name in names_read(query.stream)}


def _novelty(script: Script, registry: Registry) -> Novelty:
    namespaces = dict(script.namespaces)
    conjuncts = [c for query in script.queries for c in _all(normalize(query, namespaces).conjuncts)]
    needs = needs_of(registry.catalog, conjuncts)
    return Novelty(
        len(needs.patterns),
        sum(needs.patterns.values()),
        len(needs.templates),
        sum(needs.templates.values()),
        len(needs.rows),
        sum(needs.rows.values()),
        *_new_events(script, registry),
    )


def _new_events(script: Script, registry: Registry) -> tuple[int, int, int, int, int]:
    """Counts definitions, new ones, forms of event queries, new ones, and those registered as of another time."""
    if not script.has_events:
        return 0, 0, 0, 0, 0
    known = registry.events.definitions
    new = [
        one
        for one in script.definitions
        if one.name not in known or known[one.name].text != definition_text(one, script)
    ]
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


BACKTEST_SECONDS, MEMORY = 60.0, 1 << 30
"""Default limits, in seconds and bytes."""

OWN_SHARE = 0.9
"""Fraction of its time after which the process stops by itself, between two batches."""

POLL = 0.05
"""Seconds between two polls of the process."""

WORKER = (sys.executable, "-P", "-m", "mmqjp.backtest.process")
"""Command of the process. Nothing in the working directory is imported."""

_one_at_a_time = Lock()


class BacktestRefused(InputError, ValueError):
    """A script that cannot be run; the message says why."""


class BacktestFailed(OperationalError, RuntimeError):
    """A back-test without a result; the message says why."""


class BacktestEnded(OperationalError, RuntimeError):
    """A cancelled back-test."""


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

    Raises BacktestRefused, BacktestFailed, BacktestEnded, and what iterating `batches` raises.
    """
    ended = Event() if stop is None else stop
    while not _one_at_a_time.acquire(timeout=POLL):
        if ended.is_set():
            raise BacktestEnded("nobody waits for the back-test any more")
    try:
        return _Running(request, batches, clock, command).result(ended)
    finally:
        _one_at_a_time.release()


class _Running:
    def __init__(
        self,
        request: TrialRequest,
        batches: Iterable[pa.RecordBatch],
        clock: Callable[[], float],
        command: Sequence[str],
    ) -> None:
        self._request, self._batches, self._clock = request, batches, clock
        self._start = clock()
        self._reported: Backtest | None = None
        self._refused: str | None = None
        self._failed: str | None = None
        self._done = False
        self._unread: BaseException | None = None
        self._over = False
        self._process = child.start([*command, str(os.getpid())])
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
        if stop.is_set():
            raise BacktestEnded("nobody waits for the back-test any more")
        if self._done and self._reported is not None:
            return self._reported
        if self._failed is not None:
            why = self._failed
        elif late:
            why = f"it took more than {self._request.seconds:g} s"
        else:
            why = f"its process ended (status {status})"
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


@dataclass(frozen=True, slots=True)
class BacktestLimits:
    """Seconds, memory of the process in bytes, and maximum number of (newest) documents."""

    seconds: float = BACKTEST_SECONDS
    memory: int = MEMORY
    documents: int = MOST_DOCUMENTS
    characters: int = MOST_CHARACTERS


DEFAULT = BacktestLimits()


class StoreBacktest:
    """A single-use back-test over a store's documents, read-only and in any thread while another uses the session.
    `command` starts its process."""

    def __init__(
        self, engine: Session, text: str, limits: BacktestLimits = DEFAULT, command: Sequence[str] = WORKER
    ) -> None:
        self._engine, self._text, self._limits, self._command = engine, text, limits, command
        self._stop = Event()
        self._question: Question | None = None

    def run(self) -> Backtest:
        """Returns the result. Raises XsclErrors and other errors in the script, BacktestFailed, BacktestEnded,
        StoreError."""
        try:
            script = prepared(self._text, self._engine.registry)
            kept = select_newest_documents(self._ask, script.streams, self._limits.documents, self._limits.characters)
            request = _request(script, self._limits)
            found = run_process(request, kept.batches, stop=self._stop, command=self._command)
        except QuestionInterrupted:
            raise BacktestEnded("nobody waits for the back-test any more") from None
        cut = found.cut_short
        if cut is None and kept.chosen < kept.total:
            cut = f"only the newest {kept.chosen:,} documents are tried"
        return replace(_with_script(found, script), kept=kept.total, cut_short=cut)

    def interrupt(self) -> None:
        """Cancels. Thread-safe; may be repeated."""
        self._stop.set()
        if self._question is not None:
            self._question.interrupt()

    def _ask(self, sql: str) -> pa.Table:
        self._question = self._engine.question(sql, own=True)
        if self._stop.is_set():
            raise BacktestEnded("nobody waits for the back-test any more")
        return self._question.answer()


def backtest_documents(
    script: PreparedScript, documents: Iterable[Document | Reject], limits: BacktestLimits = DEFAULT
) -> Backtest:
    """Back-tests over documents as they are read. Raises what `StoreBacktest.run` does."""
    refused = given = 0

    def refuse() -> None:
        nonlocal refused
        refused += 1

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        nonlocal given
        for batch in batches:
            given += batch.num_rows
            yield batch

    found = run_process(_request(script, limits), counted(read_batches(documents, script.streams, refuse)))
    return replace(_with_script(found, script), kept=given, refused=found.refused + refused)


def _request(script: PreparedScript, limits: BacktestLimits) -> TrialRequest:
    return TrialRequest(script.text, tuple(text for _, text in script.publishers), limits.seconds, limits.memory)


def _with_script(found: Backtest, script: PreparedScript) -> Backtest:
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
