"""Pairs the postings of two runs that have one value, and finds the rows that pairs of documents satisfy.

The driving run is that of the batch. Rows of one join are answered by ranges of postings, which are expanded when the
matches are read. Rows of several joins are answered by pairs of instances: such a pair has a set of kinds in common,
and the rows that the set satisfies are looked up once for each distinct set. Pairs of instances are formed by the
rarest edge of each row only; what else they have in common is looked up. So a value that very many documents share
costs nothing if each row that asks for it asks for a rarer one too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from join_stage.arrays import (
    Ints,
    bisect_ranges,
    dictionary_encode,
    expand_ranges,
    group_starts,
)
from join_stage.signature.path_classes import CLASS_BITS, KindMeaning, PathClasses
from join_stage.signature.postings import PostingRun
from join_stage.signature.row_index import RowIndex
from join_stage.signature.run import AskedValues, Run
from join_stage.signature.satisfied_rows import PairKind, SatisfiedRows, SatisfiedRowsCache, Streams

LONGEST_WINDOW = 1 << 62
"""Microseconds: longer than any two times are apart, and small enough that sums do not overflow."""

INDEX_BITS = 32
"""Bits of the index of an instance or a kind where two of them are packed into one int64."""


@dataclass(frozen=True, slots=True)
class PostingRanges:
    """Pairs of postings, as ranges. All arrays have one length: `posting` is an index into the driving run, `start` and
    `end` are a range of the other run within a group, and `kind` is the index of their kind in `PairedRuns.kinds`."""

    posting: Ints
    start: Ints
    end: Ints
    kind: Ints

    def of(self, kinds: NDArray[np.bool_]) -> PostingRanges:
        """The ranges of some kinds, given as a mask over them."""
        return self.at(np.flatnonzero(kinds[self.kind]))

    def at(self, chosen: Ints) -> PostingRanges:
        """Some of the ranges, by index."""
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

    `kinds` and `means` have one length: the kinds that occur, and what they mean to the rows. `several` is None if
    there are no pairs.
    """

    driving: PostingRun
    other: Run
    driving_left: bool
    kinds: list[PairKind]
    means: list[KindMeaning]
    single: PostingRanges
    several: PostingPairs | None


@dataclass(frozen=True, slots=True)
class _Met:
    """Two runs, those of the driving run on the left if `driving_left`. `start`, `end` and `asked` have an entry for
    each group of the driving run: the range of the other's groups with its value, and the number of the set of paths
    that rows ask for, 0 if they ask for none."""

    driving: PostingRun
    other: Run
    start: Ints
    end: Ints
    driving_left: bool
    asked: Ints


class Pairing:
    """Pairs runs of postings, for the rows as they are now and documents of the given pairs of streams."""

    def __init__(self, rows: RowIndex, classes: PathClasses, sets: SatisfiedRowsCache, streams: Streams) -> None:
        self._rows, self._classes, self._sets, self._streams = rows, classes, sets, streams

    def paired(
        self, driving: PostingRun, asked: AskedValues, other: Run, sides: Iterable[bool]
    ) -> Iterator[PairedRuns]:
        """Yields what rows ask for in the documents of two runs, which may be one and the same. `asked` has the values
        of the driving run's groups, `sides` whether this run is on the left. For each side, yields nothing, or once."""
        # In an earlier document, no row that is ordered finds what begins after one of the driving run, or as it ends.
        sides = [left for left in sides if not left or self._rows.unordered or not _is_before(other, driving)]
        if not sides:
            return
        start, end = other.groups_of(asked)
        if (start == end).all():
            return
        for left in sides:
            met = _Met(driving, other, start, end, left, self._classes.asked(driving.path_class, left=left))
            if (found := self._paired(met)) is not None:
                yield found

    def _paired(self, met: _Met) -> PairedRuns | None:
        kinds, means, ranges = self._ranges(met)
        if not kinds:
            return None
        singles = np.array([bool(pair.single) for pair in means], np.bool_)
        formed = self._formed(ranges, means)
        # Ranges that are only looked up may be the most. They need no cut to the windows, and get none.
        ranges = _in_time(met, ranges.of(singles | formed), means)
        if not len(ranges.posting):
            return None
        several = None
        if formed.any():
            several = self._satisfied(self._pairs_of_instances(met, ranges.of(formed), kinds), kinds)
        return PairedRuns(met.driving, met.other, met.driving_left, kinds, means, ranges.of(singles), several)

    def _ranges(self, met: _Met) -> tuple[list[PairKind], list[KindMeaning], PostingRanges]:
        """The kinds that occur and mean something to a row, their meanings, and the ranges of their pairs."""
        driving, other = met.driving, met.other
        ours = met.asked.nonzero()[0]
        group, place = expand_ranges(met.start[ours], met.end[ours])
        our_group = ours[place]
        theirs = self._classes.asked(other.path_class[group], left=not met.driving_left)
        if not theirs.all():
            some = theirs > 0
            group, our_group, theirs = group[some], our_group[some], theirs[some]
        code, distinct = dictionary_encode(_kind(met.asked[our_group], theirs, met.driving_left))
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
        posting, place = expand_ranges(driving.start[our_group], driving.start[our_group + 1])
        start, end = other.start[group], other.start[group + 1]
        return kinds, means, PostingRanges(posting, start[place], end[place], kind_of[place])

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

    def _pairs_of_instances(
        self, met: _Met, ranges: PostingRanges, kinds: Sequence[PairKind]
    ) -> tuple[Ints, Ints, Ints, Ints]:
        """All pairs of postings with one value of the pairs of instances that ranges form.

        Four arrays of one length, sorted by the last two: indices of postings in the driving run and in the other, the
        number of their pair of instances, and the index of their kind.
        """
        driving, other = met.driving, met.other
        theirs, place = expand_ranges(ranges.start, ranges.end)
        ours = ranges.posting[place]
        if isinstance(other, PostingRun) and have_documents_in_common(driving, other):
            different = driving.documents[ours] != other.documents[theirs]
            ours, theirs = ours[different], theirs[different]
        code, instances = dictionary_encode(driving.instance[ours] << INDEX_BITS | other.instance[theirs])
        time = np.zeros(len(instances), np.int64)
        time[code] = other.time[theirs]
        one, two = instances >> INDEX_BITS, instances & (1 << INDEX_BITS) - 1
        order, starts = driving.by_instance
        at, key = expand_ranges(starts[one], starts[one + 1])
        ours = order[at]
        group = driving.group[ours]
        asked = met.asked[group] > 0
        ours, key, group = ours[asked], key[asked], group[asked]
        theirs, their_group, place = other.of_instances(two[key], time[key], met.start[group], met.end[group])
        ours, key, group = ours[place], key[place], group[place]
        their_asked = self._classes.asked(other.path_class[their_group], left=not met.driving_left)
        known = np.array([left << CLASS_BITS | right for left, right in kinds], np.int64)
        by_code = np.argsort(known)
        code = _kind(met.asked[group], their_asked, met.driving_left)
        kind = by_code[np.minimum(np.searchsorted(known[by_code], code), len(known) - 1)]
        alike = known[kind] == code
        ours, theirs, key, kind = ours[alike], theirs[alike], key[alike], kind[alike]
        order = np.argsort(key * len(kinds) + kind, kind="stable")
        return ours[order], theirs[order], key[order], kind[order]

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


def have_documents_in_common(one: PostingRun, other: PostingRun) -> bool:
    """Whether two runs are of one batch: then they number its documents alike."""
    return one.docid is other.docid


def _is_before(one: Run, other: Run) -> bool:
    """Whether all documents of a run begin before any of another one."""
    return one.span.last < other.span.first


def _kind(ours: Ints, theirs: Ints, driving_left: bool) -> Ints:
    left, right = (ours, theirs) if driving_left else (theirs, ours)
    return left << CLASS_BITS | right


def _in_time(met: _Met, ranges: PostingRanges, means: Sequence[KindMeaning]) -> PostingRanges:
    """The ranges, cut to what is near enough in time for some row. Postings of a group are sorted by time."""
    driving, time, low = met.driving, met.other.time, met.other.low
    windows = np.array([min(pair.window, LONGEST_WINDOW) for pair in means], np.int64)
    orders = np.array([pair.ordered for pair in means], np.bool_)
    if low is None and not orders.any() and (windows == LONGEST_WINDOW).all():
        return ranges
    document = driving.documents[ranges.posting]
    t0, t1 = driving.t0[document], driving.t1[document]
    window, ordered = windows[ranges.kind], orders[ranges.kind]
    first, last = t1 - window, t0 + window
    if met.driving_left:
        first = np.where(ordered, np.maximum(first, t1), first)
    else:
        last = np.where(ordered, np.minimum(last, t0), last)
    if low is not None:
        first = np.maximum(first, low)
    # Most runs lie wholly within the times, or wholly outside: then their postings need not be looked at.
    span = met.other.span
    start, end = ranges.start.copy(), ranges.end.copy()
    cut = ((first > span.first) | (last < span.last)).nonzero()[0]
    outside = (first[cut] > span.last) | (last[cut] < span.first)
    end[cut[outside]] = start[cut[outside]]
    cut = cut[~outside]
    start[cut] = bisect_ranges(time, start[cut], end[cut], first[cut])
    end[cut] = bisect_ranges(time, start[cut], end[cut], last[cut] + 1)
    some = end > start
    return PostingRanges(ranges.posting[some], start[some], end[some], ranges.kind[some])


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
        code, distinct = dictionary_encode(node[longer] << INDEX_BITS | kind[start[longer] + depth])
        node[longer] = code + nodes
        parents += (distinct >> INDEX_BITS).tolist()
        members += (distinct & (1 << INDEX_BITS) - 1).tolist()
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
