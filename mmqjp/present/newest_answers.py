"""Keeps the answers of the newest batches, so that pages and feeds need not ask for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mmqjp.present.answer_table import Answer, AnswerTable, Got, Place, Told
from mmqjp.present.recipients import Member, Members, SomeMembers

MOST_ANSWERS = 100_000
"""The most answers that are kept; then the oldest batches go."""

TOGETHER = 1_000
"""Batches are kept together until they have so many answers."""

MOST_RECIPIENTS = 20_000
"""Larger groups of outputs are not numbered here."""

MOST_NUMBERED = 50_000
"""The groups that were looked at last stay numbered, as long as they have no more outputs than this together."""


MOST_JUDGED = 500_000
"""If there are more pairs of an answer and a member of its form, it is not found here who gets the answers."""


class Numbered(NamedTuple):
    """An output of a group: its number, its answer, and who gets it."""

    seq: int
    answer: Answer
    member: Member


class NewestAnswers:
    """All answers of the newest batches of a store. Groups are the answers with one `first_seq`, all of one batch. Not
    for several threads at once."""

    def __init__(self) -> None:
        self._tables: list[AnswerTable] = []
        self._numbered: OrderedDict[int, list[Numbered]] = OrderedDict()
        self._count = self._outputs = 0
        self.is_all = False

    @property
    def is_empty(self) -> bool:
        """Whether there is no answer."""
        return not self._tables

    @property
    def first_batch(self) -> int | None:
        """The first batch with answers of which, and of all that follow, all answers are here; None if none is."""
        return self._tables[0].first_batch if self._tables else None

    def begin(self, table: AnswerTable, *, is_all: bool) -> None:
        """Has these answers instead of all others: the newest of a store. Unless they are all of them, the first batch
        may be there in part, and is left out."""
        self.clear()
        self.add(table if is_all or not len(table) else table.without_first_batch())
        self.is_all = is_all and self._count == len(table)

    def add(self, table: AnswerTable) -> None:
        """Adds all answers of newer batches."""
        if self._tables and len(self._tables[-1]) + len(table) <= TOGETHER and len(table):
            self._tables[-1] = self._tables[-1].followed_by(table)
        else:
            self._tables += table.in_parts(TOGETHER)
        self._count += len(table)
        while self._count > MOST_ANSWERS and len(self._tables) > 1:
            self._count -= len(self._tables.pop(0))
            self.is_all = False

    def newest(self, members: SomeMembers, before: Place | None) -> Iterator[Told]:
        """Yields the outputs of some members of a form that are here, the newest first, before a place."""
        for table in reversed(self._tables):
            yield from table.newest(members, before)

    def numbered(self, first_seq: int, members: Members) -> list[Numbered] | None:
        """Returns the outputs of a group with their numbers, in order. None if it is not here, or too large."""
        if (known := self._numbered.get(first_seq)) is not None:
            self._numbered.move_to_end(first_seq)
            return known
        table = next((one for one in reversed(self._tables) if one.first_seq <= first_seq), None)
        found = [] if table is None else number(table, first_seq, members)
        if not found or len(found) != found[0].answer.last_seq - first_seq + 1:
            return None
        self._numbered[first_seq] = found
        self._outputs += len(found)
        while self._outputs > MOST_NUMBERED:
            self._outputs -= len(self._numbered.popitem(last=False)[1])
        return found

    def got_after(self, batch: int, members: Members) -> Got | None:
        """Returns who gets the answers of all batches after one. None if they are not all here, or too many."""
        if not self.is_all and (self.first_batch is None or self.first_batch > batch + 1):
            return None
        found: list[Got] = []
        most = MOST_JUDGED
        for table in reversed(self._tables):
            if table.last_batch <= batch:
                break
            if (got := table.got_after(batch, members, most)) is None:
                return None
            found.append(got)
            most -= len(got.qids)
        none = [np.zeros(0, np.int64)]
        return Got(
            sum(got.answers for got in found),
            np.concatenate([got.qids for got in found] or none),
            np.concatenate([got.t1s for got in found] or none),
        )

    def groups(self) -> Iterator[int]:
        """Yields the groups that are here by their `first_seq`, the newest first."""
        for table in reversed(self._tables):
            yield from reversed(table.groups())

    def forget_numbers(self) -> None:
        """Is told that there are other members."""
        self._numbered.clear()
        self._outputs = 0

    def clear(self) -> None:
        """Forgets all."""
        self._tables, self._count, self.is_all = [], 0, False
        self.forget_numbers()


def number(table: AnswerTable, first_seq: int, members: Members) -> list[Numbered] | None:
    """Returns the outputs of a group, all of whose answers are in a table, in the order of their numbers. None if there
    are too many."""
    got: list[tuple[Member, Answer]] = []
    for form, places in table.group(first_seq).items():
        some = members.of_form(form)
        if len(got) + len(places) * len(some.all) > MOST_RECIPIENTS:
            return None
        answers = table.at(places.tolist())
        rows, columns = np.nonzero(table.recipients(places, some))
        got += ((some.all[member], answers[row]) for row, member in zip(rows.tolist(), columns.tolist(), strict=True))
    got.sort(key=lambda one: (one[0].name, one[1].place, one[0].qid))
    return [Numbered(first_seq + place, answer, member) for place, (member, answer) in enumerate(got)]
