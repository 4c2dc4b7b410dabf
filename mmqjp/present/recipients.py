"""Computes the recipients of answers, and caches the answers of the newest batches. Answers stay in columns; only the
ones shown become Python objects."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.arrays import Ints
from common.bounds import INFINITE
from common.tools import LruCache, gathered
from mmqjp.answers.fan_out import FanOut, by_answer
from mmqjp.queries.model import GIVEN, Identity, Members, concatenated


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
        return self.ended == INFINITE


def member_of(row: Mapping[str, Any]) -> Member:
    return Member(**{**row, "identity": Identity(row["identity"])})


def new_member(query: Mapping[str, Any], batch: int) -> Member:
    """Returns the member from a batch on, given a row of `added_queries`."""
    names = ("qid", "name", "form", "identity", "since", "text", "added_at")
    widest = INFINITE if query["window_us"] is None else query["window_us"]
    row = {name: query[name] for name in names}
    return member_of(row | {"widest": widest, "begun": batch, "ended": INFINITE, "ended_at": INFINITE})


@dataclass(frozen=True)
class SomeMembers:
    """Members of one form, in order of names and qids."""

    form: str
    all: Sequence[Member]

    @cached_property
    def columns(self) -> Members:
        return _columns(self.all)


class MemberHistory:
    """All members ever, by name and by form, each in order of names and qids, and when names were first `added`."""

    def __init__(self) -> None:
        self._of_name, self._of_form = dict[str, list[Member]](), dict[str, SomeMembers]()
        self._names = dict[int, str]()  # of queries; shared with later histories, which add to it
        self.added: Mapping[str, int] = {}

    @property
    def count(self) -> int:
        return len(self._names)

    def changed(self, members: Collection[Member], added: Mapping[str, int]) -> MemberHistory:
        """Returns the members with all those of some queries in place of what is known of these, and later names."""
        qids, made = {member.qid for member in members}, MemberHistory()

        def merged(known: Iterable[Member], some: Iterable[Member]) -> list[Member]:
            return sorted([*(one for one in known if one.qid not in qids), *some], key=_IN_ORDER)

        named = gathered((member.name, member) for member in members)
        made._of_name = self._of_name | {name: merged(self.named(name), some) for name, some in named.items()}
        formed = {some.form: merged(self.of_form(some.form).all, some.all) for some in _by_form(members)}
        made._of_form = self._of_form | {form: SomeMembers(form, some) for form, some in formed.items()}
        made.added = {**added, **self.added}
        made._names = self._names
        made._names.update((member.qid, member.name) for member in members)
        return made

    def followed(self, added: Iterable[Mapping[str, Any]], changes: Iterable[Mapping[str, Any]]) -> MemberHistory:
        """Returns the members after commits of rows of `added_queries` and `memberships`, which may repeat what is
        known and resume no query. Raises KeyError if they are about unknown queries."""
        queries, first, found = dict[int, Mapping[str, Any]](), dict[str, int](), dict[int, dict[int, Member]]()
        for row in added:
            queries[row["qid"]] = row
            first[row["name"]] = min(row["added_at"], first.get(row["name"], row["added_at"]))
        for change in changes:
            qid, batch = change["qid"], change["batch"]
            if qid not in found:
                known = () if qid in queries else self.named(self._names[qid])
                found[qid] = {one.begun: one for one in known if one.qid == qid}
            spans = found[qid]
            if change["begins"] and batch not in spans:
                spans[batch] = new_member(queries[qid], batch)
            elif not change["begins"] and (last := spans[max(spans)]).is_registered:
                spans[last.begun] = last._replace(ended=batch, ended_at=change["arrival"])
        return self.changed([one for spans in found.values() for one in spans.values()], first)

    def named(self, name: str) -> list[Member]:
        return self._of_name.get(name, [])

    def named_by_form(self, name: str) -> list[SomeMembers]:
        return _by_form(self.named(name))

    def of_form(self, form: str) -> SomeMembers:
        return self._of_form.get(form) or SomeMembers(form, ())


_IN_ORDER = attrgetter("name", "qid", "begun")


def _by_form(members: Iterable[Member]) -> list[SomeMembers]:
    return [SomeMembers(form, some) for form, some in gathered((member.form, member) for member in members).items()]


def _columns(members: Sequence[Member]) -> Members:
    names = ("qid", "widest", "since", "begun", "ended", "ended_at")
    columns = (np.array([getattr(one, name) for one in members], np.int64) for name in names)
    return Members([one.name for one in members], [one.identity for one in members], *columns)


JUDGED_AT_ONCE = 500  # answers whose recipients are computed together

_NUMBERS = ("answer", "t1", "first_seq", "place", *GIVEN)


class AnswerRow(NamedTuple):
    """A row of the table `answers`, with its commit time (None: deleted) and the docids of the matches behind it."""

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


OutputOrder = tuple[int, int, int]
"""The position of an output among those of its name: the first number of its group, its place there, and the qid."""


class StoredOutput(NamedTuple):
    """An output in a store. Its number `seq` is -1 if unknown. In earlier formats it has an answer of its own, whose
    number and whose `qid` are -1, `xml` is its document, `identity` its id, and `texts` are those of all queries that
    it may be of."""

    answer: AnswerRow
    qid: int
    name: str
    identity: Identity | str
    form: str | None
    texts: tuple[str, ...]
    seq: int
    xml: str | None = None

    @property
    def id(self) -> str:
        known = self.identity
        return known if isinstance(known, str) else known.id(self.answer.choice.encode())

    @property
    def place(self) -> OutputOrder:
        return self.answer.first_seq, self.answer.place, self.qid

    @property
    def key(self) -> tuple[int, int, int]:
        """Identifies it among all outputs."""
        return self.answer.answer, self.qid, self.answer.first_seq if self.xml is not None else -1


def output_of(answer: AnswerRow, member: Member, seq: int = -1) -> StoredOutput:
    number = answer.first_seq if answer.first_seq == answer.last_seq else seq
    return StoredOutput(answer, member.qid, member.name, member.identity, member.form, (member.text,), number)


class Got(NamedTuple):
    """The recipients of a number of answers: qid and t1 of each output."""

    answers: int
    qids: Ints
    t1s: Ints


class AnswerTable:
    """Answers in order of `first_seq` and `place`. Not thread-safe."""

    def __init__(self, rows: pa.Table, behind: pa.Table, withheld: pa.Table) -> None:
        """`rows` have the columns of `mmqjp.tables.lookup`. `behind` has docids of matches by `answer`, and `withheld`
        the qids that do not get one; both may cover other answers, too."""
        columns = {name: _ints(rows[name]) for name in _NUMBERS}
        order = np.lexsort((columns["place"], columns["first_seq"]))
        self._columns = {name: column[order] for name, column in columns.items()}
        self._rows = rows.take(pa.array(order)).combine_chunks()  # a copy, which does not keep other rows in memory
        self._behind = _by_answer(behind, ("docid1", "docid2"), self._columns["answer"])
        self._withheld_rows = withheld.filter(pc.is_in(withheld["answer"], self._rows["answer"].combine_chunks()))
        self._withheld = by_answer(self._withheld_rows) if len(self._withheld_rows) else {}  # most stores have none
        self._read: dict[int, AnswerRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def batches(self) -> tuple[int, int]:
        """The first and the last batch."""
        return int(self._columns["batch"][0]), int(self._columns["batch"][-1])

    @property
    def first_seq(self) -> int:
        return int(self._columns["first_seq"][0])

    def followed_by(self, later: AnswerTable) -> AnswerTable:
        rows = pa.concat_tables([self._rows, later._rows], promote_options="default")
        behind = {name: np.concatenate([column, later._behind[name]]) for name, column in self._behind.items()}
        withheld = pa.concat_tables([self._withheld_rows, later._withheld_rows], promote_options="default")
        made = AnswerTable(rows, pa.table(behind), withheld)
        made._read = dict(self._read)  # the rows keep their places
        return made

    def without_first_batch(self) -> AnswerTable:
        return self._between(int(np.searchsorted(self._columns["batch"], self.batches[0] + 1)), len(self))

    def in_parts(self, least: int) -> Iterator[AnswerTable]:
        """Splits the table into whole batches of at least `least` answers, except the last part."""
        begin, batches = 0, self._columns["batch"]
        while begin < len(self):
            end = int(np.searchsorted(batches, batches[min(begin + least, len(self)) - 1], side="right"))
            yield self._between(begin, end)
            begin = end

    def _between(self, begin: int, end: int) -> AnswerTable:
        return AnswerTable(self._rows.slice(begin, end - begin), pa.table(self._behind), self._withheld_rows)

    def all(self) -> list[AnswerRow]:
        return self.at(range(len(self)))

    def groups(self) -> list[int]:
        """Returns the `first_seq` of each group, in order."""
        found: list[int] = np.unique(self._columns["first_seq"]).tolist()
        return found

    def group(self, first_seq: int, members: MemberHistory) -> NumberedGroup | None:
        """Returns the outputs of a group. None if they are not all here, or too many."""
        begin, end = np.searchsorted(self._columns["first_seq"], (first_seq, first_seq + 1)).tolist()
        if begin == end:
            return None
        rows = self._rows.slice(begin, end - begin)
        forms = {form: members.of_form(form) for form in rows["form"].to_pylist()}
        if sum(len(forms[form].all) for form in rows["form"].to_pylist()) > MOST_RECIPIENTS:
            return None
        chunks = FanOut(rows, {form: some.columns for form, some in forms.items()}, self._withheld).chunks()
        answers, recipients = np.concatenate([np.zeros((2, 0), np.int64), *(chunk.pairs for chunk in chunks)], axis=1)
        if len(answers) != self.at([begin])[0].last_seq - first_seq + 1:
            return None
        return NumberedGroup(first_seq, self.at(range(begin, end)), list(forms.values()), answers, recipients)

    def at(self, places: Iterable[int]) -> list[AnswerRow]:
        found: list[AnswerRow] = []
        for place in places:
            if (answer := self._read.get(place)) is None:
                row = {name: column[place].as_py() for name, column in self._arrays.items()}
                row |= {"documents": tuple(row["documents"]), "streams": tuple(row["streams"])}
                begin, end = np.searchsorted(self._behind["answer"], (row["answer"], row["answer"] + 1))
                pairs = zip(*(self._behind[name][begin:end].tolist() for name in ("docid1", "docid2")), strict=True)
                behind = tuple((one,) if two < 0 else (one, two) for one, two in pairs)
                answer = self._read[place] = AnswerRow(**row, behind=behind)
            found.append(answer)
        return found

    def got_after(self, batch: int, members: MemberHistory, most: int) -> Got | None:
        """Returns the recipients of all later batches. None if that evaluates more than `most` pairs."""
        begin = int(np.searchsorted(self._columns["batch"], batch + 1))
        forms, codes = self._forms
        later, codes = np.unique(codes[begin:], return_inverse=True)
        some = [members.of_form(forms[code]).columns for code in later.tolist()]
        bounds = np.cumsum([0, *map(len, some)])
        low, high = bounds[codes], bounds[codes + 1]
        if (high - low).sum() > most:
            return None
        answers, of_forms = np.arange(begin, len(self)), concatenated(some)
        places, got = of_forms.receiving(answers, low, high, self._columns, self._withheld)
        return Got(len(answers), of_forms.qids[got], self._columns["t1"][places])

    def newest(
        self, members: SomeMembers, before: OutputOrder | None, before_batch: int | None = None
    ) -> Iterator[StoredOutput]:
        """Yields the outputs of members of a form, newest first, before a position and, if given, before a batch."""
        places = self._of_form.get(members.form, np.zeros(0, np.int64))
        if before is not None:
            places = places[self._columns["first_seq"][places] <= before[0]]
        if before_batch is not None:
            places = places[self._columns["batch"][places] < before_batch]
        for end in range(len(places), 0, -JUDGED_AT_ONCE):
            judged = places[max(end - JUDGED_AT_ONCE, 0) : end]
            low, high = np.zeros_like(judged), np.full_like(judged, len(members.all))
            found = members.columns.receiving(judged, low, high, self._columns, self._withheld)
            for place, number in zip(
                *(one[::-1] for one in found), strict=True
            ):  # lazily: often only the first are needed
                (answer,) = self.at((int(place),))
                output = output_of(answer, members.all[number])
                if before is None or output.place < before:
                    yield output

    @cached_property
    def _arrays(self) -> dict[str, pa.Array]:
        """The stored columns: to read a few rows, this is faster than a table."""
        return {name: self._rows[name].combine_chunks() for name in AnswerRow._fields[:-1]}

    @cached_property
    def _of_form(self) -> dict[str, Ints]:
        forms, codes = self._forms
        some = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=1))[:-1])
        return dict(zip(forms, some, strict=bool(forms)))

    @cached_property
    def _forms(self) -> tuple[list[str], Ints]:
        encoded = self._rows["form"].combine_chunks().dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def _ints(column: pa.ChunkedArray) -> Ints:
    numbers: Ints = column.cast(pa.int64()).fill_null(-1).to_numpy()
    return numbers


def _by_answer(rows: pa.Table, names: Sequence[str], answers: Ints) -> dict[str, Ints]:
    """Columns of the rows about some answers, sorted stably in the order of these."""
    numbers = _ints(rows["answer"])
    order = np.argsort(numbers, kind="stable")
    order = order[np.isin(numbers[order], answers)]
    return {"answer": numbers[order]} | {name: _ints(rows[name])[order] for name in names}


MAX_CACHED_ANSWERS, TOGETHER = 100_000, 1_000
"""Maximum number of answers cached (the oldest batches are evicted). Batches are merged until they have TOGETHER."""

MOST_RECIPIENTS, MOST_JUDGED = 100_000, 500_000
"""Maximum number of pairs of an answer and a member in a group that is numbered here, and evaluated here in all."""

MOST_NUMBERED = 1_000_000  # maximum number of outputs in groups cached with their numbers


class NumberedGroup:
    """The outputs of a group, in order: `answers` and `recipients` have indexes of its rows, and of the members of its
    `forms`, one form after the other."""

    def __init__(
        self, first_seq: int, rows: Sequence[AnswerRow], forms: Sequence[SomeMembers], answers: Ints, recipients: Ints
    ) -> None:
        self.first_seq, self._rows, self._forms = first_seq, rows, forms
        self._answers, self._recipients = answers, recipients

    def __len__(self) -> int:
        return len(self._answers)

    def __iter__(self) -> Iterator[StoredOutput]:
        return self.at(range(len(self)))

    def between(self, after: int, until: int) -> Iterator[StoredOutput]:
        return self.at(range(max(after + 1 - self.first_seq, 0), min(until + 1 - self.first_seq, len(self))))

    def of_name(self, name: str) -> Iterator[StoredOutput]:
        begin, found = 0, np.zeros(len(self), np.bool_)
        for some in self._forms:
            low, high = bisect_left(some.columns.names, name), bisect_right(some.columns.names, name)
            found |= (self._recipients >= begin + low) & (self._recipients < begin + high)
            begin += len(some.all)
        return self.at(np.flatnonzero(found).tolist())

    def at(self, places: Iterable[int]) -> Iterator[StoredOutput]:
        for place in places:
            number = int(self._recipients[place])
            for some in self._forms:
                if number < len(some.all):
                    yield output_of(self._rows[self._answers[place]], some.all[number], self.first_seq + place)
                    break
                number -= len(some.all)


class NewestAnswers:
    """All answers of a store's newest batches. A group, of one batch, has one `first_seq`. Not thread-safe."""

    def __init__(self) -> None:
        self._tables: list[AnswerTable] = []
        self._numbered = LruCache[int, NumberedGroup](MOST_NUMBERED, len)
        self._count = 0
        self.is_all = False

    @property
    def is_empty(self) -> bool:
        return not self._tables

    @property
    def first_batch(self) -> int | None:
        """The first batch from which on all answers are cached; None if there is none."""
        return self._tables[0].batches[0] if self._tables else None

    def begin(self, table: AnswerTable, *, is_all: bool) -> None:
        """Replaces all answers with a store's newest. Unless `is_all`, drops the first batch: it may be incomplete."""
        self.clear()
        self.add(table if is_all or not len(table) else table.without_first_batch())
        self.is_all = is_all and self._count == len(table)

    def add(self, table: AnswerTable) -> None:
        if self._tables and len(self._tables[-1]) + len(table) <= TOGETHER and len(table):
            self._tables[-1] = self._tables[-1].followed_by(table)
        else:
            self._tables += table.in_parts(TOGETHER)
        self._count += len(table)
        while self._count > MAX_CACHED_ANSWERS and len(self._tables) > 1:
            self._count -= len(self._tables.pop(0))
            self.is_all = False

    def newest(self, members: SomeMembers, before: OutputOrder | None) -> Iterator[StoredOutput]:
        """Yields the cached outputs of members of a form, newest first, before a position."""
        for table in reversed(self._tables):
            yield from table.newest(members, before)

    def numbered(self, first_seq: int, members: MemberHistory) -> NumberedGroup | None:
        """Returns the outputs of a group with their numbers. None if not cached or too large."""
        if (known := self._numbered.get(first_seq)) is not None:
            return known
        table = next((one for one in reversed(self._tables) if one.first_seq <= first_seq), None)
        if table is not None and (known := table.group(first_seq, members)) is not None:
            self._numbered.put(first_seq, known)
        return known

    def got_after(self, batch: int, members: MemberHistory) -> Got | None:
        """Returns the recipients of all later batches. None if some are not cached, or too many."""
        if not self.is_all and (self.first_batch is None or self.first_batch > batch + 1):
            return None
        none, most = np.zeros(0, np.int64), MOST_JUDGED
        found = [Got(0, none, none)]
        for table in reversed(self._tables):
            if table.batches[1] <= batch:
                break
            if (got := table.got_after(batch, members, most)) is None:
                return None
            found.append(got)
            most -= len(got.qids)
        answers, qids, t1s = zip(*found, strict=True)
        return Got(sum(answers), np.concatenate(qids), np.concatenate(t1s))

    def groups(self, until: int) -> Iterator[int]:
        """Yields the `first_seq` of each cached group up to a number, newest first."""
        for table in reversed(self._tables):
            if table.first_seq <= until:
                yield from (group for group in reversed(table.groups()) if group <= until)

    def forget_numbers(self) -> None:
        """Drops cached numbers; call after membership changes."""
        self._numbered.clear()

    def clear(self) -> None:
        self._tables, self._count, self.is_all = [], 0, False
        self.forget_numbers()
