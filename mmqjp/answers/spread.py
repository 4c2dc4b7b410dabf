"""Answers the matches of a large batch on Spark's executors. Queries are shipped whose rows of R_T concern only
external streams and unread outputs, so nothing in the step depends on their answers. One task per slice of documents
finds answers, and leaves them in a file; then one task per range of times writes answers and output lines to files. The
driver assigns the numbers, and outputs are read from the files on demand."""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from copyreg import __newobj__  # type: ignore[attr-defined]  # what pickles of plain objects begin with
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from common.arrays import Ints, unpacked
from common.executors import Shipment, Shipped, run_tasks, with_shipped
from common.files import open_like_directory
from common.limits import Quota
from common.tools import reachable
from join_stage.protocol import RESULT, Cost, Matches
from join_stage.signature.join import FactorisedMatches
from join_stage.spark.engine import SparkEngine
from join_stage.spark.tasks import SpreadMatches, as_stream, task_attempt
from join_stage.store.spark.manifests import DataFile, find_rows, write_data_file
from join_stage.store.spark.session import telling_loss
from mmqjp.answers.accounts import Accounts, Cutoff, Cutoffs, EarlierUsage
from mmqjp.answers.fan_out import FanOut, FileSegment, RangeFiles, answer_rows, by_answer, count_recipients
from mmqjp.answers.operators import MATCH_CHUNK, MatchReader, QueryOperator, StepContext
from mmqjp.answers.output import AnswerColumns
from mmqjp.answers.quota import Arrivals, Book
from mmqjp.documents.record import Record, Records, StoredRecords
from mmqjp.queries.forms import Form, LiteralGroup, RowPart, TargetGroup
from mmqjp.queries.model import CompactSet, HiddenStream, Members, QuerySet, Registered, Subscription, Target
from mmqjp.queries.registry import Registry
from mmqjp.tables.schema import ANSWER_TABLES, DOCUMENTS, Ledger
from xscl.algebra.joins import NEGATED
from xscl.algebra.weights import use_weights, weights_file


class ShippedQueries:
    """Queries that executors can answer alone: they read external streams, nobody reads them, and they output all they
    find. Implements `mmqjp.queries.registry.KnownQueries`."""

    def __init__(self, registry: Registry) -> None:
        rows = {target.row for owner in registry.owners() for target in owner.targets}
        is_external = cache(lambda stream: not registry.made_of(stream))
        parts = {row: tuple(registry.parts_of_row(row)) for row in rows}
        groups = {row: [group for part in of for group in _groups(part)] for row, of in parts.items()}

        def is_alone(group: TargetGroup) -> bool:
            if (form := group.form) is None or form.once or group.op in NEGATED or registry.read_of(form.id):
                return False
            return all(map(is_external, group.first.streams))

        apart = {row for row, of in groups.items() if all(map(is_alone, of))}
        apart = _closed(apart, {row: {group.form for group in of} for row, of in groups.items()})
        self._parts: dict[int, Sequence[RowPart]] = {row: parts[row] for row in parts if row in apart}
        self._templates = {row: registry.template_of(row) for row in self._parts}
        forms = (group.form_of_queries for row in self._parts for group in groups[row])
        self._forms = {form.id: form for form in forms}
        self.rows: Ints = np.array(sorted(self._parts), np.int64)
        self.weights = weights_file()

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = io.BytesIO()
        _Pickler(pickled, pickle.HIGHEST_PROTOCOL).dump(
            (self._parts, self._templates, self._forms, self.rows, self.weights)
        )
        return _unpickled, (pickled.getvalue(),)

    @property
    def subscriptions(self) -> dict[int, Subscription]:
        return {query.qid: query for form in self._forms.values() for query in form.audience.queries}

    def form(self, id: str) -> Form | None:
        return self._forms.get(id)

    def parts_of_row(self, row: int) -> Collection[RowPart]:
        return self._parts.get(row, ())

    def template_of(self, row: int) -> int:
        return self._templates[row]

    # Of what concerns streams of queries there is nothing.

    def read_of(self, form_id: str) -> list[Subscription]:
        return []

    def readers(self, stream: str) -> list[Subscription]:
        return []

    def named(self, name: str) -> list[Subscription]:
        return []

    def inner(self, target: Target) -> Iterator[HiddenStream]:
        return iter(())


def _closed(rows: set[int], forms: Mapping[int, Set[Form | None]]) -> set[int]:
    """Returns the rows all of whose forms have no other row: an answer that several rows give must not be found in two
    places. `forms` are by row."""
    of_form: dict[Form | None, list[int]] = {}
    for row, of in forms.items():
        for form in of:
            of_form.setdefault(form, []).append(row)
    others = (row for row in forms if row not in rows)
    gone = reachable(others, lambda row: [other for form in forms[row] for other in of_form[form]])
    return rows.difference(gone)


def _groups(part: RowPart) -> Sequence[TargetGroup]:
    return tuple(part.groups()) if isinstance(part, LiteralGroup) else (part,)


class _Pickler(pickle.Pickler):
    """Omits what executors do not need: normal forms, the catalog, and what derives from it."""

    def reducer_override(self, one: Any) -> Any:
        if isinstance(one, Registered):
            return _query, (type(one), one.qid, one.name, one.since, one.window, one.form_id, one.begun, one.gaps)
        if isinstance(one, QuerySet):
            state: dict[str, Any] = {
                "id": one.id,
                "_queries": CompactSet(),
                "_audience": one.audience,
                "_changed": set(),
            }
            if isinstance(one, Form):
                names = ("selection", "mirror", "tie_mirror", "literal_tests", "shared", "once")
                state |= {"_beside": None} | {name: getattr(one, name) for name in names}
            return __newobj__, (type(one),), state
        if isinstance(one, TargetGroup):
            made = {name: getattr(one, name) for name in ("op", "residual", "sides", "plan")}
            known = {"number": one.number, "form": one.form}
            return __newobj__, (TargetGroup,), {**known, **made, "forms": None, "placed": None}
        return NotImplemented


def _query(
    kind: type[Subscription], qid: int, name: str, since: Any, window: int | None, form_id: str, begun: int, gaps: Any
) -> Subscription:
    no_normal_form: Any = SimpleNamespace(form_id="")  # executors ask forms for normal forms
    return kind(qid, name, "", 0, since, window, form_id, begun, no_normal_form, gaps=gaps)


def _unpickled(pickled: bytes) -> ShippedQueries:
    made: ShippedQueries = object.__new__(ShippedQueries)
    made._parts, made._templates, made._forms, made.rows, made.weights = pickle.loads(pickled)
    return made


@dataclass(frozen=True, slots=True)
class SpreadStep:
    """What all tasks of a step share: the files of the table `documents` including the batch's, and the folder for
    answers; the batch's docids and arrivals, and number; the quota, arrival block and cutoffs by qid; and the ascending
    times at which answer ranges begin, by their ends."""

    documents: tuple[str, ...]
    folder: Path
    entered: tuple[range, range]
    batch: int
    quota: Quota
    block: int
    cutoffs: Mapping[int, Cutoff]
    times: tuple[int, ...]

    @property
    def ranges(self) -> int:
        return len(self.times) + 1

    def accounts(self, queries: ShippedQueries) -> Accounts:
        """Returns accounts without earlier usage, so their cutoffs can only be late."""
        known = queries.subscriptions
        cutoffs = {qid: cutoff for qid, cutoff in self.cutoffs.items() if qid in known}
        return Accounts(queries, self.quota, cutoffs, EarlierUsage(), self.block)


class AnswerSegment(NamedTuple):
    """A pickled `SliceAnswers` in a file."""

    path: Path
    start: int


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """A slice's number; by range, where its answers are, and the numbers of matches with answers, answers with
    recipients, and outputs; forms with answers; charges; literal groups charged, as row and id; matches of rows left to
    the driver, as an Arrow stream; and the cost of finding matches."""

    number: int
    segments: dict[int, AnswerSegment]
    counts: Ints
    forms: frozenset[str]
    charges: list[tuple[str, Book]]
    literals: list[tuple[int, str]]
    rest: bytes | None
    costs: list[Cost]


@dataclass(slots=True)
class SliceAnswers:
    answers: AnswerColumns
    matches: list[pa.Table] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DocumentFiles:
    paths: Sequence[str]

    def find(self, table: str, column: str, numbers: pa.Array, columns: Sequence[str] | None = None) -> pa.Table:
        schema = pa.schema([DOCUMENTS.field(name) for name in columns or DOCUMENTS.names])
        return pa.concat_tables([schema.empty_table(), *find_rows(self.paths, schema, column, numbers)])


class _MatchRows:
    """An in-memory `mmqjp.answers.operators.MatchLog`."""

    def __init__(self) -> None:
        self.next_match = 0
        self.rows: list[pa.Table] = []

    def save_matches(self, rows: pa.Table) -> None:
        self.rows.append(rows)
        self.next_match += len(rows)


def answer_slice(queries: ShippedQueries, step: SpreadStep, number: int, matches: FactorisedMatches) -> Iterator[bytes]:
    """Answers a slice's matches. Yields a pickled `TaskSummary`."""
    use_weights(queries.weights)
    accounts, log = step.accounts(queries), _MatchRows()
    context, records = StepContext(accounts), StoredRecords(DocumentFiles(step.documents))
    arrivals = Arrivals()
    arrivals.extend(*step.entered)
    operator = QueryOperator(queries, records, step.quota)
    reader = MatchReader(queries, records, operator.on_matches, context, arrivals, log)
    rest: list[pa.RecordBatch] = []
    for chunk in matches.to_batches(3 * MATCH_CHUNK):  # each reads most row groups of the table of documents
        ours = np.isin(chunk["qid"].to_numpy(), queries.rows)
        if ours.all():
            reader.read_chunk(chunk)
        else:
            rest.append(chunk.filter(pa.array(~ours)))
            if ours.any():
                reader.read_chunk(chunk.filter(pa.array(ours)))
        records.release_trees()
    times = np.array(step.times, np.int64)
    split = context.answers.split(times.searchsorted(context.answers.ints("t1"), "right"), step.ranges)
    of_ranges = list(map(SliceAnswers, split))
    if log.rows:
        found = pa.concat_tables(log.rows)
        of = times.searchsorted(found["t1"].to_numpy(), "right")
        for place in np.unique(of).tolist():
            of_ranges[place].matches.append(found.filter(pa.array(of == place)))
    rows = {part: row for row in queries.rows.tolist() for part in queries.parts_of_row(row)}
    forms = frozenset(context.answers.forms())
    members = accounts.members(forms, step.batch)
    summary = TaskSummary(
        number,
        _left(step.folder / f"{number}-{task_attempt()}", of_ranges),
        np.array([_counts(step, members, one.answers, one.matches) for one in of_ranges], np.int64),
        forms,
        list(accounts.charges()),
        [(rows[group], group.queries.id) for group in accounts.charged_literals()],
        as_stream(rest) if rest else None,
        list(matches.costs()),
    )
    yield zlib.compress(pickle.dumps(summary, pickle.HIGHEST_PROTOCOL), 1)


def _left(path: Path, of_ranges: Iterable[SliceAnswers]) -> dict[int, AnswerSegment]:
    """Leaves answers in a file for the tasks that write them. They are most of the bytes of a step: between tasks they
    would go through the JVM of each executor, and its Python, several times."""
    segments: dict[int, AnswerSegment] = {}
    with open(path, "wb", opener=open_like_directory) as file:
        for place, one in enumerate(of_ranges):
            if len(one.answers):
                segments[place] = AnswerSegment(path, file.tell())
                pickle.dump(one, file, pickle.HIGHEST_PROTOCOL)
    return segments


def _counts(
    step: SpreadStep, members: Mapping[str, Members], answers: AnswerColumns, matches: Iterable[pa.Table]
) -> list[int]:
    got = count_recipients(answers, members, step.batch)
    return [sum(map(len, matches)), int(np.count_nonzero(got)), int(got.sum())]


# ------------------------------------------------------------ writing


@dataclass(frozen=True, slots=True)
class Writing:
    """What all writing tasks share: each range's first numbers of matches, answers and outputs; table folders with
    file-name prefixes; and the output lines' folder."""

    firsts: Ints
    folders: Mapping[str, Path]
    prefix: str
    lines: Path


class WrittenRange(NamedTuple):
    """Files by table, and output lines in pieces."""

    tables: dict[str, DataFile]
    lines: Path
    pieces: list[FileSegment]


@dataclass(frozen=True, slots=True)
class RangeWork:
    """What a writing task writes: a range's number, the answers of slices in their order, and the driver's own."""

    number: int
    slices: Sequence[AnswerSegment]
    own: tuple[AnswerColumns, dict[str, Members]] | None


def write_range(queries: ShippedQueries, step: SpreadStep, writing: Writing, work: RangeWork) -> WrittenRange:
    first, name = writing.firsts[work.number].tolist(), f"{writing.prefix}{work.number}-{task_attempt()}"
    answers, matches = _renumbered(work.slices, first[0])
    members = step.accounts(queries).members(answers.forms(), step.batch)
    if work.own is not None:
        answers.extend(work.own[0])
        members |= work.own[1]
    rows = answer_rows(answers, members, step.batch, *first[1:])
    tables = {
        "answers": rows.answers,
        "withheld": rows.withheld,
        "answer_matches": rows.matches,
        "match_rows": pa.concat_tables([ANSWER_TABLES["match_rows"].empty_table(), *matches]),
    }
    files = {
        table: write_data_file(writing.folders[table] / f"{name}.parquet", [found], ANSWER_TABLES[table])
        for table, found in tables.items()
        if len(found)
    }
    lines, pieces = writing.lines / f"{name}.jsonl", list[FileSegment]()
    with open(lines, "wb", opener=open_like_directory) as file:
        fan_out = FanOut(rows.answers, members, by_answer(rows.withheld)) if len(rows.answers) else None
        for chunk in fan_out.delivered() if fan_out is not None else ():
            for some in chunk.lines():
                file.write(some.text)
                pieces.append(FileSegment(len(some.text), some.count, some.greatest))
    return WrittenRange(files, lines, pieces)


def _renumbered(slices: Iterable[AnswerSegment], first: int) -> tuple[AnswerColumns, list[pa.Table]]:
    answers, matches = AnswerColumns(), list[pa.Table]()
    for path, start in slices:
        with path.open("rb") as file:
            file.seek(start)
            found: SliceAnswers = pickle.load(file)
        rows = pa.concat_tables([ANSWER_TABLES["match_rows"].empty_table(), *found.matches])
        answers.extend(found.answers, rows["match"].to_numpy(), first)
        numbers = pa.array(np.arange(first, first + len(rows)))
        matches.append(rows.set_column(rows.schema.get_field_index("match"), "match", numbers))
        first += len(rows)
    return answers, matches


_SLICES, _LINES = "slices", "lines"  # folders for answers that are to be written, and for output lines

TABLES_OF_ANSWERS = ("answers", "withheld", "answer_matches", "match_rows")


@dataclass(frozen=True, slots=True)
class _Found:
    """Executors' unwritten results of the step, with the shipped queries: answers by slice and range, counts per range,
    and the first match."""

    slices: Sequence[Mapping[int, AnswerSegment]]
    step: SpreadStep
    queries: Shipment[ShippedQueries]
    counts: Ints
    first_match: int


@telling_loss
class SpreadAnswers:
    """Answers the matches of large batches on executors. A step calls `answer` once, then `write` or `discard`. All
    raise Spark's errors."""

    def __init__(self, store: SparkEngine, ledger: Ledger, registry: Registry, records: Records, quota: Quota) -> None:
        self._store, self._ledger, self._registry, self._records = store, ledger, registry, records
        self._quota = quota
        self._shipped = Shipped[ShippedQueries](store.context)
        self._found: _Found | None = None

    def answer(
        self, matches: Matches, records: Sequence[Record], accounts: Accounts, block: int, cutoffs: Cutoffs
    ) -> tuple[Matches, frozenset[str]]:
        """Answers the matches of a batch's entered documents, and charges the accounts. Returns the matches left to the
        driver (all, if executors did not find them), and the ids of forms with answers."""
        self.discard()
        if not isinstance(matches, SpreadMatches):
            return matches, frozenset()
        self._records.write()
        docid, arrival = records[0].docid, records[0].arrival
        ends, most = sorted(record.t1 for record in records), self._store.context.defaultParallelism
        step = SpreadStep(
            tuple(self._store.write_out("documents")),
            self._store.emptied_scratch(_SLICES),
            (range(docid, docid + len(records)), range(arrival, arrival + len(records))),
            self._ledger.batch,
            self._quota,
            block,
            dict(cutoffs),
            tuple(sorted({ends[place * len(ends) // most] for place in range(1, most)})),  # equally many documents end
        )
        shipped = self._shipped.of(self._registry.version, lambda: ShippedQueries(self._registry))
        pickled = matches.answered(with_shipped(answer_slice, shipped, step)).collect()
        summaries: list[TaskSummary] = [pickle.loads(zlib.decompress(one)) for one in pickled]
        summaries.sort(key=attrgetter("number"))
        counts: Ints = np.zeros((step.ranges, 3), np.int64)
        for summary in summaries:
            counts += summary.counts
            charged = (
                part
                for row, id in summary.literals
                for part in self._registry.parts_of_row(row)
                if isinstance(part, LiteralGroup) and part.queries.id == id
            )
            accounts.add_charges(summary.charges, charged)
        matches.note(cost for summary in summaries for cost in summary.costs)
        slices = [summary.segments for summary in summaries]
        self._found = _Found(slices, step, shipped, counts, self._ledger.next_match)
        self._ledger.next_match += int(counts[:, 0].sum())
        rest = [unpacked(one.rest) for one in summaries if one.rest is not None]
        forms = frozenset(form for summary in summaries for form in summary.forms)
        return pa.concat_tables([RESULT.empty_table(), *rest]), forms

    def write(self, own: AnswerColumns, members: Mapping[str, Members]) -> list[RangeFiles] | None:
        """Numbers and writes the step's answers and outputs, including the driver's `own`. Returns the files of each
        range by time; None if executors have no answers."""
        found, ledger = self._found, self._ledger
        if found is None or not found.counts[:, 1].any():
            return None
        step, counts = found.step, found.counts.copy()
        got = count_recipients(own, members, step.batch)
        ranges: Ints = np.array(step.times, np.int64).searchsorted(own.ints("t1"), "right")
        of_range = own.split(np.where(got > 0, ranges, -1), step.ranges)
        for number in range(step.ranges):
            those = got[(ranges == number) & (got > 0)]
            counts[number] += (0, len(those), those.sum())
        ends: Ints = counts.cumsum(axis=0) + np.array([found.first_match, ledger.next_answer, ledger.next_seq])
        writing = Writing(
            ends - counts,
            {table: self._store.folder(table) for table in TABLES_OF_ANSWERS},
            self._store.prefix_for_others(TABLES_OF_ANSWERS),
            self._store.emptied_scratch(_LINES),
        )
        works = [
            RangeWork(
                number,
                [segments[number] for segments in found.slices if number in segments],
                (some, {form: members[form] for form in some.forms()}) if len(some) else None,
            )
            for number, some in enumerate(of_range)
        ]
        written = run_tasks(self._store.context, with_shipped(write_range, found.queries, step, writing), works)
        self.discard()
        files: list[RangeFiles] = []
        for one in written:
            for table, file in one.tables.items():
                self._store.adopt(table, file)
            paths = {table: self._store.folder(table) / file.name for table, file in one.tables.items()}
            files.append(RangeFiles(paths, one.lines, one.pieces))
        ledger.next_answer, ledger.next_seq = ends[-1, 1:].tolist()
        return files

    def discard(self) -> None:
        if self._found is not None:
            self._found = None
            self._store.emptied_scratch(_SLICES)
