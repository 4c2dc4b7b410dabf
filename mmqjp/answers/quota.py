"""Quotas: how much one query may produce and how much work it may cause.

Usage is counted per *arrival*, so the result does not depend on how documents are batched. An arrival is an external
document, numbered in order of admission. An output, or a tuple of a hidden stream, counts towards the latest arrival
behind it. The first arrival at which a query would exceed its quota is its *cutoff*: the query gets nothing for that
arrival or any later one, as if documents came one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush

BLOCK = 10_000
"""The number of consecutive arrivals in a block. `Quota.outputs` and the work of a block are counted per block."""

MAX_MATCHES, MAX_OUTPUTS, MAX_WORK, MAX_PARTIAL = 100_000, 1_000_000, 10_000_000, 1_000_000
"""The values of `DEFAULT_QUOTA`."""

BLOCK_WORK_FACTOR = 10
"""A block may use this many times the work allowed for one arrival."""

CHARACTERS_PER_STEP = 16
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


class Bound(Enum):
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
            case Bound.MATCHES:
                return f"more than {quota.matches:,} {matches} of the document {document!r} (max-matches)"
            case Bound.OUTPUTS:
                return f"more than {quota.outputs:,} {matches} in {BLOCK:,} documents, with {document!r} (max-outputs)"
            case Bound.WORK:
                return f"more than {quota.work:,} steps for the document {document!r} (max-work)"
            case Bound.WORK_OF_BLOCK:
                work = quota.most_work_of_block
                return f"more than {work:,} steps for {BLOCK:,} documents, with {document!r} (max-work)"


def block_size() -> int:
    """Returns BLOCK. Tests make it small."""
    return BLOCK


def block_of(arrival: int) -> int:
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


class Meter:
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
        self.outputs = Meter(quota.most_outputs, quota.most_outputs_of_block)
        self.work = Meter(quota.most_work, quota.most_work_of_block)
        self.outputs.totals[block], self.work.totals[block] = before.outputs, before.work
        self.cutoff = NEVER
        self.bound = Bound.MATCHES

    def steps(self, arrival: int) -> int:
        """Returns how many more steps the arrival may take."""
        return self.work.left(arrival)

    def take_outputs(self, arrival: int, number: int) -> bool:
        """Counts outputs. Returns whether they are within the quota."""
        cutoff, in_all = self.outputs.add(arrival, number, self.cutoff)
        if cutoff < self.cutoff:
            self.cutoff, self.bound = cutoff, (Bound.OUTPUTS if in_all else Bound.MATCHES)
        return arrival < cutoff

    def take_steps(self, arrival: int, number: int) -> None:
        """Counts steps that were taken. The last one may exceed the quota."""
        cutoff, in_all = self.work.add(arrival, number, self.cutoff)
        if cutoff < self.cutoff:
            self.cutoff, self.bound = cutoff, (Bound.WORK_OF_BLOCK if in_all else Bound.WORK)

    def spent(self, block: int) -> Usage:
        """Returns what was used of a block."""
        return Usage(self.outputs.totals.get(block, 0), self.work.totals.get(block, 0))


def _bound(bound: int | None) -> int:
    return NEVER if bound is None else bound
