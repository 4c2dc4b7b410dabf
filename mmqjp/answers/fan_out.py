"""Fan-out: makes outputs of answers and the members of their forms, in order, some at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from json.encoder import encode_basestring as json_text

import numpy as np
import pyarrow as pa

from mmqjp.answers.answer import Body
from mmqjp.answers.output import Output, json_texts, node_orders, read_nodes
from mmqjp.queries.members import Ints, Members, concatenated

ROWS_AT_A_TIME = 10_000
"""The number of pairs of an answer and a member that are looked at together."""


@dataclass(frozen=True, slots=True)
class OutputLines:
    """Output lines in UTF-8, how many they are, and the greatest `seq` among them."""

    text: bytes
    count: int
    greatest: int


@dataclass(frozen=True, slots=True)
class _Box:
    """Answers, each with the members from `low` to `high`, both as places."""

    answers: Ints
    low: Ints
    high: Ints

    @property
    def size(self) -> int:
        return int((self.high - self.low).sum())


class FanOut:
    """The outputs of some answers, in the order of output lines: by t1, query, documents, nodes.

    `answers` are rows of that table, in the order of `first_seq` and `place`. `members` has those of each form.
    `withheld` has, by answer, the qids that do not get it. With `by_time`, answers of several batches with the same t1
    are put together, and rows are in the order of t1.
    """

    def __init__(
        self,
        answers: pa.Table,
        members: Mapping[str, Members],
        withheld: Mapping[int, frozenset[int]],
        *,
        by_time: bool = False,
    ) -> None:
        self._answers, self._withheld = answers, withheld
        of_answers = answers["form"].to_pylist()
        of_form = {form: place for place, form in enumerate(dict.fromkeys(of_answers))}
        known = [members[form] for form in of_form]
        self._members = concatenated(known) if known else None
        self._one_form = len(known) <= 1
        ends = np.cumsum([len(one) for one in known], dtype=np.int64)
        form = np.array([of_form[form] for form in of_answers], np.int64)
        starts: Ints = ends - np.array([len(one) for one in known], np.int64)
        self._low, self._high = (starts[form], ends[form]) if known else (form, form)
        names = ("width", "appeared", "first_qid", "batch", "arrival", "first_seq", "t0", "t1", "answer")
        self._column = {name: answers[name].to_numpy() for name in names}
        self._group = self._column["t1"] if by_time else self._column["first_seq"]
        self._order = self._places(by_time=by_time)

    def _places(self, *, by_time: bool) -> Ints:
        """Returns the places of answers in the order of lines of one query."""
        if not by_time:
            return np.arange(len(self._answers))
        keys = _sort_keys(self._answers)
        places = np.zeros(len(keys), np.int64)
        places[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
        return places

    def chunks(self) -> Iterator[OutputChunk]:
        """Yields the outputs, some at a time."""
        given: dict[int, int] = {}
        for box in self._boxes():
            chunk = self._chunk(box, given)
            if len(chunk):
                yield chunk

    def _boxes(self) -> Iterator[_Box]:
        """Yields boxes of at most ROWS_AT_A_TIME pairs, in order: whole groups, or parts of one."""
        count = len(self._group)
        if not count:
            return
        starts = np.flatnonzero(np.diff(self._group, prepend=self._group[0] - 1))
        sizes = np.add.reduceat(self._high - self._low, starts)
        ends = np.append(starts[1:], count)
        begin = taken = 0
        for start, end, size in zip(starts.tolist(), ends.tolist(), sizes.tolist(), strict=True):
            if taken and taken + size > ROWS_AT_A_TIME:
                yield self._box(begin, start)
                begin, taken = start, 0
            if size > ROWS_AT_A_TIME:
                yield from self._split(self._box(start, end))
                begin, taken = end, 0
            else:
                taken += size
        if taken:
            yield self._box(begin, count)

    def _box(self, start: int, end: int) -> _Box:
        return _Box(np.arange(start, end), self._low[start:end], self._high[start:end])

    def _split(self, box: _Box) -> Iterator[_Box]:
        """Yields parts of one group, in order: by names, then by answers, then by qids."""
        if box.size <= ROWS_AT_A_TIME:
            yield box
            return
        widest = int(np.argmax(box.high - box.low))
        middle = int(box.low[widest] + box.high[widest]) // 2
        for cut_at in (bisect_left, bisect_right):
            cut = self._cut(box, middle, cut_at)
            if (cut > box.low).any() and (cut < box.high).any():
                yield from self._split(_Box(box.answers, box.low, cut))
                yield from self._split(_Box(box.answers, cut, box.high))
                return
        half = len(box.answers) // 2
        if half:  # one name: by the places of answers
            order = np.argsort(self._order[box.answers], kind="stable")
            for some in (order[:half], order[half:]):
                yield from self._split(_Box(box.answers[some], box.low[some], box.high[some]))
        else:
            cut = np.array([middle])
            yield from self._split(_Box(box.answers, box.low, cut))
            yield from self._split(_Box(box.answers, cut, box.high))

    def _cut(self, box: _Box, middle: int, cut_at: Callable[[Sequence[str], str, int, int], int]) -> Ints:
        """Returns where the names of members pass the name at the place `middle`, for each answer."""
        names, known = self.members.names, dict[tuple[int, int], int]()
        ranges = list(zip(box.low.tolist(), box.high.tolist(), strict=True))
        for low, high in set(ranges):
            known[low, high] = cut_at(names, names[middle], low, high)
        return np.array([known[one] for one in ranges], np.int64)

    def _chunk(self, box: _Box, given: dict[int, int]) -> OutputChunk:
        """Returns the outputs of a box. `given` counts the outputs so far of each group of a batch."""
        sizes = box.high - box.low
        answer = np.repeat(box.answers, sizes)
        starts = np.cumsum(sizes) - sizes
        member = np.arange(len(answer)) + np.repeat(box.low - starts, sizes)
        columns = (self._column[name][answer] for name in ("width", "appeared", "first_qid", "batch", "arrival"))
        gets = self.members.get(member, *columns)
        if self._withheld:
            for number, start, size in zip(
                self._column["answer"][box.answers].tolist(), starts.tolist(), sizes.tolist(), strict=True
            ):
                if (gone := self._withheld.get(number)) is not None:
                    of_one = slice(start, start + size)
                    gets[of_one] &= ~np.isin(self.members.qids[member[of_one]], list(gone))
        answer, member = answer[gets], member[gets]
        order = np.lexsort((self.members.qids[member], self._order[answer], self._ranks(member), self._group[answer]))
        answer, member = answer[order], member[order]
        return OutputChunk(self, answer, member, self._seq(answer, given))

    def _ranks(self, member: Ints) -> Ints:
        """Returns the ranks of members' names."""
        if self._one_form:
            return self.members.name_ranks[member]
        some, place = np.unique(member, return_inverse=True)
        names = [self.members.names[i] for i in some.tolist()]
        rank = {name: rank for rank, name in enumerate(sorted(set(names)))}
        return np.array([rank[name] for name in names], np.int64)[place]

    def _seq(self, answer: Ints, given: dict[int, int]) -> Ints:
        """Returns the numbers of outputs that are in order: those of one group of a batch are consecutive."""
        first = self._column["first_seq"][answer]
        order = np.argsort(first, kind="stable")
        groups, starts, counts = np.unique(first[order], return_index=True, return_counts=True)
        before = np.array([given.get(group, 0) for group in groups.tolist()], np.int64)
        seq = np.empty(len(first), np.int64)
        seq[order] = np.repeat(groups + before - starts, counts) + np.arange(len(first))
        for group, count in zip(groups.tolist(), (before + counts).tolist(), strict=True):
            given[group] = count
        return seq

    def t0(self, places: Ints) -> Ints:
        """Returns the t0 of answers."""
        found: Ints = self._column["t0"][places]
        return found

    @property
    def members(self) -> Members:
        """The members of all forms."""
        assert self._members is not None, "outputs have members"
        return self._members

    @cached_property
    def answers(self) -> list[_Shared]:
        """What the outputs of each answer have in common."""
        names = ("t0", "t1", "documents", "streams", "nodes", "head", "tail", "choice")
        return [
            _Shared(t0, t1, documents, streams, nodes, head, tail, choice.encode())
            for t0, t1, documents, streams, nodes, head, tail, choice in zip(
                *(self._answers[name].to_pylist() for name in names), strict=True
            )
        ]


@dataclass(slots=True)
class _Shared:
    """What the outputs of an answer have in common."""

    t0: int
    t1: int
    documents: list[str]
    streams: list[str]
    nodes: str
    head: str
    tail: str
    choice: bytes
    _line: tuple[str, str] | None = None

    @property
    def line(self) -> tuple[str, str]:
        """The parts of a line between the query's names, and after the second one. The first ends with the XML before
        the name."""
        if self._line is None:
            self._line = (
                f', "t0": {self.t0}, "t1": {self.t1}, "documents": {json_texts(self.documents)}, '
                f'"streams": {json_texts(self.streams)}, "nodes": {self.nodes}, "xml": "{_escaped(self.head)}',
                f'{_escaped(self.tail)}"}}\n',
            )
        return self._line


def _escaped(text: str) -> str:
    """Returns what stands between the quotes of a JSON text."""
    return json_text(text)[1:-1]


class OutputChunk:
    """Some outputs, in order, as the places of their answers and members, and their numbers."""

    def __init__(self, fan_out: FanOut, answer: Ints, member: Ints, seq: Ints) -> None:
        self._fan_out, self._answer, self._member, self._seq = fan_out, answer, member, seq

    def __len__(self) -> int:
        return len(self._answer)

    def after(self, seq: int) -> OutputChunk:
        """Returns those with a greater number."""
        if (self._seq > seq).all():
            return self
        later = self._seq > seq
        return OutputChunk(self._fan_out, self._answer[later], self._member[later], self._seq[later])

    def until(self, seq: int) -> OutputChunk:
        """Returns those with a lesser number."""
        earlier = self._seq < seq
        return OutputChunk(self._fan_out, self._answer[earlier], self._member[earlier], self._seq[earlier])

    def by_query(self) -> dict[str, tuple[int, int]]:
        """Returns, by query, how many outputs there are and the least of their t0."""
        members, place = np.unique(self._member, return_inverse=True)
        counts = np.bincount(place, minlength=len(members)).tolist()
        least = np.full(len(members), np.iinfo(np.int64).max)
        np.minimum.at(least, place, self._fan_out.t0(self._answer))
        found: dict[str, tuple[int, int]] = {}
        for member, count, t0 in zip(members.tolist(), counts, least.tolist(), strict=True):
            name = self._fan_out.members.names[member]
            before, earliest = found.get(name, (0, t0))
            found[name] = before + count, min(t0, earliest)
        return found

    def of_queries(self, names: Container[str]) -> OutputChunk:
        """Returns those of some queries."""
        members, place = np.unique(self._member, return_inverse=True)
        wanted = np.array([self._fan_out.members.names[member] in names for member in members.tolist()], bool)[place]
        return OutputChunk(self._fan_out, self._answer[wanted], self._member[wanted], self._seq[wanted])

    def _rows(self) -> Iterator[tuple[int, int, int]]:
        return zip(self._answer.tolist(), self._member.tolist(), self._seq.tolist(), strict=True)

    def outputs(self) -> Iterator[Output]:
        """Yields the outputs."""
        members, answers = self._fan_out.members, self._fan_out.answers
        known: dict[str, dict[str, int | str]] = {}
        for place, member, seq in self._rows():
            answer, name = answers[place], members.names[member]
            if answer.nodes not in known:
                known[answer.nodes] = read_nodes(answer.nodes)
            yield Output(
                name,
                answer.t0,
                answer.t1,
                tuple(answer.documents),
                tuple(answer.streams),
                known[answer.nodes],
                Body(answer.head, answer.tail).xml(name),
                members.identities[member].id(answer.choice),
                seq,
            )

    def output(self, place: int) -> Output:
        """Returns one of the outputs."""
        some = slice(place, place + 1)
        return next(OutputChunk(self._fan_out, self._answer[some], self._member[some], self._seq[some]).outputs())

    def lines(self) -> OutputLines:
        """Returns the output lines."""
        members, answers = self._fan_out.members, self._fan_out.answers
        names, identities = members.names, members.identities
        found = []
        for place, member, seq in self._rows():
            answer = answers[place]
            between, end = answer.line
            name, id = json_text(names[member]), identities[member].id(answer.choice)
            shown = name[1:-1] if answer.head else ""
            found.append(f'{{"id": "{id}", "seq": {seq}, "query": {name}{between}{shown}{end}')
        return OutputLines("".join(found).encode(), len(found), int(self._seq.max(initial=-1)))


def _sort_keys(answers: pa.Table) -> list[tuple[object, ...]]:
    """Returns keys that put answers into the order of lines of one query that end at the same time: by documents,
    nodes. What is left is in the order of `choice` and `form`."""
    columns = (answers[name].to_pylist() for name in ("documents", "nodes", "choice", "form"))
    return [
        (documents, node_orders(read_nodes(nodes)), choice, form)
        for documents, nodes, choice, form in zip(*columns, strict=True)
    ]
