"""What an m-op is at run time: an operator of many statements at once, each of them one of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import pyarrow as pa

from pattern_stage.clauses import Clauses
from pattern_stage.columns import Column, Columns, Ints, Mask
from pattern_stage.flow import Flow
from pattern_stage.lineage import DocumentIds, Origin

NO_BOUND = 1 << 62
"""A row's `within` if it has no bound."""

Renumber = Callable[[Ints], Ints]
"""The rows of today for rows as they were numbered when a state was saved; -1 for one that is gone."""


class RowVectors(Protocol):
    """The rows of an m-op: for each a vector, no two of which are equal.

    Columns may be longer than there are rows, and grow. An m-op with one input has 0 as `right` of every row.
    """

    @property
    def left(self) -> Ints:
        """The rows of the left input, or of the only one."""

    @property
    def right(self) -> Ints:
        """The rows of the right input."""

    @property
    def shape(self) -> Ints:
        """Which of the m-op's definitions each row has."""

    @property
    def within(self) -> Ints:
        """The WITHIN of NEXT and FOLD and the OVER of AGGREGATE in microseconds; NO_BOUND for none. It may grow."""

    @property
    def apart(self) -> Ints:
        """Of AGGREGATE since when each row sees events: those whose first part ends after that."""

    @property
    def parameters(self) -> tuple[Column, ...]:
        """The values of the parameters. A shape that has fewer than the m-op leaves the others NULL."""


class Index(Protocol):
    """Finds which targets an event satisfies. It is a `pattern_stage.static_index.StaticIndex`."""

    def add(self, targets: Ints, clauses: Clauses, parameters: tuple[Column, ...]) -> None:
        """Adds targets of one shape, with the parameters of each."""

    def settle(self) -> None:
        """Says that all have been added that come before the next events."""

    def remove(self, targets: Ints) -> None:
        """Forgets targets."""

    def hits(self, events: Columns, active: Mask | None = None) -> tuple[Ints, Ints]:
        """Returns places of events and targets that they satisfy, sorted by place, then by target."""

    def used(self) -> Iterable[Ints]:
        """Returns the codes of the texts that it holds."""


class Lineage(Protocol):
    """Gives numbers to what events were made of."""

    def together(self, parts: Ints, groups: Ints) -> Ints:
        """Returns a number for each group: that of the set of events that are parts of its rows.

        Rows of `parts` are sorted by group, `groups` counts from 0 without gaps, and equal sets have equal numbers.
        """

    def ends(self, numbers: Ints) -> Ints:
        """Returns the t1 of the events with these numbers."""


class Origins(Lineage, Protocol):
    """Knows the events that numbers stand for, too: it is a `pattern_stage.lineage.Lineage`."""

    def ranges(self, members: Ints, begins: Ints, ends: Ints) -> Ints:
        """Returns the numbers of the sets of the members between these places, which are not listed unless somebody
        asks for them. Equal sets may have several numbers."""

    def origins(self, numbers: Ints) -> dict[int, Origin]:
        """Returns what numbers stand for."""

    @property
    def document_ids(self) -> DocumentIds:
        """What documents are called."""


class Operator(Protocol):
    """An m-op. Its result is a function of the events, however they are cut into intervals."""

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns the results with t1 before `until`, from all events of its inputs from the last `until` to this one.

        Events of an interval all come at once, or simultaneous ones would be torn apart.
        """

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added. What came before this interval is not for them."""

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and all that waits for them. Their numbers may then be given to others."""

    def waiting(self) -> Ints:
        """Returns how many instances wait for each row. Rows past the end have none."""

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts that it holds, but for those of its rows, for `Texts.keep`."""

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of the events that what waits was made of; -1 for none."""

    def state(self) -> pa.Table:
        """Returns what waits. Texts are strings, parts numbers of events, rows as they are numbered now."""

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        """Takes over a state that was saved, here or in another process, from an m-op of the same definitions."""
