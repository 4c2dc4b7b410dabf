"""Charges as columns: works out which members of a form have exceeded their quota, and at which arrival."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmqjp.answers.looking import Looking
from mmqjp.answers.quota import Bound, Quota, Usage, block_size
from mmqjp.queries.members import Ints


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
        self.looking = Looking(looked)
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
    def of(cls, book: Book, bounds: Sequence[Looking]) -> TieCounts:
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
class Excess:
    """The arrival from which on a member gets nothing, and the bound that it exceeded there."""

    arrival: int
    bound: Bound


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
    ) -> Excess | None:
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
        found: list[Excess] = []
        for used, column, base, each, of_block, bounds in (
            (outputs, 5, own.outputs, quota.most_outputs, quota.most_outputs_of_block, (Bound.MATCHES, Bound.OUTPUTS)),
            (work, 6, own.work, quota.most_work, quota.most_work_of_block, (Bound.WORK, Bound.WORK_OF_BLOCK)),
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


def _first(arrivals: Ints, over: NDArray[np.bool_], bound: Bound) -> Iterator[Excess]:
    if over.any():
        yield Excess(int(arrivals[np.argmax(over)]), bound)


def _arrival(excess: Excess) -> int:
    return excess.arrival


def _columns(rows: Sequence[tuple[int, ...]]) -> _Columns:
    table = np.array(rows, np.int64).reshape(-1, 7)
    return tuple(table.T)  # type: ignore[return-value]  # of seven columns


def over_quota(charges: Charges, quota: Quota, holders: Iterable[Holder]) -> Iterator[tuple[Holder, Excess]]:
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
