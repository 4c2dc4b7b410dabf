"""Remembers the answers of the newest batches whole, so that the outputs of a group can be numbered without asking."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from mmqjp.present.recipients import Answer, Member, Members, recipients

MOST_ANSWERS = 60_000
"""The most answers that are remembered; then the oldest batches go."""

MOST_RECIPIENTS = 20_000
"""Larger groups of outputs are not numbered here."""

MOST_NUMBERED = 200
"""So many groups stay numbered."""


class Numbered(NamedTuple):
    """An output of a group: its number, its answer, and who gets it."""

    seq: int
    answer: Answer
    member: Member


class RecentGroups:
    """Answers by group: those with one `first_seq`, which are of one batch. Not for several threads at once."""

    def __init__(self) -> None:
        self._count = 0
        self._begins: list[int] = []
        self._batches: list[list[Answer]] = []
        self._numbered: OrderedDict[int, list[Numbered]] = OrderedDict()

    def add(self, answers: Sequence[Answer]) -> None:
        """Adds the answers of newer batches, all of each batch, in the order of `first_seq`."""
        for _, some in groupby(answers, lambda answer: answer.batch):
            batch = list(some)
            self._begins.append(batch[0].first_seq)
            self._batches.append(batch)
            self._count += len(batch)
        gone = 0
        while self._count > MOST_ANSWERS and gone < len(self._batches) - 1:
            self._count -= len(self._batches[gone])
            gone += 1
        del self._begins[:gone], self._batches[:gone]

    def answers(self, first_seq: int) -> list[Answer]:
        """Returns the answers of a group; none if it is not remembered."""
        place = bisect_right(self._begins, first_seq) - 1
        return [] if place < 0 else [one for one in self._batches[place] if one.first_seq == first_seq]

    def numbered(self, first_seq: int, members: Members) -> list[Numbered] | None:
        """Returns the outputs of a group with their numbers, in order. None if it is not remembered, or too large."""
        if (known := self._numbered.get(first_seq)) is not None:
            self._numbered.move_to_end(first_seq)
            return known
        answers = self.answers(first_seq)
        found = number(answers, members)
        if not found or len(found) != answers[0].last_seq - first_seq + 1:
            return None
        self._numbered[first_seq] = found
        while len(self._numbered) > MOST_NUMBERED:
            self._numbered.popitem(last=False)
        return found

    def newest_first(self) -> Iterator[int]:
        """Yields the groups that are remembered, the newest first."""
        for batch in reversed(self._batches):
            yield from sorted({answer.first_seq for answer in batch}, reverse=True)

    def forget_numbers(self) -> None:
        """Is told that there are other members."""
        self._numbered.clear()

    def clear(self) -> None:
        """Forgets all."""
        self._begins, self._batches, self._count = [], [], 0
        self._numbered.clear()


def number(answers: Sequence[Answer], members: Members) -> list[Numbered] | None:
    """Returns the outputs of all answers of a group in the order of their numbers. None if there are too many."""
    of_form = {answer.form: members.of_form(answer.form) for answer in answers}
    if sum(len(of_form[answer.form]) for answer in answers) > MOST_RECIPIENTS:
        return None
    got = [(member, answer) for answer in answers for member in recipients(answer, of_form[answer.form])]
    got.sort(key=lambda one: (one[0].name, one[1].place, one[0].qid))
    return [Numbered(answer.first_seq + place, answer, member) for place, (member, answer) in enumerate(got)]
