"""Postings, which are all that the plan keeps of documents: a value, the node that has it, and the path to the node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from join_stage.signature.arrays import Ints, group_starts
from join_stage.signature.path_classes import CLASS_BITS, PathClasses

VALUE_BITS = 32
"""Bits of the number of a value, an instance or a kind where two of them are packed into one int64."""


@dataclass(frozen=True)
class PostingRun:
    """Postings, sorted by the times at which their documents begin. A run never changes.

    A posting is the node at the end of a path. `value`, `path_class`, `time`, `node`, `inner` and `instance` have an
    entry for each posting: the number of the value, the number of the class, the time of the document, the node, the
    nodes between the top and this one (a row of shape (longest,), padded with zeros), and the index of the instance.
    `top` and `document` have an entry for each instance: the node that the path starts from, and the index of the
    document. `docid`, `t0` and `t1` have one for each document. Times are in microseconds.
    """

    value: Ints
    path_class: Ints
    time: Ints
    node: Ints
    inner: Ints
    instance: Ints
    top: Ints
    document: Ints
    docid: Ints
    t0: Ints
    t1: Ints
    _views: dict[bool, PostingView] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.value)

    def view(self, classes: PathClasses, *, left: bool) -> PostingView:
        """The postings that rows ask for on one side, as the look-ups of `classes` are now."""
        view = self._views.get(left)
        if view is None or view.version != classes.version:
            view = self._views[left] = _view(self, classes, left)
        return view

    @cached_property
    def by_instance(self) -> tuple[Ints, Ints]:
        """Instance and value of each posting, packed into one int64 and sorted, and the indices of the postings."""
        code = self.instance << VALUE_BITS | self.value
        order = np.argsort(code, kind="stable")
        return code[order], order

    @cached_property
    def documents(self) -> Ints:
        """The index of the document of each posting."""
        return self.document[self.instance]

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in COLUMNS)


COLUMNS = tuple(column.name for column in fields(PostingRun) if not column.name.startswith("_"))


@dataclass(frozen=True)
class PostingView:
    """The postings of a run that rows ask for on one side, in groups of one value and one set of asked paths.

    `place` and `time` have one length: the postings' places in the run, and their times, in the order of value, set of
    paths, and time. `value`, `paths`, `start` and `end` have an entry for each group: its value, its set of paths (see
    `PathClasses.asked`), and its range in `place`. `number` has one for each posting of the run: its set of paths, 0 if
    no row asks for it. `version` is that of the rows.
    """

    version: int
    place: Ints
    time: Ints
    number: Ints
    value: Ints
    paths: Ints
    start: Ints
    end: Ints


def _view(run: PostingRun, classes: PathClasses, left: bool) -> PostingView:
    number = classes.asked(run.path_class, left=left)
    place = number.nonzero()[0]
    code = run.value[place] << CLASS_BITS | number[place]
    order = code.argsort(kind="stable")
    place, code = place[order], code[order]
    start = group_starts(code)
    groups = code[start]
    return PostingView(
        classes.version,
        place,
        run.time[place],
        number,
        groups >> CLASS_BITS,
        groups & (1 << CLASS_BITS) - 1,
        start,
        np.append(start[1:], len(place)),
    )


def merged(one: PostingRun, other: PostingRun) -> PostingRun:
    """One run with the postings of two."""
    width = max(one.inner.shape[1], other.inner.shape[1])
    joined: dict[str, Ints] = {
        "inner": np.concatenate([_widened(run.inner, width) for run in (one, other)]),
        "instance": np.concatenate([one.instance, other.instance + len(one.top)]),
        "document": np.concatenate([one.document, other.document + len(one.docid)]),
    }
    for name in COLUMNS:
        if name not in joined:
            joined[name] = np.concatenate([getattr(one, name), getattr(other, name)])
    return in_order(PostingRun(**joined))


def since(run: PostingRun, time: int) -> PostingRun:
    """The run without the documents that begin before a time, in microseconds."""
    stays = run.t0 >= time
    if stays.all():
        return run
    instances = stays[run.document]
    return _only(run, instances[run.instance], instances, stays)


def reclassed(run: PostingRun, numbers: Ints) -> PostingRun:
    """The run with classes renumbered by `numbers[old]`, without the postings of classes whose new number is -1."""
    path_class = numbers[run.path_class]
    kept = path_class >= 0
    run = replace(run, path_class=path_class)
    if kept.all():
        return run
    instances, documents = np.zeros(len(run.top), np.bool_), np.zeros(len(run.docid), np.bool_)
    instances[run.instance[kept]] = True
    documents[run.document[instances]] = True
    return _only(run, kept, instances, documents)


def _only(
    run: PostingRun, kept: NDArray[np.bool_], instances: NDArray[np.bool_], documents: NDArray[np.bool_]
) -> PostingRun:
    """The run with the postings, instances and documents that masks select."""
    return PostingRun(
        value=run.value[kept],
        path_class=run.path_class[kept],
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
    """The run with values renumbered by `numbers[old]`."""
    return replace(run, value=numbers[run.value])


def in_order(run: PostingRun) -> PostingRun:
    """The run, sorted by time."""
    if not (run.time[1:] < run.time[:-1]).any():
        return run
    order = np.argsort(run.time, kind="stable")
    names = ("value", "path_class", "time", "node", "inner", "instance")
    return replace(run, **{name: getattr(run, name)[order] for name in names})


def _widened(inner: Ints, width: int) -> Ints:
    if inner.shape[1] == width:
        return inner
    return np.pad(inner, ((0, 0), (0, width - inner.shape[1])))


class Values:
    """Numbers string values, from 0."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.version = 0
        """Changes when values are renumbered."""

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, texts: Iterable[str]) -> Ints:
        numbers = self._numbers
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)

    def keep(self, used: Ints) -> Ints:
        """Drops all values but those with the numbers in `used`; returns the new number of each old one."""
        stays = np.zeros(len(self._numbers), np.bool_)
        stays[used] = True
        self.version += 1
        texts = [text for text, number in self._numbers.items() if stays[number]]
        self._numbers = {text: number for number, text in enumerate(texts)}
        new: Ints = np.cumsum(stays) - 1
        return new
