"""Quotas: limits on what is counted at a place (an arrival or a time) or in a block of places, and what exceeds one."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from common.arrays import Ints
from common.bounds import INFINITE

K = TypeVar("K")

BLOCK = 10_000  # consecutive places per block: arrivals, or times at which anything is counted
BLOCK_WORK_FACTOR = 10  # a block may use this many times the work of one place

LimitName = Literal["matches", "outputs", "partial", "work", "work_of_block"]


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of each query; INFINITE is none.

    `matches` bounds the outputs per arrival, and the tuples per arrival of each hidden stream that the query reads;
    `outputs` bounds the same per block. `work` and `work_of_block` bound the steps: a match, a tried joint binding, a
    visited node, and XML_CHARACTERS_PER_STEP characters of an output (without the query's name) cost one step each.

    For event queries, `partial` bounds the instances, events and links of each operator that wait after a time, each
    counted once more for each 100 characters of the texts that functions of the query made;
    `matches` the outputs, and the results of each operator, at one time, before NON OVERLAPPING and EARLIEST MAXIMAL,
    and without sets before HAVING and negations; `outputs` the outputs in a block; `work` the steps of outputs, of
    comparisons by NEXT, FOLD and PATTERN, and of a search for sets, at one time, and `work_of_block` those of outputs,
    of a search, and of a PATTERN with negations in a block.
    """

    partial: int = INFINITE
    matches: int = INFINITE
    work: int = INFINITE
    outputs: int = INFINITE
    work_of_block: int = INFINITE

    @classmethod
    def of(cls, matches: int | None, outputs: int | None, work: int | None, partial: int | None) -> Quota:
        """Returns the quota of these limits; None is unlimited."""
        of_block = None if work is None else BLOCK_WORK_FACTOR * work
        return cls(*(INFINITE if most is None else most for most in (partial, matches, work, outputs, of_block)))


UNLIMITED = Quota()


class Excess(NamedTuple):
    """The place at which a limit was exceeded, and which one. The first counts; of several there, the first name."""

    at: int
    bound: LimitName


def note_excess(found: MutableMapping[K, Excess], key: K, excess: Excess) -> None:
    """Keeps the first excess of each key."""
    found[key] = min(found.get(key, excess), excess)


def first_excess(places: Ints, counts: Ints, quota: Quota, bound: LimitName) -> Iterator[Excess]:
    """Yields the first of ascending places whose count is over a limit, if any."""
    over = counts > getattr(quota, bound)
    if over.any():
        yield Excess(int(places[np.argmax(over)]), bound)


def sums_in_blocks(blocks: Ints, counts: Ints, before: int, block: int) -> Ints:
    """Returns the running sums of counts within their blocks, which ascend; `before` is that of one `block` so far."""
    running = np.cumsum(counts)
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    skipped = np.repeat(running[starts] - counts[starts], np.diff(np.append(starts, len(blocks))))
    sums: Ints = running - skipped + np.where(blocks == block, before, 0)
    return sums


_COUNTED = {
    "matches": ("match", "matches"),
    "outputs": ("match", "matches"),
    "partial": ("partial match waits", "partial matches wait"),
    "work": ("step", "steps"),
    "work_of_block": ("step", "steps"),
}


def excess_text(quota: Quota, bound: LimitName, where: str) -> str:
    """Returns the reason shown to users. `where` it was counted follows what was."""
    most: int = getattr(quota, bound)
    counted = _COUNTED[bound][most != 1]
    return f"more than {most:,} {counted} {where} (max-{bound.partition('_')[0]})"
