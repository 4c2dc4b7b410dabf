"""What the tasks of a spread step do: answer the matches of a slice of documents, and write the answers of a range of
times."""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from common.private import open_like_directory
from join_stage.costs import Cost
from join_stage.signature.matches import FactorisedMatches
from join_stage.spark.spread.tasks import as_stream
from join_stage.store.spark.data_files import find_rows, write_rows
from join_stage.store.spark.manifests import DataFile
from mmqjp.answers.answer import Answer
from mmqjp.answers.answer_rows import answer_rows, by_answer, count_recipients
from mmqjp.answers.arrivals import Arrivals
from mmqjp.answers.charges import Book
from mmqjp.answers.expand import Expansion
from mmqjp.answers.fan_out import FanOut
from mmqjp.answers.match_reader import MATCH_CHUNK, MatchReader
from mmqjp.answers.operators import StepContext
from mmqjp.answers.query_operator import QueryOperator
from mmqjp.answers.quota import Quota
from mmqjp.answers.spread.shipped_queries import ShippedQueries
from mmqjp.answers.spread.written_outputs import Piece
from mmqjp.answers.stored_usage import Before
from mmqjp.answers.usage import Accounts, Cutoff
from mmqjp.documents.records import StoredRecords
from mmqjp.queries.members import Ints, Members
from mmqjp.tables.answers import TABLES
from mmqjp.tables.documents import DOCUMENTS

SUMMARY = -1
"""Stands for a range of times where a task tells the driver what there is."""

DRIVER = -1
"""Stands for a slice where the driver has found answers."""


class BatchDocuments(NamedTuple):
    """The documents of a batch: their first docid and arrival, from which on both are consecutive, and their number."""

    docid: int
    arrival: int
    number: int


@dataclass(frozen=True, slots=True)
class SpreadStep:
    """What all tasks of a step know: the files of the table `documents`, with those of the batch; the documents and the
    number of the batch; the quota, the block of arrivals, and the cutoffs by qid. And the times, ascending, at which a
    new range begins: answers are written by ranges of their ends."""

    documents: tuple[str, ...]
    entered: BatchDocuments
    batch: int
    quota: Quota
    block: int
    cutoffs: Mapping[int, Cutoff]
    times: tuple[int, ...]

    @property
    def ranges(self) -> int:
        """The number of ranges."""
        return len(self.times) + 1

    def range_of(self, time: int) -> int:
        """Returns the number of the range of a time."""
        return bisect_right(self.times, time)

    def accounts(self, queries: ShippedQueries) -> Accounts:
        """Returns accounts without what was used before the step. So their cutoffs are late at most."""
        known = queries.subscriptions
        cutoffs = {qid: cutoff for qid, cutoff in self.cutoffs.items() if qid in known}
        return Accounts(queries, self.quota, cutoffs, Before(), self.block)


@dataclass(slots=True)
class Counts:
    """What there is in a range of times: matches with answers, answers that anybody gets, and their outputs."""

    matches: int = 0
    answers: int = 0
    outputs: int = 0

    def add(self, other: Counts) -> None:
        self.matches += other.matches
        self.answers += other.answers
        self.outputs += other.outputs


@dataclass(frozen=True, slots=True)
class Summary:
    """What a task tells the driver about a slice: what there is in each range; the forms that have answers; what was
    charged to whom; the groups of literals that were charged, as row and id; the matches of rows that only the driver
    can answer, as an Arrow stream; and what it cost to find matches."""

    counts: list[Counts]
    forms: frozenset[str]
    charges: list[tuple[str, Book]]
    literals: list[tuple[int, str]]
    rest: bytes | None
    costs: list[Cost]


@dataclass(slots=True)
class SliceAnswers:
    """The answers of a slice in a range, and the rows of their matches, as the slice numbers them."""

    answers: list[Answer]
    matches: list[pa.Table] = field(default_factory=list)


Told = tuple[int, tuple[int, bytes]]
"""A range, or SUMMARY; the number of a slice; and its SliceAnswers, or its Summary, pickled."""


class DocumentFiles:
    """The table `documents` in files. All that `StoredRecords` asks of a store."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def find(self, table: str, column: str, numbers: pa.Array) -> pa.Table:
        return pa.concat_tables([DOCUMENTS.empty_table(), *find_rows(self._paths, DOCUMENTS, column, numbers)])


class _MatchRows:
    """Implements `mmqjp.answers.match_reader.MatchLog` in memory."""

    def __init__(self) -> None:
        self.next_match = 0
        self.rows: list[pa.Table] = []

    def save_matches(self, rows: pa.Table) -> None:
        self.rows.append(rows)
        self.next_match += len(rows)


def answer_slice(step: SpreadStep, queries: ShippedQueries, number: int, matches: FactorisedMatches) -> Iterator[Told]:
    """Answers the matches of the slice of a number. Yields the answers by ranges, and a summary."""
    accounts, log = step.accounts(queries), _MatchRows()
    context, records = StepContext(accounts), StoredRecords(DocumentFiles(step.documents))
    arrivals = Arrivals()
    first = step.entered
    for place in range(first.number):
        arrivals.add(first.docid + place, first.arrival + place)
    operator = QueryOperator(queries, records, step.quota)
    expansion = Expansion(queries, records, lambda part: operator, context)
    reader = MatchReader(expansion, records, arrivals, queries.template_of, log)
    answers: list[Answer] = []
    rest: list[pa.RecordBatch] = []
    for chunk in matches.to_batches(MATCH_CHUNK):
        ours = np.isin(chunk["qid"].to_numpy(), queries.rows)
        if ours.all():
            reader.read_chunk(chunk, answers)
        else:
            rest.append(chunk.filter(pa.array(~ours)))
            if ours.any():
                reader.read_chunk(chunk.filter(pa.array(ours)), answers)
        records.release_trees()
    for place, one in enumerate(_by_range(step, answers, log.rows)):
        if one.answers:
            yield place, (number, pickle.dumps(one, pickle.HIGHEST_PROTOCOL))
    rows = {group: row for row, group in queries.literal_groups()}
    summary = Summary(
        _counts(step, accounts, answers, log.rows),
        frozenset(answer.form for answer in answers),
        list(accounts.charges()),
        [(rows[group], group.queries.id) for group in accounts.charged_literals()],
        as_stream(rest) if rest else None,
        list(matches.costs()),
    )
    yield SUMMARY, (number, pickle.dumps(summary, pickle.HIGHEST_PROTOCOL))


def _by_range(step: SpreadStep, answers: Iterable[Answer], matches: Sequence[pa.Table]) -> list[SliceAnswers]:
    found = [SliceAnswers([]) for _ in range(step.ranges)]
    for answer in answers:
        found[step.range_of(answer.t1)].answers.append(answer)
    if matches:
        rows = pa.concat_tables(matches)
        of = _ranges_of(step, rows)
        for number in np.unique(of).tolist():
            found[number].matches.append(rows.filter(pa.array(of == number)))
    return found


def _ranges_of(step: SpreadStep, matches: pa.Table) -> Ints:
    """Returns the ranges of the ends of matches."""
    found: Ints = np.array(step.times, np.int64).searchsorted(matches["t1"].to_numpy(), "right")
    return found


def _counts(
    step: SpreadStep, accounts: Accounts, answers: Iterable[Answer], matches: Iterable[pa.Table]
) -> list[Counts]:
    counts = [Counts() for _ in range(step.ranges)]
    members: dict[str, Members] = {}
    for answer in answers:
        if answer.form not in members:
            members |= accounts.members([answer.form], step.batch)
        got = count_recipients(answer, members[answer.form], step.batch)
        if got:
            of_range = counts[step.range_of(answer.t1)]
            of_range.answers += 1
            of_range.outputs += got
    for rows in matches:
        for number in _ranges_of(step, rows).tolist():
            counts[number].matches += 1
    return counts


# ------------------------------------------------------------ writing


@dataclass(frozen=True, slots=True)
class RangeStart:
    """The first numbers that a range has for its matches, answers and outputs."""

    match: int
    answer: int
    seq: int


@dataclass(frozen=True, slots=True)
class Writing:
    """What all tasks that write know: where each range starts; how many matches, answers and outputs of executors it
    has; the folders of tables, with what the names of files begin with; and the folder of output lines."""

    starts: tuple[RangeStart, ...]
    counts: tuple[tuple[int, int, int], ...]
    folders: Mapping[str, Path]
    prefix: str
    lines: Path


class WrittenRange(NamedTuple):
    """What a task has written: the number of the range, the files of tables, and the output lines."""

    number: int
    tables: dict[str, DataFile]
    lines: Path
    pieces: list[Piece]


def write_range(
    step: SpreadStep, queries: ShippedQueries, writing: Writing, number: int, attempt: int, told: Iterable[Told]
) -> WrittenRange:
    """Writes the answers of a range, and its output lines. `attempt` tells this attempt at the task from all others."""
    start, name = writing.starts[number], f"{writing.prefix}{number}-{attempt}"
    pickled = dict(one for _, one in told)
    own: tuple[list[Answer], dict[str, Members]] = ([], {})
    if DRIVER in pickled:
        own = pickle.loads(pickled.pop(DRIVER))
    answers, matches = _renumbered([pickled[slice_] for slice_ in sorted(pickled)], start.match)
    members = step.accounts(queries).members({answer.form for answer in answers}, step.batch)
    recipients = [count_recipients(answer, members[answer.form], step.batch) for answer in answers]
    counts = sum(map(len, matches)), len(list(filter(None, recipients))), sum(recipients)
    if counts != writing.counts[number]:  # numbers have been given to others
        raise RuntimeError(f"a task was repeated, and found {counts} and not {writing.counts[number]}")
    members |= own[1]
    rows = answer_rows([*answers, *own[0]], members, step.batch, start.answer, start.seq)
    tables = {
        "answers": rows.answers,
        "withheld": rows.withheld,
        "answer_matches": rows.matches,
        "match_rows": pa.concat_tables([TABLES["match_rows"].empty_table(), *matches]),
    }
    files = {
        table: write_rows(writing.folders[table] / f"{name}.parquet", [found], TABLES[table])
        for table, found in tables.items()
        if len(found)
    }
    lines, pieces = writing.lines / f"{name}.jsonl", list[Piece]()
    with open(lines, "wb", opener=open_like_directory) as file:
        fan_out = FanOut(rows.answers, members, by_answer(rows.withheld)) if len(rows.answers) else None
        for chunk in fan_out.chunks() if fan_out is not None else ():
            some = chunk.lines()
            file.write(some.text)
            pieces.append(Piece(len(some.text), some.count, some.greatest))
    return WrittenRange(number, files, lines, pieces)


def _renumbered(pickled: Iterable[bytes], first: int) -> tuple[list[Answer], list[pa.Table]]:
    """Returns the answers of all slices, and the rows of their matches, which are numbered from `first` on."""
    answers: list[Answer] = []
    matches: list[pa.Table] = []
    for one in pickled:
        found: SliceAnswers = pickle.loads(one)
        rows = pa.concat_tables(found.matches)
        known = rows["match"].to_numpy()
        for answer in found.answers:
            answer.matches[:] = (known.searchsorted(answer.matches) + first).tolist()
        numbers = pa.array(np.arange(first, first + len(rows)))
        matches.append(rows.set_column(rows.schema.get_field_index("match"), "match", numbers))
        first += len(rows)
        answers += found.answers
    return answers, matches
