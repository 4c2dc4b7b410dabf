"""Lineage: numbers events and records what they were made of, in columns. An event of a document is its stream, docid
and nodes. A PUBLISHed event is composed: a digest and the numbers of its parts. The events of an aggregate, or of a
Kleene variable, are a set, which is one part. Numbers live as long as something refers to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from common.arrays import Ints, distinct, group_starts
from common.bounds import Micros
from pattern_stage.columns import NO_INTS, spread
from pattern_stage.values import flatten_lists, lists


@dataclass(frozen=True, slots=True)
class _Block:
    """Events by ascending number. Event i refers to `refers[begins[i] : begins[i] + sizes[i]]`; ranges may overlap. The
    times of sets may be missing; then all are."""

    numbers: Ints
    streams: Ints
    docids: Ints
    t0: Ints
    t1: Ints
    begins: Ints
    sizes: Ints
    refers: Ints

    def take(self, places: Ints) -> _Block:
        """Returns some events, with a list of their own."""
        sizes = self.sizes[places]
        at, _ = spread(self.begins[places], sizes)
        t0, t1 = (times[places] if len(times) else times for times in (self.t0, self.t1))
        columns = self.numbers[places], self.streams[places], self.docids[places], t0, t1
        return _Block(*columns, np.cumsum(sizes) - sizes, sizes, self.refers[at])


def _joined(blocks: Sequence[_Block]) -> _Block:
    """Concatenates blocks with times, in ascending order of numbers, each with a list of its own."""
    columns = {field.name: np.concatenate([getattr(one, field.name) for one in blocks]) for field in fields(_Block)}
    columns["begins"] = np.cumsum(columns["sizes"]) - columns["sizes"]
    return _Block(**columns)


COMPOSED, TOGETHER = -1, -2  # the docids of composed events and of sets of events

DIGEST_NUMBERS = 2  # number of int64s in a digest of 16 bytes

_INT = pa.int64()
LINEAGE = pa.schema(
    {"number": _INT, "stream": pa.string(), "docid": _INT, "t0": _INT, "t1": _INT, "refers": pa.list_(_INT)}
)
"""Numbered events. `refers` has node ids; or a composed event's digest and parts; or a set's members. -1 is none."""

DocumentIds = Callable[[Collection[int]], Mapping[int, Any]]
"""Returns sortable ids of documents, the same in every store, by docid."""


def same_ids(docids: Collection[int]) -> Mapping[int, Any]:
    return dict(zip(docids, docids, strict=True))


@dataclass(frozen=True, slots=True)
class EventOrigin:
    """What a number stands for: an event of document `docid`, with node ids, root first; for COMPOSED, a `digest` and
    `parts`; for TOGETHER, the set of `parts`."""

    stream: str
    docid: int
    t0: int
    t1: int
    nodes: tuple[int, ...] = ()
    digest: bytes = b""
    parts: tuple[int, ...] = ()


class Lineage:
    """Numbers events. `next` is the next number; `document_ids` gives the ids of documents."""

    def __init__(self, next: int = 0, document_ids: DocumentIds = same_ids) -> None:
        self.next, self.document_ids = next, document_ids
        self._blocks: list[_Block] = []  # in ascending order of numbers
        self._streams: dict[str, int] = {}  # the code of each stream
        self._size = self._kept = 0
        self._sets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return self._size

    def of_documents(self, stream: str, docids: Ints, t0: Ints, t1: Ints, nodes: Ints) -> Ints:
        """Numbers events of documents. `nodes` has a row for each."""
        count, width = nodes.shape
        begins, sizes = np.arange(count) * width, np.full(count, width, np.int64)
        return self._add(stream, docids, t0, t1, begins, sizes, nodes.ravel())

    def composed(self, stream: str, digests: Iterable[bytes], t0: Ints, t1: Ints, parts: Ints) -> Ints:
        """Numbers composed events; `parts` has their parts, -1 for none. A digest has 16 bytes."""
        numbers = np.frombuffer(b"".join(digests), np.int64).reshape(-1, DIGEST_NUMBERS)
        docids = np.full(len(t0), COMPOSED, np.int64)
        return self.of_documents(stream, docids, t0, t1, np.concatenate([numbers, parts], axis=1))

    def together(self, parts: Ints, groups: Ints) -> Ints:
        """Returns a number for each group: that of the set of its rows' parts. Rows of `parts` are sorted by group;
        `groups` counts from 0 without gaps. Sets among the parts stand for their members. Until `begin`, equal sets
        have equal numbers; a set of one event has that event's number."""
        group, member = self._flat(np.repeat(groups, parts.shape[1]), parts.ravel())
        order = np.lexsort((member, group))
        group, member = group[order], member[order]
        new = group_starts(group, member)
        new = new[member[new] >= 0]
        group, member = group[new], member[new]
        starts = group_starts(group)
        numbers = member[starts]
        counts = np.diff(np.append(starts, len(group)))
        fresh: list[int] = []
        for at in np.flatnonzero(counts > 1).tolist():
            key = member[starts[at] : starts[at] + counts[at]].tobytes()
            if (number := self._sets.get(key)) is None:
                number = self._sets[key] = self.next + len(fresh)
                fresh.append(at)
            numbers[at] = number
        if fresh:
            sizes = counts[fresh]
            places, _ = spread(starts[fresh], sizes)
            begins, members = np.cumsum(sizes) - sizes, member[places]
            self._add_sets(*self._least_times(members, begins), begins, sizes, members)
        return numbers

    def ranges(self, members: Ints, begins: Ints, ends: Ints) -> Ints:
        """Numbers sets `members[begins:ends]` of distinct events, not sets, listed only on demand. Equal sets may have
        several numbers, but a set of one event has that event's."""
        many = np.flatnonzero(ends - begins > 1)
        numbers: Ints = members[begins]
        if len(many):
            numbers[many] = self._add_sets(NO_INTS, NO_INTS, begins[many], (ends - begins)[many], members)
        return numbers

    def _add_sets(self, t0: Ints, t1: Ints, begins: Ints, sizes: Ints, members: Ints) -> Ints:
        return self._add("", np.full(len(sizes), TOGETHER, np.int64), t0, t1, begins, sizes, members)

    def _least_times(self, members: Ints, begins: Ints) -> tuple[Ints, Ints]:
        t0, t1 = self._times(members)
        return np.minimum.reduceat(t0, begins), np.minimum.reduceat(t1, begins)

    def _flat(self, groups: Ints, members: Ints) -> tuple[Ints, Ints]:
        for block, places in self._places(distinct(members)):
            places = places[block.docids[places] == TOGETHER]
            if len(places):
                sets = block.numbers[places]
                at = np.minimum(np.searchsorted(sets, members), len(sets) - 1)
                is_set = sets[at] == members
                whose = places[at[is_set]]
                inner, of = spread(block.begins[whose], block.sizes[whose])
                groups = np.append(groups[~is_set], groups[is_set][of])
                members = np.append(members[~is_set], block.refers[inner])
        return groups, members

    def begin(self) -> None:
        """Begins an interval; its sets never equal earlier ones."""
        self._sets.clear()

    def _add(self, stream: str, docids: Ints, t0: Ints, t1: Ints, begins: Ints, sizes: Ints, refers: Ints) -> Ints:
        numbers = np.arange(self.next, self.next + len(docids))
        if len(numbers):
            self.next += len(numbers)
            streams = np.full(len(numbers), self._stream(stream), np.int64)
            self._blocks.append(_Block(numbers, streams, docids, t0, t1, begins, sizes, refers))
            self._size += len(numbers)
        return numbers

    def _stream(self, name: str) -> int:
        return self._streams.setdefault(name, len(self._streams))

    # ------------------------------------------------------------ looking up

    def origins(self, numbers: Ints) -> dict[int, EventOrigin]:
        """Returns what numbers stand for, without -1."""
        found: dict[int, EventOrigin] = {}
        streams = list(self._streams)
        for block in self._taken(distinct(numbers.ravel())):
            columns = block.numbers, block.streams, block.docids, block.t0, block.t1, block.begins, block.sizes
            every = block.refers.tolist()
            for number, stream, docid, t0, t1, begin, size in zip(*(one.tolist() for one in columns), strict=True):
                split = begin + DIGEST_NUMBERS if docid == COMPOSED else begin
                digest = np.array(every[begin:split], np.int64).tobytes()
                refers = tuple([one for one in every[split : begin + size] if one >= 0])
                nodes, parts = (refers, ()) if docid >= 0 else ((), refers)
                found[number] = EventOrigin(streams[stream], docid, t0, t1, nodes, digest, parts)
        return found

    def ends(self, numbers: Ints) -> Ints:
        """Returns the t1 of events; of a set, the least."""
        return self._times(numbers)[1]

    def _times(self, numbers: Ints) -> tuple[Ints, Ints]:
        known, at = np.unique(numbers, return_inverse=True)
        t0, t1 = np.zeros(len(known), np.int64), np.zeros(len(known), np.int64)
        for block, places in self._places(known):
            here = np.searchsorted(known, block.numbers[places])
            if not len(block.t0):
                block, places = self._timed(block, places), np.arange(len(places))
            t0[here], t1[here] = block.t0[places], block.t1[places]
        return t0[at], t1[at]

    def with_parts(self, numbers: Iterable[Ints]) -> Ints:
        """Returns these numbers and those of all events behind them, distinct and sorted."""
        found = waiting = distinct(np.concatenate([NO_INTS, *(part.ravel() for part in numbers)]))
        while len(waiting):
            behind = [NO_INTS]
            for block, places in self._places(waiting):
                places = places[block.docids[places] < 0]
                skipped = np.where(block.docids[places] == COMPOSED, DIGEST_NUMBERS, 0)
                at, _ = spread(block.begins[places] + skipped, block.sizes[places] - skipped)
                behind.append(block.refers[at])
            waiting = np.setdiff1d(np.concatenate(behind), found)
            found = np.union1d(found, waiting)
        return found[found >= 0]

    def _places(self, numbers: Ints) -> Iterator[tuple[_Block, Ints]]:
        """Yields the blocks of sorted numbers, with their places; of those that are known."""
        of = np.searchsorted(np.array([block.numbers[0] for block in self._blocks], np.int64), numbers, "right") - 1
        numbers, of = numbers[of >= 0], of[of >= 0]
        blocks, starts = np.unique(of, return_index=True)
        for at, begin, end in zip(blocks.tolist(), starts, np.append(starts, len(numbers))[1:], strict=True):
            block, some = self._blocks[at], numbers[begin:end]
            places = np.minimum(np.searchsorted(block.numbers, some), len(block.numbers) - 1)
            places = places[block.numbers[places] == some]
            if len(places):
                yield block, places

    def _timed(self, block: _Block, places: Ints) -> _Block:
        found = block.take(places)
        if len(found.t0):
            return found
        t0, t1 = self._least_times(found.refers, found.begins)
        return replace(found, t0=t0, t1=t1)

    def _taken(self, numbers: Ints) -> list[_Block]:
        return [self._timed(block, places) for block, places in self._places(numbers)]

    def oldest(self) -> Micros | None:
        """Returns the least t0 of all events; None without events."""
        return min((Micros(int(block.t0.min())) for block in self._blocks if len(block.t0)), default=None)

    # ------------------------------------------------------------ forgetting, saving

    @property
    def crowded(self) -> bool:
        """Whether the number of events has grown enough since the last `keep` to call it again."""
        return self._size > 2 * self._kept + 10_000

    def keep(self, used: Iterable[Ints]) -> None:
        """Drops all events except `used` and those behind them. Numbers are not reused."""
        kept = self._taken(self.with_parts(used))
        self._blocks = [_joined(kept)] if kept else []
        self._kept = self._size = sum(len(block.numbers) for block in kept)

    def table(self) -> pa.Table:
        """Returns all events as rows of LINEAGE."""
        return self._table([self._timed(block, np.arange(len(block.numbers))) for block in self._blocks])

    def rows(self, used: Iterable[Ints]) -> pa.Table:
        """Returns the events `used` and those behind them as rows of LINEAGE."""
        return self._table(self._taken(self.with_parts(used)))

    def _table(self, blocks: Sequence[_Block]) -> pa.Table:
        if not blocks:
            return LINEAGE.empty_table()
        every = _joined(blocks)
        streams = pa.array(self._streams, pa.string()).take(pa.array(every.streams))
        columns = (pa.array(one) for one in (every.docids, every.t0, every.t1))
        return pa.table([pa.array(every.numbers), streams, *columns, lists(every.refers, every.sizes)], LINEAGE)

    def restore(self, rows: pa.Table) -> None:
        """Adds events with their former numbers: rows of LINEAGE, in any order, with unused numbers."""
        if not len(rows):
            return
        rows = pa.concat_tables([self.table(), rows]).sort_by("number")
        streams = rows["stream"].combine_chunks().dictionary_encode()
        codes = np.array(list(map(self._stream, streams.dictionary.to_pylist())), np.int64)[streams.indices]
        refers, sizes = flatten_lists(rows, "refers")
        number, docid, t0, t1 = (rows[name].to_numpy() for name in ("number", "docid", "t0", "t1"))
        self._blocks = [_Block(number, codes, docid, t0, t1, np.cumsum(sizes) - sizes, sizes, refers)]
        self._size = len(rows)
        self.next = max(self.next, int(number[-1]) + 1)
