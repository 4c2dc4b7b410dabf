"""Back-test proper: prepares a script, selects its documents, runs it in an in-memory engine, and reports results.
Preparation finds the registered queries and external streams that the script reads, and what it would add to those
registered. Documents come in order of arrival, from a store or a reader. Progress reports follow each other until the
last, which is complete; the result is also put into words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from operator import itemgetter
from typing import Any

import pyarrow as pa

from common.arrays import batch_of_rows
from common.errors import InputError
from common.tools import from_json, in_batches
from feeds.documents import Document, Reject
from mmqjp.answers.fan_out import outputs_in
from mmqjp.engine import Session
from mmqjp.explain.plan import Estimates, estimates
from mmqjp.present.item import ShownMatch, TimeFormat
from mmqjp.present.newest import OutputPresenter
from mmqjp.process import pluralise
from mmqjp.queries.compile import CompiledEvents, definition_text
from mmqjp.queries.model import Owner, Subscription
from mmqjp.queries.registry import Registry
from templates.catalog import needs_of
from xscl.algebra.joins import Conjunct
from xscl.check_events import schemas_of
from xscl.check_expressions import blocks
from xscl.lower import normalize
from xscl.parser import parse_script
from xscl.syntax import Script, names_read

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

LATEST = 10

MOST_DAYS = 400
"""Maximum number of days counted one by one: the last with outputs."""

LONGEST_XML = 100_000
"""Longest output document shown, in characters."""

FIRST, MOST, LONG = 50, 5_000, 1.0
"""First and maximum number of documents per part, and its target seconds."""

BETWEEN = 1.0
"""Minimum seconds between two reports, which take at most a tenth of the time."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A script, and the texts of registered queries that it reads. `seconds` and `memory`, in bytes, are limits that
    the process enforces itself."""

    text: str
    publishers: tuple[str, ...]
    seconds: float
    memory: int


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

    def last_report(self, cut_short: str) -> Backtest:
        self.finish()
        return self.report(cut_short, final=True)

    def report(self, cut_short: str | None, *, final: bool = False) -> Backtest:
        """Estimates are computed in the final report only."""
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
        names = ", ".join(_text(name) for name in self._names)
        rows = self._engine.sql(
            f"SELECT * FROM outputs WHERE query IN ({names}) ORDER BY t1 DESC, query, id LIMIT {LATEST}", trusted=True
        )
        for match in OutputPresenter(self._engine).matches(outputs_in(rows)):
            long = len(match.output.xml) > LONGEST_XML
            yield replace(match, output=replace(match.output, xml="")) if long else match


def _pairs(engine: Session, names: tuple[str, ...]) -> Mapping[str, float]:
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
class PreparedScript:
    """A script's text, names and texts of the registered queries that it reads, and the external streams to read.
    `novelty` is what it adds to those registered."""

    text: str
    publishers: tuple[tuple[str, str], ...]
    streams: frozenset[str]
    novelty: Novelty

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"streams": sorted(self.streams)}

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> PreparedScript:
        return from_json(PreparedScript, found)


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
    waiting, outside = _streams_read(script), set[str]()
    met = set(waiting)

    def read(streams: set[str]) -> None:
        nonlocal met, waiting
        waiting |= streams - met
        met |= streams

    while waiting:
        stream = waiting.pop()
        if stream in made:
            continue
        if (definition := registry.events.definitions.get(stream)) is not None:
            definitions[definition.name] = definition.text
            read({definition.pattern.stream})
            continue
        makers = [query for query in registry.named(stream) if query.publishes]
        if not makers:
            outside.add(stream)
        for query in makers:
            if query.active:
                publishers[query] = None
                read(
                    set(registry.events.reads(query))
                    if query.is_events
                    else _streams_read(parse_script(query.text, stored=True))
                )
    return PreparedScript(text, tuple(_texts(publishers, definitions)), frozenset(outside), _novelty(script, registry))


def _texts(publishers: Iterable[Subscription], definitions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields names and texts: definitions before event queries, each as one script."""
    yield from definitions.items()
    yield from ((one.name, one.text) for one in publishers if not one.is_events)
    if events := [one for one in publishers if one.is_events]:
        names = ", ".join(dict.fromkeys(one.name for one in events))
        yield names, ";\n".join(one.text for one in events)


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
