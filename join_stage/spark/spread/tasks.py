"""What the tasks of a spread join do: look up a bucket of the values, and pair the documents of a slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from join_stage.arrays import Ints, bisect_ranges
from join_stage.costs import Costs
from join_stage.joiner import RESULT
from join_stage.near.word_sets import WordSets
from join_stage.signature.disk.disk_run import DiskRun
from join_stage.signature.disk.paged_records import Field
from join_stage.signature.disk.run_file import RunFile
from join_stage.signature.matches import FactorisedMatches
from join_stage.signature.pairing import PairedRuns, Pairing
from join_stage.signature.row_index import RowIndex
from join_stage.signature.run import AskedValues
from join_stage.signature.satisfied_rows import Streams
from join_stage.signature.values import Values
from join_stage.spark.spread.batch_run import part_of, whole_run
from join_stage.spark.spread.kept import FILES, RowMeanings
from join_stage.spark.spread.located_run import Located, LocatedRun
from join_stage.store.spark.data_files import find_rows
from templates.witness import R_DOC

_DIGESTS = 1 << 64


class StoredRun(NamedTuple):
    """A run on disk: its file, and the time before which its documents are evicted, if any."""

    path: Path
    low: int | None


@dataclass(frozen=True, slots=True)
class SpreadBatch:
    """What all tasks of a batch know: the file of its postings, None if it has none, and those of earlier documents;
    the first docids of the slices of its documents; the number of buckets of values; the pairs of streams that are
    joined; and the files of R_doc, if texts are joined by their words."""

    batch: Path | None
    others: tuple[StoredRun, ...]
    slices: tuple[int, ...]
    buckets: int
    streams: Streams
    texts: tuple[str, ...]

    def texts_of(self, docids: pa.Array) -> pa.Table:
        """The rows of R_doc of some documents."""
        return pa.concat_tables([R_DOC.empty_table(), *find_rows(self.texts, R_DOC, "docid", docids)])


Shuffled = tuple[int, Located | bytes]
"""The number of a slice, and what is found for it: groups of a run, or matches of rows without a join as an Arrow
stream."""


def locate(told: SpreadBatch, bucket: int) -> Iterator[Shuffled]:
    """Looks up the values of the batch in a bucket, a part of all digests, in all runs. Yields the groups that have
    them, for each slice with documents that ask."""
    if told.batch is None:
        return
    FILES.keep({told.batch, *(stored.path for stored in told.others)})
    first, end = bucket * _DIGESTS // told.buckets, (bucket + 1) * _DIGESTS // told.buckets
    batch = FILES.open(told.batch)
    low, high = _between(batch, first, end)
    if low == high:
        return
    groups = batch.groups.range(low, high)
    digests = np.stack([groups["high"], groups["low"]], axis=1)
    asking = _slices_of(told, batch, groups["start"].astype(np.int64), high)
    for number, stored in enumerate(told.others):
        file = FILES.open(stored.path)
        run = DiskRun(file, np.zeros(len(file.head.classes), np.int64), stored.low)
        place, starts, ends = run.groups_with(digests, file.index_between(first, end))
        for slice_number in range(len(told.slices)):
            some = asking[place, slice_number]
            if some.any():
                yield slice_number, Located(number, place[some] + low, starts[some], ends[some])


def _between(file: RunFile, first: int, end: int) -> tuple[int, int]:
    """The range of the groups whose digests have a high half from `first` on and before `end`."""
    highs = Field(file.groups, "high")
    count = len(highs)
    bounds = np.array([first, min(end, _DIGESTS - 1)], np.uint64)
    low, high = bisect_ranges(highs, np.zeros(2, np.int64), np.full(2, count), bounds).tolist()
    return low, count if end == _DIGESTS else high


def _slices_of(
    told: SpreadBatch, batch: RunFile, start: Ints, after: int
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Which slices have documents in which groups of the batch, of shape (groups, slices). The groups are consecutive:
    `start` has their first postings, and the group `after` is the first that is not among them."""
    last = int(batch.groups.range(after, after + 1)["start"][0]) if after < batch.head.groups else batch.head.postings
    docids = batch.postings.range(int(start[0]), last)["docid"].astype(np.int64) + batch.head.base
    of_posting = np.array(told.slices).searchsorted(docids, "right") - 1
    group = np.repeat(np.arange(len(start)), np.diff(start, append=last))
    found = np.zeros((len(start), len(told.slices)), np.bool_)
    found[group, of_posting] = True
    return found


def pair(told: SpreadBatch, rows: RowIndex, number: int, shuffled: Iterable[Shuffled]) -> FactorisedMatches:
    """The matches between the documents of a slice and all others: those of the batch, and earlier ones. Of two
    documents of the batch, the slice of the right one has the matches."""
    meanings = RowMeanings(rows)
    located: dict[int, list[Located]] = {}
    filtered: list[pa.RecordBatch] = []
    for _, one in shuffled:
        if isinstance(one, Located):
            located.setdefault(one.run, []).append(one)
        else:
            filtered += pa.ipc.open_stream(one)
    found = [] if told.batch is None else list(_paired(told, told.batch, meanings, number, located))
    return FactorisedMatches(rows, Costs(), found, filtered, WordSets(told.texts_of))


def _paired(
    told: SpreadBatch, batch: Path, meanings: RowMeanings, number: int, located: dict[int, list[Located]]
) -> Iterator[PairedRuns]:
    whole = whole_run(FILES.open(batch), meanings.number_of)
    ends = [*told.slices[1:], int(whole.docid[-1]) + 1]
    run, groups = part_of(whole, told.slices[number], ends[number])
    if not len(run):
        return
    asked = AskedValues(run.value, Values())
    pairing = Pairing(meanings.rows, meanings.classes, meanings.sets, told.streams)
    yield from pairing.paired(run, asked, whole, [False])
    for place in sorted(located):
        stored = told.others[place]
        file = FILES.open(stored.path)
        other = LocatedRun(file, meanings.numbers(file), stored.low, located[place], groups)
        yield from pairing.paired(run, asked, other, [False, True])


def slices_of(docids: Sequence[int], most: int) -> tuple[int, ...]:
    """The first docids of at most so many slices of a batch, about as long as each other. `docids` are sorted."""
    count = min(most, len(docids))
    return tuple(docids[place * len(docids) // count] for place in range(count))


def by_slice(matches: Iterable[pa.RecordBatch], slices: Sequence[int]) -> Iterator[Shuffled]:
    """Matches of rows without a join, each batch of them in the slices of their documents."""
    for batch in matches:
        of = np.array(slices).searchsorted(batch["docid1"].to_numpy(), "right") - 1
        for number in np.unique(of).tolist():
            yield number, as_stream([batch.filter(pa.array(of == number))])


def as_stream(matches: Iterable[pa.RecordBatch]) -> bytes:
    """Matches as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RESULT) as stream:
        for batch in matches:
            stream.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content
