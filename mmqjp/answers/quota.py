"""Quotas: how much one query may produce and how much work it may cause.

Usage is counted per *arrival*, so the result does not depend on how documents are batched. An arrival is an external
document, numbered in order of admission. An output, or a tuple of a hidden stream, counts towards the latest arrival
behind it. The first arrival at which a query would exceed its quota is its *cutoff*: the query gets nothing for that
arrival or any later one, as if documents came one at a time.

How much is looked at to count pairs of documents with equal times: bounds that no order or batch changes.

Maps documents to the latest arrival behind them, a column at a time.

Charges as columns: works out which members of a form have exceeded their quota, and at which arrival.

Accounts of queries that are charged together: what they use of their quotas in a step, counted once for all.

A match or an answer counts for the members with a wide enough window that see its documents. So what one member has
used is a sum over charges, which is worked out only when the sum over all charges exceeds the quota.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.arrays import Ints
from mmqjp.documents.record import Inputs
from mmqjp.queries.model import Audience, Members, Subscription

BLOCK = 10_000
"""The number of consecutive arrivals in a block. `Quota.outputs` and the work of a block are counted per block."""

MAX_MATCHES, MAX_OUTPUTS, MAX_WORK, MAX_PARTIAL = 100_000, 1_000_000, 10_000_000, 1_000_000
"""The values of `DEFAULT_QUOTA`."""

BLOCK_WORK_FACTOR = 10
"""A block may use this many times the work allowed for one arrival."""

XML_CHARACTERS_PER_STEP = 16
"""An output costs one step per this many characters of XML."""

NEVER = 1 << 62
"""An arrival after all others. Also stands for an unlimited bound."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of each query. None means unlimited.

    `matches` bounds the outputs of the query for one arrival, and the tuples for one arrival of each hidden stream that
    it reads. `outputs` bounds the same for BLOCK arrivals. `work` bounds the steps for one arrival: a match, a joint
    binding that is tried, a node that is visited, and CHARACTERS_PER_STEP characters of an output, without the query's
    name, each cost one step.

    Of event queries, `matches` bounds the outputs, and what each NEXT and FOLD finds, at one time, and `partial` what
    waits for each NEXT, FOLD and AGGREGATE after that.
    """

    matches: int | None
    outputs: int | None
    work: int | None
    partial: int | None = MAX_PARTIAL

    @property
    def most_outputs(self) -> int:
        """The outputs allowed for one arrival, or NEVER."""
        return _bound(self.matches)

    @property
    def most_outputs_of_block(self) -> int:
        """The outputs allowed for a block, or NEVER."""
        return _bound(self.outputs)

    @property
    def most_work(self) -> int:
        """The steps allowed for one arrival, or NEVER."""
        return _bound(self.work)

    @property
    def most_work_of_block(self) -> int:
        """The steps allowed for a block, or NEVER."""
        return NEVER if self.work is None else BLOCK_WORK_FACTOR * self.work


DEFAULT_QUOTA = Quota(MAX_MATCHES, MAX_OUTPUTS, MAX_WORK)
"""The quota if the caller gives none."""


class QuotaBound(Enum):
    """A bound of a quota: outputs for one arrival and for a block, steps for one arrival and for a block."""

    MATCHES = "matches"
    OUTPUTS = "outputs"
    WORK = "work"
    WORK_OF_BLOCK = "work of a block"

    def reason(self, quota: Quota, document: str, *, hidden: bool) -> str:
        """Returns the reason to show to users if it is exceeded. `document` is the id of the document that arrived;
        `hidden` says that tuples of a hidden stream were counted."""
        matches = "matches of an inner join" if hidden else "matches"
        match self:
            case QuotaBound.MATCHES:
                return f"more than {quota.matches:,} {matches} of the document {document!r} (max-matches)"
            case QuotaBound.OUTPUTS:
                return f"more than {quota.outputs:,} {matches} in {BLOCK:,} documents, with {document!r} (max-outputs)"
            case QuotaBound.WORK:
                return f"more than {quota.work:,} steps for the document {document!r} (max-work)"
            case QuotaBound.WORK_OF_BLOCK:
                work = quota.most_work_of_block
                return f"more than {work:,} steps for {BLOCK:,} documents, with {document!r} (max-work)"


def block_size() -> int:
    """Returns BLOCK. Tests make it small."""
    return BLOCK


def arrival_block(arrival: int) -> int:
    """Returns the number of the block of an arrival."""
    return arrival // BLOCK


class OutOfSteps(Exception):
    """All allowed steps were taken. Never leaves `mmqjp.answers`."""


class Steps:
    """Counts down the steps that remain. Raises OutOfSteps when there are none left."""

    __slots__ = ("left",)

    def __init__(self, most: int = NEVER) -> None:
        self.left = most

    def take(self, number: int = 1) -> None:
        self.left -= number
        if self.left < 0:
            raise OutOfSteps


class QuotaMeter:
    """Counts one quantity: at most `per_arrival` per arrival, and at most `per_block` per block."""

    __slots__ = ("_latest", "_per_arrival", "_per_block", "counts", "totals")

    def __init__(self, per_arrival: int, per_block: int) -> None:
        self._per_arrival, self._per_block = per_arrival, per_block
        self.counts: dict[int, int] = {}
        self.totals: dict[int, int] = {}
        self._latest: dict[int, list[int]] = {}

    def add(self, arrival: int, amount: int, cutoff: int) -> tuple[int, bool]:
        """Adds an amount to an arrival. Returns the new cutoff, given the current one, and whether the bound of the
        block, rather than that of the arrival, moved it."""
        block = arrival // BLOCK
        count = self.counts.get(arrival)
        if count is None:
            count = 0
            if block in self._latest:
                heappush(self._latest[block], -arrival)
        self.counts[arrival] = count = count + amount
        self.totals[block] = total = self.totals.get(block, 0) + amount
        if count > self._per_arrival:
            return min(cutoff, arrival), False
        if total > self._per_block:
            return self._block_cutoff(block, cutoff), True
        return cutoff, False

    def left(self, arrival: int) -> int:
        """Returns how much more the arrival may use."""
        return self._per_arrival - self.counts.get(arrival, 0)

    def _block_cutoff(self, block: int, cutoff: int) -> int:
        """Returns the first arrival at which the block exceeds its bound, or `cutoff` if it does not.

        Later counts can only move the cutoff to an earlier arrival.
        """
        if block not in self._latest:
            self._latest[block] = [-arrival for arrival in self.counts if arrival // BLOCK == block]
            heapify(self._latest[block])
        latest = self._latest[block]
        while latest and self.totals[block] > self._per_block:
            last = -heappop(latest)
            self.totals[block] -= self.counts[last]
            cutoff = min(cutoff, last)
        return cutoff


@dataclass(frozen=True, slots=True)
class Usage:
    """What a query used in one block."""

    outputs: int = 0
    work: int = 0


class Account:
    """What readers of a hidden stream that see the same documents use of their quotas in a step.

    `cutoff` is the arrival from which on they get nothing, and `bound` what they exceeded there.
    """

    __slots__ = ("bound", "cutoff", "outputs", "work")

    def __init__(self, quota: Quota, block: int, before: Usage) -> None:
        """`before` is what was already used of the block."""
        self.outputs = QuotaMeter(quota.most_outputs, quota.most_outputs_of_block)
        self.work = QuotaMeter(quota.most_work, quota.most_work_of_block)
        self.outputs.totals[block], self.work.totals[block] = before.outputs, before.work
        self.cutoff = NEVER
        self.bound = QuotaBound.MATCHES

    def steps(self, arrival: int) -> int:
        """Returns how many more steps the arrival may take."""
        return self.work.left(arrival)

    def take_outputs(self, arrival: int, number: int) -> bool:
        """Counts outputs. Returns whether they are within the quota."""
        cutoff, in_all = self.outputs.add(arrival, number, self.cutoff)
        if cutoff < self.cutoff:
            self.cutoff, self.bound = cutoff, (QuotaBound.OUTPUTS if in_all else QuotaBound.MATCHES)
        return arrival < cutoff

    def take_steps(self, arrival: int, number: int) -> None:
        """Counts steps that were taken. The last one may exceed the quota."""
        cutoff, in_all = self.work.add(arrival, number, self.cutoff)
        if cutoff < self.cutoff:
            self.cutoff, self.bound = cutoff, (QuotaBound.WORK_OF_BLOCK if in_all else QuotaBound.WORK)

    def spent(self, block: int) -> Usage:
        """Returns what was used of a block."""
        return Usage(self.outputs.totals.get(block, 0), self.work.totals.get(block, 0))


def _bound(bound: int | None) -> int:
    return NEVER if bound is None else bound


MOST_PAIRS = 100
"""The pairs with equal times that are looked at for a form and an arriving document. If it has more, none count."""
MOST_STEPS = 10_000
"""The steps that this may take. If it takes more, none of the pairs of the document count."""
MOST_OF_FORM = 10_000
"""When as many were looked at for a form, those of later documents are not. A document with too many counts as
MOST_PAIRS."""


class EqualTimeBudget:
    """What was looked at in a step for a form, by arrival. `before` were looked at before it."""

    def __init__(self, before: int) -> None:
        self._total = self._before = before
        self._looked: dict[int, list[int]] = {}
        self._latest: list[int] = []
        self.cutoff = -1 if before >= MOST_OF_FORM else NEVER
        """The arrival from which on nothing is looked at."""
        self.full: set[int] = set()
        """The arrivals with too many pairs or steps."""
        self.left_out = False
        """Whether there was anything to look at that was not."""

    def may(self, arrival: int) -> bool:
        """Returns whether a pair of an arrival may be looked at."""
        if arrival < self.cutoff and arrival not in self.full:
            return True
        self.left_out = True
        return False

    def add(self, arrival: int, pairs: int, steps: int) -> None:
        """Counts what was looked at. Later counts can only move the cutoff to an earlier arrival."""
        if arrival >= self.cutoff:
            self.left_out = True
            return
        looked = self._looked.get(arrival)
        if looked is None:
            looked = self._looked[arrival] = [0, 0]
            heappush(self._latest, -arrival)
        weight = self._weight(arrival)
        looked[0] += pairs
        looked[1] += steps
        if looked[0] > MOST_PAIRS or looked[1] > MOST_STEPS:
            self.full.add(arrival)
            self.left_out = True
        self._total += self._weight(arrival) - weight
        while self._latest and self._total - self._weight(-self._latest[0]) >= MOST_OF_FORM:
            self.cutoff = -heappop(self._latest)
            self._total -= self._weight(self.cutoff)
            self.left_out = True

    def _weight(self, arrival: int) -> int:
        return MOST_PAIRS if arrival in self.full else self._looked[arrival][0]

    def merge(self, other: EqualTimeBudget) -> None:
        """Counts what was looked at elsewhere in the step."""
        for arrival, (pairs, steps) in other._looked.items():
            self.add(arrival, pairs, steps)
        self.left_out |= other.left_out

    def counts(self, arrival: int) -> bool:
        """Returns whether the pairs of an arrival count, when all was looked at."""
        return arrival < self.cutoff and arrival not in self.full

    @property
    def in_step(self) -> int:
        """What was looked at for the form in this step."""
        return self._total - self._before

    @property
    def is_used(self) -> bool:
        """Whether there was anything to look at in this step."""
        return bool(self._looked) or self.left_out

    @property
    def is_limited(self) -> bool:
        """Whether there is an arrival of which nothing more is looked at."""
        return self.cutoff < NEVER or bool(self.full)

    def spent(self, arrivals: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns for which arrivals nothing more is looked at."""
        found: NDArray[np.bool_] = arrivals >= self.cutoff
        return found | np.isin(arrivals, list(self.full)) if self.full else found


LoadArrivals = Callable[[], pa.Table]
"""Returns a table of `docid`, in ascending order, and `arrival`."""


class Arrivals:
    """The arrivals of documents by docid. Docids are added in ascending order; `load` is called on first use."""

    def __init__(self, load: LoadArrivals | None = None) -> None:
        self._load = load
        self._docids: list[int] = []
        self._arrivals: list[int] = []
        self._known: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def add(self, docid: int, arrival: int) -> None:
        """Adds a document."""
        self._docids.append(docid)
        self._arrivals.append(arrival)
        self._known = None

    def before(self, chunk: pa.RecordBatch, closed: Mapping[int, int]) -> pa.RecordBatch:
        """Keeps the matches whose latest arrival comes before the row's entry in `closed`. `chunk` has the columns of
        RESULT; `closed` maps rows of R_T to the arrival from which on nobody wants their matches."""
        qids, position = np.unique(chunk["qid"].to_numpy(), return_inverse=True)
        until = np.array([closed.get(qid, NEVER) for qid in qids.tolist()], np.int64)[position]
        return chunk.filter(pa.array(self.latest(chunk) < until))

    def latest(self, chunk: pa.RecordBatch) -> NDArray[np.int64]:
        """Returns the latest arrival of each match. `chunk` has the columns of RESULT."""
        return np.maximum(self._of(chunk["docid1"]), self._of(chunk["docid2"]))

    def _of(self, docids: pa.Array) -> NDArray[np.int64]:
        """Returns the arrival of each docid. Unknown documents come before all others."""
        known, arrivals = self._table()
        sought = docids.fill_null(-1).to_numpy(zero_copy_only=False)
        position = np.searchsorted(known, sought)
        position[position == len(known)] = 0
        return np.where(known[position] == sought, arrivals[position], -NEVER)

    def _table(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._known is None:
            if self._load is not None:
                load, self._load = self._load(), None
                self._docids[:0], self._arrivals[:0] = load["docid"].to_pylist(), load["arrival"].to_pylist()
            self._known = np.array([-2, *self._docids], np.int64), np.array([0, *self._arrivals], np.int64)
        return self._known


class ChargeKey(NamedTuple):
    """Whom a charge counts for: members with a window of at least `width`, that see documents after `since`, have at
    least `first_qid`, and began in the batch `begun` or before."""

    width: int
    since: int
    first_qid: int
    begun: int


class Holder(NamedTuple):
    """What decides which charges count for a member. It gets nothing from the arrival `until` on."""

    window: int
    since: int
    qid: int
    begun: int
    until: int


class Book:
    """What is charged to an owner in a step, and what was charged before it in the same block.

    `step` has outputs and work by arrival and key, and `less` what does not count for single queries although their key
    says so, by arrival and qid. `total` is the sum of `before`, and `outputs` and `work` are those of `step`. `ties`
    counts pairs of documents with equal times, by arrival and key, and `untied` those of them that do not count, by
    arrival, qid and `begun` of the query. `looking` bounds what is looked at for them.
    """

    __slots__ = ("before", "less", "looking", "outputs", "step", "ties", "total", "untied", "work")

    def __init__(self, before: Mapping[ChargeKey, Usage], total: Usage, looked: int = 0) -> None:
        self.before, self.total = before, total
        self.step: dict[tuple[int, ChargeKey], list[int]] = {}
        self.less: dict[tuple[int, int], list[int]] = {}
        self.outputs = self.work = 0
        self.looking = EqualTimeBudget(looked)
        self.ties: Counter[tuple[int, ChargeKey]] = Counter()
        self.untied: Counter[tuple[int, int, int]] = Counter()

    def tie(self, arrival: int, key: ChargeKey, withheld: Iterable[tuple[int, int]]) -> None:
        """Counts a pair of documents with equal times, but not for the queries `withheld`: their qids and `begun`. It
        costs nothing."""
        self.ties[arrival, key] += 1
        self.untied.update((arrival, *query) for query in withheld)

    def charge(self, arrival: int, key: ChargeKey, withheld: Iterable[int], outputs: int, work: int) -> None:
        """Counts outputs and steps of an arrival, but not for the qids `withheld`."""
        charge = self.step.get((arrival, key))
        if charge is None:
            charge = self.step[arrival, key] = [0, 0]
        charge[0] += outputs
        charge[1] += work
        for qid in withheld:
            less = self.less.setdefault((arrival, qid), [0, 0])
            less[0] += outputs
            less[1] += work
        self.outputs += outputs
        self.work += work

    def add(self, other: Book) -> None:
        """Counts what another book of the same owner has of the step."""
        for mine, theirs in ((self.step, other.step), (self.less, other.less)):
            for key, (outputs, work) in theirs.items():
                known = mine.setdefault(key, [0, 0])  # type: ignore[arg-type]  # the keys of both are those of one kind
                known[0] += outputs
                known[1] += work
        self.outputs += other.outputs
        self.work += other.work
        self.looking.merge(other.looking)
        self.ties.update(other.ties)
        self.untied.update(other.untied)


@dataclass(frozen=True, slots=True)
class TieCounts:
    """The pairs of documents with equal times of a step: `pairs` by key, and `less` of them by qid and `begun`.

    So many were `looked` at. With `left_out`, there were more.
    """

    pairs: Counter[ChargeKey]
    less: Counter[tuple[int, int]]
    looked: int
    left_out: bool

    @classmethod
    def of(cls, book: Book, bounds: Sequence[EqualTimeBudget]) -> TieCounts:
        """Returns the counts of a book, without those of arrivals that exceed one of the bounds."""
        pairs: Counter[ChargeKey] = Counter()
        less: Counter[tuple[int, int]] = Counter()
        for (arrival, key), count in book.ties.items():
            if all(bound.counts(arrival) for bound in bounds):
                pairs[key] += count
        for (arrival, qid, begun), count in book.untied.items():
            if all(bound.counts(arrival) for bound in bounds):
                less[qid, begun] += count
        return cls(pairs, less, book.looking.in_step, any(bound.left_out for bound in bounds))


_LEAST, _GREATEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)

EVERYTHING = Holder(_GREATEST, _LEAST, _GREATEST, _LEAST, _GREATEST)
"""A holder for whom all charges count."""


@dataclass(frozen=True, slots=True)
class QuotaExcess:
    """The arrival from which on a member gets nothing, and the bound that it exceeded there."""

    arrival: int
    bound: QuotaBound


_Columns = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints]
"""Arrival, width, since, first_qid, begun, outputs, work."""


@dataclass(frozen=True, slots=True)
class Charges:
    """Charges of a step, in the order of arrivals, and those of its first block from `before` the step."""

    block: int
    step: _Columns
    before: _Columns

    @classmethod
    def of(cls, block: int, books: Iterable[tuple[Book, int]]) -> Charges:
        """Returns the charges of books, each as many times as the number beside it says."""
        step: list[tuple[int, ...]] = []
        before: list[tuple[int, ...]] = []
        for book, times in books:
            step += ((at, *key, times * used[0], times * used[1]) for (at, key), used in book.step.items())
            before += ((-1, *key, times * used.outputs, times * used.work) for key, used in book.before.items())
        step.sort()
        return cls(block, _columns(step), _columns(before))

    def excess(
        self, quota: Quota, holder: Holder, own: Usage, less: Iterable[tuple[int, int, int]] = ()
    ) -> QuotaExcess | None:
        """Returns where a member exceeds its quota, or None if it does not.

        `own` is to be added to what counts for it of the first block. `less` has (arrival, outputs, work) that do not
        count for it.
        """
        counts = _counts_for(self.step, holder) & (self.step[0] < holder.until)
        arrival, outputs, work = (self.step[i][counts] for i in (0, 5, 6))
        if not len(arrival):
            return None
        for at, fewer_outputs, less_work in less:
            arrival = np.append(arrival, at)
            outputs, work = np.append(outputs, -fewer_outputs), np.append(work, -less_work)
        arrivals, place = np.unique(arrival, return_inverse=True)
        earlier = _counts_for(self.before, holder)
        found: list[QuotaExcess] = []
        for used, column, base, each, of_block, bounds in (
            (
                outputs,
                5,
                own.outputs,
                quota.most_outputs,
                quota.most_outputs_of_block,
                (QuotaBound.MATCHES, QuotaBound.OUTPUTS),
            ),
            (work, 6, own.work, quota.most_work, quota.most_work_of_block, (QuotaBound.WORK, QuotaBound.WORK_OF_BLOCK)),
        ):
            sums = np.zeros(len(arrivals), np.int64)
            np.add.at(sums, place, used)
            base += int(self.before[column][earlier].sum())
            found += _first(arrivals, sums > each, bounds[0])
            found += _first(arrivals, self._in_blocks(arrivals, sums, base) > of_block, bounds[1])
        return min(found, key=_arrival, default=None)

    def _in_blocks(self, arrivals: Ints, sums: Ints, base: int) -> Ints:
        """Returns what was used of each arrival's block up to it."""
        blocks = arrivals // block_size()
        running = np.cumsum(sums)
        starts = np.flatnonzero(np.diff(blocks, prepend=-1))
        skipped = np.repeat(running[starts] - sums[starts], np.diff(np.append(starts, len(blocks))))
        return running - skipped + np.where(blocks == self.block, base, 0)


def _counts_for(columns: _Columns, holder: Holder) -> NDArray[np.bool_]:
    _, width, since, first_qid, begun, _, _ = columns
    return (width <= holder.window) & (since >= holder.since) & (first_qid <= holder.qid) & (begun >= holder.begun)


def _first(arrivals: Ints, over: NDArray[np.bool_], bound: QuotaBound) -> Iterator[QuotaExcess]:
    if over.any():
        yield QuotaExcess(int(arrivals[np.argmax(over)]), bound)


def _arrival(excess: QuotaExcess) -> int:
    return excess.arrival


def _columns(rows: Sequence[tuple[int, ...]]) -> _Columns:
    table = np.array(rows, np.int64).reshape(-1, 7)
    return tuple(table.T)  # type: ignore[return-value]  # of seven columns


def over_quota(charges: Charges, quota: Quota, holders: Iterable[Holder]) -> Iterator[tuple[Holder, QuotaExcess]]:
    """Yields the holders that exceed their quota. No holder is worked out for whom no more counts than for one that is
    within its quota."""
    within: list[tuple[int, int]] = []
    latest = None
    for holder in sorted(holders, key=lambda one: (one.qid, one.since, one.begun, -one.window)):
        if holder.qid != latest:
            latest, within = holder.qid, []
        if any(begun <= holder.begun and window >= holder.window for begun, window in within):
            continue
        excess = charges.excess(quota, holder, Usage())
        if excess is None:
            within.append((holder.begun, holder.window))
        else:
            yield holder, excess


CHECKED_AGAIN_AFTER = 1.0625
"""Usage above the quota is worked out again for each member when it has grown by this factor."""


class Share(NamedTuple):
    """Who gets a match: members with a window of at least `width` that see its first document, `appeared`, and have at
    least `first_qid`, but not those `withheld`. `key` is whom it counts for."""

    key: ChargeKey
    width: int
    appeared: int
    first_qid: int
    withheld: tuple[Subscription, ...] = ()


class SharedAccount:
    """The account of the members of a form, or of all queries with a literal test, in one step."""

    def __init__(
        self,
        quota: Quota,
        audience: Audience,
        block: int,
        book: Book,
        others: Sequence[tuple[Book, int]],
        own: Mapping[int, Usage],
        cutoffs: Mapping[int, int],
    ) -> None:
        """`block` is the one that `book` has charges of from before the step. What is in `others` counts for the
        members, too, so many times. `own` is what is to be added for single members, by qid, and `cutoffs` has the
        arrivals from which on members get nothing."""
        self._quota, self._block, self._book, self._others, self._own = quota, block, book, others, own
        self.audience = audience
        self._until: Ints | None = None
        if cutoffs:
            self._limit(cutoffs)
        self._subsets: dict[int, Audience | None] = {0: audience if audience.queries else None}
        self._everyone: dict[int, ChargeKey] = {}
        most = self._most_own()
        outputs = sum(times * one.total.outputs for one, times in self._books())
        work = sum(times * one.total.work for one, times in self._books())
        # As long as the step has used no more than this, no member can have exceeded its quota.
        self._safe_outputs = min(quota.most_outputs, quota.most_outputs_of_block - outputs - most.outputs)
        self._safe_work = min(quota.most_work, quota.most_work_of_block - work - most.work)
        self._is_checked = False
        """Whether it has used more than that, and was checked."""
        self._excess: dict[int, QuotaExcess] = {}

    def _books(self) -> list[tuple[Book, int]]:
        return [(self._book, 1), *self._others]

    # ------------------------------------------------------------ who gets what

    def share(self, width: int, inputs: Inputs, first_qid: int) -> Share | None:
        """Returns who gets a match of these documents, `width` microseconds apart; None if nobody does."""
        audience = self._audience(first_qid)
        if audience is None:
            return None
        appeared = inputs.appeared
        if (
            self._until is None
            and width <= audience.narrowest
            and appeared > audience.latest_since
            and appeared > audience.latest_gap
        ):
            key = self._everyone.get(first_qid)
            if key is None:
                key = ChargeKey(audience.narrowest, audience.latest_since, first_qid, audience.latest_begun)
                self._everyone[first_qid] = key
            return Share(key, width, appeared, first_qid)
        return self._some(audience, width, inputs, first_qid)

    def _audience(self, first_qid: int) -> Audience | None:
        if first_qid not in self._subsets:
            self._subsets[first_qid] = self.audience.since_qid(first_qid)
        return self._subsets[first_qid]

    def _some(self, audience: Audience, width: int, inputs: Inputs, first_qid: int) -> Share | None:
        """Returns who gets a match that not everyone gets."""
        appeared, windows, sinces = inputs.appeared, audience.windows, audience.sinces
        at, before = int(np.searchsorted(windows, width)), int(np.searchsorted(sinces, appeared))
        if at == len(windows) or before == 0:
            return None
        withheld = self._withheld(audience, width, inputs)
        if withheld or self._until is not None or (at and before < len(sinces)):
            members = self.audience.members
            gets = (members.windows >= width) & (members.sinces < appeared) & (members.qids >= first_qid)
            if self._until is not None:
                gets &= self._until > inputs.arrival
            if np.count_nonzero(gets) <= len(withheld):
                return None
        key = ChargeKey(int(windows[at]), int(sinces[before - 1]), first_qid, audience.latest_begun)
        return Share(key, width, appeared, first_qid, withheld)

    def _withheld(self, audience: Audience, width: int, inputs: Inputs) -> tuple[Subscription, ...]:
        """Returns the members that were paused when one of the documents came, and would get the match otherwise."""
        if inputs.appeared > audience.latest_gap:
            return ()
        return tuple(
            query
            for query in audience.gapped
            if query.since < inputs.appeared
            and width <= query.width
            and not inputs.are_seen_by(query.sees)
            and self._is_open(query, inputs.arrival)
        )

    def _is_open(self, query: Subscription, arrival: int) -> bool:
        return self._until is None or arrival < int(self._until[self.audience.place_of(query)])

    def gets(self, share: Share, query: Subscription, arrival: int) -> bool:
        """Returns whether a member gets a match of an arrival."""
        return (
            share.width <= query.width
            and query.since < share.appeared
            and share.first_qid <= query.qid
            and query not in share.withheld
            and self._is_open(query, arrival)
        )

    def members(self, batch: int) -> Members:
        """Returns the members, as of a batch in which they get nothing from their cutoffs on."""
        members = self.audience.members
        if self._until is None:
            return members
        ended = np.where(self._until < NEVER, batch, members.ended)
        return replace(members, ended=ended, ended_at=self._until)

    @property
    def is_limited(self) -> bool:
        """Whether any member has a cutoff."""
        return self._until is not None

    @property
    def cutoff(self) -> int:
        """The arrival from which on no member gets anything, or NEVER."""
        return NEVER if self._until is None else int(self._until.max(initial=0))

    def _limit(self, cutoffs: Mapping[int, int]) -> None:
        """Notes from which arrivals on members get nothing."""
        if self._until is None:
            self._until = np.full(len(self.audience.queries), NEVER)
        for place, query in enumerate(self.audience.queries):
            if query.qid in cutoffs:
                self._until[place] = min(cutoffs[query.qid], self._until[place])

    # ------------------------------------------------------------ charges

    def charge(self, arrival: int, share: Share, outputs: int, work: int) -> None:
        """Counts answers and steps of a match."""
        self._book.charge(arrival, share.key, [query.qid for query in share.withheld], outputs, work)
        if self._is_near():
            self._check()
            self._safe_outputs = max(self._safe_outputs, int(self._book.outputs * CHECKED_AGAIN_AFTER))
            self._safe_work = max(self._safe_work, int(self._work() * CHECKED_AGAIN_AFTER))

    @property
    def looking(self) -> EqualTimeBudget:
        """What was looked at to count pairs of documents with equal times."""
        return self._book.looking

    def tie(self, arrival: int, share: Share) -> None:
        """Counts a pair of documents with equal times."""
        self._book.tie(arrival, share.key, [(query.qid, query.begun) for query in share.withheld])

    def _is_near(self) -> bool:
        return self._book.outputs > self._safe_outputs or self._work() > self._safe_work

    def _work(self) -> int:
        work = self._book.work
        for book, times in self._others:
            work += times * book.work
        return work

    def exceeded(self) -> dict[Subscription, QuotaExcess]:
        """Returns the members that exceeded their quota, before the cutoffs that the account was made with."""
        if not (self._is_checked or self._is_near()):
            return {}
        self._check()
        return {query: self._excess[query.qid] for query in self.audience.queries if query.qid in self._excess}

    def _check(self) -> None:
        """Works out which members have exceeded their quota, and stops answering them."""
        self._is_checked = True
        charges, quota = Charges.of(self._block, self._books()), self._quota
        if charges.excess(quota, EVERYTHING, self._most_own()) is None:
            return
        less: dict[int, list[tuple[int, int, int]]] = {}
        for book, times in self._books():
            for (arrival, qid), (outputs, work) in book.less.items():
                less.setdefault(qid, []).append((arrival, times * outputs, times * work))
        found: dict[int, QuotaExcess] = {}
        alike: dict[Holder, list[int]] = {}
        for query, holder in zip(self.audience.queries, self._holders(), strict=True):
            if query.qid in less or query.qid in self._own or holder.until < NEVER:
                own = self._own.get(query.qid, Usage())
                excess = charges.excess(quota, holder, own, less.get(query.qid, ()))
                if excess is not None:
                    found[query.qid] = excess
            else:
                alike.setdefault(holder, []).append(query.qid)
        for holder, excess in over_quota(charges, quota, alike):
            found |= dict.fromkeys(alike[holder], excess)
        if found:
            self._excess |= found
            self._limit({qid: excess.arrival for qid, excess in found.items()})

    def _most_own(self) -> Usage:
        """Returns the most that is to be added for any member."""
        own = self._own.values()
        return Usage(max((u.outputs for u in own), default=0), max((u.work for u in own), default=0))

    def _holders(self) -> Iterator[Holder]:
        """Yields what decides which charges count for each member. Of qids it has only what makes a difference."""
        members = self.audience.members
        until = [NEVER] * len(members) if self._until is None else self._until.tolist()
        keys = {key for book, _ in self._books() for key in book.before}
        keys |= {key for book, _ in self._books() for _, key in book.step}
        first_qids = sorted({key.first_qid for key in keys})
        columns = (members.windows, members.sinces, members.qids, members.begun)
        for window, since, qid, begun, end in zip(*(c.tolist() for c in columns), until, strict=True):
            at = bisect_right(first_qids, qid)
            yield Holder(window, since, first_qids[at - 1] if at else -1, begun, end)

    # ------------------------------------------------------------ what is stored

    def spent(self, block: int) -> dict[ChargeKey, Usage]:
        """Returns what was charged in a block, with what was before the step, for the keys that the step charged."""
        found: dict[ChargeKey, list[int]] = {}
        for (arrival, key), (outputs, work) in self._book.step.items():
            if arrival_block(arrival) == block:
                known = found.get(key)
                if known is None:
                    before = self._book.before.get(key, Usage()) if block == self._block else Usage()
                    known = found[key] = [before.outputs, before.work]
                known[0] += outputs
                known[1] += work
        return {key: Usage(*used) for key, used in found.items()}
