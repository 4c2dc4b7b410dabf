"""Who gets which answers, as the tables say: the condition `RECEIVES`, over many answers and members at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
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
        return _columns(self.all)


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

    def places(self, form: str) -> tuple[int, int]:
        """Returns where the members of a form begin and end in `columns`."""
        return self._places.get(form, (0, 0))

    @cached_property
    def columns(self) -> Mapping[str, Ints]:
        """What the condition reads of all members, those of each form together."""
        return _columns([one for some in self._of_form.values() for one in some.all])

    @cached_property
    def _places(self) -> Mapping[str, tuple[int, int]]:
        ends = list(accumulate(len(some.all) for some in self._of_form.values()))
        return dict(zip(self._of_form, zip([0, *ends], ends, strict=False), strict=True))


def receives(answers: Mapping[str, Ints], members: Mapping[str, Ints]) -> NDArray[np.bool_]:
    """Returns which answers of a form go to which of its members, as far as it is not noted for single answers that
    they are withheld. `answers` has columns of the table `answers`, and `members` has those of the members: of any
    shapes that go together."""
    batch = answers["batch"]
    got: NDArray[np.bool_] = (
        (answers["width"] <= members["widest"])
        & (members["since"] < answers["appeared"])
        & (answers["first_qid"] <= members["qid"])
        & (members["begun"] <= batch)
        & ((batch < members["ended"]) | ((batch == members["ended"]) & (answers["arrival"] < members["ended_at"])))
    )
    return got


def _columns(members: Sequence[Member]) -> dict[str, Ints]:
    names = ("qid", "widest", "since", "begun", "ended", "ended_at")
    return {name: np.array([getattr(one, name) for one in members], np.int64) for name in names}
