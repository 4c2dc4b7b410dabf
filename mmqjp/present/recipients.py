"""Who gets which answers, as the tables say: the condition `RECEIVES`, over many answers and members at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmqjp.queries.identity import Identity
from templates.catalog import INFINITE

Ints = NDArray[np.int64]


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


@dataclass(frozen=True)
class SomeMembers:
    """Members of one form, in the order of names and qids."""

    form: str
    all: Sequence[Member]

    @cached_property
    def columns(self) -> Mapping[str, Ints]:
        """What the condition reads, each as a column."""
        names = ("qid", "widest", "since", "begun", "ended", "ended_at")
        return {name: np.array([getattr(one, name) for one in self.all], np.int64) for name in names}


class Members:
    """All members there ever were, by name and by form, each in the order of names and qids."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._of_name: dict[str, list[Member]] = {}
        self._of_form: dict[str, SomeMembers] = {}
        of_form: dict[str, list[Member]] = {}
        for row in rows:
            member = Member(**{**row, "identity": Identity(row["identity"])})
            self._of_name.setdefault(member.name, []).append(member)
            of_form.setdefault(member.form, []).append(member)
        self._of_form = {form: SomeMembers(form, some) for form, some in of_form.items()}

    def named(self, name: str) -> list[Member]:
        """Returns the members of a name."""
        return self._of_name.get(name, [])

    def named_by_form(self, name: str) -> list[SomeMembers]:
        """Returns the members of a name, those of each form together."""
        of_form: dict[str, list[Member]] = {}
        for member in self.named(name):
            of_form.setdefault(member.form, []).append(member)
        return [SomeMembers(form, some) for form, some in of_form.items()]

    def of_form(self, form: str) -> SomeMembers:
        """Returns the members of a form."""
        return self._of_form.get(form) or SomeMembers(form, ())


def receives(answers: Mapping[str, Ints], members: SomeMembers) -> NDArray[np.bool_]:
    """Returns which answers of a form go to which of its members, as far as it is not noted for single answers that
    they are withheld: a row for each answer, and a column for each member. `answers` has columns of the table
    `answers`."""
    width, appeared, first_qid, batch, arrival = (
        answers[name][:, None] for name in ("width", "appeared", "first_qid", "batch", "arrival")
    )
    of = members.columns
    got: NDArray[np.bool_] = (
        (width <= of["widest"])
        & (of["since"] < appeared)
        & (first_qid <= of["qid"])
        & (of["begun"] <= batch)
        & ((batch < of["ended"]) | ((batch == of["ended"]) & (arrival < of["ended_at"])))
    )
    return got
