"""Postings, which are all that the plan keeps of documents: a value, the node that has it, and the path to the node."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from join_stage.arrays import Column, Composed, Ints, bisect_ranges, equal_ranges, expand_ranges, group_starts
from join_stage.signature.run import AskedValues, Span

CODE_BITS = 31
"""Bits of the number of a path class where it is packed with that of a value into one int64."""


@dataclass(frozen=True)
class PostingRun:
    """A `Run` in memory: postings in groups of one value and one path class. A run never changes.

    `value` and `path_class` have an entry for each group, sorted by both: the number of its value, and that of its
    class. `start` has where each group starts, and the number of postings.

    A posting is the node at the end of a path. `time`, `node`, `inner` and `instance` have an entry for each posting,
    sorted by time within a group: the time at which the document begins, the node, the nodes between the top and this
    one (a row of shape (longest,), padded with zeros), and the index of the instance. `top` and `document` have an
    entry for each instance: the node that the path starts from, and the index of the document. `docid`, `t0` and `t1`
    have one for each document. Times are in microseconds.
    """

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
        return equal_ranges(asked.numbers, self.value)

    def inner_node(self, at: Ints, depth: int) -> Ints:
        nodes: Ints = self.inner[at, depth - 1]
        return nodes

    def of_instances(self, instance: Ints, time: Ints, group: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        order, starts = self.by_instance
        first, last = starts[instance], starts[instance + 1]
        # Postings with one value are next to each other.
        first = bisect_ranges(order, first, last, self.start[group])
        at, place = expand_ranges(first, bisect_ranges(order, first, last, self.start[end]))
        postings = order[at]
        return postings, self.group[postings], place

    def codes(self) -> Ints:
        """The value and the class of each posting, packed into one number."""
        codes: Ints = (self.value << CODE_BITS | self.path_class).repeat(np.diff(self.start))
        return codes

    @cached_property
    def group(self) -> Ints:
        """The index of the group of each posting."""
        return np.arange(len(self.value)).repeat(np.diff(self.start))

    @cached_property
    def by_instance(self) -> tuple[Ints, Ints]:
        """The indices of postings, sorted by instance and index; and where each instance starts, and their number."""
        order = np.argsort(self.instance, kind="stable")
        counts = np.bincount(self.instance, minlength=len(self.top))
        return order, np.append(0, np.cumsum(counts))

    @cached_property
    def documents(self) -> Ints:
        """The index of the document of each posting."""
        return self.document[self.instance]

    @cached_property
    def span(self) -> Span:
        """That of all documents, with postings or without."""
        return Span(int(self.t0.min()), int(self.t0.max()), int(self.t1.max()))

    @property
    def ends(self) -> Column:
        return Composed(self.documents, self.t1)

    @property
    def docids(self) -> Column:
        return Composed(self.documents, self.docid)

    @property
    def tops(self) -> Column:
        return Composed(self.instance, self.top)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in COLUMNS)


COLUMNS = tuple(column.name for column in fields(PostingRun))
_NONE = np.zeros(0, np.int64)

NOTHING = PostingRun(**dict.fromkeys(COLUMNS, _NONE) | {"start": np.zeros(1, np.int64), "inner": _NONE.reshape(0, 0)})
"""No postings."""

OF_POSTINGS = ("time", "node", "inner", "instance")


def grouped(code: Ints, **columns: Ints) -> PostingRun:
    """A run of postings, given their codes, which are sorted, and all other columns. Within a group, they may be in any
    order."""
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


def merged(one: PostingRun, other: PostingRun) -> PostingRun:
    """One run with the postings of two."""
    code = np.append(one.codes(), other.codes())
    order = np.argsort(code, kind="stable")  # linear time: both are sorted
    width = max(one.inner.shape[1], other.inner.shape[1])
    inner = np.concatenate([_widened(one.inner, width), _widened(other.inner, width)])
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


def since(run: PostingRun, time: int) -> PostingRun:
    """The run without the documents that begin before a time, in microseconds."""
    stays = run.t0 >= time
    if stays.all():
        return run
    instances = stays[run.document]
    return _only(run, instances[run.instance], instances, stays)


def reclassed(run: PostingRun, numbers: Ints) -> PostingRun:
    """The run with classes renumbered by `numbers[old]`, without the postings of classes whose new number is -1. The
    others stay in their order."""
    path_class = numbers[run.path_class]
    kept = path_class >= 0
    run = replace(run, path_class=path_class)
    if kept.all():
        return run
    instances, documents = np.zeros(len(run.top), np.bool_), np.zeros(len(run.docid), np.bool_)
    instances[run.instance[kept[run.group]]] = True
    documents[run.document[instances]] = True
    return _only(run, kept[run.group], instances, documents)


def _only(
    run: PostingRun, kept: NDArray[np.bool_], instances: NDArray[np.bool_], documents: NDArray[np.bool_]
) -> PostingRun:
    """The run with the postings, instances and documents that masks select."""
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
    """The run with values renumbered by `numbers[old]`, which leaves them in their order."""
    return replace(run, value=numbers[run.value])


def _widened(inner: Ints, width: int) -> Ints:
    if inner.shape[1] == width:
        return inner
    return np.pad(inner, ((0, 0), (0, width - inner.shape[1])))
