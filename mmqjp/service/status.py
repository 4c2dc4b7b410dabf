"""The status of a store (progress of its streams, what is stored, totals) and of sinks, also as Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from common.tools import JsonRecord
from mmqjp.answers.events_run import WaitingCounts
from mmqjp.engine import Session
from mmqjp.sinks.positions import SinkState
from mmqjp.tables.schema import ROW_COUNTS

MOST_LISTED = 100
"""Maximum number of queries listed with their ties."""


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The stored documents of a stream: number, approximate bytes, latest time, and watermark. Times are microseconds
    since 1970. A stream that only queries publish has no watermark."""

    stream: str
    documents: int = 0
    bytes: int = 0
    latest: int | None = None
    watermark: int | None = None


@dataclass(frozen=True, slots=True)
class Status(JsonRecord):
    """The status of a store. Counts are of stored rows; times are microseconds since 1970.

    `ties` counts, for the MOST_LISTED queries with the most, pairs of documents that FOLLOWED BY excludes only because
    of equal times; queries in `ties_at_least` may have more. `horizon` is the lowest watermark of streams that queries
    read. No join needs documents that begin before `evictable_before` (None: unknown). `state_bytes` is the size of the
    files. `sinks` are known only while a service delivers to them. `events` describes the waiting state of event
    queries. `waiting` counts, for the first MOST_LISTED names, documents of undecided absences.
    `rebuilt` counts how often damaged postings were built anew.
    """

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
    watermarks = engine.watermarks()
    streams = tuple(
        replace(kept.get(stream, StreamStatus(stream)), watermark=watermarks.get(stream))
        for stream in sorted(kept.keys() | watermarks.keys())
    )
    queries = engine.registry.subscriptions.values()
    paused = sum(query.paused is not None for query in queries)
    documents, outputs, dead_letters = (counts[what] for what in ("documents", "outputs", "dead_letters"))
    horizon, evictable = engine.horizon()
    ties = dict(islice(engine.ties().items(), MOST_LISTED))
    at_least = tuple(sorted(engine.ties_at_least() & ties.keys()))
    waiting = dict(islice(engine.waiting_absences().items(), MOST_LISTED))
    return Status(
        len(queries), paused, engine.batch, documents, outputs, dead_letters, horizon, evictable, engine.state_bytes(),
        streams, ties, at_least, tuple(sinks), engine.waiting_events(), waiting, engine.times_rebuilt(),
    )  # fmt: skip
