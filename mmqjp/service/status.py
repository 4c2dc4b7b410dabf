"""The status of a store: how far its streams have come, what it keeps and what it has done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import islice

from mmqjp.answers.patterns.results import Waiting
from mmqjp.session import Session
from mmqjp.sinks.control import SinkState
from mmqjp.tables.row_counts import ROW_COUNTS

MOST_LISTED = 100
"""The number of queries whose pairs with equal times are told."""


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The documents kept of a stream: their number, their approximate size in bytes, the latest time, the watermark.

    Times are microseconds since 1970. A stream that only queries publish has no watermark.
    """

    stream: str
    documents: int
    bytes: int
    latest: int | None
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a store. Counts are of what is kept; times are microseconds since 1970.

    `ties` has, by the names of the at most MOST_LISTED queries with the most, the pairs of documents that FOLLOWED BY
    left out only because of equal times; queries in `ties_at_least` may have more. `horizon` is the lowest watermark
    of the streams that queries read. No join can need documents that begin before `evictable_before` (None: not
    known). `state_bytes` is the size of the files. `sinks` are known while a service delivers to them.
    `events` says what waits in event queries, if there are any. `waiting` has, by the names of queries, how many
    documents wait for it to be decided that nothing came: those of the first MOST_LISTED names.
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
    events: Waiting | None = None
    waiting: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def status(engine: Session, sinks: Iterable[SinkState] = ()) -> Status:
    """The status of the store of an engine, and of the sinks of a service."""
    counts: Counter[str] = Counter()
    kept: dict[str, StreamStatus] = {}
    for row in engine.sql(ROW_COUNTS, trusted=True).to_pylist():
        rows, stream = int(row["rows"]), row["stream"]
        if row["kind"] != "published":
            counts[row["what"]] += rows
        if stream is not None:
            before = kept.get(stream, StreamStatus(stream, 0, 0, None, None))
            latest = max(time for time in (before.latest, row["latest"]) if time is not None)
            size = before.bytes + int(row["bytes"])
            kept[stream] = StreamStatus(stream, before.documents + rows, size, latest, None)
    watermarks = engine.watermarks()
    streams = tuple(
        replace(kept.get(stream, StreamStatus(stream, 0, 0, None, None)), watermark=watermarks.get(stream))
        for stream in sorted(kept.keys() | watermarks.keys())
    )
    queries = engine.registry.subscriptions.values()
    horizon, evictable = engine.horizon()
    ties = dict(islice(engine.ties().items(), MOST_LISTED))
    return Status(
        len(queries),
        sum(query.paused is not None for query in queries),
        engine.batch,
        counts["documents"],
        counts["outputs"],
        counts["dead_letters"],
        horizon,
        evictable,
        engine.state_bytes(),
        streams,
        ties,
        tuple(sorted(engine.ties_at_least() & ties.keys())),
        tuple(sinks),
        engine.waiting_events(),
        dict(islice(engine.waiting_absences().items(), MOST_LISTED)),
    )
