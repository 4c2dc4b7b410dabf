"""Counts the outputs of each query by hour and day, reading each batch once, and tracks the registered queries; also
counts the items of each feed by day."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.arrays import Ints
from common.dates import DAY, HOUR
from common.tools import gathered
from feeds.documents import Now
from mmqjp.present.recent import RecentAnswers, StoreCursor, is_newer
from mmqjp.present.recipients import Got
from mmqjp.tables.lookup import QuerySeen, forms_of_answers, next_batches, queries_of_forms, query_changes, tally

HOURS = 7 * 24 + 1  # number of hours counted separately, including the current one

DAYS, HOURS_A_DAY = 30, DAY // HOUR
"""Number of UTC days counted separately, including today, and hours per day."""

MOST_ROWS, SECONDS = 5_000_000, 60.0  # limits of a SELECT; only the first one on a store reads many rows

MOST_OUTPUTS, NEVER = 1_000_000, -(1 << 62)
"""Approximate number of outputs (so of rows) counted per SELECT, and the `last` of a query without outputs."""


@dataclass(frozen=True, slots=True)
class FeedItems:
    """The stored items of a feed: their number, the arrival of the last new one in microseconds (None: never), and the
    numbers on each of the last DAYS UTC days, today last."""

    items: int = 0
    last: int | None = None
    days: tuple[int, ...] = (0,) * DAYS


def tally_feeds(rows: Iterable[Mapping[str, Any]], today: int) -> dict[str, FeedItems]:
    """Returns the items of each feed, from the rows of `items_by_feed`. Items from the future count as today's."""
    found: dict[str, FeedItems] = {}
    for feed, some in gathered((row["feed"], row) for row in rows).items():
        days = [0] * DAYS
        for row in some:
            if (place := min(row["day"] - today, 0) + DAYS - 1) >= 0:
                days[place] += row["items"]
        found[feed] = FeedItems(sum(row["items"] for row in some), max(row["last"] for row in some), tuple(days))
    return found


class Counted(NamedTuple):
    """Columns of counts: outputs in total, in the last day and in the last week, the last t1, and the outputs on each
    of the last DAYS UTC days, today last. A day and a week are 24 and 168 hours, plus the current one."""

    total: Ints
    day: Ints
    week: Ints
    last: Ints
    days: Ints


class QueryOutputs(NamedTuple):
    """The counts of one name."""

    total: int = 0
    day: int = 0
    week: int = 0
    last: int = NEVER
    days: Sequence[int] = (0,) * DAYS


class OrderedNames(list[str]):
    """Immutable, sorted names."""

    @cached_property
    def folded(self) -> pa.Array:
        """The names without regard to case, to search in."""
        found = pa.array(self, pa.string())
        plain = pc.string_is_ascii(found)
        others = [name.casefold() for name in found.filter(pc.invert(plain)).to_pylist()]
        return pc.replace_with_mask(pc.ascii_lower(found), pc.invert(plain), pa.array(others, pa.string()))


@dataclass(frozen=True, eq=False)
class QueryTally:
    """The registered names, in order, with columns of equal length: numbers of queries and of paused ones, and the
    place in `counted`, or -1 without outputs. `reasons` has the reasons of pauses by name. `today` is the number of the
    current UTC day since 1970. `registered` changes when queries are registered, retyped or paused."""

    registered: object
    today: int
    names: OrderedNames
    queries: Ints
    paused: Ints
    reasons: Mapping[str, str]
    counted_at: Ints
    counted: Counted

    def outputs(self, place: int) -> QueryOutputs:
        """Returns the counts of one name."""
        at = int(self.counted_at[place])
        return QueryOutputs() if at < 0 else QueryOutputs(*(column[..., at].tolist() for column in self.counted))

    def column(self, name: Literal["total", "day", "week", "last"]) -> Ints:
        """Returns the counts of all names."""
        found = np.full(len(self.names), NEVER if name == "last" else 0)
        some = self.counted_at >= 0
        found[some] = getattr(self.counted, name)[self.counted_at[some]]
        return found


_NO_PAUSES = pa.table({"qid": pa.array([], pa.int64()), "name": pa.array([], pa.string())})
_CHANGES = ("added", "removed", "paused", "seen")  # kinds of rows of `query_changes`


class RegisteredNames:
    """The registered names of a store, in order, as columns, and the names by qid. Updated incrementally, since there
    may be millions."""

    def __init__(self) -> None:
        self.of_qid: list[str | None] = []
        self.names = OrderedNames()
        self.queries, self.paused, self.counted_at = (np.zeros(0, np.int64) for _ in range(3))
        self.reasons: dict[str, str] = {}
        self._is_removed, self._why_paused = np.zeros(0, np.bool_), dict[int, str]()
        self._seen = QuerySeen()

    def follow(self, select: Callable[[str], pa.Table], counted_at: Mapping[str, int]) -> bool:
        """Applies the changes since the last call. Returns False if they cannot be followed."""
        rows = select(query_changes(self._seen._replace(qid=len(self.of_qid) - 1)))
        added, removed, paused, seen = (rows.filter(pc.equal(rows["what"], what)) for what in _CHANGES)
        self.take(added, removed, paused, counted_at)
        (last,) = seen.to_pylist()
        self._seen = QuerySeen(len(self.of_qid) - 1, last["last_removed"], last["last_paused"])
        return bool(last["qid"] == np.count_nonzero(self._is_removed))

    def take(self, added: pa.Table, removed: pa.Table, paused: pa.Table, counted_at: Mapping[str, int]) -> None:
        """Applies changes, which may repeat some that are known. `paused` has the reasons as `name`."""
        added = added.filter(pc.greater_equal(added["qid"], len(self.of_qid)))
        most = max(added["qid"].to_pylist(), default=-1)
        self.of_qid += [None] * (most + 1 - len(self.of_qid))
        for qid, name in zip(added["qid"].to_pylist(), added["name"].to_pylist(), strict=True):
            self.of_qid[qid] = name
        self._is_removed = np.pad(self._is_removed, (0, len(self.of_qid) - len(self._is_removed)))
        changed = Counter[str](added["name"].to_pylist())
        gone = np.unique(removed["qid"].to_numpy())
        gone = gone[~self._is_removed[gone]]
        self._is_removed[gone] = True
        changed.subtract(self.of_qid[qid] or "" for qid in gone.tolist())
        for qid, reason in zip(paused["qid"].to_pylist(), paused["name"].to_pylist(), strict=True):
            self._why_paused.pop(qid, None)
            if reason is not None and not self._is_removed[qid]:
                self._why_paused[qid] = reason
        for qid in gone.tolist():
            self._why_paused.pop(qid, None)
        self._change(changed, counted_at)
        self._note_pauses()

    def _change(self, changed: Mapping[str, int], counted_at: Mapping[str, int]) -> None:
        """Updates the counts of names, adding and removing names. Replaces columns instead of changing them, since
        pages use the old ones."""
        names, queries = self.names, self.queries.copy()
        new = []
        for name, count in changed.items():
            place = bisect_left(names, name)
            if place < len(names) and names[place] == name:
                queries[place] += count
            elif count:
                new.append(name)
        new.sort()
        places = [bisect_left(names, name) for name in new]
        edits = partial(_edits, places, set(np.flatnonzero(queries == 0).tolist()))
        self.names = _edited_names(names, edits(new))
        if "folded" in names.__dict__:  # to fold very many names takes longer than all the rest
            self.names.folded = pa.concat_arrays(_edited(names.folded, edits(OrderedNames(new).folded)))
        of_new = [(changed[name], counted_at.get(name, -1)) for name in new]
        counts, at = np.array(of_new, np.int64).reshape(-1, 2).T
        self.queries = np.concatenate(_edited(queries, edits(counts)))
        self.counted_at = np.concatenate(_edited(self.counted_at, edits(at)))

    def _note_pauses(self) -> None:
        self.paused, self.reasons = np.zeros(len(self.names), np.int64), {}
        for qid, reason in self._why_paused.items():
            name = self.of_qid[qid] or ""
            self.paused[bisect_left(self.names, name)] += 1
            self.reasons[name] = min(reason, self.reasons.get(name, reason))

    def is_counted(self, name: str, at: int) -> None:
        """Sets the place of a name's counts, if the name is registered."""
        place = bisect_left(self.names, name)
        if place < len(self.names) and self.names[place] == name:
            self.counted_at[place] = at


MOST_LISTED = 2_000  # maximum number of forms that are known, and of queries in a list in SQL


class QueriesOfForms:
    """The queries of the forms with the newest answers: to find them among a million takes longer than to count."""

    def __init__(self, select: Callable[[str, int, float], pa.Table]) -> None:
        self._select, self._known, self._seen = select, dict[str, list[int]](), -1

    def answered(self, after: int, until: int) -> list[int] | None:
        """Returns the queries of all forms with answers of the batches after one up to another; None if many."""
        forms = self._select(forms_of_answers(after, until), MOST_ROWS, SECONDS)["form"].to_pylist()
        if len(forms) > MOST_LISTED:
            return None
        if len(self._known.keys() | set(forms)) > MOST_LISTED:
            self._known = {}
        others = set(forms) - self._known.keys()
        rows = self._select(queries_of_forms(self._known, self._seen, others), MOST_ROWS, SECONDS)
        for qid, form in zip(rows["qid"].to_pylist(), rows["form"].to_pylist(), strict=True):
            if form is None:
                self._seen = qid
            else:
                self._known.setdefault(form, []).append(qid)
        found = [qid for form in forms for qid in self._known.get(form, ())]
        return found if len(found) <= MOST_LISTED else None


_Edits = list[tuple[int, int, Any]]  # ascending places in a column, begin and end, and the items that come there

FEW = 32  # so many edits are made in a copy of very many names: to cut and join them takes three times as long


def _edits(places: Sequence[int], gone: set[int], new: Any) -> _Edits:
    """Returns the edits that insert `new` items before those at some places, and remove those at others."""
    at = sorted({*places, *gone})
    return [(one, one + (one in gone), new[bisect_left(places, one) : bisect_right(places, one)]) for one in at]


def _edited(column: Any, edits: _Edits) -> list[Any]:
    """Returns the pieces of an edited column."""
    found, last = list[Any](), 0
    for begin, end, items in edits:
        found += column[last:begin], items
        last = end
    return [*found, column[last:]]


def _edited_names(names: OrderedNames, edits: _Edits) -> OrderedNames:
    made = OrderedNames(names if len(edits) <= FEW else ())
    if len(edits) <= FEW:
        for begin, end, items in reversed(edits):
            made[begin:end] = items
    else:
        for piece in _edited(names, edits):
            made += piece
    return made


class Tallies:
    """The tally of a store, updated incrementally from the cache `recent`, else by SELECTs. Thread-safe."""

    def __init__(self, select: Callable[[str, int, float], pa.Table], now: Now, recent: RecentAnswers) -> None:
        """`select` gets SQL with limits on rows and seconds."""
        self._select, self._now, self._recent = select, now, recent
        self._lock = Lock()
        self._made_for: tuple[QueryTally, object, int] | None = None
        self._clear(0)

    def current(self) -> QueryTally:
        """Returns the tally as of the newest batch. Raises what `StoreReader.select` raises."""
        version, hour = self._recent.version(), self._now() // HOUR
        if (found := self._kept_for(version, hour)) is not None:
            return found  # even while another thread counts a newer version
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
        self._batch, self._seq, self._kept, self._hour = -1, -1, 0, hour
        self._queries_are: object = None
        self._names, self._forms = RegisteredNames(), QueriesOfForms(self._select)
        self._at: dict[str, int] = {}  # the places of names with outputs, registered or not
        self._at_of_qid = np.zeros(0, np.int64)
        self._total, self._last = np.zeros(0, np.int64), np.full(0, NEVER)
        self._hours, self._days = np.zeros((HOURS, 0), np.int64), np.zeros((DAYS, 0), np.int64)

    def _made(self, hour: int) -> QueryTally:
        self._shift(hour)
        got, known = (None, StoreCursor()) if self._batch < 0 else self._recent.outputs_after(self._batch)
        if not self._count_recent(got, known) and not self._count(known):  # rows were dropped: recount
            self._clear(hour)
            self._count(known)
        names = self._names
        counted = Counted(
            self._total.copy(), self._hours[HOURS - 25 :].sum(axis=0), self._hours.sum(axis=0), self._last.copy(),
            self._days.copy(),
        )  # fmt: skip
        return QueryTally(
            self._queries_are, self._today, names.names, names.queries, names.paused, names.reasons,
            names.counted_at.copy(), counted,
        )  # fmt: skip

    def _count_recent(self, got: Got | None, known: StoreCursor) -> bool:
        """Adds newer batches from the cache. Returns False if not cached, or outputs were deleted."""
        if got is None or known.answers - got.answers != self._kept:
            return False
        _, qids, t1s = got
        self._follow_queries(known.changes)
        self._add(self._places(qids), np.ones(len(qids), np.int64), t1s // HOUR, t1s)
        self._batch, self._seq, self._kept = known.batch, known.seq, known.answers
        return True

    def _count(self, known: StoreCursor) -> bool:
        """Adds newer batches by queries. Returns False if outputs were deleted."""
        are_few = self._batch >= 0 and not known.earlier and known.seq - self._seq <= MOST_OUTPUTS
        until = newest = max(self._batch, known.batch)
        while True:
            if not are_few:
                (found,) = self._select(next_batches(self._batch, MOST_OUTPUTS), 1, SECONDS).to_pylist()
                newest, until = found["newest"], self._batch if found["until"] is None else found["until"]
            if not self._count_until(until):
                return False
            if newest in (None, until):
                self._seq = known.seq
                return True

    def _count_until(self, until: int) -> bool:
        since_hour = min(self._hour - HOURS + 1, (self._today - DAYS + 1) * HOURS_A_DAY)
        qids = None if self._batch < 0 else self._forms.answered(self._batch, until)
        rows = self._select(tally(self._batch, until, since_hour, qids), MOST_ROWS, SECONDS)
        is_of_query, is_named = rows["qid"].is_valid(), rows["name"].is_valid()
        others = rows.filter(pa.compute.invert(pa.compute.or_(is_of_query, is_named))).to_pylist()
        before, kept, queries = sorted(others, key=lambda row: row["hour"], reverse=True)
        if before["outputs"] != self._kept:
            return False
        self._follow_queries((queries["outputs"], queries["last"]))
        later, earlier = rows.filter(is_of_query), rows.filter(is_named)
        named = np.array([self._place(name) for name in earlier["name"].to_pylist()], np.int64)
        for some, of in ((later, self._places(later["qid"].cast(pa.int64()).to_numpy())), (earlier, named)):
            outputs, hours, last = (some[name].to_numpy() for name in ("outputs", "hour", "last"))
            self._add(of, outputs.astype(np.int64), hours, last)
        self._kept, self._batch = kept["outputs"], until
        return True

    def _follow_queries(self, queries_are: object) -> None:
        def select(sql: str) -> pa.Table:
            return self._select(sql, MOST_ROWS, SECONDS)

        before, changes = self._queries_are, None
        if queries_are == before:
            return
        if isinstance(before, int) and isinstance(queries_are, int):
            changes = self._recent.query_changes(before, queries_are)
        for added, removed in changes or ():
            self._names.take(added, removed, _NO_PAUSES, self._at)
        if changes is None and not self._names.follow(select, self._at):
            self._names = RegisteredNames()
            self._names.follow(select, self._at)
        self._queries_are = queries_are

    def _places(self, qids: Ints) -> Ints:
        """Returns the places of queries in the counts."""
        of_qid = self._names.of_qid
        self._at_of_qid = np.pad(self._at_of_qid, (0, len(of_qid) - len(self._at_of_qid)), constant_values=-1)
        for qid in set(qids[self._at_of_qid[qids] < 0].tolist()):
            self._at_of_qid[qid] = self._place(of_qid[qid] or "")
        return self._at_of_qid[qids]

    def _place(self, name: str) -> int:
        if (at := self._at.get(name)) is None:
            at = self._at[name] = len(self._at)
            self._names.is_counted(name, at)
        return at

    def _add(self, codes: Ints, outputs: Ints, hours: Ints, last: Ints) -> None:
        if (more := len(self._at) - len(self._total)) > 0:
            self._total = np.pad(self._total, (0, more))
            self._last = np.pad(self._last, (0, more), constant_values=NEVER)
            self._hours = np.pad(self._hours, ((0, 0), (0, more)))
            self._days = np.pad(self._days, ((0, 0), (0, more)))
        np.add.at(self._total, codes, outputs)
        np.maximum.at(self._last, codes, last)
        # Outputs from the future count in the current hour.
        days = hours // HOURS_A_DAY
        for counts, units, now in ((self._hours, hours, self._hour), (self._days, days, self._today)):
            places = units - (now - len(counts) + 1)
            recent = places >= 0
            np.add.at(counts, (np.minimum(places[recent], len(counts) - 1), codes[recent]), outputs[recent])

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
