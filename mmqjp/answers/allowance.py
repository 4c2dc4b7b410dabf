"""What one query may cost: bounds, and how it is counted by arrivals what a query took, so that batches make no odds.

An *arrival* is a document from outside, by its place among all that ever came. What a query gives, and each tuple of a
hidden stream, belongs to the latest arrival behind it. The first arrival at which a query would pass a bound is where
it is cut: it gets nothing for that one nor for a later one, as if documents came one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

BLOCK = 10_000
"""So many arrivals in a row are bounded together."""

MATCHES, OUTPUTS, WORK = 100_000, 1_000_000, 10_000_000
"""What `ALLOWANCE` are."""

WORK_OF_BLOCK = 10
"""How many times what a query may do for one arrival it may do for a block of them."""

CHARACTERS_A_STEP = 16
"""Of the XML of an output."""

NEVER = 1 << 62
"""An arrival after all others; also a bound that is none."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much a query may have; None is without limit.

    `matches` are its outputs for an arrival, and likewise the tuples of each hidden stream that it reads; `outputs` is
    the same for BLOCK arrivals. `work` is the steps taken for an arrival: a match, a joint binding that is tried, a
    node that is looked at, and CHARACTERS_A_STEP of an output are one each.
    """

    matches: int | None
    outputs: int | None
    work: int | None


ALLOWANCE = Allowance(MATCHES, OUTPUTS, WORK)
"""The bounds where nothing else is said."""


class TooMuch(Exception):
    """A step past the last that may be taken. It never leaves `mmqjp.answers`."""


class Steps:
    """Counts steps down. Raises TooMuch past the last one."""

    __slots__ = ("left",)

    def __init__(self, most: int = NEVER) -> None:
        self.left = most

    def take(self, number: int = 1) -> None:
        self.left -= number
        if self.left < 0:
            raise TooMuch


class Measure:
    """One thing that is counted: how much of it each arrival took, at most `most`, and each block, at most `in_all`."""

    __slots__ = ("_in_all", "_latest", "_most", "counts", "totals")

    def __init__(self, most: int, in_all: int) -> None:
        self._most, self._in_all = most, in_all
        self.counts: dict[int, int] = {}
        self.totals: dict[int, int] = {}
        self._latest: dict[int, list[int]] = {}

    def add(self, arrival: int, amount: int, cut: int) -> tuple[int, bool]:
        """Counts; returns from which arrival on nothing is had, which was `cut` so far, and whether for a block's
        sake."""
        block = arrival // BLOCK
        count = self.counts.get(arrival)
        if count is None:
            count = 0
            if block in self._latest:
                heappush(self._latest[block], -arrival)
        self.counts[arrival] = count = count + amount
        self.totals[block] = total = self.totals.get(block, 0) + amount
        if count > self._most:
            return min(cut, arrival), False
        if total > self._in_all:
            return self._shortened(block, cut), True
        return cut, False

    def left(self, arrival: int) -> int:
        """How much more the arrival may take."""
        return self._most - self.counts.get(arrival, 0)

    def _shortened(self, block: int, cut: int) -> int:
        """The first arrival of a block up to which, of those before the cut, it is too much; the cut if there is none.

        What is counted later may bring it forward, never back.
        """
        if block not in self._latest:
            self._latest[block] = [-arrival for arrival in self.counts if arrival // BLOCK == block]
            heapify(self._latest[block])
        latest = self._latest[block]
        while latest and self.totals[block] > self._in_all:
            last = -heappop(latest)
            self.totals[block] -= self.counts[last]
            cut = min(cut, last)
        return cut


@dataclass(frozen=True, slots=True)
class Spent:
    """What was given and done for the arrivals of one block."""

    outputs: int = 0
    work: int = 0


class Account:
    """What one query took in a step, or one hidden stream for readers who see the same documents.

    `cut` is the arrival from which on it gets nothing; `reason` says which bound that keeps, given the bounds.
    """

    __slots__ = ("_most_work", "cut", "outputs", "reason", "work")

    def __init__(self, allowance: Allowance, block: int, before: Spent) -> None:
        """`before` is what it has spent of a block."""
        in_all = NEVER if allowance.work is None else WORK_OF_BLOCK * allowance.work
        self._most_work = _number(allowance.work)
        self.outputs = Measure(_number(allowance.matches), _number(allowance.outputs))
        self.work = Measure(self._most_work, in_all)
        self.outputs.totals[block], self.work.totals[block] = before.outputs, before.work
        self.cut = NEVER
        self.reason: Callable[[Allowance, bool, str], str] | None = None

    def steps(self, arrival: int) -> int:
        """How many more steps may be taken for an arrival."""
        return self.work.left(arrival)

    def take_output(self, arrival: int) -> bool:
        """Counts an output; whether it may be had."""
        cut, in_all = self.outputs.add(arrival, 1, self.cut)
        if cut < self.cut:
            self.cut, self.reason = cut, (_outputs_in_all if in_all else _outputs)
        return arrival < cut

    def take_steps(self, arrival: int, number: int) -> None:
        """Counts steps that were taken, perhaps one too many."""
        cut, in_all = self.work.add(arrival, number, self.cut)
        if cut < self.cut:
            self.cut, self.reason = cut, (_work_in_all if in_all else _work)

    def spent(self, block: int) -> Spent:
        """What it has spent of a block."""
        return Spent(self.outputs.totals.get(block, 0), self.work.totals.get(block, 0))


def _number(bound: int | None) -> int:
    return NEVER if bound is None else bound


def _what(hidden: bool) -> str:
    return "matches of an inner join" if hidden else "matches"


def _outputs(allowance: Allowance, hidden: bool, document: str) -> str:
    return f"more than {allowance.matches:,} {_what(hidden)} of the document {document!r} (max-matches)"


def _outputs_in_all(allowance: Allowance, hidden: bool, document: str) -> str:
    return f"more than {allowance.outputs:,} {_what(hidden)} in {BLOCK:,} documents, with {document!r} (max-outputs)"


def _work(allowance: Allowance, hidden: bool, document: str) -> str:
    return f"more than {allowance.work:,} steps for the document {document!r} (max-work)"


def _work_in_all(allowance: Allowance, hidden: bool, document: str) -> str:
    assert allowance.work is not None, "what is without limit is not passed"
    return f"more than {WORK_OF_BLOCK * allowance.work:,} steps for {BLOCK:,} documents, with {document!r} (max-work)"
