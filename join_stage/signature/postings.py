"""Postings: which value stands where in which document, under which paths: what the plan keeps of documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from join_stage.signature.arrays import Ints, starts_of
from join_stage.signature.path_classes import CLASS_BITS, PathClasses

VALUE_BITS = 32
"""Bits of a value's number."""


@dataclass(frozen=True)
class PostingRun:
    """Postings in order of their documents' times: never changed.

    A posting is a node that a path ends at, with its value; its instance is the document and the node that the path
    starts from, and `inner` has the nodes between, zeros after them.
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
        """The postings that rows ask for on one side."""
        view = self._views.get(left)
        if view is None or view.version != classes.version:
            view = self._views[left] = _view(self, classes, left)
        return view

    @cached_property
    def by_instance(self) -> tuple[Ints, Ints]:
        """The postings by instance and value: the two as one number, in order, and the postings' places."""
        code = self.instance << VALUE_BITS | self.value
        order = np.argsort(code, kind="stable")
        return code[order], order

    @cached_property
    def documents(self) -> Ints:
        """For each posting the place of its document."""
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
    place = np.flatnonzero(number)
    code = run.value[place] << CLASS_BITS | number[place]
    order = np.argsort(code, kind="stable")
    place, code = place[order], code[order]
    start = starts_of(code)
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
    """The postings of two runs as one."""
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
    """The run without the documents that begin before a time."""
    stays = run.t0 >= time
    if stays.all():
        return run
    instances = stays[run.document]
    return _only(run, instances[run.instance], instances, stays)


def reclassed(run: PostingRun, numbers: Ints) -> PostingRun:
    """The run with new numbers of its classes, without the postings of those that have -1."""
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
    """The run with some of its postings, and the instances and documents of these."""
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
    """The run with new numbers of its values."""
    return replace(run, value=numbers[run.value])


def in_order(run: PostingRun) -> PostingRun:
    """A run in order of time."""
    if not (np.diff(run.time) < 0).any():
        return run
    order = np.argsort(run.time, kind="stable")
    names = ("value", "path_class", "time", "node", "inner", "instance")
    return replace(run, **{name: getattr(run, name)[order] for name in names})


def _widened(inner: Ints, width: int) -> Ints:
    return np.pad(inner, ((0, 0), (0, width - inner.shape[1])))


class Values:
    """String values, numbered."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.version = 0
        """Changes when values get other numbers."""

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, texts: Iterable[str]) -> Ints:
        numbers = self._numbers
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)

    def keep(self, used: Ints) -> Ints:
        """Forgets all but some; the new number of each old one."""
        stays = np.zeros(len(self._numbers), np.bool_)
        stays[used] = True
        self.version += 1
        texts = [text for text, number in self._numbers.items() if stays[number]]
        self._numbers = {text: number for number, text in enumerate(texts)}
        new: Ints = np.cumsum(stays) - 1
        return new
