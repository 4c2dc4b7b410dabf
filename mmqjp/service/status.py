"""What there is to know of a store at a glance: how far its streams have come, what it keeps, what it has done."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mmqjp.engine import Engine


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream's documents: how many are kept, about how many bytes of XML, the greatest time, the watermark.

    Times are microseconds; a stream that only queries make has no watermark of its own.
    """

    stream: str
    documents: int
    bytes: int
    latest: int | None
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Status:
    """A store: `evictable_before` is the time before which documents begin that no join can need; None: none is known.

    `horizon` is the least watermark of the streams that queries read. Counts are of what is kept.
    """

    queries: int
    paused: int
    batches: int
    documents: int
    outputs: int
    dead_letters: int
    horizon: int | None
    evictable_before: int | None
    streams: tuple[StreamStatus, ...]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def status(engine: Engine) -> Status:
    """The status of an engine's store."""
    sql = """SELECT stream, count(*) AS documents, sum(length(xml)) AS bytes, max(t1) AS latest
FROM documents WHERE kind <> 'hidden' GROUP BY stream"""
    kept = {row["stream"]: row for row in engine.sql(sql).to_pylist()}
    watermarks = engine.watermarks()
    streams = tuple(
        StreamStatus(
            stream,
            int(kept[stream]["documents"]) if stream in kept else 0,
            int(kept[stream]["bytes"]) if stream in kept else 0,
            kept[stream]["latest"] if stream in kept else None,
            watermarks.get(stream),
        )
        for stream in sorted(kept.keys() | watermarks.keys())
    )
    (counts,) = engine.sql(
        """SELECT (SELECT count(*) FROM documents WHERE kind = 'external') AS documents,
(SELECT count(*) FROM outputs) AS outputs, (SELECT count(*) FROM dead_letters) AS dead_letters"""
    ).to_pylist()
    queries = engine.registry.subscriptions.values()
    horizon, evictable = engine.horizon()
    return Status(
        len(queries),
        sum(query.paused is not None for query in queries),
        engine.batch,
        counts["documents"],
        counts["outputs"],
        counts["dead_letters"],
        horizon,
        evictable,
        streams,
    )
