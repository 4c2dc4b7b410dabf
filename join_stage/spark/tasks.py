"""The join of a large batch by tasks on Spark's executors, and merges on executors. The driver writes the postings of
the batch to a run file and ships the rows of R_T when they change. Each task pairs the documents of one slice of the
batch with the groups of their values in all runs. If the indexes of the runs are large, a stage before that finds these
groups, a bucket of the values in each task. Matches are read where they are found or in the driver. Run files stay open
in a process from task to task."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext, TaskContext
from pyspark.errors import PySparkException

from common.arrays import Ints, Mask, group_starts, packed, unpacked
from common.executors import Shipment, Shipped, in_task, run_tasks, with_shipped
from common.files import sync_directory
from join_stage.near_candidates import WordSets
from join_stage.protocol import RESULT, Cost, Costs, JoinScope
from join_stage.signature.disk import Merger, merge_disk_runs
from join_stage.signature.join import CHUNK, FactorisedMatches, PairedRuns, Pairing
from join_stage.signature.postings import (
    AskedValues,
    PathClasses,
    PostingRun,
    RowIndex,
    Streams,
    ValueDictionary,
    only_postings,
)
from join_stage.signature.runs import BLOCK, FENCE, FINGERPRINTS, DiskRun, Field, PagePool, RunFile, digests_between
from join_stage.store.protocol import DamagedRun, StoreError
from join_stage.store.spark.manifests import DataFile, Merging, find_rows, merge_files
from join_stage.store.spark.session import loss
from templates.witness import R_DOC


def whole_run(file: RunFile, classes: PathClasses) -> PostingRun:
    """Loads a run file. Values are numbered in digest order."""
    head = file.head
    groups, postings = file.groups.range(0, head.groups), file.postings.range(0, head.postings)
    numbers = classes.numbers(head.classes)
    value = np.zeros(head.groups, np.int64)
    value[group_starts(groups["high"], groups["low"])] = 1
    instance = postings["instance"].astype(np.int64)
    docids = postings["docid"].astype(np.int64) + head.base
    docid, first, document = np.unique(docids, return_index=True, return_inverse=True)
    time = postings["time"].astype(np.int64)
    t0 = time[first]
    duration = postings["duration"][first].astype(np.int64) if head.layout.lasting else 0
    top, of_instance = np.zeros((2, head.instances), np.int64)
    top[instance], of_instance[instance] = postings["top"], document
    return PostingRun(
        value=np.cumsum(value) - 1,
        path_class=numbers[groups["path_class"].astype(np.int64)],
        start=np.append(groups["start"].astype(np.int64), head.postings),
        time=time,
        node=postings["node"].astype(np.int64),
        inner=postings["inner"].astype(np.int64) if head.layout.longest else np.zeros((len(postings), 0), np.int64),
        instance=instance,
        top=top,
        document=of_instance,
        docid=docid,
        t0=t0,
        t1=t0 + duration,
    )


def slice_postings(whole: PostingRun, first: int, end: int) -> tuple[PostingRun, Ints]:
    """The postings of documents with `first` <= docid < `end`, and their groups' indices in the whole run."""
    docids = whole.docid[whole.documents]
    kept = (docids >= first) & (docids < end)
    part = only_postings(whole, kept, np.ones(len(whole.top), np.bool_), np.ones(len(whole.docid), np.bool_))
    # Pairs of documents of one batch are recognised by the identity of this array.
    return replace(part, docid=whole.docid), np.unique(whole.group[kept])


MOST_FILES = 64  # maximum number of open run files


class KeptFiles:
    """An LRU cache of open run files, which never change."""

    def __init__(self) -> None:
        self._pool = PagePool()
        self._files: OrderedDict[Path, RunFile] = OrderedDict()

    def open(self, path: Path) -> RunFile:
        """Raises StoreError if the file does not exist on this machine, and DamagedRun."""
        file = self._files.get(path)
        if file is None:
            try:
                file = self._files[path] = RunFile(path, self._pool)
            except DamagedRun as error:
                if path.exists():
                    raise
                raise StoreError(
                    f"{error}, for an executor of Spark: the state directory must be on a file system that the driver "
                    "and all executors have at the same place"
                ) from error
            if len(self._files) > MOST_FILES:
                self._files.popitem(last=False)
        self._files.move_to_end(path)
        return file

    def keep(self, paths: Container[Path | None]) -> None:
        """Closes all other files; space of removed files is free only then."""
        for path in [path for path in self._files if path not in paths]:
            del self._files[path]


FILES = KeptFiles()


class Located(NamedTuple):
    """Groups of run number `run` with values of the batch; parallel: its groups (ascending), `start`, `end`."""

    run: int
    group: Ints
    start: Ints
    end: Ints


class LocatedRun(DiskRun):
    """A `DiskRun` with located groups, without an index; `asked`: the places in the batch of those that look up."""

    def __init__(self, file: RunFile, classes: Ints, low: int | None, located: Sequence[Located], asked: Ints) -> None:
        super().__init__(file, classes, low)
        first, last = np.zeros((2, len(asked)), np.int64)
        for part in located:
            at = np.minimum(asked.searchsorted(part.group), len(asked) - 1)
            met = asked[at] == part.group
            first[at[met]], last[at[met]] = part.start[met], part.end[met]
        self._ranges = first, last

    def groups_of(self, asked: AskedValues) -> tuple[Ints, Ints]:
        return self._ranges


_DIGESTS = 1 << 64


class StoredRun(NamedTuple):
    """A run on disk and the time before which its documents are evicted, if any."""

    path: Path
    low: int | None


@dataclass(frozen=True, slots=True)
class SpreadBatch:
    """The description of a batch for all tasks: the file of its postings, if any, and the earlier runs; the first
    docids of its slices; the number of buckets, 0 if each slice looks up its own values; the joined streams; the files
    of R_doc, if words join texts."""

    batch: Path | None
    others: tuple[StoredRun, ...]
    slices: tuple[int, ...]
    buckets: int
    streams: Streams
    texts: tuple[str, ...]

    @property
    def runs(self) -> set[Path | None]:
        return {self.batch, *(stored.path for stored in self.others)}

    def texts_of(self, docids: pa.Array) -> pa.Table:
        return pa.concat_tables([R_DOC.empty_table(), *find_rows(self.texts, R_DOC, "docid", docids)])


Shuffled = tuple[int, Located | bytes]
"""The number of a slice, and its finding: groups of a run, or matches of rows without a join as an Arrow stream."""


@in_task
def locate(spread: SpreadBatch, bucket: int) -> Iterator[Shuffled]:
    """Looks up the batch's values in a bucket of digests in all runs. Yields their groups, by slice with them."""
    if spread.batch is None:
        return
    FILES.keep(spread.runs)
    first, end = bucket * _DIGESTS // spread.buckets, (bucket + 1) * _DIGESTS // spread.buckets
    batch = FILES.open(spread.batch)
    low, high = digests_between(Field(batch.groups, "high"), first, end)
    if low == high:
        return
    groups = batch.groups.range(low, high)
    digests = np.stack([groups["high"], groups["low"]], axis=1)
    asking = _slices_of(spread, batch, groups["start"].astype(np.int64), high)
    for number, stored in enumerate(spread.others):
        file = FILES.open(stored.path)
        run = DiskRun(file, np.zeros(len(file.head.classes), np.int64), stored.low)
        place, starts, ends = run.groups_with(digests, file.index_between(first, end))
        for slice_number in range(len(spread.slices)):
            some = asking[place, slice_number]
            if some.any():
                yield slice_number, Located(number, place[some] + low, starts[some], ends[some])


def _slices_of(spread: SpreadBatch, batch: RunFile, start: Ints, after: int) -> Mask:
    """Mask of shape (groups, slices): which slices have documents in which groups of the batch. Groups are consecutive,
    up to `after`; `start` has their first postings."""
    last = int(batch.groups.range(after, after + 1)["start"][0]) if after < batch.head.groups else batch.head.postings
    docids = batch.postings.range(int(start[0]), last)["docid"].astype(np.int64) + batch.head.base
    of_posting = np.array(spread.slices).searchsorted(docids, "right") - 1
    group = np.repeat(np.arange(len(start)), np.diff(start, append=last))
    found = np.zeros((len(start), len(spread.slices)), np.bool_)
    found[group, of_posting] = True
    return found


def pair(spread: SpreadBatch, rows: RowIndex, number: int, shuffled: Iterable[Shuffled]) -> FactorisedMatches:
    """The matches between a slice and all other documents; within the batch, the right document's slice has them."""
    located: dict[int, list[Located]] = {}
    filtered: list[pa.RecordBatch] = []
    for _, one in shuffled:
        if isinstance(one, Located):
            located.setdefault(one.run, []).append(one)
        else:
            filtered += unpacked(one).to_batches()
    found = [] if spread.batch is None else list(_paired(spread, spread.batch, rows, number, located))
    return FactorisedMatches(rows, Costs(), found, filtered, WordSets(spread.texts_of))


def _paired(
    spread: SpreadBatch, batch: Path, rows: RowIndex, number: int, located: dict[int, list[Located]]
) -> Iterator[PairedRuns]:
    # Data derived from the rows is rebuilt in each task, so that a repeated task gives the same order.
    classes = PathClasses(rows)
    file = FILES.open(batch)
    whole = whole_run(file, classes)
    ends = [*spread.slices[1:], int(whole.docid[-1]) + 1]
    run, groups = slice_postings(whole, spread.slices[number], ends[number])
    if not len(run):
        return
    asked = AskedValues(run.value, ValueDictionary())
    if not spread.buckets:
        FILES.keep(spread.runs)
        digests = file.groups.at(groups)
        asked.by_digest = np.arange(len(groups)), np.stack([digests["high"], digests["low"]], axis=1)
    pairing = Pairing(rows, classes, spread.streams)
    yield from pairing.paired(run, asked, whole, [False])
    for place in sorted(located) if spread.buckets else range(len(spread.others)):
        stored = spread.others[place]
        file = FILES.open(stored.path)
        known = file, classes.numbers(file.head.classes), stored.low
        other = LocatedRun(*known, located[place], groups) if spread.buckets else DiskRun(*known)
        yield from pairing.paired(run, asked, other, [False, True])


def by_slice(matches: Iterable[pa.RecordBatch], slices: Sequence[int]) -> Iterator[Shuffled]:
    """Assigns matches of rows without a join to the slices of their documents."""
    for batch in matches:
        of = np.array(slices).searchsorted(batch["docid1"].to_numpy(), "right") - 1
        for number in np.unique(of).tolist():
            yield number, as_stream([batch.filter(pa.array(of == number))])


def as_stream(matches: Iterable[pa.RecordBatch]) -> bytes:
    return bytes(packed(pa.Table.from_batches(matches, RESULT)))


T = TypeVar("T")

_MatchHandler = Callable[[int, FactorisedMatches], Iterator[T]]
"""A task's handler: gets the slice's number and its matches, which it must read."""


@dataclass(frozen=True)
class SpreadMatches:
    """The matches of a batch, a slice per task, to be read before the rows change. Reading raises Spark's errors."""

    _context: SparkContext
    _spread: SpreadBatch
    _rows: Shipment[RowIndex]
    _filtered: Sequence[Shuffled]
    _costs: Costs

    @property
    def slices(self) -> Sequence[int]:
        """The first docids of the slices of the batch."""
        return self._spread.slices

    def answered(self, answer: _MatchHandler[T]) -> RDD[T]:
        """Applies `answer` to each slice, a partition each, lazily."""
        buckets, count = self._spread.buckets, len(self._spread.slices)
        if buckets:
            located = self._context.parallelize(range(buckets), buckets).flatMap(partial(locate, self._spread))
            if self._filtered:
                located = located.union(self._context.parallelize(self._filtered, 1))
            shuffled = located.partitionBy(count, index)
        else:
            of_slices = [[one for one in self._filtered if one[0] == number] for number in range(count)]
            shuffled = self._context.parallelize(of_slices, count).flatMap(iter)
        return shuffled.mapPartitionsWithIndex(with_shipped(_answered, self._rows, self._spread, answer))

    def note(self, costs: Iterable[Cost]) -> None:
        """Adds the costs of reading matches."""
        of_templates: dict[tuple[int, ...], Cost] = {}
        for cost in costs:
            known = of_templates.get(cost.templates, Cost(0, 0, cost.templates))
            both = Cost(known.seconds + cost.seconds, known.matches + cost.matches, cost.templates)
            of_templates[cost.templates] = both
        for cost in of_templates.values():
            self._costs.add(cost)

    @property
    def num_rows(self) -> int:
        return self.answered(lambda _, matches: iter([matches.num_rows])).sum()

    def to_batches(self, max_chunksize: int = CHUNK) -> Iterator[pa.RecordBatch]:
        """Batches of RESULT, of at most `max_chunksize` rows, fetched a slice at a time."""
        found = self.answered(lambda _, matches: (as_stream([batch]) for batch in matches.to_batches())).persist()
        try:
            for stream in found.toLocalIterator():
                for batch in unpacked(stream).to_batches():
                    for start in range(0, batch.num_rows, max_chunksize):
                        yield batch.slice(start, max_chunksize)
        finally:
            found.unpersist()


@in_task
def _answered(
    rows: RowIndex, spread: SpreadBatch, answer: _MatchHandler[T], number: int, shuffled: Iterator[Shuffled]
) -> Iterator[T]:
    yield from answer(number, pair(spread, rows, number, shuffled))


_FAILURES = (Py4JError, PySparkException, ConnectionError)


class SparkMerger(Merger):
    """Runs each merge as a one-task job."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def merge(self, runs: Sequence[DiskRun], path: Path, is_stopped: Callable[[], bool]) -> None:
        inputs = [StoredRun(run.file.path, run.low) for run in runs]
        self._context.addJobTag(_tag(path))
        try:
            if not is_stopped():
                run_tasks(self._context, partial(_merge, inputs), [path])
        except _FAILURES as error:
            _remove_drafts(path)
            if isinstance(found := loss(error), DamagedRun):
                raise found from error
            raise OSError(f"an executor did not merge runs: {error}") from error
        finally:
            self._context.removeJobTag(_tag(path))

    def stop(self, path: Path) -> None:
        self._context.cancelJobsWithTag(_tag(path))


def _tag(path: Path) -> str:
    return f"merge {path.name}"


def _merge(inputs: Sequence[StoredRun], path: Path) -> None:
    runs = []
    for one, low in inputs:
        file = RunFile(one, PagePool())
        runs.append(DiskRun(file, np.zeros(len(file.head.classes), np.int64), low))
    with _draft_of(path) as draft:
        for _ in merge_disk_runs(runs, draft):
            pass


def task_attempt() -> int:
    """A number that other attempts of the running task do not have."""
    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    return context.taskAttemptId()


@contextmanager
def _draft_of(path: Path) -> Iterator[Path]:
    """The path of a file that is renamed to `path` at the end; each attempt of a task has its own."""
    draft = path.with_suffix(f".{task_attempt()}")
    try:
        yield draft
        if path.exists():  # another attempt finished first
            draft.unlink()
        else:
            draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _remove_drafts(path: Path) -> None:
    for draft in path.parent.glob(f"{path.stem}.*"):
        if draft.suffix != path.suffix:
            draft.unlink(missing_ok=True)


def merge_on_executor(context: SparkContext, merging: Merging) -> DataFile:
    """Runs `merge_files` on an executor, or here if that fails."""
    try:
        (file,) = run_tasks(context, _merge_files, [merging])
        return file
    except _FAILURES:
        _remove_drafts(merging.path)
        return merge_files(merging)


def _merge_files(merging: Merging) -> DataFile:
    with _draft_of(merging.path) as draft:
        file = merge_files(merging._replace(path=draft))
    return replace(file, name=merging.path.name)


LEAST_DOCUMENTS = 2_000
"""Below this number of documents the driver joins a batch alone: starting tasks would take longer."""

MOST_INDEX = 64 << 20
"""Maximum bytes of run indexes in the memory of a process: for a join on the driver, or one whose tasks look up all
values of their documents. That saves a stage, whose tasks look up a part of all values for others."""


def _index_bytes(runs: Iterable[DiskRun]) -> float:
    return sum(run.file.head.groups for run in runs) * (FENCE.itemsize + FINGERPRINTS.itemsize) / BLOCK


class Spread:
    """Joins batches on the executors of a session. Ships the rows of R_T when they have changed."""

    def __init__(self, context: SparkContext, rows: RowIndex, costs: Costs) -> None:
        self._context, self._rows, self._costs = context, rows, costs
        self._shipped = Shipped[RowIndex](context)

    def takes(self, documents: int, others: Iterable[DiskRun]) -> bool:
        """Whether a batch of this size is joined with runs on disk by tasks."""
        if documents >= LEAST_DOCUMENTS:
            return True
        return documents > 0 and _index_bytes(others) > MOST_INDEX

    def matches(
        self,
        docids: Sequence[int],
        batch: DiskRun | None,
        others: Sequence[DiskRun],
        filtered: Iterable[pa.RecordBatch],
        scope: JoinScope,
        texts: Sequence[str] = (),
    ) -> SpreadMatches:
        """The matches of a batch's run with itself and others. `docids` ascend; `texts`: files of R_doc, if needed."""
        count = min(self._context.defaultParallelism, len(docids))
        slices = tuple(docids[place * len(docids) // count] for place in range(count))
        near = [run for run in others if batch is None or batch.span.is_within(scope.window, run.span)]
        spread = SpreadBatch(
            None if batch is None else batch.file.path,
            tuple(StoredRun(run.file.path, run.low) for run in near),
            slices,
            self._context.defaultParallelism if _index_bytes(near) > MOST_INDEX else 0,
            scope.streams,
            tuple(texts),
        )
        shipped = self._shipped.of(self._rows.version, lambda: self._rows)
        return SpreadMatches(self._context, spread, shipped, list(by_slice(filtered, slices)), self._costs)

    def close(self) -> None:
        """Makes the executors drop the rows."""
        self._shipped.drop()
