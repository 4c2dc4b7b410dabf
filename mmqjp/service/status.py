"""The status of a store (its streams, what is stored, totals) and of sinks, and a service's metrics for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Histogram, start_http_server

from common.tools import JsonRecord
from feeds.documents import Now, now_us
from mmqjp.answers.absence import PendingAbsence
from mmqjp.answers.events_run import WaitingCounts
from mmqjp.engine import Session
from mmqjp.service.log import Log
from mmqjp.sinks.positions import SinkState
from mmqjp.tables.schema import ROW_COUNTS

MOST_LISTED = 100  # maximum number of queries listed with their ties


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The stored documents of a stream: number, approximate bytes, latest time, and watermark. `belated` documents came
    behind that. Times are microseconds since 1970. A stream that only queries publish has no watermark."""

    stream: str
    documents: int = 0
    bytes: int = 0
    latest: int | None = None
    watermark: int | None = None
    belated: int = 0


@dataclass(frozen=True, slots=True)
class Status(JsonRecord):
    """The status of a store. Counts are of stored rows; times are microseconds since 1970. `ties` counts, for the
    MOST_LISTED queries with the most, pairs of documents that FOLLOWED BY excludes only because of equal times; queries
    in `ties_at_least` may have more. `horizon` is the lowest watermark of streams that queries read. No join needs
    documents that begin before `evictable_before` (None: unknown). `state_bytes` is the size of the files. `sinks` are
    known only while a service delivers to them. `events` describes the waiting state of event queries. `waiting`
    counts, for the first MOST_LISTED names, documents of undecided absences, and `absences` says what they wait for.
    `belated` counts, for the MOST_LISTED queries with the most, documents that came too late to change what they told.
    `rebuilt` counts how often damaged postings were built anew."""

    queries: int
    paused: int
    batches: int
    documents: int
    outputs: int
    dead_letters: int
    horizon: int | None
    evictable_before: int | None
    state_bytes: int | None
    streams: tuple[StreamStatus, ...]
    ties: dict[str, int]
    ties_at_least: tuple[str, ...]
    sinks: tuple[SinkState, ...] = ()
    events: WaitingCounts | None = None
    waiting: dict[str, int] = field(default_factory=dict)
    rebuilt: int = 0
    absences: tuple[PendingAbsence, ...] = ()
    belated: dict[str, int] = field(default_factory=dict)


def store_status(engine: Session, sinks: Iterable[SinkState] = ()) -> Status:
    counts: Counter[str] = Counter()
    kept: dict[str, StreamStatus] = {}
    for row in engine.sql(ROW_COUNTS, trusted=True).to_pylist():
        rows, stream = int(row["rows"]), row["stream"]
        if row["kind"] != "published":
            counts[row["what"]] += rows
        if stream is not None:
            before = kept.get(stream, StreamStatus(stream))
            latest = max(time for time in (before.latest, row["latest"]) if time is not None)
            kept[stream] = StreamStatus(stream, before.documents + rows, before.bytes + int(row["bytes"]), latest)
    watermarks, belated = engine.watermarks(), engine.belated()
    names = sorted(kept.keys() | watermarks.keys() | belated.by_stream.keys())
    streams = tuple(
        replace(kept.get(one, StreamStatus(one)), watermark=watermarks.get(one), belated=belated.by_stream.get(one, 0))
        for one in names
    )
    queries = engine.registry.subscriptions.values()
    paused = sum(query.paused is not None for query in queries)
    documents, outputs, dead_letters = (counts[what] for what in ("documents", "outputs", "dead_letters"))
    horizon, evictable = engine.horizon()
    ties = dict(islice(engine.ties().items(), MOST_LISTED))
    at_least = tuple(sorted(engine.ties_at_least() & ties.keys()))
    absences = tuple(islice(engine.waiting_absences().values(), MOST_LISTED))
    waiting = {one.query: one.documents for one in absences}
    return Status(
        len(queries), paused, engine.batch, documents, outputs, dead_letters, horizon, evictable, engine.state_bytes(),
        streams, ties, at_least, tuple(sinks), engine.waiting_events(), waiting, engine.times_rebuilt(),
        absences, dict(islice(belated.by_query.items(), MOST_LISTED)),
    )  # fmt: skip


LOOPBACK = "127.0.0.1"

COUNTERS = {
    "documents": "Documents accepted.",
    "outputs": "Outputs found.",
    "duplicates": "Documents already known by their id.",
    "dead_letters": "Documents rejected as dead letters.",
}

SINK_COUNTERS = {
    "delivered": "Outputs delivered.",
    "failed": "Attempts that failed.",
    "given_up": "Outputs given up: too many, too old, or refused for good.",
}

GAUGES = {
    "queries": ("Registered queries.", "state"),
    "horizon_seconds": ("The lowest watermark, Unix time.",),
    "evictable_before_seconds": ("No join needs documents that begin earlier, Unix time.",),
    "watermark_seconds": ("A stream's watermark, Unix time.", "stream"),
    "lag_seconds": ("Age of the newest document in seconds.",),
    "waiting_files": ("Files not yet read.",),
    "state_bytes": ("Size of the state's files in bytes.",),
    "kept_documents": ("Documents kept of a stream.", "stream"),
    "kept_bytes": ("Bytes of XML kept of a stream.", "stream"),
    "equal_times_pairs": ("Pairs, at least, that FOLLOWED BY left out only because of equal times.", "query"),
    "belated_documents": ("Documents of a stream that came behind its watermark.", "stream"),
    "too_late_documents": ("Documents that came too late to change what a query told.", "query"),
    "waiting_documents": ("Documents of a query that wait until nothing follows that could.", "query"),
    "hub_subscriptions": ("Feeds that a hub pushes, or should once it has confirmed.", "state"),
    "sink_behind": ("Outputs not yet delivered.", "sink"),
    "sink_behind_seconds": ("Age of the oldest output not yet delivered.", "sink"),
}
"""Descriptions, and labels."""


class Metrics:
    """Metrics in their own registry. As a `Log`, counts each event and passes it on."""

    def __init__(self, log: Log, now: Now = now_us) -> None:
        self._log, self._now = log, now
        self.registry = CollectorRegistry()
        count = partial(prometheus_client.Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self._counters = {key: count(f"mmqjp_{key}", text) for key, text in COUNTERS.items()}
        self._sink_counters = {key: count(f"mmqjp_sink_{key}", text, ["sink"]) for key, text in SINK_COUNTERS.items()}
        self._counted: dict[tuple[str, str], int] = {}
        self._seconds = Histogram(
            "mmqjp_batch_seconds", "Duration of a batch in seconds.", registry=self.registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
        )  # fmt: skip
        self._commands = count("mmqjp_commands", "Commands from other processes.", ["do"])
        self._fetches = count("mmqjp_fetches", "Visits to feeds.", ["outcome"])
        self._hubs = count("mmqjp_hub_events", "Requests to hubs (asked, failed) and their calls.", ["what"])
        self._gauges = {key: gauge(f"mmqjp_{key}", text, labels) for key, (text, *labels) in GAUGES.items()}

    def event(self, name: str, /, **fields: object) -> None:
        if name == "batch":
            for key, counter in self._counters.items():
                if isinstance(count := fields.get(key), int):
                    counter.inc(count)
            if isinstance(seconds := fields.get("seconds"), float):
                self._seconds.observe(seconds)
            for key in ("lag_seconds", "waiting_files"):
                if isinstance(value := fields.get(key), int | float):
                    self._gauges[key].set(value)
        elif name == "command":
            self._commands.labels(str(fields.get("do"))).inc()
        elif name == "fetch":
            self._fetches.labels(str(fields.get("outcome"))).inc()
        elif name == "hub":
            self._hubs.labels(str(fields.get("what"))).inc()
        elif name == "hubs":
            for state in ("active", "waiting"):
                self._gauges["hub_subscriptions"].labels(state).set(int(str(fields[state])))
        self._log.event(name, **fields)

    def update(self, found: Status) -> None:
        gauges, now = self._gauges, self._now()
        gauges["queries"].labels("active").set(found.queries - found.paused)
        gauges["queries"].labels("paused").set(found.paused)
        for key, time in (("horizon_seconds", found.horizon), ("evictable_before_seconds", found.evictable_before)):
            gauges[key].set(float("nan") if time is None else time / 1e6)
        latest = [stream.latest for stream in found.streams if stream.latest is not None]
        if latest:
            gauges["lag_seconds"].set((now - max(latest)) / 1e6)
        gauges["waiting_files"].set(0)  # the status is taken when everything is read
        if found.state_bytes is not None:
            gauges["state_bytes"].set(found.state_bytes)
        for key, (_, *labels) in GAUGES.items():
            if labels and labels != ["state"]:
                gauges[key].clear()
        self._update_sinks(found.sinks, now)
        for query, pairs in found.ties.items():
            gauges["equal_times_pairs"].labels(query).set(pairs)
        for query, count in found.belated.items():
            gauges["too_late_documents"].labels(query).set(count)
        for query, count in found.waiting.items():
            gauges["waiting_documents"].labels(query).set(count)
        for stream in found.streams:
            if stream.watermark is not None:
                gauges["watermark_seconds"].labels(stream.stream).set(stream.watermark / 1e6)
            gauges["kept_documents"].labels(stream.stream).set(stream.documents)
            gauges["kept_bytes"].labels(stream.stream).set(stream.bytes)
            gauges["belated_documents"].labels(stream.stream).set(stream.belated)

    def _update_sinks(self, states: Iterable[SinkState], now: int) -> None:
        found = {state.name: state for state in states}
        for name, state in found.items():
            self._gauges["sink_behind"].labels(name).set(state.behind)
            since = now if state.behind_since is None else state.behind_since
            self._gauges["sink_behind_seconds"].labels(name).set(max(now - since, 0) / 1e6)
            for key, counter in self._sink_counters.items():
                count, before = getattr(state, key), self._counted.get((name, key), 0)
                counter.labels(name).inc(count - before if count >= before else count)  # less: a new sink of the name
                self._counted[name, key] = count
        for name in {name for name, _ in self._counted} - found.keys():
            for key, counter in self._sink_counters.items():
                counter.remove(name)
                self._counted.pop((name, key), None)

    def serve(self, port: int, address: str = LOOPBACK) -> int:
        """Serves http://address:port/metrics until the process ends. Returns the port; 0 picks a free one."""
        server, _ = start_http_server(port, address, self.registry)
        return int(server.server_port)
