"""What the join needs of a run of postings, which may be in memory or on disk."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from join_stage.arrays import Column, Ints
from join_stage.signature.values import Digests, Values


class AskedValues:
    """The values that a batch looks up, by their numbers, in ascending order; each may occur several times."""

    def __init__(self, numbers: Ints, values: Values) -> None:
        self.numbers, self._values = numbers, values

    @cached_property
    def by_digest(self) -> tuple[Ints, Digests]:
        """The indices of the values in the order of their digests, and the digests in this order."""
        found = self._values.digests(self.numbers)
        order = np.lexsort((found[:, 1], found[:, 0]))
        return order, found[order]


class Span(NamedTuple):
    """When the first and the last of some documents begin, and the latest time at which one ends, in microseconds."""

    first: int
    last: int
    end: int

    def is_within(self, window: int, other: Span) -> bool:
        """Whether a document may be so many microseconds, or less, from one of others."""
        return other.last >= self.first - window and other.first <= self.end + window


class Run(Protocol):
    """Postings in groups of one value and one path class. Within a group they are sorted by time.

    `path_class` and `start` are by group: the class, and the first posting. All else is by posting: `time` and `ends`
    are when its document begins and ends, `docids` has the document, `instance` the number of the instance, `tops` the
    node that the path starts from, and `node` the one at its end. `low` is the time from which on documents count:
    those that begin before are evicted. It is None if all count. `PostingRun` tells more.
    """

    @property
    def low(self) -> int | None: ...

    @property
    def span(self) -> Span:
        """That of the documents of all postings."""

    @property
    def path_class(self) -> Column: ...

    @property
    def start(self) -> Column: ...

    @property
    def time(self) -> Column: ...

    @property
    def node(self) -> Column: ...

    @property
    def instance(self) -> Column: ...

    @property
    def ends(self) -> Column: ...

    @property
    def docids(self) -> Column: ...

    @property
    def tops(self) -> Column: ...

    def groups_of(self, asked: AskedValues) -> tuple[Ints, Ints]:
        """The range of groups that have each value: starts and ends, as long as `asked.numbers`."""

    def inner_node(self, at: Ints, depth: int) -> Ints:
        """The nodes of some postings `depth` nodes below the top, from 1."""

    def of_instances(self, instance: Ints, time: Ints, group: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """The postings of each instance in each range of groups of one value.

        `instance`, `time`, `group` and `end` have one length: an instance, when its document begins, and the range. The
        results have one length: postings, their groups, and for each the index of its range.
        """
