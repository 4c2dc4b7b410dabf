"""Postings: a value, the node that has it, and the path to the node; all that the `signature` plan stores of documents.
Built from the witnesses of a batch by following edges from the top of each path to the node with its value. Runs group
postings by value and path class, in memory here or on disk (`runs`). Values are numbers in memory, digests on disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.arrays import FEW, Ints, bisect_ranges, dictionary_encode, equal_ranges, expand_ranges, group_starts
from join_stage.signature.rows import PathClass, PathClasses
from templates.witness import Witnesses

Digests = NDArray[np.uint64]
"""Digests of values, shape (values, 2): high and low half. Equal digests are taken for equal values."""


class ValueDictionary:
    """Numbers string values from 0."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._digests: Digests = np.zeros((0, 2), np.uint64)
        self.version = 0
        """Changes when values are renumbered."""

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, texts: Iterable[str]) -> Ints:
        numbers = self._numbers
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)

    def digests(self, numbers: Ints) -> Digests:
        known = len(self._digests)
        if known < len(self._numbers):
            self._digests = np.concatenate([self._digests, digests(islice(self._numbers, known, None))])
        return self._digests[numbers]

    def keep(self, used: Ints) -> Ints:
        """Drops all values but those in `used`, in order; returns the new number of each old one."""
        stays = np.zeros(len(self._numbers), np.bool_)
        stays[used] = True
        self.version += 1
        texts = [text for text, number in self._numbers.items() if stays[number]]
        self._numbers = {text: number for number, text in enumerate(texts)}
        self._digests = self._digests[stays[: len(self._digests)]]
        new: Ints = np.cumsum(stays) - 1
        return new


def digests(texts: Iterable[str]) -> Digests:
    """The digests of texts, the same in every process and on every machine."""
    joined = b"".join([blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts])
    return np.frombuffer(joined, "<u8").reshape(-1, 2)


class AskedValues:
    """The numbers of the values that a batch looks up, ascending, possibly repeated."""

    def __init__(self, numbers: Ints, values: ValueDictionary) -> None:
        self.numbers, self._values = numbers, values

    @cached_property
    def by_digest(self) -> tuple[Ints, Digests]:
        """The indices of the values in digest order, and the digests in this order."""
        found = self._values.digests(self.numbers)
        order = np.lexsort((found[:, 1], found[:, 0]))
        return order, found[order]


class TimeSpan(NamedTuple):
    """The starts of the first and the last document, and the latest end, in microseconds."""

    first: int
    last: int
    end: int

    def is_within(self, window: int, other: TimeSpan) -> bool:
        """Whether documents of both may be within the window, in microseconds."""
        return other.last >= self.first - window and other.first <= self.end + window


CODE_BITS = 31
"""Bits of a path class number packed with a value number into one int64."""


@dataclass(frozen=True)
class PostingRun:
    """Postings in memory, immutable, in groups of one value and one path class. By group, sorted by both: `value` and
    `path_class`; `start` has the offset of each group and the total. By posting, sorted by time within a group: `time`,
    the start of the document in microseconds; `node`, the end of the path; `inner`, the nodes between it and the top,
    shape (postings, longest), zero-padded; `instance`, an index. By instance: `top`, the start of the path, and
    `document`, an index. By document: `docid`, `t0` and `t1` in microseconds."""

    value: Ints
    path_class: Ints
    start: Ints
    time: Ints
    node: Ints
    inner: Ints
    instance: Ints
    top: Ints
    document: Ints
    docid: Ints
    t0: Ints
    t1: Ints

    low: ClassVar[None] = None
    """What is evicted is not there."""

    def __len__(self) -> int:
        return len(self.node)

    def groups_of(self, asked: AskedValues) -> tuple[Ints, Ints]:
        """The range of groups with each value: starts and ends, as long as `asked.numbers`."""
        return equal_ranges(asked.numbers, self.value)

    def path_classes(self, groups: Ints) -> Ints:
        return self.path_class[groups]

    def ends(self, at: Ints) -> Ints:
        """The ends of the documents of some postings."""
        return self.t1[self.documents[at]]

    def docids(self, at: Ints) -> Ints:
        return self.docid[self.documents[at]]

    def nodes(self, at: Ints, depth: int | None = None) -> Ints:
        """The nodes of some postings `depth` below the top of the path, from 0, or by default at its end."""
        if depth is None:
            return self.node[at]
        nodes: Ints = self.inner[at, depth - 1] if depth else self.top[self.instance[at]]
        return nodes

    def of_instances(self, instance: Ints, time: Ints, group: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """The postings of each instance in each range of groups of one value. `instance`, `time` (start of its
        document), `group` and `end` are parallel; so are the results: postings, their groups, their ranges' indices."""
        order, starts = self.by_instance
        first, last = starts[instance], starts[instance + 1]
        # Postings with one value are next to each other.
        first = bisect_ranges(order, first, last, self.start[group])
        at, place = expand_ranges(first, bisect_ranges(order, first, last, self.start[end]))
        postings = order[at]
        return postings, self.group[postings], place

    def codes(self) -> Ints:
        """The value and class of each posting, packed into one number."""
        codes: Ints = (self.value << CODE_BITS | self.path_class).repeat(np.diff(self.start))
        return codes

    @cached_property
    def group(self) -> Ints:
        return np.arange(len(self.value)).repeat(np.diff(self.start))

    @cached_property
    def by_instance(self) -> tuple[Ints, Ints]:
        """The indices of postings sorted by instance and index; and the offset of each instance, and the total."""
        order = np.argsort(self.instance, kind="stable")
        counts = np.bincount(self.instance, minlength=len(self.top))
        return order, np.append(0, np.cumsum(counts))

    @cached_property
    def documents(self) -> Ints:
        return self.document[self.instance]

    @cached_property
    def span(self) -> TimeSpan:
        """The span of all documents, with postings or without."""
        return TimeSpan(int(self.t0.min()), int(self.t0.max()), int(self.t1.max()))

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in COLUMNS)


COLUMNS = tuple(column.name for column in fields(PostingRun))
_NONE = np.zeros(0, np.int64)

NOTHING = PostingRun(**dict.fromkeys(COLUMNS, _NONE) | {"start": np.zeros(1, np.int64), "inner": _NONE.reshape(0, 0)})

OF_POSTINGS = ("time", "node", "inner", "instance")


def grouped(code: Ints, **columns: Ints) -> PostingRun:
    """A run from columns sorted by `code`; within a group in any order."""
    start = group_starts(code)
    value, path_class = code[start] >> CODE_BITS, code[start] & (1 << CODE_BITS) - 1
    time = columns["time"]
    early = (time[1:] < time[:-1]) & (code[1:] == code[:-1])
    if early.any():
        group = np.zeros(len(code), np.int64)
        group[start] = 1
        group = group.cumsum() - 1
        again = np.zeros(len(start), np.bool_)
        again[group[1:][early]] = True
        places = np.flatnonzero(again[group])
        order = np.arange(len(time))
        order[places] = places[np.lexsort((time[places], code[places]))]
        columns |= {name: columns[name][order] for name in OF_POSTINGS}
    return PostingRun(value, path_class, np.append(start, len(code)), **columns)


def merge_postings(one: PostingRun, other: PostingRun) -> PostingRun:
    code = np.append(one.codes(), other.codes())
    order = np.argsort(code, kind="stable")  # linear time: both are sorted
    width = max(one.inner.shape[1], other.inner.shape[1])
    padded = (np.pad(run.inner, ((0, 0), (0, width - run.inner.shape[1]))) for run in (one, other))
    inner = np.concatenate(list(padded))
    instance = np.append(one.instance, other.instance + len(one.top))
    return grouped(
        code[order],
        time=np.append(one.time, other.time)[order],
        node=np.append(one.node, other.node)[order],
        inner=inner[order],
        instance=instance[order],
        document=np.append(one.document, other.document + len(one.docid)),
        **{name: np.append(getattr(one, name), getattr(other, name)) for name in ("top", "docid", "t0", "t1")},
    )


def drop_documents_before(run: PostingRun, time: int) -> PostingRun:
    """The run without documents that begin before a time in microseconds."""
    stays = run.t0 >= time
    if stays.all():
        return run
    instances = stays[run.document]
    return only_postings(run, instances[run.instance], instances, stays)


def reclassed(run: PostingRun, numbers: Ints) -> PostingRun:
    """The run with classes renumbered by `numbers[old]`, without those that become -1. The order stays."""
    path_class = numbers[run.path_class]
    kept = path_class >= 0
    run = replace(run, path_class=path_class)
    if kept.all():
        return run
    instances, documents = np.zeros(len(run.top), np.bool_), np.zeros(len(run.docid), np.bool_)
    instances[run.instance[kept[run.group]]] = True
    documents[run.document[instances]] = True
    return only_postings(run, kept[run.group], instances, documents)


def only_postings(
    run: PostingRun, kept: NDArray[np.bool_], instances: NDArray[np.bool_], documents: NDArray[np.bool_]
) -> PostingRun:
    """The `kept` postings of a run, with the instances and documents that they refer to."""
    counts = np.bincount(run.group[kept], minlength=len(run.value))
    some = counts > 0
    return PostingRun(
        value=run.value[some],
        path_class=run.path_class[some],
        start=np.append(0, np.cumsum(counts[some])),
        time=run.time[kept],
        node=run.node[kept],
        inner=run.inner[kept],
        instance=(np.cumsum(instances) - 1)[run.instance[kept]],
        top=run.top[instances],
        document=(np.cumsum(documents) - 1)[run.document[instances]],
        docid=run.docid[documents],
        t0=run.t0[documents],
        t1=run.t1[documents],
    )


def renumbered(run: PostingRun, numbers: Ints) -> PostingRun:
    """The run with values renumbered by `numbers[old]`, which must preserve order."""
    return replace(run, value=numbers[run.value])


ChainKind = tuple[tuple[int, ...], bool]
"""The groups of the edges of a chain, from the top; and whether its only edge leads from a node to itself."""


def postings(batch: Witnesses, classes: PathClasses, values: ValueDictionary) -> PostingRun:
    """The postings of the documents of a batch; `values` numbers their values."""
    return _Builder(batch, classes).run(values)


@dataclass(frozen=True)
class _Chains:
    """Chains of witnesses. By chain: `kind` indexes `_Builder._kinds`, `top` and `end` are node keys, `inner` the ids
    of the nodes between them."""

    kind: Ints
    top: Ints
    end: Ints
    inner: tuple[Ints, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    def at(self, places: Ints) -> _Chains:
        return _Chains(self.kind[places], self.top[places], self.end[places], tuple(i[places] for i in self.inner))


class _Builder:
    """Builds postings. A node key combines the index of its document in R_docTS and its id."""

    def __init__(self, batch: Witnesses, classes: PathClasses) -> None:
        self._batch, self._classes = batch, classes
        columns = (batch.r_bin["node1"], batch.r_bin["node2"], batch.r_doc["node"])
        node, self._nodes = dictionary_encode(np.concatenate([column.to_numpy() for column in columns]))
        self._radix = max(len(self._nodes), 1)
        in_bin, in_doc = (self._documents(table) * self._radix for table in (batch.r_bin, batch.r_doc))
        count = len(in_bin)
        self._above, self._below = in_bin + node[:count], in_bin + node[count : 2 * count]
        self._group = batch.r_bin["grp"].to_numpy().astype(np.int64)
        valued = in_doc + node[2 * count :]
        self._value_rows = valued.argsort(kind="stable")
        self._valued = valued[self._value_rows]
        self._kinds: list[ChainKind] = []

    def _documents(self, table: pa.Table) -> Ints:
        docids = self._batch.r_docts["docid"]
        if len(docids) == 1:
            return np.zeros(len(table), np.int64)
        found: Ints = pc.index_in(table["docid"], docids.combine_chunks()).to_numpy().astype(np.int64)
        return found

    def run(self, values: ValueDictionary) -> PostingRun:
        chains = self._whole()
        at, place = expand_ranges(*equal_ranges(chains.end, self._valued))  # most ends have at most one value
        row, chains = self._value_rows[at], chains.at(place)
        instance, tops = dictionary_encode(chains.top)
        document = tops // self._radix
        docid, t0, t1 = (self._batch.r_docts[name].to_numpy() for name in ("docid", "t0", "t1"))
        code = self._numbered(row, values) << CODE_BITS | self._path_classes(chains.kind, row)
        order = code.argsort(kind="stable")
        instance, inner = instance[order], [nodes[order] for nodes in chains.inner]
        return grouped(
            code[order],
            time=t0[document[instance]],
            node=self._nodes[chains.end[order] % self._radix],
            inner=np.stack(inner, axis=1) if inner else np.zeros((len(row), 0), np.int64),
            instance=instance,
            top=self._nodes[tops % self._radix],
            document=document,
            docid=docid,
            t0=t0,
            t1=t1,
        )

    def _whole(self) -> _Chains:
        kind, distinct = dictionary_encode(self._group * 2 + (self._above == self._below))
        self._kinds = [((code >> 1,), bool(code & 1)) for code in distinct.tolist()]
        level = _Chains(kind, self._above, self._below)
        found = [self._that(level, self._classes.bound.__getitem__)]
        order = None
        while len(level := self._that(level, lambda kind: self._classes.open[kind[0]])):
            if order is None:
                order = np.argsort(self._above, kind="stable")
            level = self._longer(level, order)
            found.append(self._that(level, self._classes.bound.__getitem__))
        longest = max(len(chains.inner) for chains in found)
        padded = [
            (*chains.inner, *(np.zeros(len(chains), np.int64) for _ in range(longest - len(chains.inner))))
            for chains in found
        ]
        inner = tuple(np.concatenate(columns) for columns in zip(*padded, strict=True))
        kind, top, end = (np.concatenate([getattr(c, name) for c in found]) for name in ("kind", "top", "end"))
        return _Chains(kind, top, end, inner)

    def _that(self, chains: _Chains, test: Callable[[ChainKind], Collection[object]]) -> _Chains:
        kind, distinct = dictionary_encode(chains.kind)
        passes = np.array([bool(test(self._kinds[number])) for number in distinct.tolist()], np.bool_)
        return chains.at(np.flatnonzero(passes[kind]))

    def _longer(self, chains: _Chains, order: Ints) -> _Chains:
        at, place = expand_ranges(*equal_ranges(chains.end, self._above[order]))
        edge = order[at]
        kind, distinct = dictionary_encode(chains.kind[place] << 32 | self._group[edge])
        first = len(self._kinds)
        for code in distinct.tolist():
            groups, _ = self._kinds[code >> 32]
            self._kinds.append(((*groups, code & 0xFFFFFFFF), False))
        longer = chains.at(place)
        between = self._nodes[longer.end % self._radix]
        return _Chains(kind + first, longer.top, self._below[edge], (*longer.inner, between))

    def _path_classes(self, kind: Ints, row: Ints) -> Ints:
        stream, names = self._streams()
        code, distinct = dictionary_encode(kind << 32 | stream[row])
        numbers = []
        for pair in distinct.tolist():
            groups, same = self._kinds[pair >> 32]
            numbers.append(self._classes.number(PathClass(groups, same, names[pair & 0xFFFFFFFF])))
        return np.array(numbers, np.int64)[code]

    def _streams(self) -> tuple[Ints, Sequence[str]]:
        streams = self._batch.r_doc["stream"]
        if len(self._batch.r_docts) == 1:
            return np.zeros(len(streams), np.int64), streams[:1].to_pylist()
        found = streams.combine_chunks().dictionary_encode()
        return found.indices.to_numpy().astype(np.int64), found.dictionary.to_pylist()

    def _numbered(self, row: Ints, values: ValueDictionary) -> Ints:
        texts = self._batch.r_doc["strval"]
        if len(texts) <= FEW:
            known = texts.to_pylist()
            return values.numbers([known[place] for place in row.tolist()])
        found = texts.combine_chunks().dictionary_encode()
        code, distinct = dictionary_encode(found.indices.to_numpy().astype(np.int64)[row])
        return values.numbers(found.dictionary.take(pa.array(distinct)).to_pylist())[code]
