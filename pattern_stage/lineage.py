"""Lineage: numbers events and records what they were made of, in columnar blocks by stream and kind. An event of a
document is its stream, docid and nodes. A PUBLISHed event is composed: a digest and the numbers of its parts. The
events of an aggregate are a set, which is one part. Numbers live as long as something refers to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from common.arrays import Ints, distinct
from pattern_stage.columns import SetRanges, number_distinct, spread


@dataclass(frozen=True, slots=True)
class LineageBlock:
    """Events of one stream and kind, by ascending number. `refers` is padded with -1."""

    stream: str
    numbers: Ints
    docids: Ints
    t0: Ints
    t1: Ints
    refers: Ints

    def take(self, places: Ints) -> LineageBlock:
        return replace(
            self,
            numbers=self.numbers[places],
            docids=self.docids[places],
            t0=self.t0[places],
            t1=self.t1[places],
            refers=self.refers[places],
        )


def merge_blocks(blocks: Iterable[LineageBlock]) -> list[LineageBlock]:
    """Merges blocks of one stream and width."""
    kinds: dict[tuple[str, int, int], list[LineageBlock]] = {}
    for block in blocks:
        kinds.setdefault((block.stream, min(int(block.docids[0]), 0), block.refers.shape[1]), []).append(block)
    return [_joined(parts) if len(parts) > 1 else parts[0] for parts in kinds.values()]


def _joined(parts: Sequence[LineageBlock]) -> LineageBlock:
    def column(name: str) -> Ints:
        return np.concatenate([getattr(part, name) for part in parts])

    block = LineageBlock(
        parts[0].stream, column("numbers"), column("docids"), column("t0"), column("t1"), column("refers")
    )
    ascends = (block.numbers[1:] > block.numbers[:-1]).all()
    return block if ascends else block.take(np.argsort(block.numbers))


COMPOSED, TOGETHER = -1, -2
"""The docids of composed events and of sets of events."""

DIGEST_NUMBERS = 2
"""Number of int64s in a digest of 16 bytes."""

LINEAGE = pa.schema(
    [
        ("number", pa.int64()),
        ("stream", pa.string()),
        ("docid", pa.int64()),
        ("t0", pa.int64()),
        ("t1", pa.int64()),
        ("refers", pa.list_(pa.int64())),
    ]
)
"""Numbered events. `refers` has node ids; or a composed event's digest and parts; or a set's members."""

DocumentIds = Callable[[Collection[int]], Mapping[int, Any]]
"""Returns sortable ids of documents, the same in every store, by docid."""


def same_ids(docids: Collection[int]) -> Mapping[int, Any]:
    """Uses docids as document ids."""
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
        self._kept_blocks: list[LineageBlock] = []
        """One block per kind of event that was kept, by `_merged`."""
        self._recent: list[LineageBlock] = []
        """Blocks since then, in ascending order of numbers."""
        self._ranges = SetRanges()
        """Sets since then."""
        self._size = self._kept = 0
        self._sets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return self._size

    # ------------------------------------------------------------ numbering

    def of_documents(self, stream: str, docids: Ints, t0: Ints, t1: Ints, nodes: Ints) -> Ints:
        """Numbers events of documents. `nodes` has a row for each."""
        return self._add(stream, docids, t0, t1, nodes)

    def composed(self, stream: str, digests: Iterable[bytes], t0: Ints, t1: Ints, parts: Ints) -> Ints:
        """Numbers composed events; `parts` has their parts, -1 for none. A digest has 16 bytes."""
        numbers = np.frombuffer(b"".join(digests), np.int64).reshape(-1, DIGEST_NUMBERS)
        docids = np.full(len(t0), COMPOSED, np.int64)
        return self._add(stream, docids, t0, t1, np.concatenate([numbers, parts], axis=1))

    def together(self, parts: Ints, groups: Ints) -> Ints:
        """Returns a number for each group: that of the set of its rows' parts. Rows of `parts` are sorted by group;
        `groups` counts from 0 without gaps. Sets among the parts stand for their members. Until `begin`, equal sets
        have equal numbers; a set of one event has that event's number."""
        group, member = self._flat(np.repeat(groups, parts.shape[1]), parts.ravel())
        order = np.lexsort((member, group))
        group, member = group[order], member[order]
        new = np.append(True, (group[1:] != group[:-1]) | (member[1:] != member[:-1]))[: len(group)] & (member >= 0)
        group, member = group[new], member[new]
        starts = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
        numbers = member[starts]
        counts = np.diff(np.append(starts, len(group)))
        several = np.flatnonzero(counts > 1)
        fresh: list[int] = []
        # Small ones first, so that those of about one size are numbered together.
        for at in several[np.argsort(counts[several], kind="stable")].tolist():
            key = member[starts[at] : starts[at] + counts[at]].tobytes()
            number = self._sets.get(key)
            if number is None:
                number = self._sets[key] = self.next + len(fresh)
                fresh.append(at)
            numbers[at] = number
        self._add_sets(member, starts[fresh], counts[fresh])
        return numbers

    def ranges(self, members: Ints, begins: Ints, ends: Ints) -> Ints:
        """Numbers sets `members[begins:ends]` of distinct events, not sets, listed only on demand. Equal sets may have
        several numbers, but a set of one event has that event's."""
        many = np.flatnonzero(ends - begins > 1)
        numbers: Ints = members[begins]
        if len(many):
            numbers[many] = np.arange(self.next, self.next + len(many))
            self._ranges.add(self.next, members, begins[many], ends[many])
            self.next += len(many)
            self._size += len(many)
        return numbers

    def _add_sets(self, members: Ints, starts: Ints, counts: Ints) -> None:
        for begin, end, t0, t1, refers in self._columns(members, starts, counts):
            self._add("", np.full(end - begin, TOGETHER, np.int64), t0, t1, refers)

    def _columns(self, members: Ints, starts: Ints, counts: Ints) -> Iterator[tuple[int, int, Ints, Ints, Ints]]:
        """Yields ranges of members, small ones first, as columns: first, last, times, and members."""
        sizes = np.frexp(counts - 1.0)[1]  # no set is more than twice as long as another of its block
        bounds = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(counts)]
        for begin, end in pairwise(bounds):
            if begin == end:
                continue
            count = counts[begin:end]
            places, _ = spread(starts[begin:end], count)
            here = members[places]
            t0, t1 = (np.minimum.reduceat(times, np.cumsum(count) - count) for times in self._times(here))
            refers = np.full((end - begin, 1 << int(sizes[begin])), -1, np.int64)
            refers[np.arange(refers.shape[1]) < count[:, np.newaxis]] = here
            yield begin, end, t0, t1, refers

    def _listed(self, numbers: Ints) -> Iterator[LineageBlock]:
        members, counts = self._ranges.listed(numbers)
        order = np.argsort(counts, kind="stable")
        starts = np.cumsum(counts) - counts
        for begin, end, t0, t1, refers in self._columns(members, starts[order], counts[order]):
            here = order[begin:end]
            block = LineageBlock("", numbers[here], np.full(end - begin, TOGETHER, np.int64), t0, t1, refers)
            yield block.take(np.argsort(here))

    def _flat(self, groups: Ints, members: Ints) -> tuple[Ints, Ints]:
        for block, places in self._places(distinct(members)):
            if block.docids[0] == TOGETHER:
                sets = block.numbers[places]
                at = np.minimum(np.searchsorted(sets, members), len(sets) - 1)
                is_set = sets[at] == members
                inner = block.refers[places[at[is_set]]]
                groups = np.append(groups[~is_set], np.repeat(groups[is_set], inner.shape[1]))
                members = np.append(members[~is_set], inner)
        return groups, members

    def begin(self) -> None:
        """Begins an interval; its sets never equal earlier ones."""
        self._sets.clear()

    def _add(self, stream: str, docids: Ints, t0: Ints, t1: Ints, refers: Ints) -> Ints:
        numbers = np.arange(self.next, self.next + len(docids))
        if len(numbers):
            self.next += len(numbers)
            self._recent.append(LineageBlock(stream, numbers, docids, t0, t1, refers))
            self._size += len(numbers)
        return numbers

    # ------------------------------------------------------------ looking up

    def origins(self, numbers: Ints) -> dict[int, EventOrigin]:
        """Returns what numbers stand for, without -1."""
        found: dict[int, EventOrigin] = {}
        for block, places in self._places(distinct(numbers.ravel())):
            columns = block.numbers, block.docids, block.t0, block.t1, block.refers
            for number, docid, t0, t1, refers in zip(*(column[places].tolist() for column in columns), strict=True):
                if docid == TOGETHER:
                    found[number] = EventOrigin(
                        block.stream, docid, t0, t1, parts=tuple([part for part in refers if part >= 0])
                    )
                elif docid == COMPOSED:
                    digest = np.array(refers[:DIGEST_NUMBERS], np.int64).tobytes()
                    parts = tuple([part for part in refers[DIGEST_NUMBERS:] if part >= 0])
                    found[number] = EventOrigin(block.stream, docid, t0, t1, digest=digest, parts=parts)
                else:
                    found[number] = EventOrigin(
                        block.stream, docid, t0, t1, tuple([node for node in refers if node >= 0])
                    )
        return found

    def ends(self, numbers: Ints) -> Ints:
        """Returns the t1 of events; of a set, the least."""
        return self._times(numbers)[1]

    def _times(self, numbers: Ints) -> tuple[Ints, Ints]:
        known, at = np.unique(numbers, return_inverse=True)
        t0, t1 = np.zeros(len(known), np.int64), np.zeros(len(known), np.int64)
        for block, places in self._places(known):
            here = np.searchsorted(known, block.numbers[places])
            t0[here], t1[here] = block.t0[places], block.t1[places]
        return t0[at], t1[at]

    def with_parts(self, numbers: Iterable[Ints]) -> Ints:
        """Returns these numbers and those of all events behind them, distinct and sorted."""
        found = waiting = distinct(np.concatenate([np.zeros(0, np.int64), *(part.ravel() for part in numbers)]))
        while len(waiting):
            behind = [
                block.refers[places, DIGEST_NUMBERS if block.docids[0] == COMPOSED else 0 :].ravel()
                for block, places in self._places(waiting)
                if block.docids[0] < 0
            ]
            waiting = np.setdiff1d(np.concatenate([np.zeros(0, np.int64), *behind]), found)
            found = np.union1d(found, waiting)
        return found[found >= 0]

    def _places(self, numbers: Ints) -> Iterable[tuple[LineageBlock, Ints]]:
        numbers = numbers[numbers >= 0]
        unlisted = self._ranges.has(numbers)
        if unlisted.any():
            for block in self._listed(numbers[unlisted]):
                yield block, np.arange(len(block.numbers))
            numbers = numbers[~unlisted]
        recent = np.searchsorted(numbers, self._recent[0].numbers[0]) if self._recent else len(numbers)
        old, numbers = numbers[:recent], numbers[recent:]
        for block in self._kept_blocks:
            places = np.minimum(np.searchsorted(block.numbers, old), len(block.numbers) - 1)
            places = places[block.numbers[places] == old]
            if len(places):
                yield block, places
        if not len(numbers):
            return
        firsts = np.array([block.numbers[0] for block in self._recent], np.int64)
        of = np.searchsorted(firsts, numbers, "right") - 1
        blocks, starts = np.unique(of, return_index=True)
        for block_at, begin, end in zip(blocks.tolist(), starts, np.append(starts, len(numbers))[1:], strict=True):
            block = self._recent[block_at]
            yield block, np.searchsorted(block.numbers, numbers[begin:end])

    def oldest(self) -> int | None:
        """Returns the least t0 of all events; None without events."""
        return min((int(block.t0.min()) for block in self._blocks()), default=None)

    def _blocks(self) -> list[LineageBlock]:
        return [*self._kept_blocks, *self._recent]

    # ------------------------------------------------------------ forgetting, saving

    @property
    def crowded(self) -> bool:
        """Whether the number of events has grown enough since the last `keep` to call it again."""
        return self._size > 2 * self._kept + 10_000

    def keep(self, used: Iterable[Ints]) -> None:
        """Drops all events except `used` and those behind them. Numbers are not reused."""
        kept = self.with_parts(used)
        self._kept_blocks = merge_blocks([block.take(places) for block, places in self._places(kept)])
        self._recent = []
        self._ranges.clear()
        self._kept = self._size = sum(len(block.numbers) for block in self._kept_blocks)

    def table(self) -> pa.Table:
        """Returns all events as rows of LINEAGE."""
        return _table([*self._blocks(), *self._listed(self._ranges.numbers())])

    def rows(self, used: Iterable[Ints]) -> pa.Table:
        """Returns the events `used` and those behind them as rows of LINEAGE."""
        return _table(block.take(places) for block, places in self._places(self.with_parts(used)))

    def restore(self, rows: pa.Table) -> None:
        """Adds events with their former numbers: rows of LINEAGE, in any order, with unused numbers."""
        if not len(rows):
            return
        rows = pa.concat_tables([self.table(), rows]).sort_by("number").combine_chunks()
        streams = rows["stream"].combine_chunks().dictionary_encode()
        lists = rows["refers"].combine_chunks()
        widths = lists.value_lengths().to_numpy().astype(np.int64)
        refers, starts = lists.flatten().to_numpy(), np.cumsum(widths) - widths
        columns = [rows[name].to_numpy() for name in ("number", "docid", "t0", "t1")]
        kinds = [streams.indices.to_numpy().astype(np.int64), widths, np.minimum(columns[1], 0)]
        heads, kind_of = number_distinct(kinds)
        blocks = []
        for kind, head in enumerate(heads.tolist()):
            places = np.flatnonzero(kind_of == kind)
            part = refers[starts[places, np.newaxis] + np.arange(widths[head])]
            number, docid, t0, t1 = (column[places] for column in columns)
            blocks.append(LineageBlock(streams[head].as_py(), number, docid, t0, t1, part))
        self._kept_blocks, self._recent = merge_blocks(blocks), []
        self._ranges.clear()
        self._size = len(rows)
        self.next = max(self.next, int(columns[0][-1]) + 1)


def _table(blocks: Iterable[LineageBlock]) -> pa.Table:
    tables = []
    for block in blocks:
        offsets = np.arange(len(block.numbers) + 1, dtype=np.int32) * block.refers.shape[1]
        tables.append(
            pa.table(
                [
                    pa.array(block.numbers),
                    pa.repeat(block.stream, len(block.numbers)),
                    *map(pa.array, (block.docids, block.t0, block.t1)),
                    pa.ListArray.from_arrays(pa.array(offsets), pa.array(block.refers.ravel())),
                ],
                LINEAGE,
            )
        )
    return pa.concat_tables(tables) if tables else LINEAGE.empty_table()
