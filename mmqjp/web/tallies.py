"""Counts the outputs of each query by hour and day, each batch once, and tracks the registered queries. And counts the
items of each feed by day."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from common.arrays import Ints
from common.dates import DAY, HOUR
from common.tools import gathered
from feeds.documents import Now
from mmqjp.present.recent import RecentAnswers, is_newer
from mmqjp.tables.lookup import NAMES, QUERIES, next_batches, tally

HOURS = 7 * 24 + 1  # number of hours counted singly, up to the present one

DAYS, HOURS_A_DAY = 30, DAY // HOUR
"""Number of UTC days counted singly, up to the present one, and hours per day."""

MOST_ROWS, SECONDS = 5_000_000, 60.0  # limits of a SELECT, which reads much only when a store is first shown

MOST_OUTPUTS, NEVER = 1_000_000, -(1 << 62)
"""Approximate number of outputs counted per SELECT, and so of its rows, and the `last` of a query without outputs."""


@dataclass(frozen=True, slots=True)
class FeedItems:
    """The items of a feed that are kept: how many, when the last new one arrived, in microseconds (None: never), and
    how many there are of each of the last DAYS UTC days, the present one last."""

    items: int = 0
    last: int | None = None
    days: tuple[int, ...] = (0,) * DAYS


def tally_feeds(rows: Iterable[Mapping[str, Any]], today: int) -> dict[str, FeedItems]:
    """Returns the items of each feed, given the rows of `items_by_feed`. What is from the future counts as of today."""
    found: dict[str, FeedItems] = {}
    for feed, some in gathered((row["feed"], row) for row in rows).items():
        days = [0] * DAYS
        for row in some:
            if (place := min(row["day"] - today, 0) + DAYS - 1) >= 0:
                days[place] += row["items"]
        found[feed] = FeedItems(sum(row["items"] for row in some), max(row["last"] for row in some), tuple(days))
    return found


@dataclass(frozen=True)
class QueryTally:
    """The registered names, in order, with columns of equal length: numbers of queries and of paused ones, a pause's
    reason, outputs in all, in the last day and in the last week, and the last t1. A day and a week are 24 and 168
    hours, plus the present one. `days` has the outputs of the last DAYS UTC days, the present one last; `today` is its
    number since 1970. `registered` changes when queries are registered, typed otherwise or paused."""

    registered: object
    today: int
    days: Ints
    names: Sequence[str]
    queries: Ints
    paused: Ints
    reasons: Sequence[str | None]
    total: Ints
    day: Ints
    week: Ints
    last: Ints


class Tallies:
    """The tally of a store, updated incrementally from the cache `recent`, else by SELECTs. Thread-safe."""

    def __init__(self, select: Callable[[str, int, float], pa.Table], now: Now, recent: RecentAnswers) -> None:
        """`select` gets SQL with limits on rows and seconds."""
        self._select, self._now, self._recent = select, now, recent
        self._lock = Lock()
        self._made_for: tuple[QueryTally, object, int] | None = None
        self._registered = pa.table({"name": pa.array([], pa.string())})
        self._names: list[str] = []
        self._clear(0)

    def current(self) -> QueryTally:
        """Returns the tally as of the newest batch. Raises what `StoreReader.select` raises."""
        version, hour = self._recent.version(), self._now() // HOUR
        if (found := self._kept_for(version, hour)) is not None:
            return found  # even while another thread counts for a newer version
        with self._lock:
            if (found := self._kept_for(version, hour)) is None:
                found = self._made(hour)
                self._made_for = found, version, hour
            return found

    def _kept_for(self, version: object, hour: int) -> QueryTally | None:
        if (made := self._made_for) is None or made[2] != hour or is_newer(version, made[1]):
            return None
        return made[0]

    def _clear(self, hour: int) -> None:
        self._batch, self._kept, self._hour = -1, 0, hour
        self._queries_are: object = None
        self._code: dict[str, int] = {}
        self._of_qid, self._shown = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._total, self._last = np.zeros(0, np.int64), np.full(0, NEVER)
        self._hours, self._days = np.zeros((HOURS, 0), np.int64), np.zeros((DAYS, 0), np.int64)

    def _made(self, hour: int) -> QueryTally:
        self._shift(hour)
        if not self._count_recent() and not self._count():  # something was dropped: count anew
            self._clear(hour)
            self._count()
        found, codes = self._registered, self._shown
        return QueryTally(
            self._queries_are, self._today, self._days[:, codes], self._names,
            found["queries"].to_numpy(), found["paused"].to_numpy(), found["reason"].to_pylist(), self._total[codes],
            self._hours[HOURS - 25 :].sum(axis=0)[codes], self._hours.sum(axis=0)[codes], self._last[codes],
        )  # fmt: skip

    def _count_recent(self) -> bool:
        """Adds newer batches from the cache. Returns False if not cached, outputs were deleted, or queries changed."""
        found = None if self._batch < 0 else self._recent.outputs_after(self._batch)
        if found is None:
            return False
        (answers, qids, t1s), known = found
        if (known.answers - answers, known.changes) != (self._kept, self._queries_are):
            return False
        self._add(self._of_qid[qids], np.ones(len(qids), np.int64), t1s // HOUR, t1s)
        self._batch, self._kept = known.batch, known.answers
        return True

    def _count(self) -> bool:
        """Adds newer batches. Returns False if outputs were deleted."""
        while True:
            (there,) = self._select(next_batches(self._batch, MOST_OUTPUTS), 1, SECONDS).to_pylist()
            until = self._batch if there["until"] is None else there["until"]
            if not self._count_until(until):
                return False
            if there["newest"] in (None, until):
                return True

    def _count_until(self, until: int) -> bool:
        since_hour = min(self._hour - HOURS + 1, (self._today - DAYS + 1) * HOURS_A_DAY)
        rows = self._select(tally(self._batch, until, since_hour), MOST_ROWS, SECONDS)
        is_of_query, is_named = rows["qid"].is_valid(), rows["name"].is_valid()
        others = rows.filter(pa.compute.invert(pa.compute.or_(is_of_query, is_named))).to_pylist()
        before, kept, queries = sorted(others, key=lambda row: row["hour"], reverse=True)
        if before["outputs"] != self._kept:
            return False
        if (queries["outputs"], queries["last"]) != self._queries_are:
            self._read_queries()
            self._queries_are = queries["outputs"], queries["last"]
        later, earlier = rows.filter(is_of_query), rows.filter(is_named)
        names = earlier["name"].to_pylist()
        self._know(names)
        codes = self._of_qid[later["qid"].cast(pa.int64()).to_numpy()]
        for some, of in ((later, codes), (earlier, np.array([self._code[name] for name in names], np.int64))):
            outputs, hours, last = (some[name].to_numpy() for name in ("outputs", "hour", "last"))
            self._add(of, outputs.astype(np.int64), hours, last)
        self._kept, self._batch = kept["outputs"], until
        return True

    def _read_queries(self) -> None:
        self._registered = self._select(QUERIES, MOST_ROWS, SECONDS)
        self._names = self._registered["name"].to_pylist()
        every = self._select(NAMES, MOST_ROWS, SECONDS)
        names, qids = every["name"].to_pylist(), every["qid"].to_pylist()
        self._know(names)
        self._of_qid = np.zeros(max(qids, default=-1) + 1, np.int64)
        self._of_qid[qids] = [self._code[name] for name in names]
        self._shown = np.array([self._code[name] for name in self._names], np.int64)

    def _add(self, codes: Ints, outputs: Ints, hours: Ints, last: Ints) -> None:
        np.add.at(self._total, codes, outputs)
        np.maximum.at(self._last, codes, last)
        # What is from the future counts as of the present hour.
        days = hours // HOURS_A_DAY
        for counts, units, now in ((self._hours, hours, self._hour), (self._days, days, self._today)):
            places = units - (now - len(counts) + 1)
            recent = places >= 0
            np.add.at(counts, (np.minimum(places[recent], len(counts) - 1), codes[recent]), outputs[recent])

    def _know(self, names: Sequence[str]) -> None:
        for name in names:
            self._code.setdefault(name, len(self._code))
        if more := len(self._code) - len(self._total):
            self._total = np.pad(self._total, (0, more))
            self._last = np.pad(self._last, (0, more), constant_values=NEVER)
            self._hours = np.pad(self._hours, ((0, 0), (0, more)))
            self._days = np.pad(self._days, ((0, 0), (0, more)))

    @property
    def _today(self) -> int:
        return self._hour * HOUR // DAY

    def _shift(self, hour: int) -> None:
        before, by = self._today, max(hour - self._hour, 0)
        self._hour = max(hour, self._hour)
        self._hours = _shifted(self._hours, by)
        self._days = _shifted(self._days, self._today - before)


def _shifted(counts: Ints, by: int) -> Ints:
    """Drops the first `by` counts and appends zeros."""
    if not by:
        return counts
    return np.vstack((counts[by:], np.zeros((min(by, len(counts)), counts.shape[1]), np.int64)))
