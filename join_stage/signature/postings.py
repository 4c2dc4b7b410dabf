"""Postings: which value stands where in which document, under which paths: what the plan keeps of documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from join_stage.signature.arrays import Ints, starts_of

CLASS_BITS = 24
"""Bits of a class's number where it stands in one number with another."""


@dataclass(frozen=True)
class Run:
    """Postings in the order of their values, classes and documents' times: never changed.

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

    def __len__(self) -> int:
        return len(self.value)

    @cached_property
    def starts(self) -> Ints:
        """Where postings of one value and class start."""
        return starts_of(self.value, self.path_class)

    @cached_property
    def ends(self) -> Ints:
        return np.append(self.starts[1:], len(self))

    @cached_property
    def by_instance(self) -> tuple[Ints, Ints]:
        """The postings by instance and class: the two as one number, in order, and the postings' places."""
        code = self.instance << CLASS_BITS | self.path_class
        order = np.argsort(code, kind="stable")
        return code[order], order

    @cached_property
    def documents(self) -> Ints:
        """For each posting the place of its document."""
        return self.document[self.instance]

    def renumbered(self, numbers: Ints) -> Run:
        """The run with new numbers of its values, in the same order."""
        return replace(self, value=numbers[self.value])

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, column.name).nbytes for column in fields(self))


def merged(one: Run, other: Run) -> Run:
    """The postings of two runs as one."""
    width = max(one.inner.shape[1], other.inner.shape[1])
    joined = {
        "inner": np.concatenate([_widened(run.inner, width) for run in (one, other)]),
        "instance": np.concatenate([one.instance, other.instance + len(one.top)]),
        "document": np.concatenate([one.document, other.document + len(one.docid)]),
    }
    for column in fields(Run):
        if column.name not in joined:
            joined[column.name] = np.concatenate([getattr(one, column.name), getattr(other, column.name)])
    return in_order(Run(**joined))


def since(run: Run, time: int) -> Run:
    """The run without the documents that begin before a time."""
    stays = run.t0 >= time
    if stays.all():
        return run
    instances = stays[run.document]
    kept = instances[run.instance]
    return Run(
        value=run.value[kept],
        path_class=run.path_class[kept],
        time=run.time[kept],
        node=run.node[kept],
        inner=run.inner[kept],
        instance=(np.cumsum(instances) - 1)[run.instance[kept]],
        top=run.top[instances],
        document=(np.cumsum(stays) - 1)[run.document[instances]],
        docid=run.docid[stays],
        t0=run.t0[stays],
        t1=run.t1[stays],
    )


def in_order(run: Run) -> Run:
    """A run in the order that it promises. The sorts are stable, and quick where much is in order already."""
    order = np.arange(len(run))
    if (np.diff(run.time) < 0).any():
        order = np.argsort(run.time, kind="stable")
    code = (run.value << CLASS_BITS | run.path_class)[order]
    order = order[np.argsort(code, kind="stable")]
    names = ("value", "path_class", "time", "node", "inner", "instance")
    return replace(run, **{name: getattr(run, name)[order] for name in names})


def _widened(inner: Ints, width: int) -> Ints:
    return np.pad(inner, ((0, 0), (0, width - inner.shape[1])))


class Values:
    """String values, numbered."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, texts: Iterable[str]) -> Ints:
        numbers = self._numbers
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)

    def keep(self, used: Ints) -> Ints:
        """Forgets all but some; the new number of each old one."""
        stays = np.zeros(len(self._numbers), np.bool_)
        stays[used] = True
        texts = [text for text, number in self._numbers.items() if stays[number]]
        self._numbers = {text: number for number, text in enumerate(texts)}
        new: Ints = np.cumsum(stays) - 1
        return new
