"""The members of a form, as columns: the queries that get its answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mmqjp.queries.identity import Identity

Ints = NDArray[np.int64]

ALWAYS = np.iinfo(np.int64).max
"""A batch and an arrival after all others."""


@dataclass(frozen=True, eq=False)
class Members:
    """Members of one form, in the order of their names and qids, as columns of one length.

    `windows` are in microseconds; `sinces` are the last documents that they do not see. A member gets the answers of
    the batches from `begun` on; in the batch `ended`, only those of arrivals before `ended_at`; and none later.
    """

    names: Sequence[str]
    identities: Sequence[Identity]
    qids: Ints
    windows: Ints
    sinces: Ints
    begun: Ints
    ended: Ints
    ended_at: Ints

    @classmethod
    def active(cls, names: Sequence[str], identities: Sequence[Identity], columns: Sequence[Ints]) -> Members:
        """Returns members that have not ended. `columns` are the qids, windows, sinces and begun."""
        ended = np.full(len(names), ALWAYS)
        return cls(names, identities, columns[0], columns[1], columns[2], columns[3], ended, ended)

    def __len__(self) -> int:
        return len(self.names)

    def get(
        self,
        of: Ints | slice,
        width: Ints | int,
        appeared: Ints | int,
        first_qid: Ints | int,
        batch: Ints | int,
        arrival: Ints | int,
    ) -> NDArray[np.bool_]:
        """Returns which members get which answers. `of` has the places of members; the rest are those columns of the
        table `answers`: of the same length, or one value for all."""
        found: NDArray[np.bool_] = (self.windows[of] >= width) & (self.sinces[of] < appeared)
        found &= (self.qids[of] >= first_qid) & (self.begun[of] <= batch)
        ended = self.ended[of]
        found &= (batch < ended) | ((batch == ended) & (arrival < self.ended_at[of]))
        return found

    @cached_property
    def _bounds(self) -> tuple[int, int, int, int]:
        columns = (self.windows, -self.sinces, self.qids, self.ended)
        window, since, qid, ended = (int(column.min(initial=ALWAYS)) for column in columns)
        return window, -since, qid, ended

    @cached_property
    def _sorted_windows(self) -> Ints:
        return np.sort(self.windows)

    def count(self, width: int, appeared: int, first_qid: int, batch: int, arrival: int) -> int:
        """Returns how many members get an answer of the running batch."""
        window, since, qid, ended = self._bounds
        if since < appeared and first_qid <= qid and ended == ALWAYS:  # only windows matter
            return len(self) - (int(np.searchsorted(self._sorted_windows, width)) if width > window else 0)
        return int(np.count_nonzero(self.get(slice(None), width, appeared, first_qid, batch, arrival)))

    @cached_property
    def name_ranks(self) -> Ints:
        """The rank of each member's name among those of the members. Equal names have equal ranks."""
        ranks = np.zeros(len(self.names), np.int64)
        new = (name != before for before, name in zip(self.names, self.names[1:], strict=False))
        ranks[1:] = np.cumsum(np.fromiter(new, np.int64, max(len(self.names) - 1, 0)))
        return ranks


def concatenated(found: Sequence[Members]) -> Members:
    """Returns the members of several forms, one after the other. Those of one form stay together."""
    if len(found) == 1:
        return found[0]
    names = [name for members in found for name in members.names]
    identities = [identity for members in found for identity in members.identities]
    columns = ("qids", "windows", "sinces", "begun", "ended", "ended_at")
    return Members(names, identities, *(_joined(getattr(members, name) for members in found) for name in columns))


def _joined(columns: Iterable[Ints]) -> Ints:
    every = list(columns)
    return np.concatenate(every) if every else np.zeros(0, np.int64)
