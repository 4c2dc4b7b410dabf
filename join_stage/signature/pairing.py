"""Pairs the postings of two runs that have one value, and finds the rows that pairs of documents satisfy.

The driving run is that of the batch. Rows of one join are answered by ranges of postings, which are expanded when the
matches are read. Rows of several joins are answered by pairs of instances: such a pair has a set of kinds in common,
and the rows that the set satisfies are looked up once for each distinct set. Pairs of instances are formed by the
rarest edge of each row only; what else they have in common is looked up. So a value that very many documents share
costs nothing if each row that asks for it asks for a rarer one too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from join_stage.signature.arrays import (
    Ints,
    bisect_ranges,
    dictionary_encode,
    equal_ranges,
    expand_ranges,
    group_starts,
)
from join_stage.signature.path_classes import CLASS_BITS, KindMeaning, PathClasses
from join_stage.signature.postings import VALUE_BITS, PostingRun, PostingView
from join_stage.signature.row_index import RowIndex
from join_stage.signature.satisfied_rows import PairKind, SatisfiedRows, SatisfiedRowsCache, Streams

LONGEST_WINDOW = 1 << 62
"""Microseconds: longer than any two times are apart, and small enough that sums do not overflow."""

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class PostingRanges:
    """Pairs of postings, as ranges. All arrays have one length: `posting` is an index into the driving run, `start` and
    `end` are a range in the view of the other run, and `kind` is the index of their kind in `PairedRuns.kinds`."""

    posting: Ints
    start: Ints
    end: Ints
    kind: Ints

    def of(self, kinds: NDArray[np.bool_]) -> PostingRanges:
        """The ranges of some kinds, given as a mask over them."""
        chosen = kinds[self.kind]
        return PostingRanges(self.posting[chosen], self.start[chosen], self.end[chosen], self.kind[chosen])


@dataclass(frozen=True, slots=True)
class PostingPairs:
    """Pairs of postings of pairs of instances, sorted by `key` and then `kind`.

    `driving`, `other`, `key` and `kind` have one length: the indices of two postings in their runs, the number of their
    pair of instances, and the index of their kind. `start` and `found` have an entry for each key: where its pairs
    start, and the index in `within` of the rows that it satisfies.
    """

    driving: Ints
    other: Ints
    key: Ints
    kind: Ints
    start: Ints
    found: Ints
    within: list[SatisfiedRows]


@dataclass(frozen=True, slots=True)
class PairedRuns:
    """What rows ask for in the documents of two runs, those of the driving run on the left if `driving_left`.

    `kinds` and `means` have one length: the kinds that occur, and what they mean to the rows. `order` has the indices
    of the postings of the other run to which the ranges of `single` refer. `several` is None if there are no pairs.
    """

    driving: PostingRun
    other: PostingRun
    driving_left: bool
    kinds: list[PairKind]
    means: list[KindMeaning]
    order: Ints
    single: PostingRanges
    several: PostingPairs | None


class Pairing:
    """Pairs runs of postings, for the rows as they are now and documents of the given pairs of streams."""

    def __init__(self, rows: RowIndex, classes: PathClasses, sets: SatisfiedRowsCache, streams: Streams) -> None:
        self._rows, self._classes, self._sets, self._streams = rows, classes, sets, streams

    def paired(self, driving: PostingRun, other: PostingRun, *, driving_left: bool) -> Iterator[PairedRuns]:
        """Yields what rows ask for in the documents of two runs, which may be one and the same: nothing, or once."""
        ours = driving.view(self._classes, left=driving_left)
        theirs = other.view(self._classes, left=not driving_left)
        kinds, means, ranges = self._ranges(ours, theirs, driving_left)
        if not kinds:
            return
        singles = np.array([bool(pair.single) for pair in means], np.bool_)
        formed = self._formed(ranges, means)
        # Ranges that are only looked up may be the most. They need no cut to the windows, and get none.
        ranges = _in_time(driving, theirs, ranges.of(singles | formed), means, driving_left)
        if not len(ranges.posting):
            return
        several = None
        if formed.any():
            pairs = _pairs_of_instances(driving, other, ours, theirs, ranges.of(formed), kinds, driving_left)
            several = self._satisfied(pairs, kinds)
        yield PairedRuns(driving, other, driving_left, kinds, means, theirs.place, ranges.of(singles), several)

    def _ranges(
        self, ours: PostingView, theirs: PostingView, driving_left: bool
    ) -> tuple[list[PairKind], list[KindMeaning], PostingRanges]:
        """The kinds that occur and mean something to a row, their meanings, and the ranges of their pairs."""
        start, end = equal_ranges(ours.value, theirs.value)
        if (start == end).all():
            return [], [], PostingRanges(start[:0], start[:0], start[:0], start[:0])
        group, our_group = expand_ranges(start, end)
        code, distinct = dictionary_encode(_kind(ours.paths[our_group], theirs.paths[group], driving_left))
        kinds: list[PairKind] = []
        means: list[KindMeaning] = []
        number = np.full(len(distinct), -1)
        for i, both in enumerate(distinct.tolist()):
            kind = both >> CLASS_BITS, both & (1 << CLASS_BITS) - 1
            if (meaning := self._classes.pair(*kind, self._streams)) is not None:
                number[i] = len(kinds)
                kinds.append(kind)
                means.append(meaning)
        kind_of = number[code]
        our_group, group, kind_of = our_group[kind_of >= 0], group[kind_of >= 0], kind_of[kind_of >= 0]
        at, place = expand_ranges(ours.start[our_group], ours.end[our_group])
        return (
            kinds,
            means,
            PostingRanges(ours.place[at], theirs.start[group][place], theirs.end[group][place], kind_of[place]),
        )

    def _formed(self, ranges: PostingRanges, means: Sequence[KindMeaning]) -> NDArray[np.bool_]:
        """For each kind, whether its pairs must be formed: whether it has the rarest edge of a row whose edges all
        occur."""
        if not any(pair.several for pair in means):
            return np.zeros(len(means), np.bool_)
        totals = np.bincount(ranges.kind, ranges.end - ranges.start, len(means)).astype(np.int64)
        counts = np.array([len(pair.edges) for pair in means], np.int64)
        edges = np.array([edge for pair in means for edge in pair.edges], np.int64)
        of_edge = np.bincount(edges, np.repeat(totals, counts), self._rows.edge_count + 1)
        of_edge = np.where(of_edge > 0, of_edge, np.inf)
        table = self._rows.edge_table
        of_rows = of_edge[table]
        missing = np.isinf(of_rows) & (table >= 0)
        possible = (table[:, 0] >= 0) & ~missing.any(axis=1)
        rarest = np.argmin(np.where(table[possible] >= 0, of_rows[possible], np.inf), axis=1)
        chosen = np.zeros(self._rows.edge_count + 1, np.bool_)
        chosen[table[possible][np.arange(len(rarest)), rarest]] = True
        formed = np.zeros(len(means), np.bool_)
        formed[np.repeat(np.arange(len(means)), counts)[chosen[edges]]] = True
        return formed

    def _satisfied(self, pairs: tuple[Ints, Ints, Ints, Ints], kinds: Sequence[PairKind]) -> PostingPairs | None:
        """The pairs of those instances that satisfy some row. `pairs` are columns of one length, sorted by key and
        kind: indices of postings in both runs, keys, and kinds."""
        ours, theirs, key, kind = pairs
        start = group_starts(key)
        if not len(start):
            return None
        found, members = _sets(key, kind)
        within = [self._sets.within(frozenset(kinds[member] for member in of), self._streams) for of in members]
        some = np.array([len(rows.places) for rows in within])[found] > 0
        kept = np.repeat(some, np.diff(start, append=len(key)))
        key = (np.cumsum(some) - 1)[key[kept]]
        return PostingPairs(ours[kept], theirs[kept], key, kind[kept], group_starts(key), found[some], within)


def _kind(ours: Ints, theirs: Ints, driving_left: bool) -> Ints:
    left, right = (ours, theirs) if driving_left else (theirs, ours)
    return left << CLASS_BITS | right


def _in_time(
    driving: PostingRun, theirs: PostingView, ranges: PostingRanges, means: Sequence[KindMeaning], driving_left: bool
) -> PostingRanges:
    """The ranges, cut to what is near enough in time for some row. Postings are sorted by time."""
    windows = np.array([min(pair.window, LONGEST_WINDOW) for pair in means], np.int64)
    orders = np.array([pair.ordered for pair in means], np.bool_)
    if not orders.any() and (windows == LONGEST_WINDOW).all():
        return ranges
    document = driving.documents[ranges.posting]
    t0, t1 = driving.t0[document], driving.t1[document]
    window, ordered = windows[ranges.kind], orders[ranges.kind]
    first, last = t1 - window, t0 + window
    if driving_left:
        first = np.where(ordered, np.maximum(first, t1 + 1), first)
    else:
        last = np.where(ordered, np.minimum(last, t0 - 1), last)
    start = bisect_ranges(theirs.time, ranges.start, ranges.end, first)
    end = bisect_ranges(theirs.time, start, ranges.end, last + 1)
    some = end > start
    return PostingRanges(ranges.posting[some], start[some], end[some], ranges.kind[some])


def _pairs_of_instances(
    driving: PostingRun,
    other: PostingRun,
    ours_seen: PostingView,
    theirs_seen: PostingView,
    ranges: PostingRanges,
    kinds: Sequence[PairKind],
    driving_left: bool,
) -> tuple[Ints, Ints, Ints, Ints]:
    """All pairs of postings with one value of the pairs of instances that ranges form.

    Four arrays of one length, sorted by the last two: indices of postings in the driving run and in the other, the
    number of their pair of instances, and the index of their kind.
    """
    at, place = expand_ranges(ranges.start, ranges.end)
    ours, theirs = ranges.posting[place], theirs_seen.place[at]
    if driving is other:
        different = driving.documents[ours] != other.documents[theirs]
        ours, theirs = ours[different], theirs[different]
    _, instances = dictionary_encode(driving.instance[ours] << VALUE_BITS | other.instance[theirs])
    codes, order = driving.by_instance
    at, key = expand_ranges(*equal_ranges(instances >> VALUE_BITS, codes >> VALUE_BITS))
    ours = order[at]
    asked = ours_seen.number[ours] > 0
    ours, key = ours[asked], key[asked]
    codes, order = other.by_instance
    at, place = expand_ranges(
        *equal_ranges((instances[key] & (1 << VALUE_BITS) - 1) << VALUE_BITS | driving.value[ours], codes)
    )
    ours, theirs, key = ours[place], order[at], key[place]
    known = np.array([left << CLASS_BITS | right for left, right in kinds], np.int64)
    by_code = np.argsort(known)
    code = _kind(ours_seen.number[ours], theirs_seen.number[theirs], driving_left)
    kind = by_code[np.minimum(np.searchsorted(known[by_code], code), len(known) - 1)]
    met = known[kind] == code
    ours, theirs, key, kind = ours[met], theirs[met], key[met], kind[met]
    order = np.argsort(key * len(kinds) + kind, kind="stable")
    return ours[order], theirs[order], key[order], kind[order]


def _sets(key: Ints, kind: Ints) -> tuple[Ints, list[list[int]]]:
    """The number of the set of kinds of each key, and the members of each set. `key` and `kind` are sorted together.

    A trie tells the sets apart: it branches by their members, from the least.
    """
    first = group_starts(key, kind)
    key, kind = key[first], kind[first]
    start = group_starts(key)
    size = np.diff(start, append=len(key))
    node = np.zeros(len(start), np.int64)
    parents, members, nodes = [-1], [-1], 1
    for depth in range(int(size.max(initial=0))):
        longer = np.flatnonzero(size > depth)
        code, distinct = dictionary_encode(node[longer] << VALUE_BITS | kind[start[longer] + depth])
        node[longer] = code + nodes
        parents += (distinct >> VALUE_BITS).tolist()
        members += (distinct & (1 << VALUE_BITS) - 1).tolist()
        nodes += len(distinct)
    found, ends = dictionary_encode(node)
    sets = []
    for end in ends.tolist():
        of = []
        while end:
            of.append(members[end])
            end = parents[end]
        sets.append(of)
    return found, sets
