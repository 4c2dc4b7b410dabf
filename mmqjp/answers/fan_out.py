"""Expands answers to the members of their forms, as outputs in the order of output lines; and the outbox, which appends
matches and answers within batches, and tracks how far each sink has acknowledged the outputs. Answers of a batch become
numbered rows; outputs are generated lazily in chunks, of a running batch and of stored ones, which bounds memory. Also
migrates stores up to format 4, whose outputs get numbers and ids and whose sinks get positions by number."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from heapq import merge
from itertools import chain, groupby, islice, pairwise, repeat
from json.encoder import encode_basestring as json_text
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.arrays import Ints, dictionary_encode, group_starts, rows_of
from common.tools import in_batches, lazy
from join_stage.plans import JoinEngine
from join_stage.store.protocol import TableStore
from mmqjp.answers.bindings import FEW, json_nodes, node_orders, read_nodes
from mmqjp.answers.output import STORY_HEAD, AnswerColumns, Body, Output, output_order, size_of_story
from mmqjp.queries.model import (
    GIVEN,
    Identity,
    Members,
    concatenated,
    count_receiving,
    is_hidden_form,
    output_ids,
    text_digest,
)
from mmqjp.tables import schema
from mmqjp.tables.lookup import docids_of
from mmqjp.tables.schema import ANSWER_TABLES, Ledger, find_output_matches

if TYPE_CHECKING:
    from mmqjp.answers.spread import SpreadAnswers

ANSWERS, WITHHELD, ANSWER_MATCHES = ANSWER_TABLES["answers"], ANSWER_TABLES["withheld"], ANSWER_TABLES["answer_matches"]


@dataclass(frozen=True, slots=True)
class AnswerRows:
    """A batch's answers as rows of the tables `answers`, `withheld` and `answer_matches`."""

    answers: pa.Table
    withheld: pa.Table
    matches: pa.Table

    @property
    def outputs(self) -> int:
        return int(self.answers["recipients"].to_numpy().sum()) if len(self.answers) else 0

    @property
    def delivered(self) -> int:
        """The number of outputs but those of hidden queries."""
        return int(self.answers["recipients"].to_numpy()[~hidden_places(self.answers)].sum())


def answer_rows(
    given: AnswerColumns, members: Mapping[str, Members], batch: int, first_answer: int, first_seq: int
) -> AnswerRows:
    """Numbers the answers that have recipients, in the order of outputs, and these from `first_seq`."""
    recipients = count_recipients(given, members, batch)
    order = line_order(given.rows, np.flatnonzero(recipients))
    counts, count = recipients[order], len(order)
    number = np.arange(first_answer, first_answer + count)
    first, last, place = _numbers(given.ints("t1")[order], counts, first_seq)
    new = {"answer": number, "batch": np.full(count, batch), "place": place, "recipients": counts}
    new |= {"first_seq": first, "last_seq": last}
    of_place: Ints = np.full(len(given), -1)
    of_place[order] = number
    linked, matches = given.links()
    is_output = of_place[linked] >= 0
    behind = np.stack([of_place[linked], matches])[:, is_output]
    behind = behind[:, np.lexsort(behind[::-1])]
    ids = list(given.withheld)
    numbers = of_place[given.places(np.array(ids, np.int64))].tolist()
    withheld = [(one, qid) for one, id in zip(numbers, ids, strict=True) if one >= 0 for qid in given.withheld[id]]
    return AnswerRows(
        _stored(given.rows, order, new),
        schema.rows_table(sorted(withheld), WITHHELD),
        pa.table([pa.array(column) for column in behind], schema=ANSWER_MATCHES),
    )


def _stored(rows: pa.Table, order: Ints, new: Mapping[str, Ints]) -> pa.Table:
    """Returns rows of `answers`, in chunks that strings can address."""
    sizes = np.cumsum(pc.binary_length(rows["tail"]).to_numpy()[order])
    if len(order) <= FEW and sizes[-1:].sum() < MOST_CHARACTERS:
        kept, values = rows.to_pylist(), zip(*(column.tolist() for column in new.values()), strict=True)
        few = [kept[at] | dict(zip(new, one, strict=True)) for at, one in zip(order.tolist(), values, strict=True)]
        return schema.rows_table([tuple(map(row.__getitem__, ANSWERS.names)) for row in few], ANSWERS)
    cuts = np.flatnonzero(np.diff(sizes // MOST_CHARACTERS, prepend=0))
    found, in_order = [ANSWERS.empty_table()], not len(cuts) and np.array_equal(order, np.arange(len(rows)))
    for start, end in pairwise((0, *cuts.tolist(), len(order))):
        some = rows if in_order else rows.take(pa.array(order[start:end]))
        columns = [pa.array(new[name][start:end]) if name in new else some[name] for name in ANSWERS.names]
        found.append(pa.table(columns, ANSWERS.names).cast(ANSWERS))
    return pa.concat_tables(found)


MOST_CHARACTERS = 1 << 30  # bytes of bodies in a chunk


def count_recipients(given: AnswerColumns, members: Mapping[str, Members], batch: int) -> Ints:
    """Returns the number of members of its form that get each answer."""
    found: Ints = np.zeros(len(given), np.int64)
    columns = [given.ints(name) for name in ("width", "appeared", "first_qid", "arrival")]
    forms, code = coded(given.rows["form"])
    is_known = np.array([form in members for form in forms], bool)
    those = np.flatnonzero(is_known[code])
    if len(those):
        known, form_of = [members[form] for form in forms if form in members], (np.cumsum(is_known) - 1)[code[those]]
        width, appeared, first_qid, arrival = (column[those] for column in columns)
        found[those] = count_receiving(known, form_of, width, appeared, first_qid, batch, arrival)
    for place, withheld in zip(
        given.places(np.array(list(given.withheld), np.int64)).tolist(), given.withheld.values(), strict=True
    ):
        if place >= 0 and found[place]:
            of_form = members[forms[code[place]]]
            *of, arrived = (int(column[place]) for column in columns)
            gets = of_form.get(slice(None), of[0], of[1], of[2], batch, arrived)
            found[place] = np.count_nonzero(gets & ~np.isin(of_form.qids, withheld))
    return found


def coded(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    """Returns the distinct texts of a column, and the place of each row's among them, in order of first occurrence."""
    if len(column) <= FEW:
        texts: dict[str, int] = {}
        places = [texts.setdefault(text, len(texts)) for text in column.to_pylist()]
        return list(texts), np.array(places, np.int64)
    found = column.combine_chunks().dictionary_encode()
    return found.dictionary.to_pylist(), found.indices.to_numpy().astype(np.int64)


def hidden_places(answers: pa.Table) -> NDArray[np.bool_]:
    """Returns which answers are of hidden queries."""
    forms, code = coded(answers["form"])
    return np.array([is_hidden_form(form) for form in forms], bool)[code]


def by_answer(withheld: pa.Table) -> dict[int, frozenset[int]]:
    found: dict[int, set[int]] = {}
    for answer, qid in zip(*(column.to_pylist() for column in withheld.columns), strict=True):
        found.setdefault(answer, set()).add(qid)
    return {answer: frozenset(qids) for answer, qids in found.items()}


def _numbers(t1: Ints, counts: Ints, first_seq: int) -> tuple[Ints, Ints, Ints]:
    """Returns the first and last number of the outputs that end when an answer ends, and its place among them."""
    if not len(t1):
        return t1, t1, t1
    starts = np.flatnonzero(np.append(True, np.diff(t1) != 0))
    sizes = np.diff(np.append(starts, len(t1)))
    outputs = np.add.reduceat(counts, starts)
    ends = first_seq + np.cumsum(outputs)
    place = np.arange(len(t1)) - np.repeat(starts, sizes)
    return np.repeat(ends - outputs, sizes), np.repeat(ends - 1, sizes), place


def line_order(answers: pa.Table, places: Ints, *, by_t1: bool = True) -> Ints:
    """Returns places of answers in the order of the output lines of one query: by t1, unless they are equal, size of a
    story, documents, nodes. Reads of each column only what those before it leave tied: nodes are slow to parse."""
    order, is_first = places.copy(), np.arange(len(places)) == 0
    for keys_of in (*([_by_t1] if by_t1 else []), _by_documents, _by_nodes, _by_choice):
        group = is_first.cumsum()
        several = np.flatnonzero((np.bincount(group) > 1)[group])
        if not len(several):
            break
        keys = keys_of(answers, order[several])
        again = np.lexsort((*keys[::-1], group[several]))
        order[several] = order[several][again]
        is_first[several[group_starts(group[several], *(key[again] for key in keys))]] = True
    return order


def _by_t1(answers: pa.Table, places: Ints) -> list[Ints]:
    return [answers["t1"].to_numpy()[places]]


def _by_documents(answers: pa.Table, places: Ints) -> list[Ints]:
    keys, some = list[Ints](), pa.array(places)
    if (stories := pc.equal(answers["head"].take(some), STORY_HEAD).to_numpy()).any():
        keys.append(np.zeros(len(places), np.int64))
        keys[-1][stories] = [*map(size_of_story, answers["tail"].take(some.filter(pa.array(stories))).to_pylist())]
    lists = answers["documents"].take(some).combine_chunks()
    ranks = np.append(_ranked(pa.chunked_array([lists.flatten()])), -1)
    starts, ends = lists.offsets.to_numpy()[:-1].astype(np.int64), lists.offsets.to_numpy()[1:].astype(np.int64)
    for at in range(int((ends - starts).max(initial=0))):
        keys.append(ranks[np.where(starts + at < ends, starts + at - starts[:1], -1)])
    return keys


def _by_nodes(answers: pa.Table, places: Ints) -> list[Ints]:
    return [_ranked(answers["nodes"].take(pa.array(places)), lambda text: node_orders(read_nodes(text)))]


def _by_choice(answers: pa.Table, places: Ints) -> list[Ints]:
    return [_ranked(answers[name].take(pa.array(places))) for name in ("choice", "form")]


def _ranked(texts: pa.ChunkedArray, key: Callable[[str], Any] = str) -> Ints:
    """Returns the rank of each text among the distinct ones."""
    values, code = coded(texts)
    return _ranks(list(map(key, values)))[code]


def _ranks(values: Sequence[Any]) -> Ints:
    """Returns the rank of each of distinct values."""
    ranks: Ints = np.empty(len(values), np.int64)
    ranks[sorted(range(len(values)), key=values.__getitem__)] = np.arange(len(values))
    return ranks


SHOWN_OF_ANSWERS = ("t0", "t1", "documents", "streams", "head", "tail", "choice", "nodes")

ROWS_AT_A_TIME, CHARACTERS_AT_A_TIME = 10_000, 16 << 20
"""Maximum number of (answer, member) pairs per chunk, and of characters of the answers at several times."""


@dataclass(frozen=True, slots=True)
class OutputLines:
    text: bytes
    count: int
    greatest: int


@dataclass(frozen=True, slots=True)
class _Box:
    """Answers, each with a range of members, `low` to `high`, by index."""

    answers: Ints
    low: Ints
    high: Ints

    @property
    def size(self) -> int:
        return int((self.high - self.low).sum())


class FanOut:
    """Outputs of answers, in the order of output lines: by t1, query, documents, nodes.

    `answers` are rows by `first_seq` and `place`; `members` are by form; `withheld` has excluded qids by answer. With
    `by_time`, answers of several batches with equal t1 are merged, and rows come by t1.
    """

    def __init__(
        self,
        answers: pa.Table,
        members: Mapping[str, Members],
        withheld: Mapping[int, frozenset[int]],
        *,
        by_time: bool = False,
    ) -> None:
        # In one piece, because rows are taken from them again and again.
        if "tail" in answers.column_names and len(answers) > FEW:
            at = answers.schema.get_field_index("tail")
            answers = answers.set_column(at, "tail", answers["tail"].cast(pa.large_string()))
        answers = answers.combine_chunks()
        self._answers, self._withheld = answers, withheld
        forms, form = coded(answers["form"])
        known = [members[form] for form in forms]
        self._members = concatenated(known) if known else None
        self._one_form = len(known) <= 1
        ends = np.cumsum([len(one) for one in known], dtype=np.int64)
        starts: Ints = ends - np.array([len(one) for one in known], np.int64)
        self._low, self._high = (starts[form], ends[form]) if known else (form, form)
        names = (*GIVEN, "first_seq", "t0", "t1", "answer")
        self._column: dict[str, Ints] = {name: answers[name].to_numpy() for name in names}
        self._group = self._column["t1"] if by_time else self._column["first_seq"]
        self._order = np.arange(len(answers))
        if by_time:  # those of equal times are in the order of lines: documents, nodes; ties by `choice` and `form`
            self._order[line_order(answers, self._order, by_t1=False)] = np.arange(len(answers))

    def delivered(self) -> Iterator[OutputChunk]:
        """Yields the outputs without those of hidden queries, whose numbers are left out."""
        if not (hidden := hidden_places(self._answers)).any():
            yield from self.chunks()
            return
        for chunk in self.chunks():
            if len(shown := chunk.where(~hidden)):
                yield shown

    def chunks(self) -> Iterator[OutputChunk]:
        given: dict[int, int] = {}
        for box in self._boxes():
            answer, member = self.members.receiving(box.answers, box.low, box.high, self._column, self._withheld)
            keys = self.members.qids[member], self._order[answer], self._ranks(member), self._group[answer]
            order = np.lexsort(keys)
            if len(order):
                answer = answer[order]
                yield OutputChunk(self, answer, member[order], self._seq(answer, given))

    def _boxes(self) -> Iterator[_Box]:
        if not (count := len(self._group)):
            return
        is_small = self._answers.get_total_buffer_size() <= CHARACTERS_AT_A_TIME
        if is_small and (whole := self._box(0, count)).size <= ROWS_AT_A_TIME:
            yield whole
            return
        starts = np.flatnonzero(np.diff(self._group, prepend=self._group[0] - 1))
        sizes = np.add.reduceat(self._high - self._low, starts)
        ends = np.append(starts[1:], count)
        texts = [self._answers[name] for name in ("tail", "choice") if name in self._answers.column_names]
        lengths = sum((pc.binary_length(column).to_numpy() for column in texts), np.zeros(count, np.int64))
        read = np.add.reduceat(lengths, starts)
        begin = taken = characters = 0
        for start, end, size, more in zip(starts.tolist(), ends.tolist(), sizes.tolist(), read.tolist(), strict=True):
            if taken and (taken + size > ROWS_AT_A_TIME or characters + more > CHARACTERS_AT_A_TIME):
                yield self._box(begin, start)
                begin, taken, characters = start, 0, 0
            if size > ROWS_AT_A_TIME:
                yield from self._split(self._box(start, end))
                begin, taken, characters = end, 0, 0
            else:
                taken, characters = taken + size, characters + more
        if taken:
            yield self._box(begin, count)

    def _box(self, start: int, end: int) -> _Box:
        return _Box(np.arange(start, end), self._low[start:end], self._high[start:end])

    def _split(self, box: _Box) -> Iterator[_Box]:
        if box.size <= ROWS_AT_A_TIME:
            yield box
            return
        widest = int(np.argmax(box.high - box.low))
        middle = int(box.low[widest] + box.high[widest]) // 2
        cuts = (self._cut(box, middle, cut_at) for cut_at in (bisect_left, bisect_right))
        cut = next((cut for cut in cuts if (cut > box.low).any() and (cut < box.high).any()), None)
        half = len(box.answers) // 2
        if cut is None and half:  # one name: by the places of answers
            order = np.argsort(self._order[box.answers], kind="stable")
            parts = [_Box(box.answers[some], box.low[some], box.high[some]) for some in (order[:half], order[half:])]
        else:
            cut = np.array([middle]) if cut is None else cut
            parts = [_Box(box.answers, box.low, cut), _Box(box.answers, cut, box.high)]
        for part in parts:
            yield from self._split(part)

    def _cut(self, box: _Box, middle: int, cut_at: Callable[[Sequence[str], str, int, int], int]) -> Ints:
        """Returns, for each answer, where its members' names pass the one at `middle`."""
        names, ranges = self.members.names, list(zip(box.low.tolist(), box.high.tolist(), strict=True))
        known = {one: cut_at(names, names[middle], *one) for one in set(ranges)}
        return np.array([known[one] for one in ranges], np.int64)

    def _ranks(self, member: Ints) -> Ints:
        if self._one_form:
            return self.members.name_ranks[member]
        if len(member) > len(self.members) // 16:
            return self._all_ranks[member]
        place, some = dictionary_encode(member)
        return _name_ranks([self.members.names[i] for i in some.tolist()])[place]

    @lazy
    def _all_ranks(self) -> Ints:
        return _name_ranks(self.members.names)

    def _seq(self, answer: Ints, given: dict[int, int]) -> Ints:
        """Numbers outputs consecutively within each group of a batch. `given` counts those numbered so far."""
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
        return self._column["t0"][places]

    @property
    def members(self) -> Members:
        assert self._members is not None, "outputs have members"
        return self._members

    @lazy
    def tells_stories(self) -> bool:
        return bool(pc.any(pc.equal(self._answers["head"], STORY_HEAD)).as_py())

    def answers(self, places: Ints) -> pa.Table:
        """Returns what outputs show of some answers."""
        shown = self._answers.select(SHOWN_OF_ANSWERS)
        return shown if np.array_equal(places, np.arange(len(shown))) else shown.take(pa.array(places))


def _name_ranks(names: Sequence[str]) -> Ints:
    found: Ints = pc.rank(pa.array(names, pa.string()), tiebreaker="dense").to_numpy().astype(np.int64)
    return found


class OutputChunk:
    """Outputs in order: positions of their answers and members, and their numbers."""

    def __init__(self, fan_out: FanOut, answer: Ints, member: Ints, seq: Ints) -> None:
        self._fan_out, self._answer, self._member, self._seq = fan_out, answer, member, seq

    def __len__(self) -> int:
        return len(self._answer)

    @property
    def greatest(self) -> int:
        return int(self._seq.max(initial=-1))

    @property
    def pairs(self) -> Ints:
        return np.stack((self._answer, self._member))

    def after(self, seq: int) -> OutputChunk:
        later = self._seq > seq
        return self if later.all() else self._take(later)

    def until(self, seq: int) -> OutputChunk:
        return self._take(self._seq < seq)

    def where(self, answers: NDArray[np.bool_]) -> OutputChunk:
        return self._take(answers[self._answer])

    def _take(self, places: NDArray[np.bool_] | slice) -> OutputChunk:
        return OutputChunk(self._fan_out, self._answer[places], self._member[places], self._seq[places])

    def by_query(self) -> dict[str, tuple[int, int]]:
        """Returns the number of outputs and their least t0, by query."""
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
        members, place = np.unique(self._member, return_inverse=True)
        wanted = np.array([self._fan_out.members.names[member] in names for member in members.tolist()], bool)[place]
        return self._take(wanted)

    def outputs(self) -> Iterator[Output]:
        places, of = np.unique(self._answer, return_inverse=True)
        some, members = self._fan_out.answers(places), self._fan_out.members
        columns = (some[name].to_pylist() for name in SHOWN_OF_ANSWERS if name != "nodes")
        known = {text: read_nodes(text) for text in some["nodes"].unique().to_pylist()}
        nodes = [known[text] for text in some["nodes"].to_pylist()]
        answers = list(zip(nodes, *columns, strict=True))
        for at, member, seq in zip(of.tolist(), self._member.tolist(), self._seq.tolist(), strict=True):
            shown, t0, t1, documents, streams, head, tail, choice = answers[at]
            name, id = members.names[member], members.identities[member].id(choice.encode())
            xml = Body(head, tail).xml(name)
            yield Output(name, t0, t1, tuple(documents), tuple(streams), shown, xml, id, seq)

    def output(self, place: int) -> Output:
        return next(self._take(slice(place, place + 1)).outputs())

    def lines(self) -> Iterator[OutputLines]:
        for at in range(0, len(self), LINES_AT_A_TIME):
            part = self._take(slice(at, at + LINES_AT_A_TIME))
            is_short = len(part) <= FEW or self._fan_out.tells_stories
            pieces = (output.to_line() for output in part.outputs()) if is_short else part._pieces()
            yield OutputLines(b"".join(pieces), len(part), part.greatest)

    def _pieces(self) -> Iterator[bytes]:
        """Returns the pieces of the lines one after the other. Lines of one answer share theirs."""
        places, of = np.unique(self._answer, return_inverse=True)
        if len(places) == len(self):
            places, of = self._answer, np.arange(len(self))
        some, members, at = self._fan_out.answers(places), self._fan_out.members, of.tolist()
        code, some_members = dictionary_encode(self._member)
        member, known = code.tolist(), some_members.tolist()
        encoded = [members.identities[one].encoded for one in known]
        given = map(_as_bytes(some["choice"]).__getitem__, at)
        ids = output_ids(map(encoded.__getitem__, member), given)
        names = list(map([members.names[one].encode() for one in known].__getitem__, member))
        begins = [
            f'{{"id": "{id}", "seq": {seq}, "query": "'.encode()
            for id, seq in zip(ids, self._seq.tolist(), strict=True)
        ]
        times = (some[name].to_numpy().tolist() for name in ("t0", "t1"))
        lists = map(_json_lists, (some["documents"], some["streams"]))
        nodes, heads = some["nodes"].to_pylist(), some["head"].to_pylist()
        escaped = {head: json_text(head)[1:-1] for head in set(heads)}
        shared = [
            f'", "t0": {t0}, "t1": {t1}, "documents": [{documents}], "streams": [{streams}], "nodes": {node}, '
            f'"xml": "{escaped[head]}'.encode()
            for t0, t1, documents, streams, node, head in zip(*times, *lists, nodes, heads, strict=True)
        ]
        tails = _json_bytes(some["tail"])
        again = names if all(heads) else [name if heads[place] else b"" for name, place in zip(names, at, strict=True)]
        pieces = begins, names, map(shared.__getitem__, at), again, map(tails.__getitem__, at), repeat(b'"}\n')
        return chain.from_iterable(zip(*pieces, strict=False))  # query names need no escapes


def _as_bytes(texts: pa.ChunkedArray) -> list[bytes]:
    return texts.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]  # binary, none of them NULL


def _json_bytes(texts: pa.ChunkedArray) -> list[bytes]:
    """Returns long texts as in JSON strings, without the quotes: all together by the quick search of bytes."""
    together = b"\0".join(found := _as_bytes(texts))
    if np.count_nonzero(np.frombuffer(together, np.uint8) < ord(" ")) >= len(found):
        return [json_text(text.decode())[1:-1].encode() for text in found]
    return together.replace(b"\\", rb"\\").replace(b'"', rb"\"").split(b"\0")


def _json_lists(lists: pa.ChunkedArray) -> list[str]:
    """Returns lists of texts as JSON lists, without the brackets."""
    one = lists.combine_chunks()
    items = list(map(json_text, one.flatten().to_pylist()))
    ends = np.cumsum(one.value_lengths()).tolist()
    return [", ".join(items[start:end]) for start, end in pairwise([0, *ends])]


LINES_AT_A_TIME = 2_000  # they are copied several times as they are put together

SHOWN = 20  # maximum number of outputs in a `repr`, since all might not fit in memory


class OutputStream(Iterable[Output]):
    """Outputs generated anew on each iteration."""

    def __init__(self, chunks: Callable[[], Iterator[Chunk]]) -> None:
        self.chunks = chunks
        self.html: Callable[[], str | None] = lambda: None
        """Renders the notebook view; None falls back to `repr`."""

    def __repr__(self) -> str:
        found = [repr(output) for output in islice(self, SHOWN + 1)]
        return f"[{', '.join([*found[:SHOWN], *(['more'] if len(found) > SHOWN else [])])}]"

    def _repr_html_(self) -> str | None:
        return self.html()

    def __iter__(self) -> Iterator[Output]:
        for chunk in self.chunks():
            yield from chunk.outputs()

    def lines(self) -> Iterator[OutputLines]:
        """Yields output lines in chunks, about three times as fast as `to_line` per output."""
        return chain.from_iterable(chunk.lines() for chunk in self.chunks())


class Outputs(OutputStream, Sequence[Output]):
    def __init__(
        self, chunks: Callable[[], Iterator[OutputChunk]] = lambda: iter(()), count: int = 0, numbered: int = 0
    ) -> None:
        """`numbered` counts the outputs of hidden queries, too, which are not among these."""
        super().__init__(chunks)
        self._made, self._count, self.numbered = chunks, count, numbered

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Output: ...
    @overload
    def __getitem__(self, place: slice) -> list[Output]: ...
    def __getitem__(self, place: int | slice) -> Output | list[Output]:
        count = len(self)
        if isinstance(place, slice):
            places = range(*place.indices(count))
            upwards = places if places.step > 0 else places[::-1]
            found = list(islice(self, upwards.start, upwards.stop, upwards.step)) if places else []
            return found if places.step > 0 else found[::-1]
        if not -count <= place < count:
            raise IndexError(place)
        place %= count
        for chunk in self._made():
            if place < len(chunk):
                return chunk.output(place)
            place -= len(chunk)
        raise AssertionError("there are as many outputs as were counted")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Outputs, list)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as lists have none

    def __add__(self, other: Iterable[Output]) -> list[Output]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Output]) -> list[Output]:
        return [*other, *self]

    def __repr__(self) -> str:
        more = [f"{len(self) - SHOWN:,} more"] if len(self) > SHOWN else []
        return f"[{', '.join([*map(repr, self[:SHOWN]), *more])}]"


def lines_of(outputs: Iterable[Output]) -> Iterator[OutputLines]:
    if isinstance(outputs, OutputStream):
        yield from outputs.lines()
    else:
        for output in outputs:
            yield OutputLines(output.to_line(), 1, output.seq)


ANSWERS_AT_A_TIME, EARLIER_AT_A_TIME = 20_000, 10_000
"""Answers, in whole batches, and outputs of earlier formats per read."""


def stored_chunks(store: TableStore, after: int) -> Iterator[Chunk]:
    end = store.highest("earlier_outputs", "seq") + 1
    first = max(after + 1, schema.lowest(store, "earlier_outputs", "seq", 0)) if after + 1 < end else end
    for low in range(first, end, EARLIER_AT_A_TIME):
        among = f"seq >= {low} AND seq < {low + EARLIER_AT_A_TIME}"
        rows = store.select(f"SELECT * FROM earlier_outputs WHERE {among} ORDER BY seq")
        yield ListedOutputs(list(outputs_in(rows)))
    batches = schema.batches_after(store, after)
    pairs = list(zip(batches["batch"].to_pylist(), batches["answers"].to_pylist(), strict=True))
    for some in in_batches(pairs, ANSWERS_AT_A_TIME, ANSWERS_AT_A_TIME, lambda pair: pair[1]):
        yield from _stored_after(store, after, some[0][0], some[-1][0], by_time=False)


def stored_chunks_by_time(store: TableStore, after: int) -> Iterator[Chunk]:
    """Yields the same outputs by t1, query, documents, nodes. Holds all their answers in memory."""
    batches = schema.batches_after(store, after)["batch"].to_pylist()
    found = _stored_after(store, after, batches[0], batches[-1], by_time=True) if batches else iter(())
    if after >= store.highest("earlier_outputs", "seq"):
        yield from found
        return
    rows = store.select(f"SELECT * FROM earlier_outputs WHERE seq > {after} ORDER BY t1, query, documents")
    earlier = outputs_in(rows)
    groups = (sorted(group, key=output_order) for _, group in groupby(earlier, attrgetter("t1", "query", "documents")))
    newer = (output for chunk in found for output in chunk.outputs())
    both = merge((output for group in groups for output in group), newer, key=output_order)
    for some in in_batches(both, EARLIER_AT_A_TIME, EARLIER_AT_A_TIME, lambda output: 1):
        yield ListedOutputs(some)


class ListedOutputs:
    def __init__(self, given: list[Output]) -> None:
        self._given = given

    def __len__(self) -> int:
        return len(self._given)

    def outputs(self) -> Iterator[Output]:
        return iter(self._given)

    def lines(self) -> Iterator[OutputLines]:
        for output in self._given:
            yield OutputLines(output.to_line(), 1, output.seq)


Chunk = OutputChunk | ListedOutputs


def outputs_in(rows: pa.Table) -> Iterator[Output]:
    for chunk in rows.to_batches(max_chunksize=EARLIER_AT_A_TIME):
        columns = (chunk[name].to_pylist() for name in _COLUMNS)
        for query, t0, t1, documents, streams, nodes, xml, id, seq in zip(*columns, strict=True):
            yield Output(query, t0, t1, tuple(documents), tuple(streams), read_nodes(nodes), xml, id, seq)


_COLUMNS = ("query", "t0", "t1", "documents", "streams", "nodes", "xml", "id", "seq")


def _stored_after(store: TableStore, after: int, first: int, last: int, *, by_time: bool) -> Iterator[OutputChunk]:
    """Yields the outputs numbered above `after` of the answers of a range of batches."""
    answers, members, withheld = schema.rows_of_batches(store, first, last, by_time=by_time)
    fan_out = FanOut(answers, _by_form(members), by_answer(withheld), by_time=by_time)
    return (later for chunk in fan_out.delivered() if len(later := chunk.after(after)))


def _by_form(rows: pa.Table) -> dict[str, Members]:
    forms = rows["form"].to_pylist()
    names, identities = rows["name"].to_pylist(), [Identity(text) for text in rows["identity"].to_pylist()]
    columns = [rows[name].to_numpy() for name in ("qid", "widest", "since", "begun", "ended", "ended_at")]
    found, start = {}, 0
    for form, group in groupby(forms):
        end = start + sum(1 for _ in group)
        found[form] = Members(names[start:end], identities[start:end], *(column[start:end] for column in columns))
        start = end
    return found


Stored = Callable[[int], Iterator[Chunk]]  # returns the stored outputs numbered above the given one, by number


class FileSegment(NamedTuple):
    """Consecutive output lines in a file: bytes, count, greatest `seq`."""

    size: int
    lines: int
    greatest: int


@dataclass(frozen=True, slots=True)
class RangeFiles:
    """Files of a range of times: one per table, and the output lines in segments."""

    tables: Mapping[str, Path]
    lines: Path
    pieces: Sequence[FileSegment]


class WrittenOutputs(Outputs):
    """Outputs numbered `seqs`, read in pieces on demand; falls back to the store if a file is gone."""

    def __init__(self, ranges: list[RangeFiles], members: Mapping[str, Members], seqs: range, stored: Stored) -> None:
        super().__init__(self._read, sum(piece.lines for one in ranges for piece in one.pieces), len(seqs))
        self._ranges, self._members, self._seqs, self._from_store = ranges, members, seqs, stored

    def lines(self) -> Iterator[OutputLines]:
        last = self._seqs.start - 1
        for one in (one for one in self._ranges if one.pieces):
            try:
                with one.lines.open("rb") as file:
                    for size, count, greatest in one.pieces:
                        yield OutputLines(file.read(size), count, greatest)
                        last = greatest
            except FileNotFoundError:
                for chunk in self._stored_after(last):
                    yield from chunk.lines()
                return

    def _read(self) -> Iterator[OutputChunk]:
        last = self._seqs.start - 1
        for files in (one.tables for one in self._ranges if "answers" in one.tables):
            try:
                withheld = pq.read_table(files["withheld"]) if "withheld" in files else WITHHELD.empty_table()
                fan_out = FanOut(pq.read_table(files["answers"]), self._members, by_answer(withheld))
            except FileNotFoundError:
                yield from self._stored_after(last)
                return
            for chunk in fan_out.delivered():
                last = chunk.greatest
                yield chunk

    def _stored_after(self, last: int) -> Iterator[OutputChunk]:
        for chunk in self._from_store(last):
            assert isinstance(chunk, OutputChunk), "outputs of earlier formats came before"
            some = chunk.until(self._seqs.stop)
            yield some
            if len(some) < len(chunk):
                return


SINK_PREFIX = "sink:"  # prefix of the settings that hold sink positions, before the sink's name


@dataclass(frozen=True, slots=True)
class Position:
    """A sink's position: every output up to number `acked` is acknowledged; -1 for none. `details` is what this kind of
    sink needs to resume, such as a file's name and length."""

    acked: int = -1
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_setting(cls, value: str | None) -> Position:
        """Parses a setting; None gives the position of a new sink."""
        noted = json.loads(value or "{}")
        return cls(noted.pop("acked", -1), noted)

    def to_setting(self) -> str:
        return json.dumps({"acked": self.acked, **self.details}, ensure_ascii=False)


class Outbox:
    """Appends matches and answers, and reads outputs. The caller controls the batch."""

    def __init__(self, store: JoinEngine, ledger: Ledger, spread: SpreadAnswers | None = None) -> None:
        self._store, self._ledger, self._spread = store, ledger, spread

    @property
    def next_match(self) -> int:
        return self._ledger.next_match

    def save_matches(self, rows: pa.Table) -> None:
        self._store.append("match_rows", rows)
        self._ledger.next_match += len(rows)

    def withhold_told(self, answers: AnswerColumns, members: Mapping[str, Members], first_qid: int) -> None:
        """Withholds from the queries with at least `first_qid` what is stored already, under the same ids, as outputs
        of equal queries before them."""
        own: dict[int, str] = {}
        for of in members.values():
            new = np.flatnonzero(of.qids >= first_qid).tolist()
            own |= {int(of.qids[place]): of.identities[place].text for place in new}
        asked = pa.table({"qid": pa.array(own, pa.int64()), "identity": pa.array(own.values(), pa.string())})
        again = set(schema.registered_before(self._store, asked, first_qid)["qid"].to_pylist()) if own else set()
        rows = [
            (id, qid, own[qid], choice)
            for id, form, choice in (rows_of(answers.rows, "id", "form", "choice") if again else ())
            for qid in (again.intersection(members[form].qids.tolist()) if form in members else ())
        ]
        if not rows:
            return
        given = dict(zip(("place", "qid", "identity", "choice"), zip(*rows, strict=True), strict=True))
        for row in schema.output_before(self._store, pa.table(given)).to_pylist():
            withheld, id = answers.withheld, row["place"]
            withheld[id] = tuple({*withheld.get(id, ()), row["qid"]})

    def save_answers(self, answers: AnswerColumns, members: Mapping[str, Members]) -> Outputs:
        """Numbers and appends answers and outputs with the matches behind them. Returns the outputs by number, which is
        line order. `members` are by form."""
        ledger, first_seq = self._ledger, self._ledger.next_seq
        if self._spread is not None and (files := self._spread.write(answers, members)) is not None:
            stored = partial(stored_chunks, self._store)
            return WrittenOutputs(files, members, range(first_seq, ledger.next_seq), stored)
        if not len(answers):
            return Outputs()
        rows = answer_rows(answers, members, ledger.batch, ledger.next_answer, ledger.next_seq)
        self._store.append("answers", rows.answers)
        self._store.append("withheld", rows.withheld)
        self._store.append("answer_matches", rows.matches)
        ledger.next_answer += len(rows.answers)
        ledger.next_seq += rows.outputs
        fan_out = cache(lambda: FanOut(rows.answers, members, by_answer(rows.withheld)))
        return Outputs(lambda: fan_out().delivered(), rows.delivered, rows.outputs)

    def outputs(self, after: int) -> OutputStream:
        """Returns the stored outputs numbered above `after`, by number."""
        store, ledger = self._store, self._ledger
        return OutputStream(lambda: stored_chunks(store, after) if after + 1 < ledger.next_seq else iter(()))

    def lines(self, after: int) -> OutputStream:
        return OutputStream(lambda: stored_chunks_by_time(self._store, after))

    def matches_behind(self, outputs: Sequence[Output]) -> dict[int, list[tuple[str | None, tuple[int, ...]]]]:
        columns = {
            "seq": pa.array([output.seq for output in outputs], pa.int64()),
            "documents": pa.array([output.documents for output in outputs], pa.list_(pa.string())),
            "nodes": pa.array([json_nodes(output.nodes) for output in outputs], pa.string()),
        }
        found: dict[int, list[tuple[str | None, tuple[int, ...]]]] = {}
        for row in find_output_matches(self._store, pa.table(columns)).to_pylist() if outputs else ():
            found.setdefault(row["seq"], []).append((row["form"], docids_of(row)))
        return found

    def position(self, sink: str) -> Position:
        return Position.from_setting(self._ledger.setting(SINK_PREFIX + sink))


EARLIER = "earlier_outputs"

_DELIVERED, _WRITTEN = "delivered", "written"
"""Settings of format 4: the last delivered batch, and the file that it was written to."""


def number_outputs(store: JoinEngine, ledger: Ledger) -> None:
    """Numbers outputs in commit order, within a batch; ids digest lines. The batch of `--output` becomes a number."""
    rows = store.read(EARLIER, schema.ANSWER_TABLES[EARLIER].names).sort_by("batch")
    if len(rows):
        store.drop_before(EARLIER, "batch", rows["batch"][-1].as_py() + 1)
    delivered, acked = int(ledger.setting(_DELIVERED) or -1), -1
    alike: Counter[str] = Counter()
    for batch, found in _batches(rows):
        ready = []
        for output in sorted(outputs_in(found), key=output_order):
            fields = {name: value for name, value in output.to_dict().items() if name not in ("id", "seq")}
            line = json.dumps(fields, ensure_ascii=False)
            ready.append(replace(output, id=text_digest(f"{line} {alike[line]}"), seq=ledger.next_seq))
            alike[line] += 1
            ledger.next_seq += 1
        given = {"nodes": [json_nodes(output.nodes) for output in ready], "batch": [batch] * len(ready)}
        columns = {name: given.get(name) or [getattr(one, name) for one in ready] for name in rows.schema.names}
        store.append(EARLIER, pa.table(columns, schema.ANSWER_TABLES[EARLIER]))
        if batch <= delivered:
            acked = ledger.next_seq - 1
    written = ledger.setting(_WRITTEN)
    if acked >= 0 or written:
        position = Position(acked, json.loads(written or "{}"))
        ledger.save_settings({f"{SINK_PREFIX}output": position.to_setting()})


def _batches(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    batches, starts = np.unique(rows["batch"].to_numpy(), return_index=True)
    for batch, start, end in zip(batches.tolist(), starts, np.append(starts, len(rows))[1:], strict=True):
        yield batch, rows.slice(start, end - start)
