"""The matches of a batch, factorised: rows of RESULT are written out when they are asked for."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
import pyarrow as pa

from common.distinct import distinct
from join_stage.arrays import Ints, dictionary_encode, equal_ranges, expand_ranges, first_of_each
from join_stage.costs import Cost, Costs
from join_stage.joiner import RESULT
from join_stage.near.word_sets import OneOfEach, WordSets
from join_stage.signature.pairing import PairedRuns, PostingPairs, PostingRanges, have_documents_in_common
from join_stage.signature.postings import PostingRun
from join_stage.signature.row_index import RowIndex
from join_stage.signature.run import Run
from templates.template import Shape
from templates.witness import MANY

CHUNK = 100_000
"""The approximate number of matches that are written out at a time."""


@dataclass(frozen=True, slots=True)
class NodeSource:
    """Where the node of a template is found: on a side of the postings of a join, `depth` nodes below the top of the
    path. `leaf` says that it is the end of the path."""

    left: bool
    join: int
    depth: int
    leaf: bool


@dataclass(frozen=True, slots=True)
class NodeSources:
    """Where each node of a template is found; `equal` are the pairs of sources that must give one node, because
    several joins share it."""

    nodes: list[NodeSource]
    equal: list[tuple[NodeSource, NodeSource]]


@lru_cache(maxsize=4096)
def node_sources(shape: Shape) -> NodeSources:
    """Where the nodes of a template with joins are found. The top of a side is that of the instance in every join."""
    met: dict[int, NodeSource] = {}
    equal: list[tuple[NodeSource, NodeSource]] = []
    for join, leaves in enumerate(shape.joins):
        for leaf, left in zip(leaves, (True, False), strict=True):
            path = _path(shape, leaf)
            for depth, node in enumerate(path):
                slot = NodeSource(left, join, depth, node == leaf)
                first = met.setdefault(node, slot)
                if first is not slot and depth:
                    equal.append((first, slot))
    return NodeSources([met[node] for node in range(len(shape.parents))], equal)


def _path(shape: Shape, leaf: int) -> list[int]:
    path = []
    node: int | None = leaf
    while node is not None:
        path.append(node)
        node = shape.parents[node]
    return path[::-1]


class FactorisedMatches:
    """The matches of a batch. They must be read before the rows change. `sets` has the words of texts that are joined
    by them: those that are not near are left out."""

    def __init__(
        self,
        rows: RowIndex,
        costs: Costs,
        found: Iterable[PairedRuns],
        filtered: Iterable[pa.RecordBatch],
        sets: WordSets,
    ) -> None:
        self._rows, self._costs, self._found, self._filtered = rows, costs, list(found), list(filtered)
        self._sets = sets

    @property
    def num_rows(self) -> int:
        return sum(batch.num_rows for batch in self.to_batches())

    def to_batches(self, max_chunksize: int = CHUNK) -> Iterator[pa.RecordBatch]:
        """The matches as record batches of RESULT, of at most `max_chunksize` rows."""
        for batch in self._batches():
            for start in range(0, batch.num_rows, max_chunksize):
                yield batch.slice(start, max_chunksize)

    def costs(self) -> Collection[Cost]:
        """The costs of the templates that were read so far."""
        return self._costs.of_templates().values()

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
            self._costs.add(Cost(taken, matches[template], (template,)))

    def _of(self, found: PairedRuns) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield from _of_single(self._rows, found, self._sets)
        if found.several is not None:
            yield from _of_several(self._rows, found, found.several)


# ------------------------------------------------------------ rows of one join


def _of_single(rows: RowIndex, found: PairedRuns, sets: WordSets) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The matches of rows of one join: (template, rows of RESULT)."""
    by_template: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for number, meaning in enumerate(found.means):
        for place in meaning.single:
            by_template[rows.at(place).row.template].setdefault(number, []).append(place)
    for template, of_kind in by_template.items():
        of_kinds = [of_kind.get(number, []) for number in range(len(found.kinds))]
        counts, places = np.array(list(map(len, of_kinds))), np.array(list(chain.from_iterable(of_kinds)), np.int64)
        ends = np.cumsum(counts)
        nodes = node_sources(rows.at(int(places[0])).shape)
        ranges = found.single.of(counts > 0)
        weights = (ranges.end - ranges.start) * counts[ranges.kind]
        many = bool((found.driving.node[ranges.posting] & MANY).any())
        if many:
            # Nodes with several values may have several in common. Whatever an instance has is looked at together.
            order = found.driving.instance[ranges.posting].argsort(kind="stable")
            ranges, weights = ranges.at(order), weights[order]
        for part in _parts(weights, found.driving.instance[ranges.posting] if many else None):
            chosen = PostingRanges(ranges.posting[part], ranges.start[part], ranges.end[part], ranges.kind[part])
            at, which = expand_ranges(chosen.start, chosen.end)
            ours, theirs, kind = chosen.posting[which], at, chosen.kind[which]
            if isinstance(found.other, PostingRun) and have_documents_in_common(found.driving, found.other):
                different = found.driving.documents[ours] != found.other.documents[theirs]
                ours, theirs, kind = ours[different], theirs[different], kind[different]
            if many:
                stays = _near_texts(found, nodes, ours, theirs, kind, sets)
                ours, theirs, kind = ours[stays], theirs[stays], kind[stays]
            at, pair = expand_ranges(ends[kind] - counts[kind], ends[kind])
            near = _near(rows, found, ours[pair], theirs[pair], places[at])
            at, pair = at[near], pair[near]
            yield template, _result(rows, found, nodes, places[at], [(ours[pair], theirs[pair])])


def _near_texts(found: PairedRuns, nodes: NodeSources, ours: Ints, theirs: Ints, kind: Ints, sets: WordSets) -> Ints:
    """The indices of pairs of postings without those of texts that are not near, and with each pair of texts once,
    however many keys they have in common. `ours`, `theirs` and `kind` have one length."""
    by_words = (found.driving.node[ours] & MANY) != 0
    many = np.flatnonzero(by_words)
    many = many[sets.are_near(_texts(found.driving, ours[many]), _texts(found.other, theirs[many]))]
    ours, theirs = ours[many], theirs[many]
    columns = [_node(found, slot, ours, theirs) for slot in nodes.nodes]
    first = first_of_each(kind[many], found.driving.instance[ours], found.other.instance[theirs], *columns)
    return np.sort(np.append(np.flatnonzero(~by_words), many[first]))


def _texts(run: Run, postings: Ints) -> OneOfEach:
    place, distinct = dictionary_encode(postings)
    return OneOfEach(run.docids[distinct], run.node[distinct], place)


# ------------------------------------------------------------ rows of several joins


def _of_several(rows: RowIndex, found: PairedRuns, pairs: PostingPairs) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The matches of rows of several joins: (template, rows of RESULT)."""
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
        choices = [
            _Choices([[number[kind] for kind in pairs.within[place].choices[i][join]] for place, i in items])
            for join in range(len(shape.joins))
        ]
        keys = np.flatnonzero(counts[pairs.found] > 0)
        for part in _parts(counts[pairs.found[keys]]):
            key = keys[part]
            item, at = expand_ranges((ends - counts)[pairs.found[key]], ends[pairs.found[key]])
            key = key[at]
            first = pairs.start[key]
            near = _near(rows, found, pairs.driving[first], pairs.other[first], rows_of[item])
            item, key = item[near], key[near]
            yield template, _joined(rows, found, pairs, node_sources(shape), choices, codes, item, key, rows_of)


@dataclass(frozen=True)
class _Choices:
    """For each item, a row of a set of kinds, the kinds that satisfy one of its joins."""

    kinds: list[list[int]]

    def expanded(self, item: Ints) -> tuple[Ints, Ints]:
        """The kinds of some items, one item after the other, and for each kind the index of its item."""
        flat = np.array([kind for kinds in self.kinds for kind in kinds], np.int64)
        ends = np.cumsum([len(kinds) for kinds in self.kinds])
        starts = np.append(0, ends[:-1])
        at, place = expand_ranges(starts[item], ends[item])
        return flat[at], place


def _joined(
    rows: RowIndex,
    found: PairedRuns,
    pairs: PostingPairs,
    nodes: NodeSources,
    choices: list[_Choices],
    codes: Ints,
    item: Ints,
    key: Ints,
    rows_of: Ints,
) -> pa.RecordBatch:
    """The matches that result from all ways to choose, for each join of a row, a pair of postings that satisfies it.

    `item` and `key` have one length: an index into `rows_of`, and a pair of instances that satisfies that row.
    """
    chosen: list[Ints] = []
    for join, choice in enumerate(choices):
        kind, place = choice.expanded(item)
        item, key, chosen = item[place], key[place], [column[place] for column in chosen]
        pair, place = expand_ranges(*equal_ranges(key * len(found.kinds) + kind, codes))
        item, key, chosen = item[place], key[place], [*(column[place] for column in chosen), pair]
        for one, other in nodes.equal:
            if other.join == join:
                same = _node(found, one, *_of(pairs, chosen[one.join])) == _node(found, other, *_of(pairs, pair))
                item, key, chosen = item[same], key[same], [column[same] for column in chosen]
                pair = chosen[-1]
    return _result(rows, found, nodes, rows_of[item], [_of(pairs, column) for column in chosen])


def _of(pairs: PostingPairs, chosen: Ints) -> tuple[Ints, Ints]:
    return pairs.driving[chosen], pairs.other[chosen]


# ------------------------------------------------------------ both


def _parts(weights: Ints, together: Ints | None = None) -> Iterator[slice]:
    """Slices of consecutive weights that sum to about CHUNK; a single weight may be larger. Those with one number in
    `together`, which is sorted, are in one slice."""
    total = np.cumsum(weights)
    start = 0
    while start < len(weights):
        before = total[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(total, before + CHUNK, "right")))
        if together is not None:
            end = int(np.searchsorted(together, together[end - 1], "right"))
        yield slice(start, end)
        start = end


def _sides(found: PairedRuns) -> tuple[Run, Run]:
    return (found.driving, found.other) if found.driving_left else (found.other, found.driving)


def _near(
    rows: RowIndex, found: PairedRuns, ours: Ints, theirs: Ints, place: Ints
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether pairs of documents, given by postings, are within the windows of rows and in their order, ties included.

    `ours`, `theirs`, `place` and the result have one length.
    """
    (left, right), (one, two) = _sides(found), (ours, theirs) if found.driving_left else (theirs, ours)
    sure = _surely_near(rows, found, ours, place)
    if sure.all():
        return sure
    unsure = (~sure).nonzero()[0]
    one, two, place = one[unsure], two[unsure], place[unsure]
    ends, begin = left.ends[one], right.time[two]
    span = np.maximum(ends, right.ends[two]) - np.minimum(left.time[one], begin)
    sure[unsure] = (span <= rows.windows[place]) & ((ends <= begin) | ~rows.ordered[place])
    return sure


def _surely_near(
    rows: RowIndex, found: PairedRuns, ours: Ints, place: Ints
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether documents of the driving run are within the windows of rows, and in their order, with any of the other
    run. Then the postings of this need not be looked at."""
    begin, end, span = found.driving.time[ours], found.driving.ends[ours], found.other.span
    covered = np.maximum(end, span.end) - np.minimum(begin, span.first)
    in_order = end <= span.first if found.driving_left else span.end <= begin
    return (covered <= rows.windows[place]) & (in_order | ~rows.ordered[place])


def _node(found: PairedRuns, slot: NodeSource, ours: Ints, theirs: Ints) -> Ints:
    """The nodes that a source gives for pairs of postings."""
    run: Run = found.driving
    at = ours
    if slot.left != found.driving_left:
        run, at = found.other, theirs
    if slot.leaf:
        return run.node[at]
    return run.inner_node(at, slot.depth) if slot.depth else run.tops[at]


def _result(
    rows: RowIndex, found: PairedRuns, nodes: NodeSources, place: Ints, chosen: list[tuple[Ints, Ints]]
) -> pa.RecordBatch:
    ours, theirs = chosen[0]
    (left, right), (one, two) = _sides(found), (ours, theirs) if found.driving_left else (theirs, ours)
    columns = [_node(found, slot, *chosen[slot.join]) for slot in nodes.nodes]
    offsets = np.arange(len(place) + 1, dtype=np.int32) * len(columns)
    flat = np.stack(columns, axis=1).ravel()
    arrays = [
        pa.array(rows.ids[place]),
        pa.array(left.docids[one]),
        pa.array(right.docids[two]),
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RESULT)
