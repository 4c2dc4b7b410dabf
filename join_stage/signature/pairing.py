"""Pairs of postings with one value that some row asks for, and for pairs of documents the rows that they satisfy.

One of two runs of postings drives: a batch's. Rows of one join are answered by ranges of postings, which are not
written out before they are asked for. Rows of several are answered by pairs of instances: what such a pair has in
common is a set of pairs of classes, and the rows within it are looked up once for each distinct set. Pairs of classes
that very many postings share (`HEAVY`) are no reason to form a pair where each row asks for a rarer one too: they are
looked at in pairs of instances that others have formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from join_stage.signature.arrays import Ints, bisected, encoded, expanded, matching, starts_of
from join_stage.signature.classes import Classes, Pair
from join_stage.signature.postings import CLASS_BITS, Run
from join_stage.signature.within import Kind, Sets, Within

HEAVY = 4
"""A pair of classes is heavy that is met in more pairs of postings than so many times the driving run has postings."""

LONGEST = 1 << 62
"""Microseconds: more than lie between any two times, and few enough for sums."""

_WORD = 62
"""Bits of a set in one number."""

Streams = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Ranges:
    """For postings of the driving run ranges of postings of the other; `kind` is the place of the pair of classes."""

    posting: Ints
    start: Ints
    end: Ints
    kind: Ints

    def of(self, kinds: NDArray[np.bool_]) -> Ranges:
        """Those of some kinds."""
        chosen = kinds[self.kind]
        return Ranges(self.posting[chosen], self.start[chosen], self.end[chosen], self.kind[chosen])


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of postings in the order of `key`, which numbers the pairs of instances, and then of `kind`.

    `start` is where each key's pairs start; `found` is the place, in `within`, of the rows that the key satisfies.
    """

    driving: Ints
    other: Ints
    key: Ints
    kind: Ints
    start: Ints
    found: Ints
    within: list[Within]


@dataclass(frozen=True, slots=True)
class Paired:
    """What rows ask for in the documents of two runs, the driving one's standing left or right.

    `kinds` are the pairs of classes, `means` what they mean to the rows.
    """

    driving: Run
    other: Run
    driving_left: bool
    kinds: list[Kind]
    means: list[Pair]
    single: Ranges
    several: Pairs | None


def paired(driving: Run, other: Run, classes: Classes, sets: Sets, streams: Streams, *, driving_left: bool) -> Paired:
    """All that rows ask for in the documents of two runs, of these pairs of streams; the runs may be the same one."""
    ranges, kinds, means = _ranges(driving, other, classes, streams, driving_left)
    singles = np.array([bool(pair.single) for pair in means], np.bool_)
    severals = np.array([pair.several for pair in means], np.bool_)
    several = _several(driving, other, ranges.of(severals), sets, kinds, driving_left) if severals.any() else None
    return Paired(driving, other, driving_left, kinds, means, ranges.of(singles), several)


# ------------------------------------------------------------ ranges


def _ranges(
    driving: Run, other: Run, classes: Classes, streams: Streams, driving_left: bool
) -> tuple[Ranges, list[Kind], list[Pair]]:
    ours, theirs = driving.starts, other.starts
    group, our_group = expanded(*matching(driving.value[ours], other.value[theirs]))
    our_class, their_class = driving.path_class[ours][our_group], other.path_class[theirs][group]
    left, right = (our_class, their_class) if driving_left else (their_class, our_class)
    code, distinct = encoded(left << CLASS_BITS | right)
    kinds: list[Kind] = []
    means: list[Pair] = []
    number = np.full(len(distinct), -1)
    for i, pair in enumerate(distinct.tolist()):
        one, two = pair >> CLASS_BITS, pair & (1 << CLASS_BITS) - 1
        if (classes[one].stream, classes[two].stream) in streams and (meaning := classes.pair(one, two)):
            number[i] = len(kinds)
            kinds.append((one, two))
            means.append(meaning)
    kind = number[code]
    our_group, group, kind = our_group[kind >= 0], group[kind >= 0], kind[kind >= 0]
    posting, place = expanded(driving.starts[our_group], driving.ends[our_group])
    ranges = Ranges(posting, other.starts[group][place], other.ends[group][place], kind[place])
    return _in_time(driving, other, ranges, means, driving_left), kinds, means


def _in_time(driving: Run, other: Run, ranges: Ranges, means: Sequence[Pair], driving_left: bool) -> Ranges:
    """The ranges without what is too far off for every row: postings are in order of time."""
    windows = np.array([min(pair.window, LONGEST) for pair in means], np.int64)
    orders = np.array([pair.ordered for pair in means], np.bool_)
    if not orders.any() and (windows == LONGEST).all():
        return ranges
    document = driving.documents[ranges.posting]
    t0, t1 = driving.t0[document], driving.t1[document]
    window, ordered = windows[ranges.kind], orders[ranges.kind]
    first, last = t1 - window, t0 + window
    if driving_left:
        first = np.where(ordered, np.maximum(first, t1 + 1), first)
    else:
        last = np.where(ordered, np.minimum(last, t0 - 1), last)
    start = bisected(other.time, ranges.start, ranges.end, first)
    end = bisected(other.time, start, ranges.end, last + 1)
    some = end > start
    return Ranges(ranges.posting[some], start[some], end[some], ranges.kind[some])


# ------------------------------------------------------------ rows of several joins


def _several(
    driving: Run, other: Run, ranges: Ranges, sets: Sets, kinds: Sequence[Kind], driving_left: bool
) -> Pairs | None:
    totals = np.bincount(ranges.kind, ranges.end - ranges.start, len(kinds)).astype(np.int64)
    formed = np.zeros(len(kinds), np.bool_)
    formed[sets.forming(kinds, totals.tolist(), HEAVY * len(driving))] = True
    chosen = ranges.of(formed)
    theirs, place = expanded(chosen.start, chosen.end)
    ours, kind = chosen.posting[place], chosen.kind[place]
    if driving is other:
        apart = driving.documents[ours] != other.documents[theirs]
        ours, theirs, kind = ours[apart], theirs[apart], kind[apart]
    key, instances = encoded(driving.instance[ours] << 32 | other.instance[theirs])
    parts = [(ours, theirs, key, kind)]
    for number in np.flatnonzero((totals > 0) & ~formed).tolist():
        classes = kinds[number] if driving_left else kinds[number][::-1]
        more = _common(driving, other, instances, classes)
        parts.append((*more, np.full(len(more[0]), number)))
    ours, theirs, key, kind = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(key * len(kinds) + kind, kind="stable")
    ours, theirs, key, kind = ours[order], theirs[order], key[order], kind[order]
    start = starts_of(key)
    if not len(start):
        return None
    found, within = _satisfied(start, key, kind, sets, kinds)
    rows = np.array([len(rows.places) for rows in within])[found] > 0
    kept = np.repeat(rows, np.diff(start, append=len(key)))
    ours, theirs, key, kind = ours[kept], theirs[kept], (np.cumsum(rows) - 1)[key[kept]], kind[kept]
    return Pairs(ours, theirs, key, kind, starts_of(key), found[rows], within)


def _common(driving: Run, other: Run, instances: Ints, classes: Kind) -> tuple[Ints, Ints, Ints]:
    """The postings of these classes, the driving run's and the other's, that have one value in pairs of instances; and
    the places of these."""
    codes, order = driving.by_instance
    at, key = expanded(*matching((instances >> 32) << CLASS_BITS | classes[0], codes))
    ours = order[at]
    codes, order = other.by_instance
    at, place = expanded(*matching((instances[key] & 0xFFFFFFFF) << CLASS_BITS | classes[1], codes))
    ours, theirs, key = ours[place], order[at], key[place]
    equal = driving.value[ours] == other.value[theirs]
    return ours[equal], theirs[equal], key[equal]


def _satisfied(start: Ints, key: Ints, kind: Ints, sets: Sets, kinds: Sequence[Kind]) -> tuple[Ints, list[Within]]:
    """For each key, whose pairs start there, the place of the rows that its set of kinds satisfies."""
    code = np.zeros(len(start), np.int64)
    for word in range(-(-len(kinds) // _WORD)):
        bits = np.where(kind // _WORD == word, np.int64(1) << kind % _WORD, 0)
        code, _ = encoded(code << 32 | encoded(np.bitwise_or.reduceat(bits, start))[0])
    found, first = np.unique(code, return_index=True)
    end = np.append(start[1:], len(key))
    within = []
    for place in first.tolist():
        members = np.unique(kind[start[place] : end[place]]).tolist()
        within.append(sets.within(frozenset(kinds[member] for member in members)))
    return np.searchsorted(found, code), within
