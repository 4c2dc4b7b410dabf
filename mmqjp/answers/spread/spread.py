"""Has executors answer the matches of a large batch, and write the answers. The driver numbers them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import RDD, Broadcast, StorageLevel, TaskContext
from pyspark.errors import PySparkException

from join_stage.joiner import RESULT, Matches
from join_stage.signature.matches import FactorisedMatches
from join_stage.spark.engine import SparkEngine
from join_stage.spark.spread.matches import SpreadMatches
from join_stage.store.spark.loss import telling_loss
from mmqjp.answers.answer import Answer
from mmqjp.answers.answer_rows import count_recipients
from mmqjp.answers.quota import Quota
from mmqjp.answers.spread.shipped_queries import ShippedQueries
from mmqjp.answers.spread.tasks import (
    DRIVER,
    SUMMARY,
    BatchDocuments,
    Counts,
    RangeStart,
    SpreadStep,
    Summary,
    Told,
    Writing,
    WrittenRange,
    answer_slice,
    write_range,
)
from mmqjp.answers.spread.written_outputs import RangeFiles
from mmqjp.answers.usage import Accounts, Cutoffs
from mmqjp.documents.record import Record
from mmqjp.documents.records import Records
from mmqjp.queries.members import Members
from mmqjp.queries.registry import Registry
from mmqjp.queries.row_targets import LiteralGroup
from mmqjp.tables.ledger import Ledger

TABLES_OF_ANSWERS = ("answers", "withheld", "answer_matches", "match_rows")


@dataclass(frozen=True, slots=True)
class _Found:
    """What executors have found in the running step, with the queries that they were sent, and keep until it is
    written: in each range of times so much, with matches from these numbers on."""

    told: RDD[Told]
    step: SpreadStep
    queries: Broadcast[ShippedQueries]
    counts: list[Counts]
    matches: list[int]


@telling_loss
class SpreadAnswers:
    """Answers the matches of large batches on executors.

    A step calls `answer` once, and then `write` or `discard`. These raise Spark's errors.
    """

    def __init__(self, store: SparkEngine, ledger: Ledger, registry: Registry, records: Records, quota: Quota) -> None:
        self._store, self._ledger, self._registry, self._records = store, ledger, registry, records
        self._quota = quota
        self._shipped: tuple[int, Broadcast[ShippedQueries]] | None = None
        self._found: _Found | None = None

    def answer(
        self, matches: Matches, records: Sequence[Record], accounts: Accounts, block: int, cutoffs: Cutoffs
    ) -> tuple[Matches, frozenset[str]]:
        """Answers the matches of the documents of a batch, which have entered, and charges the accounts.

        Returns the matches that only the driver can answer, and the ids of the forms that have answers. If the matches
        were not found by executors, these are all of them.
        """
        self.discard()
        if not isinstance(matches, SpreadMatches):
            return matches, frozenset()
        self._records.write()
        step = SpreadStep(
            tuple(self._store.write_out("documents")),
            BatchDocuments(records[0].docid, records[0].arrival, len(records)),
            self._ledger.batch,
            self._quota,
            block,
            dict(cutoffs),
            _times(records, self._store.parallelism),
        )
        shipped = self._queries()
        told = matches.answered(partial(_answered, step, shipped)).persist(StorageLevel.DISK_ONLY)
        summaries: list[Summary] = [pickle.loads(one) for _, (_, one) in told.filter(_is_summary).collect()]
        counts = [Counts() for _ in range(step.ranges)]
        for summary in summaries:
            for all_, one in zip(counts, summary.counts, strict=True):
                all_.add(one)
            accounts.add_charges(summary.charges, self._groups(summary.literals))
        matches.note(cost for summary in summaries for cost in summary.costs)
        ends = list(accumulate((one.matches for one in counts), initial=self._ledger.next_match))
        self._ledger.next_match = ends[-1]
        self._found = _Found(told, step, shipped, counts, ends[:-1])
        return _rest(summaries), frozenset(form for summary in summaries for form in summary.forms)

    def _groups(self, charged: Iterable[tuple[int, str]]) -> Iterator[LiteralGroup]:
        """Yields the groups of literals of these rows and ids."""
        for row, id in charged:
            for part in self._registry.parts_of_row(row):
                if isinstance(part, LiteralGroup) and part.queries.id == id:
                    yield part

    def _queries(self) -> Broadcast[ShippedQueries]:
        version = self._registry.version
        if self._shipped is None or self._shipped[0] != version:
            if self._shipped is not None:
                self._shipped[1].destroy()
            rows = {target.row for owner in self._registry.owners() for target in owner.targets}
            queries = ShippedQueries(self._registry, rows)
            self._shipped = version, self._store.context.broadcast(queries)
        return self._shipped[1]

    def write(self, own: Sequence[Answer], members: Mapping[str, Members]) -> list[RangeFiles] | None:
        """Writes the answers of the step, with the driver's `own`, and numbers them and their outputs. `members` has
        those of each form.

        Returns the files of each range, in the order of their times; None if executors have no answers.
        """
        found, ledger = self._found, self._ledger
        if found is None or not any(one.answers for one in found.counts):
            return None
        step = found.step
        of_range: list[list[Answer]] = [[] for _ in range(step.ranges)]
        counts = [Counts(0, one.answers, one.outputs) for one in found.counts]
        for answer in own:
            if answer.form in members and (got := count_recipients(answer, members[answer.form], step.batch)):
                number = step.range_of(answer.t1)
                of_range[number].append(answer)
                counts[number].add(Counts(0, 1, got))
        answers = list(accumulate((one.answers for one in counts), initial=ledger.next_answer))
        seqs = list(accumulate((one.outputs for one in counts), initial=ledger.next_seq))
        writing = Writing(
            tuple(map(RangeStart, found.matches, answers, seqs)),
            tuple((one.matches, one.answers, one.outputs) for one in found.counts),
            {table: self._store.folder(table) for table in TABLES_OF_ANSWERS},
            self._store.prefix_for_others(TABLES_OF_ANSWERS),
            self._store.emptied_scratch(),
        )
        ours = [
            (number, (DRIVER, pickle.dumps((some, {one.form: members[one.form] for one in some}))))
            for number, some in enumerate(of_range)
            if some
        ]
        told = found.told.filter(_is_range)
        if ours:
            told = told.union(self._store.context.parallelize(ours, 1))
        written = (
            told.partitionBy(step.ranges, _same)
            .mapPartitionsWithIndex(partial(_write, step, found.queries, writing))
            .collect()
        )
        self.discard()
        files: list[RangeFiles] = []
        for _, tables, lines, pieces in sorted(written, key=_number):
            for table, file in tables.items():
                self._store.adopt(table, file)
            paths = {table: self._store.folder(table) / file.name for table, file in tables.items()}
            files.append(RangeFiles(paths, lines, pieces))
        ledger.next_answer, ledger.next_seq = answers[-1], seqs[-1]
        return files

    def discard(self) -> None:
        """Lets go of what executors keep."""
        found, self._found = self._found, None
        if found is not None:
            with suppress(Py4JError, PySparkException, ConnectionError):  # if it is gone, so is what it keeps
                found.told.unpersist()


def _times(records: Sequence[Record], most: int) -> tuple[int, ...]:
    """Returns the times at which at most so many ranges begin, but for the first: a batch's documents end in each of
    them about as often."""
    ends = sorted(record.t1 for record in records)
    return tuple(sorted({ends[place * len(ends) // most] for place in range(1, most)}))


def _rest(summaries: Iterable[Summary]) -> pa.Table:
    streams = [pa.ipc.open_stream(one.rest).read_all() for one in summaries if one.rest is not None]
    return pa.concat_tables([RESULT.empty_table(), *streams])


# ------------------------------------------------------------ on executors


def _answered(
    step: SpreadStep, queries: Broadcast[ShippedQueries], number: int, matches: FactorisedMatches
) -> Iterator[Told]:
    return answer_slice(step, queries.value, number, matches)


def _write(
    step: SpreadStep, queries: Broadcast[ShippedQueries], writing: Writing, number: int, told: Iterator[Told]
) -> Iterator[WrittenRange]:
    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    yield write_range(step, queries.value, writing, number, context.taskAttemptId(), told)


def _is_summary(told: Told) -> bool:
    return told[0] == SUMMARY


def _is_range(told: Told) -> bool:
    return told[0] != SUMMARY


def _same(number: int) -> int:
    return number


def _number(written: WrittenRange) -> int:
    return written.number
