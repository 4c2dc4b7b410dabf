"""Who gets which answers, as the tables say: the condition `RECEIVES` over members that are remembered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mmqjp.queries.identity import Identity
from templates.catalog import INFINITE


class Member(NamedTuple):
    """A query while it was a member of a form: a row of the view `members`, with its text."""

    qid: int
    name: str
    form: str
    identity: Identity
    widest: int
    since: int
    begun: int
    ended: int
    ended_at: int
    text: str
    added_at: int

    @property
    def is_registered(self) -> bool:
        """Whether the query is still a member."""
        return self.ended == INFINITE


class Answer(NamedTuple):
    """A row of the table `answers`, with when it was committed, None if that was dropped; the docids of the matches
    behind it; and who does not get it."""

    answer: int
    form: str
    t0: int
    t1: int
    documents: tuple[str, ...]
    streams: tuple[str, ...]
    nodes: str
    choice: str
    width: int
    appeared: int
    first_qid: int
    arrival: int
    batch: int
    first_seq: int
    last_seq: int
    place: int
    committed_at: int | None
    behind: tuple[tuple[int, ...], ...]
    withheld: frozenset[int]


class Members:
    """All members there ever were, by name and by form, each in the order of names and qids."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._of_name: dict[str, list[Member]] = {}
        self._of_form: dict[str, list[Member]] = {}
        for row in rows:
            member = Member(**{**row, "identity": Identity(row["identity"])})
            self._of_name.setdefault(member.name, []).append(member)
            self._of_form.setdefault(member.form, []).append(member)

    def named(self, name: str) -> list[Member]:
        """Returns the members of a name."""
        return self._of_name.get(name, [])

    def of_form(self, form: str) -> list[Member]:
        """Returns the members of a form."""
        return self._of_form.get(form, [])


def recipients(answer: Answer, members: Iterable[Member]) -> Iterator[Member]:
    """Yields those members of an answer's form that get it."""
    for member in members:
        if (
            answer.form == member.form
            and answer.width <= member.widest
            and member.since < answer.appeared
            and answer.first_qid <= member.qid
            and member.begun <= answer.batch
            and (answer.batch < member.ended or (answer.batch == member.ended and answer.arrival < member.ended_at))
            and member.qid not in answer.withheld
        ):
            yield member
