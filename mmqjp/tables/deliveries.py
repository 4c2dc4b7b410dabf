"""The tables of what sinks did not get: outputs that were given up, and dead letters of sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, TEXT, schema
from mmqjp.tables.table_rows import TableRows

TABLES = {
    # A sink was not given the `count` outputs that it wanted between the numbers `first` and `last`, because its
    # backlog had a bound.
    "gaps": schema(sink=TEXT, first=INT, last=INT, count=INT, reason=TEXT, noted_at=INT),
    # The receiver of a sink refused an output `tries` times.
    "undelivered": schema(sink=TEXT, seq=INT, id=TEXT, tries=INT, reason=TEXT, noted_at=INT),
}

MOST_APART = 200
"""Gaps are put together once there are so many rows."""


@dataclass(frozen=True, slots=True)
class GapRow:
    """A row of the table `gaps`."""

    sink: str
    first: int
    last: int
    count: int
    reason: str
    noted_at: int


@dataclass(frozen=True, slots=True)
class UndeliveredRow:
    """A row of the table `undelivered`."""

    sink: str
    seq: int
    id: str
    tries: int
    reason: str
    noted_at: int


class Owed(NamedTuple):
    """What sinks are still owed: the least `t0` of these outputs, and when the first of them was committed."""

    t0: int
    committed_at: int


def save_deliveries(store: TableStore, gaps: Sequence[GapRow], undelivered: Sequence[UndeliveredRow]) -> None:
    """Appends rows, in a batch."""
    TableRows(store).append("gaps", [astuple(row) for row in gaps])
    TableRows(store).append("undelivered", [astuple(row) for row in undelivered])


def drop_deliveries(store: TableStore, before: int) -> None:
    """Drops, in a batch, rows that were noted before a time."""
    for table in TABLES:
        store.drop_before(table, "noted_at", before)


def join_gaps(store: TableStore) -> None:
    """Writes, in a batch, gaps of a sink that follow each other as one, if there are many rows: a receiver that is
    never reached leaves few. What is put together has the time of its last part."""
    rows = [GapRow(*row) for row in TableRows(store).tuples("gaps", " ".join(TABLES["gaps"].names))]
    if len(rows) < MOST_APART:
        return
    joined: list[GapRow] = []
    for row in sorted(rows, key=lambda row: (row.sink, row.noted_at, row.first)):
        before = joined[-1] if joined else None
        if before is not None and (before.sink, before.reason, before.last + 1) == (row.sink, row.reason, row.first):
            joined[-1] = replace(row, first=before.first, count=before.count + row.count)
        else:
            joined.append(row)
    if len(joined) < len(rows):
        store.drop_before("gaps", "noted_at", max(row.noted_at for row in rows) + 1)
        save_deliveries(store, joined, ())


def committed_between(store: TableStore, first: int, last: int) -> list[tuple[int, int]]:
    """Returns the number of the first output of each batch that has outputs with numbers from `first` to `last`, and
    when it was committed, in order. Batches whose time is no longer stored are left out."""
    sql = f"""SELECT min(o.low) AS low, b.committed_at FROM (
  SELECT batch, first_seq AS low, last_seq AS high FROM answers
  UNION ALL SELECT batch, seq AS low, seq AS high FROM earlier_outputs
) o JOIN batches b ON b.batch = o.batch WHERE o.high >= {first} AND o.low <= {last}
GROUP BY o.batch, b.committed_at ORDER BY low"""
    found = store.select(sql)
    return list(zip(found["low"].to_pylist(), found["committed_at"].to_pylist(), strict=True))


def waiting_after(store: TableStore, seq: int) -> list[tuple[str, int, int, int]]:
    """Returns, by query, how many outputs have greater numbers: `query`, their number, the least `t0` of them, and when
    the first of them was committed."""
    sql = f"""SELECT o.query, count(*) AS n, min(o.t0) AS t0, min(b.committed_at) AS committed_at
FROM outputs o LEFT JOIN batches b ON b.batch = o.batch WHERE o.seq > {seq} GROUP BY o.query"""
    found = store.select(sql)
    columns = (found[name].to_pylist() for name in ("query", "n", "t0", "committed_at"))
    return [(query, n, t0, time or 0) for query, n, t0, time in zip(*columns, strict=True)]


def first_committed_from(store: TableStore, time: int) -> int | None:
    """Returns the number of the first output that was committed at a time or later, or None."""
    sql = f"""SELECT min(o.low) AS low FROM (
  SELECT batch, first_seq AS low FROM answers UNION ALL SELECT batch, seq AS low FROM earlier_outputs
) o JOIN batches b ON b.batch = o.batch WHERE b.committed_at >= {time}"""
    (low,) = store.select(sql)["low"].to_pylist()
    return None if low is None else int(low)


def first_seq(store: TableStore) -> int | None:
    """Returns the number of the first stored output, or None."""
    sql = (
        "SELECT min(low) AS low FROM (SELECT first_seq AS low FROM answers UNION ALL SELECT seq FROM earlier_outputs) o"
    )
    (low,) = store.select(sql)["low"].to_pylist()
    return None if low is None else int(low)
