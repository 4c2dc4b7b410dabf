"""Quotas bound the outputs of a query and the work it causes. Usage is counted per *arrival*, an external document
numbered by admission: that of the latest one behind an output or hidden tuple, so batches do not matter. The first
arrival at which a query would exceed its quota is its *cutoff*: it gets nothing from there on. Members of a form are
charged together; single members are computed only when the sum of all charges exceeds the quota."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common import limits
from common.arrays import Ints, Mask, bisect_ranges, group_starts, number_rows
from common.limits import Excess, LimitName, Quota, first_excess, sums_in_blocks
from mmqjp.documents.record import Inputs
from mmqjp.queries.model import Audience, JoinSubscription, Members, Subscription

MAX_MATCHES, MAX_OUTPUTS, MAX_WORK, MAX_PARTIAL = 100_000, 1_000_000, 10_000_000, 1_000_000
"""The limits of a quota by default."""

XML_CHARACTERS_PER_STEP = 16  # an output costs one step per this many characters of XML

NEVER = 1 << 62  # an arrival after all others


class OutOfSteps(Exception):
    """No steps left. Never leaves `mmqjp.answers`."""


@dataclass(slots=True)
class Steps:
    """Step budget. Raises OutOfSteps when exhausted."""

    left: int = NEVER

    def take(self, number: int = 1) -> None:
        self.left -= number
        if self.left < 0:
            raise OutOfSteps


@dataclass(slots=True)
class Usage:
    outputs: int = 0
    work: int = 0

    def add(self, other: Usage, times: int = 1) -> None:
        self.outputs += times * other.outputs
        self.work += times * other.work

    def __reduce__(self) -> tuple[type[Usage], tuple[int, int]]:
        return Usage, (self.outputs, self.work)  # in a third of the time that slots take


_NOTHING = Usage()  # never added to


MOST_PAIRS = 100
"""Maximum number of equal-time pairs examined per form and arriving document. Beyond that, none count."""
MOST_STEPS = 10_000
"""Maximum number of steps for that. Beyond that, none of the document's pairs count."""
MOST_OF_FORM = 10_000
"""Maximum number of pairs per form; later documents are skipped. A document with too many counts as MOST_PAIRS."""


class EqualTimeBudget:
    """Pairs examined for a form in a step, by arrival, after `before` in earlier steps. Independent of order and
    batching."""

    def __init__(self, before: int) -> None:
        self._total = self._before = before
        self._looked: dict[int, list[int]] = {}
        self._latest: list[int] = []
        self.cutoff = -1 if before >= MOST_OF_FORM else NEVER  # arrival from which nothing is examined
        self.full: set[int] = set()  # arrivals with too many pairs or steps
        self.left_out = False  # whether some pair was skipped

    def add(self, arrival: int, pairs: int, steps: int) -> None:
        """Counts examined pairs. Later counts can only move the cutoff earlier."""
        if arrival >= self.cutoff:
            self.left_out = True
            return
        if (looked := self._looked.get(arrival)) is None:
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
        for arrival, (pairs, steps) in other._looked.items():
            self.add(arrival, pairs, steps)
        self.left_out |= other.left_out

    def counts(self, arrival: int) -> bool:
        """Whether an arrival's pairs count; call once all are examined."""
        return arrival < self.cutoff and arrival not in self.full

    @property
    def in_step(self) -> int:
        return self._total - self._before

    @property
    def is_used(self) -> bool:
        return bool(self._looked) or self.left_out

    @property
    def is_limited(self) -> bool:
        return self.cutoff < NEVER or bool(self.full)

    def spent(self, arrivals: NDArray[np.int64]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = arrivals >= self.cutoff
        return found | np.isin(arrivals, list(self.full)) if self.full else found


class Arrivals:
    """Arrivals by docid. Docids are added in ascending order."""

    def __init__(self, load: Callable[[], pa.Table] | None = None) -> None:
        """`load`, called on first use, returns `docid`, ascending, and `arrival`."""
        self._load = load
        self._docids: list[int] = []
        self._arrivals: list[int] = []
        self._known: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def extend(self, docids: Iterable[int], arrivals: Iterable[int]) -> None:
        self._docids += docids
        self._arrivals += arrivals
        self._known = None

    def latest(self, chunk: pa.RecordBatch) -> NDArray[np.int64]:
        return np.maximum(self._of(chunk["docid1"]), self._of(chunk["docid2"]))

    def _of(self, docids: pa.Array) -> NDArray[np.int64]:
        if self._known is None:
            if self._load is not None:
                load, self._load = self._load(), None
                self._docids[:0], self._arrivals[:0] = load["docid"].to_pylist(), load["arrival"].to_pylist()
            self._known = np.array([-2, *self._docids], np.int64), np.array([0, *self._arrivals], np.int64)
        known, arrivals = self._known
        sought = docids.fill_null(-1).to_numpy(zero_copy_only=False)
        position = np.searchsorted(known, sought)
        position[position == len(known)] = 0
        return np.where(known[position] == sought, arrivals[position], -NEVER)


class ChargeKey(NamedTuple):
    """Members that a charge applies to: window at least `width`, `since` before the documents, qid at least
    `first_qid`, and begun in batch `begun` or earlier."""

    width: int
    since: int
    first_qid: int
    begun: int


class Holder(NamedTuple):
    """Determines which charges apply to a member, which gets nothing from arrival `until` on."""

    window: int
    since: int
    qid: int
    begun: int
    until: int


class StepCharges:
    """An owner's charges in a step. Columns are of a `_Columns`; several rows may have one arrival and key."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._packed: list[Ints] = []

    def __bool__(self) -> bool:
        return bool(self._rows or self._packed)

    def add(self, row: tuple[int, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) == MOST_ROWS:
            self._pack()

    def extend(self, columns: Ints) -> None:
        self._packed.append(columns)

    def merge(self, other: StepCharges) -> None:
        self._packed += other._packed
        for row in other._rows:
            self.add(row)

    def _pack(self) -> None:
        self._packed.append(_summed(np.array(self._rows, np.int64).T))
        self._rows = []

    def columns(self) -> Ints:
        if self._rows:
            self._pack()
        if len(self._packed) != 1:
            self._packed = [np.concatenate([np.zeros((len(_Columns._fields), 0), np.int64), *self._packed], axis=1)]
        return self._packed[0]


def _summed(columns: Ints) -> Ints:
    """Adds the last two columns up over rows that are otherwise equal."""
    if not columns.shape[1]:
        return columns
    number, first = number_rows(*columns[:-2])
    found: Ints = columns[:, first]
    for place in (-2, -1):
        found[place] = 0
        np.add.at(found[place], number, columns[place])
    return found


MOST_ROWS = 10_000  # rows that are packed


@dataclass(eq=False, slots=True)
class Book:
    """An owner's charges in a step, and those before it in the same block.

    `step` has what was used by arrival and key; `less` deducts charges for single queries, by arrival and qid. `total`
    sums `before`; `used` sums `step`. `ties` counts equal-time pairs by arrival and key, `untied` deducts by arrival,
    qid and the query's `begun`, and `looking` is their budget.
    """

    before: Mapping[ChargeKey, Usage]
    total: Usage
    looking: EqualTimeBudget
    used: Usage = field(default_factory=Usage)
    step: StepCharges = field(default_factory=StepCharges)
    less: defaultdict[tuple[int, int], Usage] = field(default_factory=partial(defaultdict, Usage))
    # Most books stay without ties, and to make a Counter takes four times as long.
    ties: defaultdict[tuple[int, ChargeKey], int] = field(default_factory=partial(defaultdict, int))
    untied: defaultdict[tuple[int, int, int], int] = field(default_factory=partial(defaultdict, int))

    def add(self, other: Book) -> None:
        """Merges another book of the same owner and step."""
        self.step.merge(other.step)
        for of_query, used in other.less.items():
            self.less[of_query].add(used)
        self.used.add(other.used)
        self.looking.merge(other.looking)
        for tie, count in other.ties.items():
            self.ties[tie] += count
        for untied, count in other.untied.items():
            self.untied[untied] += count


def charged_in_block(books: Sequence[Book], block: int) -> Iterator[tuple[int, tuple[int, ...], Usage]]:
    """Yields what the arrivals of a block charge in a step: the place of a book, a key, and what it is charged."""
    if not books:
        return
    columns = [book.step.columns() for book in books]
    owner = np.repeat(np.arange(len(books)), [of_book.shape[1] for of_book in columns])
    arrival, *others = np.concatenate(columns, axis=1)
    for place, *key, outputs, work in _summed(
        np.stack([owner, *others])[:, arrival // limits.BLOCK == block]
    ).T.tolist():
        yield place, tuple(key), Usage(outputs, work)


@dataclass(frozen=True, slots=True)
class TieCounts:
    """A form's equal-time pairs: `pairs` by key, minus `less` by qid and the query's `begun`. `looked` were examined;
    `left_out`: there were more."""

    pairs: Counter[ChargeKey] = field(default_factory=Counter)
    less: Counter[tuple[int, int]] = field(default_factory=Counter)
    looked: int = 0
    left_out: bool = False

    @classmethod
    def of_step(cls, book: Book, bounds: Sequence[EqualTimeBudget]) -> TieCounts:
        found = cls(Counter(), Counter(), book.looking.in_step, any(bound.left_out for bound in bounds))
        for (arrival, key), count in book.ties.items():
            if all(bound.counts(arrival) for bound in bounds):
                found.pairs[key] += count
        for (arrival, qid, begun), count in book.untied.items():
            if all(bound.counts(arrival) for bound in bounds):
                found.less[qid, begun] += count
        return found

    @classmethod
    def read(cls, text: str) -> TieCounts:
        pairs, less, looked, left_out = json.loads(text)
        withheld = Counter({(qid, begun): count for qid, begun, count in less})
        return cls(Counter({ChargeKey(*key): count for *key, count in pairs}), withheld, looked, left_out)

    def text(self) -> str:
        pairs, less = ([(*key, count) for key, count in counts.items()] for counts in (self.pairs, self.less))
        return json.dumps([pairs, less, self.looked, self.left_out])

    def __add__(self, other: TieCounts) -> TieCounts:
        left_out = self.left_out or other.left_out
        return TieCounts(self.pairs + other.pairs, self.less + other.less, self.looked + other.looked, left_out)

    def only_for(self, queries: Collection[Subscription]) -> TieCounts:
        """Drops the keys that apply to none of the queries."""
        since, begun = min(query.since for query in queries), min(query.begun for query in queries)
        known = {(query.qid, query.begun) for query in queries}
        pairs = {key: count for key, count in self.pairs.items() if key.since >= since and key.begun >= begun}
        less = {key: count for key, count in self.less.items() if key in known}
        return replace(self, pairs=Counter(pairs), less=Counter(less))

    def of(self, query: Subscription) -> int:
        """Counts a query's ties since it was registered or last resumed."""
        found = sum(
            count
            for (width, since, first_qid, begun), count in self.pairs.items()
            if width <= query.width and since >= query.since and first_qid <= query.qid and begun >= query.begun
        )
        return max(found - self.less[query.qid, query.begun], 0)


_LEAST, _GREATEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)

EVERYTHING = Holder(_GREATEST, _LEAST, _GREATEST, _LEAST, _GREATEST)


class _Columns(NamedTuple):
    """Charges as columns: those of a `ChargeKey` between their arrival and what they charge."""

    arrival: Ints
    width: Ints
    since: Ints
    first_qid: Ints
    begun: Ints
    outputs: Ints
    work: Ints


@dataclass(frozen=True, slots=True)
class Charges:
    """A step's charges by arrival, plus those of its first block from `before` the step."""

    block: int
    step: _Columns
    before: _Columns

    @classmethod
    def of(cls, block: int, books: Iterable[tuple[Book, int]]) -> Charges:
        """Returns the charges of books, each with its multiplicity."""
        step, before = [StepCharges().columns()], list[tuple[int, ...]]()
        for book, times in books:
            factors = np.array([1] * 5 + [times] * 2)
            step.append(book.step.columns() * factors[:, None])
            before += ((-1, *key, times * used.outputs, times * used.work) for key, used in book.before.items())
        rows = np.array(before, np.int64).reshape(-1, len(_Columns._fields))
        return cls(block, _Columns(*np.concatenate(step, axis=1)), _Columns(*rows.T))

    def excess(
        self, quota: Quota, holder: Holder, own: Usage, less: Iterable[tuple[int, int, int]] = ()
    ) -> Excess | None:
        """Returns where a member exceeds its quota, or None. `own` is added to its first block; `less` deducts
        (arrival, outputs, work)."""
        step, before = self.step, self.before
        counts = _counts_for(step, holder) & (step.arrival < holder.until)
        arrival, outputs, work = step.arrival[counts], step.outputs[counts], step.work[counts]
        if not len(arrival):
            return None
        for at, fewer_outputs, less_work in less:
            arrival = np.append(arrival, at)
            outputs, work = np.append(outputs, -fewer_outputs), np.append(work, -less_work)
        arrivals, place = np.unique(arrival, return_inverse=True)
        earlier = _counts_for(before, holder)
        blocks, found = arrivals // limits.BLOCK, list[Excess]()
        amounts: Iterable[tuple[Ints, Ints, int, LimitName, LimitName]] = (
            (outputs, before.outputs, own.outputs, "matches", "outputs"),
            (work, before.work, own.work, "work", "work_of_block"),
        )
        for used, used_before, base, bound, bound_of_block in amounts:
            sums = np.zeros(len(arrivals), np.int64)
            np.add.at(sums, place, used)
            base += int(used_before[earlier].sum())
            found += first_excess(arrivals, sums, quota, bound)
            found += first_excess(arrivals, sums_in_blocks(blocks, sums, base, self.block), quota, bound_of_block)
        return min(found, default=None)


def _counts_for(columns: _Columns, holder: Holder) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (columns.width <= holder.window) & (columns.since >= holder.since)
    found &= (columns.first_qid <= holder.qid) & (columns.begun >= holder.begun)
    return found


def holders_over_quota(charges: Charges, quota: Quota, holders: Iterable[Holder]) -> Iterator[tuple[Holder, Excess]]:
    """Yields the holders over their quota. Skips holders dominated by one within its quota."""
    within: list[tuple[int, int]] = []
    latest = None
    for holder in sorted(holders, key=lambda one: (one.qid, one.since, one.begun, -one.window)):
        if holder.qid != latest:
            latest, within = holder.qid, []
        if any(begun <= holder.begun and window >= holder.window for begun, window in within):
            continue
        if (excess := charges.excess(quota, holder, _NOTHING)) is None:
            within.append((holder.begun, holder.window))
        else:
            yield holder, excess


CHECKED_AGAIN_AFTER = 1.0625  # growth factor of usage above the quota after which members are recomputed


class Share(NamedTuple):
    """Recipients of a match: window at least `width`, first document `appeared` visible, qid at least `first_qid`, and
    not `withheld`. `key` is whom it is charged to."""

    key: ChargeKey
    width: int
    appeared: int
    first_qid: int
    withheld: tuple[Subscription, ...] = ()


class Account(ABC):
    """One step's account of queries that are charged together."""

    def __init__(
        self, quota: Quota, block: int, book: Book, others: Sequence[tuple[Book, int]] = (), most_own: Usage = _NOTHING
    ) -> None:
        """`block` is the block of the charges that `book` has from before the step. `others` also apply, with their
        multiplicity. `most_own` is the greatest usage of a single query that is in no book."""
        self._quota, self._block, self._book, self._others, self._most_own = quota, block, book, others, most_own
        before = Usage(most_own.outputs, most_own.work)
        for one, times in self._books():
            before.add(one.total, times)
        # As long as the step has used no more than this, no query can have exceeded its quota.
        self._safe_outputs = min(quota.matches, quota.outputs - before.outputs)
        self._safe_work = min(quota.work, quota.work_of_block - before.work)
        self._is_checked = False
        self._over: dict[Subscription, Excess] = {}

    def _books(self) -> list[tuple[Book, int]]:
        return [(self._book, 1), *self._others]

    @property
    @abstractmethod
    def is_limited(self) -> bool:
        """Whether there is a cutoff."""

    @property
    @abstractmethod
    def cutoff(self) -> int:
        """The arrival from which no query gets anything, or NEVER."""

    def charge(self, arrival: int, share: Share, outputs: int, work: int) -> None:
        self.note(arrival, share, outputs, work)
        self.check()

    def note(self, arrival: int, share: Share, outputs: int, work: int) -> None:
        """Charges without a check, which must follow."""
        book, used = self._book, Usage(outputs, work)
        book.step.add((arrival, *share.key, outputs, work))
        for query in share.withheld:
            book.less[arrival, query.qid].add(used)
        book.used.add(used)

    def note_all(self, columns: Ints, outputs: int, work: int) -> None:
        """Makes charges, given as `_Columns` with their sums, from which nothing is withheld; without a check, too."""
        self._book.step.extend(columns)
        self._book.used.outputs += outputs
        self._book.used.work += work

    def check(self) -> None:
        """Finds the queries over their quotas, if there may be any."""
        if self._is_near():
            self._check()
            self._safe_outputs = max(self._safe_outputs, int(self._book.used.outputs * CHECKED_AGAIN_AFTER))
            self._safe_work = max(self._safe_work, int(self._work() * CHECKED_AGAIN_AFTER))

    def _is_near(self) -> bool:
        return self._book.used.outputs > self._safe_outputs or self._work() > self._safe_work

    def _work(self) -> int:
        return self._book.used.work + sum([times * book.used.work for book, times in self._others])

    def over_quota(self) -> dict[Subscription, Excess]:
        """Returns the queries over their quota before the given cutoffs."""
        if self._is_checked or self._is_near():
            self._check()
        return self._over

    def _check(self) -> None:
        self._is_checked = True
        charges = Charges.of(self._block, self._books())
        if (excess := charges.excess(self._quota, EVERYTHING, self._most_own)) is not None:
            self._exceed(charges, excess)

    @abstractmethod
    def _exceed(self, charges: Charges, excess: Excess) -> None:
        """Finds the queries over their quota. `excess` is that of one with all charges."""

    @property
    def book(self) -> Book:
        return self._book

    def before(self, key: tuple[int, ...], block: int) -> Usage:
        """Returns what a key was charged before the step in a block."""
        return self._book.before.get(ChargeKey(*key), _NOTHING) if block == self._block else _NOTHING


class SharedAccount(Account):
    """The account of a form's members, or of all queries with a literal test."""

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
        """`own` is added per qid; `cutoffs` are members' cutoffs."""
        most = _NOTHING
        if own:
            most = Usage(*(max(getattr(used, name) for used in own.values()) for name in ("outputs", "work")))
        super().__init__(quota, block, book, others, most)
        self._own, self.audience = own, audience
        self._until: Ints | None = None
        if cutoffs:
            self._limit(cutoffs)
        self._subsets: dict[int, Audience | None] = {0: audience if audience.queries else None}
        self._everyone: dict[int, ChargeKey] = {}

    def subset(self, first_qid: int) -> Audience | None:
        """Returns those of its queries with at least `first_qid`."""
        if first_qid not in self._subsets:
            some = [query for query in self.audience.queries if query.qid >= first_qid]
            self._subsets[first_qid] = Audience.of(some) if some else None
        return self._subsets[first_qid]

    def share(self, width: int, inputs: Inputs, first_qid: int) -> Share | None:
        """Returns who gets a match of documents `width` microseconds apart, or None."""
        if (audience := self.subset(first_qid)) is None:
            return None
        appeared, members = inputs.appeared, audience.members
        sees_all = width <= members.narrowest and appeared > members.latest_since and appeared > audience.latest_gap
        if sees_all and self._until is None:
            if (key := self._everyone.get(first_qid)) is None:
                key = ChargeKey(members.narrowest, members.latest_since, first_qid, audience.latest_begun)
                self._everyone[first_qid] = key
            return Share(key, width, appeared, first_qid)
        return self.some(audience, width, inputs, first_qid)

    def some(self, audience: Audience, width: int, inputs: Inputs, first_qid: int) -> Share | None:
        appeared, windows, sinces = inputs.appeared, audience.members.sorted_windows, audience.members.sorted_sinces
        at, before = int(np.searchsorted(windows, width)), int(np.searchsorted(sinces, appeared))
        if at == len(windows) or before == 0:
            return None
        withheld: tuple[Subscription, ...] = ()
        if appeared <= audience.latest_gap:
            withheld = tuple(
                query
                for query in audience.gapped
                if isinstance(query, JoinSubscription)
                and query.since < appeared
                and width <= query.width
                and not inputs.are_seen_by(query.sees)
                and self._is_open(query, inputs.arrival)
            )
        if withheld or self._until is not None or (at and before < len(sinces)):
            members = self.audience.members
            gets = (members.windows >= width) & (members.sinces < appeared) & (members.qids >= first_qid)
            if self._until is not None:
                gets &= self._until > inputs.arrival
            if np.count_nonzero(gets) <= len(withheld):
                return None
        key = ChargeKey(int(windows[at]), int(sinces[before - 1]), first_qid, audience.latest_begun)
        return Share(key, width, appeared, first_qid, withheld)

    def _is_open(self, query: Subscription, arrival: int) -> bool:
        return self._until is None or arrival < int(self._until[self.audience.place_of(query)])

    def gets(self, share: Share, query: Subscription, arrival: int) -> bool:
        return (
            share.width <= query.width
            and query.since < share.appeared
            and share.first_qid <= query.qid
            and query not in share.withheld
            and self._is_open(query, arrival)
        )

    def withheld(self, share: Share, arrival: int) -> list[int]:
        """Returns the qids that do not get an arrival's share, though their windows and `since` let them."""
        closed = [] if self._until is None else self.audience.members.qids[self._until <= arrival].tolist()
        return [query.qid for query in share.withheld] + closed

    def members(self, batch: int) -> Members:
        """Returns the members as of a batch in which cutoffs apply."""
        members = self.audience.members
        if self._until is None:
            return members
        ended = np.where(self._until < NEVER, batch, members.ended)
        return replace(members, ended=ended, ended_at=self._until)

    @property
    def is_limited(self) -> bool:
        return self._until is not None

    @property
    def cutoff(self) -> int:
        return NEVER if self._until is None else int(self._until.max(initial=0))

    def _limit(self, cutoffs: Mapping[int, int]) -> None:
        if self._until is None:
            self._until = np.full(len(self.audience.queries), NEVER)
        for place, query in enumerate(self.audience.queries):
            if query.qid in cutoffs:
                self._until[place] = min(cutoffs[query.qid], self._until[place])

    @property
    def looking(self) -> EqualTimeBudget:
        return self._book.looking

    def tie(self, arrival: int, share: Share) -> None:
        """Counts an equal-time pair, free of charge."""
        self._book.ties[arrival, share.key] += 1
        for query in share.withheld:
            self._book.untied[arrival, query.qid, query.begun] += 1

    def _exceed(self, charges: Charges, excess: Excess) -> None:
        quota, less = self._quota, dict[int, list[tuple[int, int, int]]]()
        for book, times in self._books():
            for (arrival, qid), used in book.less.items():
                less.setdefault(qid, []).append((arrival, times * used.outputs, times * used.work))
        found: dict[Subscription, Excess] = {}
        alike: dict[Holder, list[Subscription]] = {}
        for query, holder in zip(self.audience.queries, self._holders(), strict=True):
            if query.qid in less or query.qid in self._own or holder.until < NEVER:
                own = self._own.get(query.qid, _NOTHING)
                if (of_query := charges.excess(quota, holder, own, less.get(query.qid, ()))) is not None:
                    found[query] = of_query
            else:
                alike.setdefault(holder, []).append(query)
        for holder, of_holder in holders_over_quota(charges, quota, alike):
            found |= dict.fromkeys(alike[holder], of_holder)
        if found:
            self._over |= found
            self._limit({query.qid: one.at for query, one in found.items()})

    def _holders(self) -> Iterator[Holder]:
        """Yields each member's holder, with qids reduced to what makes a difference."""
        members = self.audience.members
        until = [NEVER] * len(members) if self._until is None else self._until.tolist()
        first_qids = sorted(
            {key.first_qid for book, _ in self._books() for key in book.before}.union(
                *(_Columns(*book.step.columns()).first_qid.tolist() for book, _ in self._books())
            )
        )
        columns = (members.windows, members.sinces, members.qids, members.begun)
        for window, since, qid, begun, end in zip(*(c.tolist() for c in columns), until, strict=True):
            at = bisect_right(first_qids, qid)
            yield Holder(window, since, first_qids[at - 1] if at else -1, begun, end)


@dataclass(frozen=True, slots=True)
class Shares:
    """Who gets each of some matches, of one account each, by columns. `gets` says whether anybody does; `window`,
    `since` and `begun` are of the key that a match is charged to; `single` has by row what is not charged with others.
    `account` indexes `accounts`."""

    accounts: Sequence[SharedAccount]
    account: Ints
    first_qid: int
    gets: Mask
    window: Ints
    since: Ints
    begun: Ints
    single: dict[int, Share] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        accounts: Sequence[SharedAccount],
        account: Ints,
        width: Ints,
        appeared: Ints,
        first_qid: int,
        inputs_of: Callable[[int], Inputs],
    ) -> Shares:
        """`inputs_of` returns the documents of a row."""
        audiences = [one.subset(first_qid) for one in accounts]
        bounds = [
            _NOBODY if of is None else (*of.bounds, one.is_limited) for one, of in zip(accounts, audiences, strict=True)
        ]
        narrowest, latest_since, latest_gap, begun, limited = np.array(bounds, np.int64).T[:, account]
        found = cls(accounts, account, first_qid, begun >= 0, narrowest.copy(), latest_since.copy(), begun)
        one_by_one = found.gets & ((appeared <= latest_gap) | (limited > 0))
        some = np.flatnonzero(found.gets & ~one_by_one & ((width > narrowest) | (appeared <= latest_since)))
        if len(some):
            found._narrow(some, [audience or _EMPTY for audience in audiences], width, appeared)
        for row in np.flatnonzero(one_by_one).tolist():
            audience = audiences[account[row]]
            assert audience is not None, "somebody gets it"
            share = accounts[account[row]].some(audience, int(width[row]), inputs_of(row), first_qid)
            if share is None:
                found.gets[row] = False
            else:
                found.window[row], found.since[row] = share.key.width, share.key.since
                if share.withheld:
                    found.single[row] = share
        return found

    @classmethod
    def listed(cls, shares: Sequence[Share]) -> Shares:
        """Returns shares that are not charged."""
        none = np.zeros(0, np.int64)
        return cls((), none, shares[0].first_qid, none > 0, none, none, none, dict(enumerate(shares)))

    def _narrow(self, some: Ints, audiences: Sequence[Audience], width: Ints, appeared: Ints) -> None:
        """Finds the members whose windows or `since` let them get some rows."""
        known, of = np.unique(self.account[some], return_inverse=True)
        members = [audiences[place].members for place in known.tolist()]
        ends = np.cumsum([len(one) for one in members])
        start, end = np.append(0, ends)[of], ends[of]
        windows, sinces, earliest = (
            np.concatenate([getattr(one, name) for one in members])
            for name in ("sorted_windows", "sorted_sinces", "earliest_since")
        )
        at = bisect_ranges(windows, start, end, width[some])
        before = bisect_ranges(sinces, start, end, appeared[some])
        is_wide = at < end
        at[~is_wide] = 0
        self.gets[some] = is_wide & (earliest[at] < appeared[some])
        self.window[some], self.since[some] = windows[at], sinces[before - 1]

    def take(self, those: Ints) -> Shares:
        places = {row: place for place, row in enumerate(those.tolist())} if self.single else {}
        single = {places[row]: share for row, share in self.single.items() if row in places}
        window, since, begun = self.window[those], self.since[those], self.begun[those]
        account = self.account[those]
        return Shares(self.accounts, account, self.first_qid, self.gets[those], window, since, begun, single)

    def charge(self, arrival: Ints, outputs: Ints, work: Ints) -> None:
        if not len(arrival):
            return
        columns = self.account, arrival, self.window, self.since
        order = np.lexsort(columns[::-1])
        if self.single:
            order = order[~np.isin(order, list(self.single))]
            for row, share in self.single.items():
                account = self.accounts[self.account[row]]
                account.note(int(arrival[row]), share, int(outputs[row]), int(work[row]))
        starts = group_starts(*(column[order] for column in columns))
        if len(starts):
            first = order[starts]
            used = [np.add.reduceat(column[order], starts) for column in (outputs, work)]
            of_first = [column[first] for column in (arrival, self.window, self.since, self.begun)]
            of_first.insert(3, np.full(len(first), self.first_qid))
            charges, account = np.stack(of_first + used), self.account[first]
            bounds = [*group_starts(account).tolist(), len(account)]
            totals = np.add.reduceat(charges[-2:], bounds[:-1], axis=1).T.tolist()
            for (start, end), place, sums in zip(pairwise(bounds), account[bounds[:-1]].tolist(), totals, strict=True):
                self.accounts[place].note_all(charges[:, start:end], *sums)
        for place in set(self.account.tolist()):
            self.accounts[place].check()


_EMPTY, _NOBODY = Audience.of(()), (0, 0, -1, -1, 0)  # an account without queries, and its bounds
