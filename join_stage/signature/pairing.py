"""Pairs of postings with one value that some row asks for, and for pairs of documents the rows that they satisfy.

One of two runs of postings drives: a batch's. Rows of one join are answered by ranges of postings, which are not
written out before they are asked for. Rows of several are answered by pairs of instances: what such a pair has in
common is a set of kinds, and the rows within it are looked up once for each distinct set. Pairs of instances are formed
by the rarest edge of each row alone, and what else they have in common is looked up: so a value that very many
documents share costs nothing where a row asks for a rarer one too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from join_stage.signature.arrays import Ints, bisected, encoded, expanded, matching, starts_of
from join_stage.signature.path_classes import CLASS_BITS, KindMeaning, PathClasses
from join_stage.signature.postings import VALUE_BITS, PostingRun, PostingView
from join_stage.signature.row_index import RowIndex
from join_stage.signature.satisfied_rows import Kind, SatisfiedRows, SatisfiedRowsCache, Streams

LONGEST_WINDOW = 1 << 62
"""Microseconds: more than lie between any two times, and few enough for sums."""

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class PostingRanges:
    """For postings of the driving run ranges of those in the other's view; `kind` is the place of their kind."""

    posting: Ints
    start: Ints
    end: Ints
    kind: Ints

    def of(self, kinds: NDArray[np.bool_]) -> PostingRanges:
        """Those of some kinds."""
        chosen = kinds[self.kind]
        return PostingRanges(self.posting[chosen], self.start[chosen], self.end[chosen], self.kind[chosen])


@dataclass(frozen=True, slots=True)
class PostingPairs:
    """Pairs of postings in the order of `key`, which numbers the pairs of instances, and then of `kind`.

    `start` is where each key's pairs start; `found` is the place, in `within`, of the rows that the key satisfies.
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
    """What rows ask for in the documents of two runs, the driving one's standing left or right.

    `kinds` are all that were met, `means` what they mean to the rows; `order` has the places of the other run's
    postings that the ranges are about.
    """

    driving: PostingRun
    other: PostingRun
    driving_left: bool
    kinds: list[Kind]
    means: list[KindMeaning]
    order: Ints
    single: PostingRanges
    several: PostingPairs | None


class Pairing:
    """Pairs runs of postings, for the rows as they are now and for documents of some pairs of streams."""

    def __init__(self, rows: RowIndex, classes: PathClasses, sets: SatisfiedRowsCache, streams: Streams) -> None:
        self._rows, self._classes, self._sets, self._streams = rows, classes, sets, streams

    def paired(self, driving: PostingRun, other: PostingRun, *, driving_left: bool) -> PairedRuns:
        """All that rows ask for in the documents of two runs, which may be the same one."""
        ours = driving.view(self._classes, left=driving_left)
        theirs = other.view(self._classes, left=not driving_left)
        kinds, means, ranges = self._ranges(ours, theirs, driving_left)
        singles = np.array([bool(pair.single) for pair in means], np.bool_)
        formed = self._formed(ranges, means)
        # What is only looked up need not be cut to the windows, nor is it: it may be most of it.
        ranges = _in_time(driving, theirs, ranges.of(singles | formed), means, driving_left)
        several = None
        if formed.any():
            pairs = _pairs_of_instances(driving, other, ours, theirs, ranges.of(formed), kinds, driving_left)
            several = self._satisfied(pairs, kinds)
        return PairedRuns(driving, other, driving_left, kinds, means, theirs.place, ranges.of(singles), several)

    def _ranges(
        self, ours: PostingView, theirs: PostingView, driving_left: bool
    ) -> tuple[list[Kind], list[KindMeaning], PostingRanges]:
        """The kinds that are met and mean something, and where."""
        group, our_group = expanded(*matching(ours.value, theirs.value))
        code, distinct = encoded(_kind(ours.paths[our_group], theirs.paths[group], driving_left))
        kinds: list[Kind] = []
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
        at, place = expanded(ours.start[our_group], ours.end[our_group])
        return (
            kinds,
            means,
            PostingRanges(ours.place[at], theirs.start[group][place], theirs.end[group][place], kind_of[place]),
        )

    def _formed(self, ranges: PostingRanges, means: Sequence[KindMeaning]) -> NDArray[np.bool_]:
        """For each kind whether its pairs have to be formed: whether it has the rarest edge of a row all of whose edges
        are met."""
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

    def _satisfied(self, pairs: tuple[Ints, Ints, Ints, Ints], kinds: Sequence[Kind]) -> PostingPairs | None:
        """The pairs of those instances that satisfy a row, given all (postings, key, kind) in order of key and kind."""
        ours, theirs, key, kind = pairs
        start = starts_of(key)
        if not len(start):
            return None
        found, members = _sets(key, kind)
        within = [self._sets.within(frozenset(kinds[member] for member in of), self._streams) for of in members]
        some = np.array([len(rows.places) for rows in within])[found] > 0
        kept = np.repeat(some, np.diff(start, append=len(key)))
        key = (np.cumsum(some) - 1)[key[kept]]
        return PostingPairs(ours[kept], theirs[kept], key, kind[kept], starts_of(key), found[some], within)


def _kind(ours: Ints, theirs: Ints, driving_left: bool) -> Ints:
    left, right = (ours, theirs) if driving_left else (theirs, ours)
    return left << CLASS_BITS | right


def _in_time(
    driving: PostingRun, theirs: PostingView, ranges: PostingRanges, means: Sequence[KindMeaning], driving_left: bool
) -> PostingRanges:
    """The ranges without what is too far off for every row: postings are in order of time."""
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
    start = bisected(theirs.time, ranges.start, ranges.end, first)
    end = bisected(theirs.time, start, ranges.end, last + 1)
    some = end > start
    return PostingRanges(ranges.posting[some], start[some], end[some], ranges.kind[some])


def _pairs_of_instances(
    driving: PostingRun,
    other: PostingRun,
    ours_seen: PostingView,
    theirs_seen: PostingView,
    ranges: PostingRanges,
    kinds: Sequence[Kind],
    driving_left: bool,
) -> tuple[Ints, Ints, Ints, Ints]:
    """For the pairs of instances that ranges make: all pairs of postings with one value, their key and their kind, in
    the order of these."""
    at, place = expanded(ranges.start, ranges.end)
    ours, theirs = ranges.posting[place], theirs_seen.place[at]
    if driving is other:
        apart = driving.documents[ours] != other.documents[theirs]
        ours, theirs = ours[apart], theirs[apart]
    _, instances = encoded(driving.instance[ours] << VALUE_BITS | other.instance[theirs])
    codes, order = driving.by_instance
    at, key = expanded(*matching(instances >> VALUE_BITS, codes >> VALUE_BITS))
    ours = order[at]
    asked = ours_seen.number[ours] > 0
    ours, key = ours[asked], key[asked]
    codes, order = other.by_instance
    at, place = expanded(*matching((instances[key] & (1 << VALUE_BITS) - 1) << VALUE_BITS | driving.value[ours], codes))
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
    """For each key, in whose order the kinds are given, the number of its set of kinds; and the sets.

    Sets are told apart member by member, from the least, as words are in a dictionary.
    """
    first = starts_of(key, kind)
    key, kind = key[first], kind[first]
    start = starts_of(key)
    size = np.diff(start, append=len(key))
    node = np.zeros(len(start), np.int64)
    parents, members, nodes = [-1], [-1], 1
    for depth in range(int(size.max(initial=0))):
        longer = np.flatnonzero(size > depth)
        code, distinct = encoded(node[longer] << VALUE_BITS | kind[start[longer] + depth])
        node[longer] = code + nodes
        parents += (distinct >> VALUE_BITS).tolist()
        members += (distinct & (1 << VALUE_BITS) - 1).tolist()
        nodes += len(distinct)
    found, ends = encoded(node)
    sets = []
    for end in ends.tolist():
        of = []
        while end:
            of.append(members[end])
            end = parents[end]
        sets.append(of)
    return found, sets
