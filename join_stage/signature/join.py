"""The `signature` join of a batch with the postings of earlier documents, to which it then adds its own. It pairs
postings of equal value of two runs; the batch's run drives. Rows of one join are answered by ranges of postings, rows
of several joins by pairs of instances: such a pair has a set of kinds, and the rows that a set satisfies are looked up
once per distinct set. Instances are paired only by the rarest edge of each row, so a very common value costs nothing
where every row also needs a rarer one. Matches stay factorised until they are read."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.arrays import (
    Ints,
    Mask,
    bisect_ranges,
    dictionary_encode,
    distinct,
    equal_ranges,
    expand_ranges,
    group_starts,
    number_rows,
)
from common.bounds import LONGEST_WINDOW
from join_stage.near_candidates import NearTexts, TextIds, WordSets, weight_slices
from join_stage.protocol import RESULT, Cost, Costs, JoinScope
from join_stage.signature import postings
from join_stage.signature.disk import StoredRuns
from join_stage.signature.runs import DiskRun, SortedRun
from templates.catalog import StepEdge
from templates.graph import Shape
from templates.witness import MANY, Witnesses, edges_by_group

INDEX_BITS = 32  # bits of an instance or kind index where two are packed into one int64


class PostingRanges(NamedTuple):
    """Pairs of postings as ranges. Arrays of one length: `posting` indexes the driving run, `start` and `end` are a
    range of the other run within a group, `kind` indexes `PairedRuns.kinds`."""

    posting: Ints
    start: Ints
    end: Ints
    kind: Ints

    def of(self, kinds: NDArray[np.bool_]) -> PostingRanges:
        stays = kinds[self.kind]
        return self if stays.all() else self.at(stays.nonzero()[0])

    def at(self, chosen: Ints | slice) -> PostingRanges:
        return PostingRanges(self.posting[chosen], self.start[chosen], self.end[chosen], self.kind[chosen])


@dataclass(frozen=True, slots=True)
class PostingPairs:
    """Pairs of postings of pairs of instances, sorted by `key` and then `kind`. `driving`, `other`, `key` and `kind`
    have one length: posting indices in both runs, the number of the pair of instances, and its kind. By key, `start`
    has the offset of its pairs and `found` the index in `within` of the rows that it satisfies."""

    driving: Ints
    other: Ints
    key: Ints
    kind: Ints
    start: Ints
    found: Ints
    within: list[postings.SatisfiedRows]

    def at(self, chosen: Ints) -> tuple[Ints, Ints]:
        """The postings of some pairs in the driving run and in the other."""
        return self.driving[chosen], self.other[chosen]


@dataclass(frozen=True, slots=True)
class PairedRuns:
    """The matches of rows between the documents of two runs; the driving run is on the left if `driving_left`. `kinds`
    and `means` are parallel: the kinds that occur, and their meaning to the rows. `several` is None without pairs."""

    driving: postings.PostingRun
    other: SortedRun
    driving_left: bool
    kinds: list[postings.PairKind]
    means: list[postings.KindMeaning]
    single: PostingRanges
    several: PostingPairs | None


@dataclass(frozen=True, slots=True)
class _Met:
    """Two runs, the driving run on the left if `driving_left`. By group of the driving run: `start` and `end` are the
    other's groups with its value, `asked` the number of the set of needed paths, 0 if none."""

    driving: postings.PostingRun
    other: SortedRun
    start: Ints
    end: Ints
    driving_left: bool
    asked: Ints


class Pairing:
    """Pairs runs of postings for the current rows and the given pairs of streams."""

    def __init__(self, rows: postings.RowIndex, classes: postings.PathClasses, streams: postings.Streams) -> None:
        self._rows, self._classes, self._streams = rows, classes, streams

    def paired(
        self, driving: postings.PostingRun, asked: postings.AskedValues, other: SortedRun, sides: Iterable[bool]
    ) -> Iterator[PairedRuns]:
        """For each side, yields at most one result for two runs, which may be identical. `asked` has the values of the
        driving run's groups, `sides` whether this run is on the left."""
        # In an earlier document, ordered rows find nothing that begins at or after the end of one of the driving run.
        sides = [left for left in sides if not left or self._rows.unordered or other.span.last >= driving.span.first]
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
        formed, whole = self._formed(ranges, means)
        # Ranges that are only looked up may be the majority. They need not be cut to the windows.
        ranges = _in_time(met, ranges.of(singles | formed), means)
        if not len(ranges.posting):
            return None
        several = None
        if formed.any():
            pairs = self._pairs_of_instances(met, ranges.of(formed), None if whole else kinds)
            several = self._satisfied(pairs, kinds)
        return PairedRuns(met.driving, met.other, met.driving_left, kinds, means, ranges.of(singles), several)

    def _ranges(self, met: _Met) -> tuple[list[postings.PairKind], list[postings.KindMeaning], PostingRanges]:
        driving, other = met.driving, met.other
        ours = met.asked.nonzero()[0]
        group, place = expand_ranges(met.start[ours], met.end[ours])
        our_group = ours[place]
        theirs = self._classes.asked(other.path_classes(group), left=not met.driving_left)
        if not theirs.all():
            some = theirs > 0
            group, our_group, theirs = group[some], our_group[some], theirs[some]
        code, distinct = dictionary_encode(_kind(met.asked[our_group], theirs, met.driving_left))
        kinds: list[postings.PairKind] = []
        means: list[postings.KindMeaning] = []
        number = np.full(len(distinct), -1)
        for i, both in enumerate(distinct.tolist()):
            kind = both >> postings.CLASS_BITS, both & (1 << postings.CLASS_BITS) - 1
            if (meaning := self._classes.pair(*kind, self._streams)) is not None:
                number[i] = len(kinds)
                kinds.append(kind)
                means.append(meaning)
        kind_of = number[code]
        our_group, group, kind_of = our_group[kind_of >= 0], group[kind_of >= 0], kind_of[kind_of >= 0]
        posting, place = expand_ranges(driving.start[our_group], driving.start[our_group + 1])
        start, end = other.start[group], other.start[group + 1]
        return kinds, means, PostingRanges(posting, start[place], end[place], kind_of[place])

    def _formed(self, ranges: PostingRanges, means: Sequence[postings.KindMeaning]) -> tuple[Mask, bool]:
        """The mask of kinds whose pairs must be formed: those with the rarest edge of a row whose edges all occur, or
        with any edge of such rows, if that makes few more pairs: then they need not be looked up; and which it is."""
        if not any(pair.several for pair in means):
            return np.zeros(len(means), np.bool_), True
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

        def kinds_with(some: Ints) -> Mask:
            chosen = np.zeros(self._rows.edge_count + 1, np.bool_)
            chosen[some] = True
            found = np.zeros(len(means), np.bool_)
            found[np.repeat(np.arange(len(means)), counts)[chosen[edges]]] = True
            return found

        formed = kinds_with(table[possible][np.arange(len(rarest)), rarest])
        every = kinds_with(table[possible][table[possible] >= 0])
        whole = bool(totals[every].sum() <= MORE_FORMED * totals[formed].sum())
        return every if whole else formed, whole

    def _pairs_of_instances(
        self, met: _Met, ranges: PostingRanges, kinds: Sequence[postings.PairKind] | None
    ) -> tuple[Ints, Ints, Ints, Ints]:
        """Pairs of postings of equal value of the pairs of instances that ranges form; without `kinds`, ranges have
        them all. Returns parallel arrays, sorted by the last two: posting in the driving run, posting in the other,
        number of the pair of instances, kind."""
        driving, other = met.driving, met.other
        theirs, place = expand_ranges(ranges.start, ranges.end)
        ours, kind = ranges.posting[place], ranges.kind[place]
        if isinstance(other, postings.PostingRun) and have_documents_in_common(driving, other):
            different = driving.documents[ours] != other.documents[theirs]
            ours, theirs, kind = ours[different], theirs[different], kind[different]
        code, instances = dictionary_encode(driving.instance[ours] << INDEX_BITS | other.instance[theirs])
        if kinds is None:
            order = np.lexsort((kind, code))
            return ours[order], theirs[order], code[order], kind[order]
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
        their_asked = self._classes.asked(other.path_classes(their_group), left=not met.driving_left)
        known = np.array([left << postings.CLASS_BITS | right for left, right in kinds], np.int64)
        by_code = np.argsort(known)
        code = _kind(met.asked[group], their_asked, met.driving_left)
        kind = by_code[np.minimum(np.searchsorted(known[by_code], code), len(known) - 1)]
        alike = known[kind] == code
        ours, theirs, key, kind = ours[alike], theirs[alike], key[alike], kind[alike]
        order = np.argsort(key * len(kinds) + kind, kind="stable")
        return ours[order], theirs[order], key[order], kind[order]

    def _satisfied(
        self, pairs: tuple[Ints, Ints, Ints, Ints], kinds: Sequence[postings.PairKind]
    ) -> PostingPairs | None:
        """The pairs whose instances satisfy some row. `pairs` are those of `_pairs_of_instances`."""
        ours, theirs, key, kind = pairs
        start = group_starts(key)
        if not len(start):
            return None
        found, members = _sets(key, kind)
        within = [self._classes.within(frozenset(kinds[member] for member in of), self._streams) for of in members]
        some = np.array([len(rows.places) for rows in within])[found] > 0
        kept = np.repeat(some, np.diff(start, append=len(key)))
        key = (np.cumsum(some) - 1)[key[kept]]
        return PostingPairs(ours[kept], theirs[kept], key, kind[kept], group_starts(key), found[some], within)


def have_documents_in_common(one: postings.PostingRun, other: postings.PostingRun) -> bool:
    """Whether two runs are of one batch, and so number its documents alike."""
    return one.docid is other.docid


def _kind(ours: Ints, theirs: Ints, driving_left: bool) -> Ints:
    left, right = (ours, theirs) if driving_left else (theirs, ours)
    return left << postings.CLASS_BITS | right


MORE_FORMED = 4
"""How many times as many pairs of postings may be formed so that no more need be looked up: for each pair of instances,
each value of one is looked up in the other."""

MOST_CUT = 32_768  # number of ranges cut to the windows at a time, which fit into a processor's cache


def _in_time(met: _Met, ranges: PostingRanges, means: Sequence[postings.KindMeaning]) -> PostingRanges:
    """Cuts the ranges to times near enough for some row; postings of a group are sorted by time."""
    windows = np.array([min(pair.window, LONGEST_WINDOW) for pair in means], np.int64)
    orders = np.array([pair.ordered for pair in means], np.bool_)
    if met.other.low is None and not orders.any() and (windows == LONGEST_WINDOW).all():
        return ranges
    slices = (slice(first, first + MOST_CUT) for first in range(0, len(ranges.posting), MOST_CUT))
    parts = [_cut(met, ranges.at(some), windows, orders) for some in slices]
    return PostingRanges(*map(np.concatenate, zip(*parts, strict=True))) if parts else ranges


def _cut(met: _Met, ranges: PostingRanges, windows: Ints, orders: Mask) -> PostingRanges:
    driving, time, low = met.driving, met.other.time, met.other.low
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
    # Most runs are entirely within the times, or outside: then their postings need not be read.
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
    """The number of each key's set of kinds, and the members of each set, by a trie. The input is sorted."""
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


CHUNK = 100_000  # approximate number of matches expanded at a time


@dataclass(frozen=True, slots=True)
class NodeSource:
    """The source of a template's node: a side of the postings of a join, `depth` nodes below the top of the path.
    `leaf`: it is the end of the path."""

    left: bool
    join: int
    depth: int
    leaf: bool


NodeSources = tuple[list[NodeSource], list[tuple[NodeSource, NodeSource]]]
"""The source of each node of a template, and pairs of sources that must give one node."""

Choices = list[list[list[int]]]  # the kinds of pairs that satisfy a row, by join and item


@lru_cache(maxsize=4096)
def node_sources(shape: Shape) -> NodeSources:
    """The sources for a template with joins. The top of a side is that of the instance in every join."""
    met: dict[int, NodeSource] = {}
    equal: list[tuple[NodeSource, NodeSource]] = []
    for join, leaves in enumerate(shape.joins):
        for leaf, left in zip(leaves, (True, False), strict=True):
            path = postings.path_to(shape, leaf)
            for depth, node in enumerate(path):
                slot = NodeSource(left, join, depth, node == leaf)
                first = met.setdefault(node, slot)
                if first is not slot and depth:
                    equal.append((first, slot))
    return [met[node] for node in range(len(shape.parents))], equal


@dataclass(frozen=True, slots=True, eq=False)
class FactorisedMatches:
    """The matches of a batch, to be read before the rows change. `sets` filters pairs of texts that are not near."""

    _rows: postings.RowIndex
    _costs: Costs
    _found: list[PairedRuns]
    _filtered: list[pa.RecordBatch]
    _sets: WordSets | None

    @property
    def num_rows(self) -> int:
        return sum(batch.num_rows for batch in self.to_batches())

    def to_batches(self, max_chunksize: int = CHUNK) -> Iterator[pa.RecordBatch]:
        """Batches of RESULT, of `max_chunksize` rows but for the last one."""
        held, rows = list[pa.RecordBatch](), 0
        for batch in self._batches():
            held.append(batch)
            rows += batch.num_rows
            if rows >= max_chunksize:
                *full, last = pa.Table.from_batches(held).combine_chunks().to_batches(max_chunksize)
                yield from full
                held, rows = [last], last.num_rows
        if rows:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()

    def costs(self) -> Collection[Cost]:
        return self._costs.values()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._filtered
        seconds: dict[int, float] = defaultdict(float)
        matches: Counter[int] = Counter()
        begin = time.perf_counter()
        for template, batch in chain.from_iterable(map(self._of, self._found)):
            seconds[template] += time.perf_counter() - begin
            matches[template] += batch.num_rows
            yield batch
            begin = time.perf_counter()
        for template, taken in seconds.items():
            self._costs[template] = Cost(taken, matches[template], (template,))

    def _of(self, found: PairedRuns) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield from _of_single(self._rows, found, self._sets)
        if found.several is not None:
            yield from _of_several(self._rows, found, found.several)


# ------------------------------------------------------------ rows of one join


def _of_single(
    rows: postings.RowIndex, found: PairedRuns, sets: WordSets | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    by_template: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for number, meaning in enumerate(found.means):
        for place in meaning.single:
            by_template[rows.at(place).row.template].setdefault(number, []).append(place)
    for template, of_kind in by_template.items():
        of_kinds = [of_kind.get(number, []) for number in range(len(found.kinds))]
        counts, places = np.array(list(map(len, of_kinds))), np.array(list(chain.from_iterable(of_kinds)), np.int64)
        ends = np.cumsum(counts)
        nodes, _ = node_sources(rows.at(int(places[0])).shape)
        ranges = found.single.of(counts > 0)
        weights = (ranges.end - ranges.start) * counts[ranges.kind]
        many = sets is not None and bool((found.driving.node[ranges.posting] & MANY).any())
        if many:
            # Multi-valued nodes may share several values. All postings of an instance are handled together.
            order = found.driving.instance[ranges.posting].argsort(kind="stable")
            ranges, weights = ranges.at(order), weights[order]
        for part in weight_slices(weights, CHUNK, found.driving.instance[ranges.posting] if many else None):
            chosen = ranges.at(part)
            at, which = expand_ranges(chosen.start, chosen.end)
            ours, theirs, kind = chosen.posting[which], at, chosen.kind[which]
            if isinstance(found.other, postings.PostingRun) and have_documents_in_common(found.driving, found.other):
                different = found.driving.documents[ours] != found.other.documents[theirs]
                ours, theirs, kind = ours[different], theirs[different], kind[different]
            if many and sets is not None:
                stays = _near_texts(found, nodes, ours, theirs, kind, sets)
                ours, theirs, kind = ours[stays], theirs[stays], kind[stays]
            at, pair = expand_ranges(ends[kind] - counts[kind], ends[kind])
            near = _near(rows, found, ours[pair], theirs[pair], places[at])
            at, pair = at[near], pair[near]
            yield template, _result(rows, found, nodes, places[at], [(ours[pair], theirs[pair])])


def _near_texts(
    found: PairedRuns, nodes: list[NodeSource], ours: Ints, theirs: Ints, kind: Ints, sets: WordSets
) -> Ints:
    """The indices of pairs of near or equal texts, each pair of texts once however many keys match."""
    by_words = (found.driving.node[ours] & MANY) != 0
    many = np.flatnonzero(by_words)
    ours, theirs = ours[many], theirs[many]
    stays = sets.are_near(_texts(found.driving, ours), _texts(found.other, theirs), by_keys=True)
    many, ours, theirs = many[stays], ours[stays], theirs[stays]
    columns = [_node(found, slot, ours, theirs) for slot in nodes]
    _, first = number_rows(kind[many], found.driving.instance[ours], found.other.instance[theirs], *columns)
    return np.sort(np.append(np.flatnonzero(~by_words), many[first]))


def _texts(run: SortedRun, postings: Ints) -> TextIds:
    return TextIds(run.docids(postings), run.nodes(postings))


# ------------------------------------------------------------ rows of several joins


def _of_several(
    rows: postings.RowIndex, found: PairedRuns, pairs: PostingPairs
) -> Iterator[tuple[int, pa.RecordBatch]]:
    number = {kind: place for place, kind in enumerate(found.kinds)}
    by_template: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for place in distinct(pairs.found).tolist():
        for i, row in enumerate(pairs.within[place].places.tolist()):
            by_template[rows.at(row).row.template].setdefault(place, []).append(i)
    codes = pairs.key * len(found.kinds) + pairs.kind
    for template, of_set in by_template.items():
        counts = np.array([len(of_set.get(place, ())) for place in range(len(pairs.within))])
        ends = np.cumsum(counts)
        items = [(place, i) for place in range(len(pairs.within)) for i in of_set.get(place, ())]
        rows_of = np.array([pairs.within[place].places[i] for place, i in items], np.int64)
        shape = rows.at(int(rows_of[0])).shape
        sources = node_sources(shape)
        choices = [
            [[number[kind] for kind in pairs.within[place].choices[i][join]] for place, i in items]
            for join in range(len(shape.joins))
        ]
        keys = np.flatnonzero(counts[pairs.found] > 0)
        for part in weight_slices(counts[pairs.found[keys]], CHUNK):
            key = keys[part]
            item, at = expand_ranges((ends - counts)[pairs.found[key]], ends[pairs.found[key]])
            key = key[at]
            first = pairs.start[key]
            near = _near(rows, found, pairs.driving[first], pairs.other[first], rows_of[item])
            item, chosen = _chosen(found, pairs, sources, choices, codes, item[near], key[near])
            yield template, _result(rows, found, sources[0], rows_of[item], chosen)


def _chosen(
    found: PairedRuns, pairs: PostingPairs, sources: NodeSources, choices: Choices, codes: Ints, item: Ints, key: Ints
) -> tuple[Ints, list[tuple[Ints, Ints]]]:
    """The ways to choose, for each join of a row, a pair of postings that satisfies it: items, and pairs by join. The
    parallel `item` and `key` are rows, and pairs of instances that satisfy them."""
    chosen = list[Ints]()
    for join, choice in enumerate(choices):
        ends = np.cumsum([0, *map(len, choice)])
        at, place = expand_ranges(ends[item], ends[item + 1])
        kind = np.array(list(chain.from_iterable(choice)), np.int64)[at]
        item, key, chosen = item[place], key[place], [column[place] for column in chosen]
        pair, place = expand_ranges(*equal_ranges(key * len(found.kinds) + kind, codes))
        item, key, chosen = item[place], key[place], [*(column[place] for column in chosen), pair]
        for one, other in sources[1]:
            if other.join == join:
                same = _node(found, one, *pairs.at(chosen[one.join])) == _node(found, other, *pairs.at(pair))
                item, key, chosen = item[same], key[same], [column[same] for column in chosen]
                pair = chosen[-1]
    return item, [pairs.at(column) for column in chosen]


# ------------------------------------------------------------ both


def _sides(found: PairedRuns) -> tuple[SortedRun, SortedRun]:
    return (found.driving, found.other) if found.driving_left else (found.other, found.driving)


def _near(rows: postings.RowIndex, found: PairedRuns, ours: Ints, theirs: Ints, place: Ints) -> NDArray[np.bool_]:
    """Mask of pairs of documents, by posting, within the windows of rows and in their order, ties included."""
    (left, right), (one, two) = _sides(found), (ours, theirs) if found.driving_left else (theirs, ours)
    # For the other run, its span may suffice.
    begin, end, others = found.driving.time[ours], found.driving.ends(ours), found.other.span
    covered = np.maximum(end, others.end) - np.minimum(begin, others.first)
    in_order = end <= others.first if found.driving_left else others.end <= begin
    sure = (covered <= rows.windows[place]) & (in_order | ~rows.ordered[place])
    if sure.all():
        return sure
    unsure = (~sure).nonzero()[0]
    one, two, place = one[unsure], two[unsure], place[unsure]
    ends, begin = left.ends(one), right.time[two]
    span = np.maximum(ends, right.ends(two)) - np.minimum(left.time[one], begin)
    sure[unsure] = (span <= rows.windows[place]) & ((ends <= begin) | ~rows.ordered[place])
    return sure


def _node(found: PairedRuns, slot: NodeSource, ours: Ints, theirs: Ints) -> Ints:
    depth = None if slot.leaf else slot.depth
    if slot.left == found.driving_left:
        return found.driving.nodes(ours, depth)
    return found.other.nodes(theirs, depth)


def _result(
    rows: postings.RowIndex, found: PairedRuns, nodes: list[NodeSource], place: Ints, chosen: list[tuple[Ints, Ints]]
) -> pa.RecordBatch:
    ours, theirs = chosen[0]
    (left, right), (one, two) = _sides(found), (ours, theirs) if found.driving_left else (theirs, ours)
    columns = [_node(found, slot, *chosen[slot.join]) for slot in nodes]
    offsets = np.arange(len(place) + 1, dtype=np.int32) * len(columns)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.stack(columns, axis=1).ravel()))
    docids = pa.array(left.docids(one)), pa.array(right.docids(two))
    return pa.RecordBatch.from_arrays([pa.array(rows.ids[place]), *docids, lists], schema=RESULT)


MOST_IN_MEMORY = 250_000
"""Maximum number of postings in memory before they are written to disk, if the state is on disk."""

SHORT_RUN = 1_024  # runs with fewer postings are merged with the next one, because a look-up in a run costs more


class SignatureJoin:
    """The rows of R_T, and postings of joined documents, past MOST_IN_MEMORY on disk; `near`: word-joined texts."""

    def __init__(self, stored: StoredRuns | None = None, near: NearTexts | None = None) -> None:
        self.rows = postings.RowIndex()
        self.costs = Costs()
        self._classes = postings.PathClasses(self.rows)
        self._values = postings.ValueDictionary()
        self._runs: tuple[postings.PostingRun, ...] = ()
        self.stored = stored or StoredRuns(None)
        self._near = NearTexts() if near is None else near
        self._window = 0

    def join(self, batch: Witnesses, scope: JoinScope) -> FactorisedMatches:
        """The matches within a batch and with earlier documents. Then adds the postings of the batch."""
        run = self._postings(batch)
        found: list[PairedRuns] = []
        if len(run):
            pairing = Pairing(self.rows, self._classes, scope.streams)
            driving = self._asking(batch, run)
            asked = postings.AskedValues(driving.value, self._values)
            if len(run.docid) > 1:
                found += pairing.paired(driving, asked, run, [False])
            others: tuple[SortedRun, ...] = (*self._runs, *self.stored.now.runs)
            for other in others:
                if run.span.is_within(scope.window, other.span):
                    found += pairing.paired(driving, asked, other, [False, True])
        self._keep(run)
        self._window = scope.window
        sets = None if self._near.is_indexed else self._near.sets
        return FactorisedMatches(self.rows, self.costs, found, list(self._filtered(batch)), sets)

    def write(
        self, batch: Witnesses, scope: JoinScope, upto: int
    ) -> tuple[DiskRun | None, tuple[DiskRun, ...], Iterator[pa.RecordBatch]]:
        """Adds a batch whose matches executors find: writes all postings in memory to disk. `upto` is the greatest
        docid. Returns the run of the batch, if any, the earlier ones, and the matches of rows without a join, in
        batches of RESULT. Raises OSError."""
        self._window = scope.window
        self._write_all(upto)
        others = self.stored.now.runs
        run = self._postings(batch)
        self._runs = (run,) if len(run) else ()
        self._write_all(upto)
        written = self.stored.now.runs[len(others) :]
        return written[0] if written else None, others, self._filtered(batch)

    def evict(self, before: int) -> None:
        """Drops documents that begin before a time in microseconds."""
        self.stored.evict(before)
        self._near.evict(before)
        runs = (postings.drop_documents_before(run, before) for run in self._runs)
        self._runs = tuple(run for run in runs if len(run))
        used = [run.value for run in self._runs]
        if len(self._values) > 2 * sum(map(len, used)) + 1000:
            new = self._values.keep(distinct(np.concatenate([np.zeros(0, np.int64), *used])))
            self._runs = tuple(postings.renumbered(run, new) for run in self._runs)

    def mark(self) -> Callable[[], bool]:
        """Returns what restores the current postings, or returns False if it cannot. New groups may be added again."""
        runs, values, version, classes = self._runs, self._values, self._values.version, self._classes
        on_disk, order, evicted = self.stored.now, self._near.order, self._near.evicted

        def restore() -> bool:
            if values.version != version or self._classes is not classes or self._near.evicted != evicted:
                return False
            self._runs, self._values, self._near.order = runs, values, order
            self.stored.rolled_back(on_disk)
            return True

        return restore

    def close(self) -> None:
        """Drops all documents, whatever is committed. Only `restart` and `forget` may follow."""
        self._runs, self._values = (), postings.ValueDictionary()
        self.stored.close()

    def restart(self, groups: pa.Table, manifest: str | None = None) -> int:
        """Starts with the groups of R_GROUP and the runs that a manifest names. Returns the first docid they lack."""
        self._classes = postings.PathClasses(self.rows)
        self._runs, self._values = (), postings.ValueDictionary()
        self._classes.learn(edges_by_group(groups).items())
        return self.stored.now.upto + 1 if self.stored.open(manifest, self._classes) else 0

    def forget(self) -> str | None:
        """Drops all documents; only `restart` may follow. Returns the manifest without runs, if runs are stored."""
        self._runs, self._values = (), postings.ValueDictionary()
        self.stored.clear()
        return None if self.stored.directory is None else self.stored.manifest()

    def settle(self, upto: int, *, wholly: bool = False) -> str | None:
        """Ends a batch: writes postings to disk when there are many, or `wholly`, and merges runs. `upto` is the
        greatest docid. Returns the manifest to commit if it changed. Raises OSError."""
        if self.stored.directory is None:
            return None
        if sum(map(len, self._runs)) > MOST_IN_MEMORY or wholly:
            self._write_all(upto)
        if self.stored.now.runs:
            self.stored.merge(self._window, self._classes)
        return self.stored.manifest() if self.stored.is_changed else None

    def _write_all(self, upto: int) -> None:
        run = reduce(postings.merge_postings, self._runs or (postings.NOTHING,))
        self.stored.add(run, self._values, self._classes, upto)
        self._runs, self._values = (), postings.ValueDictionary()

    def keep_groups(self, kept: Collection[int], edges: Collection[StepEdge]) -> None:
        """Drops groups neither in `kept` nor in postings, and groups with none of `edges` with their postings."""
        classes = [*(run.path_class for run in self._runs), *(run.classes for run in self.stored.now.runs)]
        used = distinct(np.concatenate([np.zeros(0, np.int64), *classes]))
        self._classes, new = self._classes.only(used, kept, edges)
        runs = (postings.reclassed(run, new) for run in self._runs)
        self._runs = tuple(run for run in runs if len(run))
        self.stored.renumber({old: number for old, number in enumerate(new.tolist()) if number > postings.DROPPED})

    def counters(self) -> dict[str, int]:
        """In memory: `documents` with postings, `postings`, their `posting_bytes`, distinct `values` and `groups` of
        edges. On disk: `runs`, `run_bytes` and running `merges`. Evicted documents count until their run goes."""
        on_disk = self.stored.now.runs
        return {
            "documents": sum(len(run.docid) for run in self._runs) + sum(run.file.head.documents for run in on_disk),
            "postings": sum(map(len, self._runs)) + sum(map(len, on_disk)),
            "posting_bytes": sum(run.nbytes for run in self._runs),
            "values": len(self._values),
            "groups": len(self._classes),
            "runs": len(on_disk),
            "run_bytes": sum(run.file.size for run in on_disk),
            "merges": self.stored.merges,
        }

    def load(self, state: Witnesses) -> None:
        """Adds the postings of documents that were joined before."""
        self._keep(self._postings(state))

    def _postings(self, batch: Witnesses) -> postings.PostingRun:
        self._classes.learn(edges_by_group(batch.r_group).items())
        self._classes.renew()
        return postings.postings(self._near.keyed(batch), self._classes, self._values)

    def _asking(self, batch: Witnesses, run: postings.PostingRun) -> postings.PostingRun:
        """The postings of a batch with the values that they look up, given those that they have."""
        if (asking := self._near.asked(batch)) is None:
            return run
        return replace(postings.postings(asking, self._classes, self._values), docid=run.docid)

    def _keep(self, run: postings.PostingRun) -> None:
        """Adds postings, merging so that each run is at least twice the next and only the last below SHORT_RUN."""
        if not len(run):
            return
        runs = [*self._runs, run]
        while len(runs) > 1 and len(runs[-2]) < max(2 * len(runs[-1]), SHORT_RUN):
            runs[-2:] = [postings.merge_postings(runs[-2], runs[-1])]
        self._runs = tuple(runs)

    def _filtered(self, batch: Witnesses) -> Iterator[pa.RecordBatch]:
        if not any(self.rows.filters.values()):
            return
        node1, node2 = (batch.r_bin[name].to_numpy() for name in ("node1", "node2"))
        same = np.flatnonzero(node1 == node2)
        group = batch.r_bin["grp"].to_numpy()[same]
        code, groups = dictionary_encode(group.astype(np.int64))
        for place, number in enumerate(groups.tolist()):
            at = same[code == place]
            docids, nothing = batch.r_bin["docid"].combine_chunks().take(pa.array(at)), pa.nulls(len(at), pa.int64())
            nodes = pa.ListArray.from_arrays(pa.array(np.arange(len(at) + 1, dtype=np.int32)), pa.array(node1[at]))
            for row in self._classes.filters(number):
                ids = pa.array(np.full(len(at), row))
                yield pa.RecordBatch.from_arrays([ids, docids, nothing, nodes], schema=RESULT)
