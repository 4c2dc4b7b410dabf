"""Some answers of a store, as columns. Very many come and few are looked at: only those become objects of Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mmqjp.present.recipients import Ints, Member, Members, SomeMembers, receives

READ_AT_ONCE = 20
"""So many answers are read together, of which perhaps only the first are needed."""

JUDGED_AT_ONCE = 500
"""For so many answers it is found at once who gets them."""

_NUMBERS = ("answer", "t1", "batch", "first_seq", "place", "width", "appeared", "first_qid", "arrival")


class Answer(NamedTuple):
    """A row of the table `answers`, with when it was committed, None if that was dropped, and the docids of the matches
    behind it."""

    answer: int
    form: str
    t0: int
    t1: int
    documents: tuple[str, ...]
    streams: tuple[str, ...]
    nodes: str
    choice: str
    batch: int
    first_seq: int
    last_seq: int
    place: int
    committed_at: int | None
    behind: tuple[tuple[int, ...], ...]


Place = tuple[int, int, int]
"""Where an output stands among those of its name: the first number of its group, its place there, and the qid."""

Told = tuple[Place, Answer, Member]
"""An answer and one of those who get it, with the place of that output."""


class Got(NamedTuple):
    """Who gets so many answers: for each output the qid, and its t1."""

    answers: int
    qids: Ints
    t1s: Ints


class AnswerTable:
    """Answers in the order of `first_seq` and `place`. Not for several threads at once."""

    def __init__(self, rows: pa.Table, behind: pa.Table, withheld: pa.Table) -> None:
        """`rows` have the columns of `mmqjp.tables.recent_sql`. `behind` has the docids of matches by `answer`, and
        `withheld` the qids of those who do not get one; there may be other answers in them, too."""
        columns = {name: _ints(rows[name]) for name in _NUMBERS}
        order = np.lexsort((columns["place"], columns["first_seq"]))
        self._columns = {name: column[order] for name, column in columns.items()}
        self._rows = rows.take(pa.array(order)).combine_chunks()  # which holds no more memory than it needs
        self._behind = _by_answer(behind, ("docid1", "docid2"), self._columns["answer"])
        self._withheld = _by_answer(withheld, ("qid",), self._columns["answer"])
        self._read: dict[int, Answer] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def first_batch(self) -> int:
        """The first batch of which it has answers."""
        return int(self._columns["batch"][0])

    @property
    def last_batch(self) -> int:
        """The last batch of which it has answers."""
        return int(self._columns["batch"][-1])

    @property
    def first_seq(self) -> int:
        """The first of its groups."""
        return int(self._columns["first_seq"][0])

    def followed_by(self, later: AnswerTable) -> AnswerTable:
        """Returns these answers and those of later batches."""
        rows = pa.concat_tables([self._rows, later._rows], promote_options="default")
        behind, withheld = (
            pa.table({name: np.concatenate([column, others[name]]) for name, column in own.items()})
            for own, others in ((self._behind, later._behind), (self._withheld, later._withheld))
        )
        made = AnswerTable(rows, behind, withheld)
        made._read = dict(self._read)  # they are at the same places
        return made

    def without_first_batch(self) -> AnswerTable:
        """Returns the answers of all batches but the first."""
        return self._between(int(np.searchsorted(self._columns["batch"], self.first_batch + 1)), len(self))

    def in_parts(self, least: int) -> Iterator[AnswerTable]:
        """Yields all answers in tables of whole batches, which have at least so many answers, but for the last one."""
        begin, batches = 0, self._columns["batch"]
        while begin < len(self):
            last = min(begin + least, len(self)) - 1
            end = int(np.searchsorted(batches, batches[last], side="right"))
            yield self._between(begin, end)
            begin = end

    def _between(self, begin: int, end: int) -> AnswerTable:
        rows = self._rows.slice(begin, end - begin)
        return AnswerTable(rows, pa.table(self._behind), pa.table(self._withheld))

    def all(self) -> list[Answer]:
        """Returns all answers."""
        return self.at(range(len(self)))

    def groups(self) -> list[int]:
        """Returns the groups, by their `first_seq`, in order."""
        found: list[int] = np.unique(self._columns["first_seq"]).tolist()
        return found

    def group(self, first_seq: int) -> dict[str, Ints]:
        """Returns the places in this table of the answers of a group, by form."""
        begin, end = np.searchsorted(self._columns["first_seq"], (first_seq, first_seq + 1)).tolist()
        found: dict[str, list[int]] = {}
        for place, form in enumerate(self._rows["form"][begin:end].to_pylist(), begin):
            found.setdefault(form, []).append(place)
        return {form: np.array(places, np.int64) for form, places in found.items()}

    def at(self, places: Iterable[int]) -> list[Answer]:
        """Returns the answers at some places of this table."""
        wanted = list(places)
        for place in wanted:
            if place not in self._read:
                self._read[place] = self._answer({name: column[place].as_py() for name, column in self._arrays.items()})
        return [self._read[place] for place in wanted]

    def recipients(self, places: Ints, members: SomeMembers) -> NDArray[np.bool_]:
        """Returns which answers of a form, given by their places in this table, go to which of its members: a row for
        each answer, and a column for each member."""
        got = receives({name: column[places, None] for name, column in self._columns.items()}, members.columns)
        if len(self._withheld["answer"]):  # most stores have none
            for row, number in zip(got, self._columns["answer"][places].tolist(), strict=True):
                begin, end = np.searchsorted(self._withheld["answer"], (number, number + 1))
                row &= ~np.isin(members.columns["qid"], self._withheld["qid"][begin:end])
        return got

    def got_after(self, batch: int, members: Members, most: int) -> Got | None:
        """Returns who gets the answers of the batches after one. None if more than `most` members are to be judged."""
        begin = int(np.searchsorted(self._columns["batch"], batch + 1))
        forms, codes = self._forms
        begins, ends = np.array([members.places(form) for form in forms], np.int64).reshape(-1, 2).T
        counts = (ends - begins)[codes[begin:]]
        until = np.cumsum(counts)
        if counts.sum() > most:
            return None
        # A row for each member of the form of each answer.
        places = np.repeat(np.arange(begin, len(self)), counts)
        those = np.arange(len(places)) + np.repeat(begins[codes[begin:]] - (until - counts), counts)
        of = {name: column[those] for name, column in members.columns.items()}
        got = receives({name: column[places] for name, column in self._columns.items()}, of)
        if len(self._withheld["answer"]):
            withheld = set(zip(self._withheld["answer"].tolist(), self._withheld["qid"].tolist(), strict=True))
            pairs = zip(self._columns["answer"][places].tolist(), of["qid"].tolist(), strict=True)
            got &= np.fromiter((pair not in withheld for pair in pairs), np.bool_, len(places))
        return Got(len(self) - begin, of["qid"][got], self._columns["t1"][places[got]])

    def newest(self, members: SomeMembers, before: Place | None, before_batch: int | None = None) -> Iterator[Told]:
        """Yields the outputs of some members of a form, the newest first, that are before a place, and, if it is given,
        of batches before one."""
        places = self._of_form.get(members.form, np.zeros(0, np.int64))
        if before is not None:
            places = places[self._columns["first_seq"][places] <= before[0]]
        if before_batch is not None:
            places = places[self._columns["batch"][places] < before_batch]
        for end in range(len(places), 0, -JUDGED_AT_ONCE):
            for told in self._told(places[max(end - JUDGED_AT_ONCE, 0) : end], members):
                if before is None or told[0] < before:
                    yield told

    def _told(self, places: Ints, members: SomeMembers) -> Iterator[Told]:
        """Yields the outputs of some answers, the last ones first."""
        got, those = np.nonzero(self.recipients(places, members)[::-1, ::-1])
        got, those = places[::-1][got], len(members.all) - 1 - those
        for begin in range(0, len(got), READ_AT_ONCE):
            some = slice(begin, begin + READ_AT_ONCE)
            for answer, number in zip(self.at(got[some].tolist()), those[some].tolist(), strict=True):
                member = members.all[number]
                yield (answer.first_seq, answer.place, member.qid), answer, member

    @cached_property
    def _arrays(self) -> dict[str, pa.Array]:
        """What is stored of an answer, by column: to read few rows, this is faster than to take them from a table."""
        return {name: self._rows[name].combine_chunks() for name in Answer._fields[:-1]}

    @cached_property
    def _of_form(self) -> dict[str, Ints]:
        """The places of the answers of each form, in order."""
        forms, codes = self._forms
        order = np.argsort(codes, kind="stable")
        some = np.split(order, np.cumsum(np.bincount(codes, minlength=1))[:-1])
        return dict(zip(forms, some, strict=bool(forms)))

    @cached_property
    def _forms(self) -> tuple[list[str], Ints]:
        """The forms, and for each answer the place of its own among them."""
        encoded = self._rows["form"].combine_chunks().dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)

    def _answer(self, row: dict[str, Any]) -> Answer:
        begin, end = np.searchsorted(self._behind["answer"], (row["answer"], row["answer"] + 1))
        pairs = zip(*(self._behind[name][begin:end].tolist() for name in ("docid1", "docid2")), strict=True)
        row |= {"documents": tuple(row["documents"]), "streams": tuple(row["streams"])}
        return Answer(**row, behind=tuple((one,) if two < 0 else (one, two) for one, two in pairs))


def _ints(column: pa.ChunkedArray) -> Ints:
    """A column of numbers, with -1 for null."""
    numbers: Ints = column.cast(pa.int64()).fill_null(-1).to_numpy()
    return numbers


def _by_answer(rows: pa.Table, names: Sequence[str], answers: Ints) -> dict[str, Ints]:
    """Columns of the rows about some answers, in the order of these, and otherwise as they are."""
    numbers = _ints(rows["answer"])
    order = np.argsort(numbers, kind="stable")
    order = order[np.isin(numbers[order], answers)]
    return {"answer": numbers[order]} | {name: _ints(rows[name])[order] for name in names}
