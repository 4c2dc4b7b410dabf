"""Operators: how a match or a watermark becomes answers and documents, for queries and inner joins, and the reader that
feeds them matches in chunks. A match is evaluated once for all members of a form; inner joins build the tuples of
hidden streams and charge the queries that read them. Outputs of ONCE PER queries are deferred to the end of the step
and decided together in the order of their numbers, so the result does not depend on the order in which a step finds
them. Backfill answers new queries over stored documents. Also counts ties: pairs of documents that FOLLOWED BY excludes
only because one ends just as the other begins."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from common.arrays import GrowingInts, Ints, Mask, distinct, group_starts, number_rows
from common.bounds import EARLIEST, INFINITE, LATEST
from common.limits import Quota
from join_stage.plans import JoinEngine
from join_stage.protocol import Matches, flatten_edges
from join_stage.signature.join import SignatureJoin
from join_stage.store.protocol import TableStore
from mmqjp.answers.accounts import ALL_READERS, Accounts, Cutoff, Payers, charge
from mmqjp.answers.bindings import (
    Encoded,
    JointBinding,
    JointBlock,
    Joints,
    MatchColumns,
    PartRows,
    Values,
    choice_numbers,
)
from mmqjp.answers.output import (
    Answer,
    AnswerColumns,
    AnswerTexts,
    Mirrors,
    answer_texts,
    joined_texts,
    lengths,
    match_rows,
)
from mmqjp.answers.quota import (
    MOST_STEPS,
    NEVER,
    XML_CHARACTERS_PER_STEP,
    Arrivals,
    ChargeKey,
    EqualTimeBudget,
    OutOfSteps,
    Share,
    SharedAccount,
    Shares,
    Steps,
    TieCounts,
)
from mmqjp.documents.record import Inputs, Record, Records, StoredRecords, docid_batches, published_record, tuple_record
from mmqjp.documents.watermarks import Progress, Watermarks
from mmqjp.queries.forms import Form, JointPlan, LiteralGroup, RowPart, Selection, TargetGroup, element
from mmqjp.queries.model import HiddenStream, Members, Owner, Pause, Subscription
from mmqjp.queries.registry import KnownQueries, Registry, behind
from mmqjp.state.eviction import JoinState, arriving
from mmqjp.tables.schema import Ledger, TableRows, ToldRow, hidden_tuples, told_among
from templates.witness import R_GROUP, Witnesses
from xpath_stage.evaluator import XPathStage


class Components(NamedTuple):
    """What the operators of an engine share."""

    store: JoinEngine
    ledger: Ledger
    registry: Registry
    records: Records
    watermarks: Watermarks
    quota: Quota


OnceKey = tuple[int, int]  # two halves of a key's digest

AskedKey = tuple[int, int, int]  # a qid and the halves of a key's digest


@dataclass(eq=False, slots=True)
class PutOff:
    """A deferred answer, with what is needed to deliver it to the recipients in `share` that have not yet output all
    its `keys` within the `window`. For `backfilled` queries, what they PUBLISH appears now."""

    answer: Answer
    inputs: Inputs
    account: SharedAccount
    share: Share
    backfilled: Collection[Owner]
    window: int | None
    keys: set[OnceKey] = field(default_factory=set)

    def recipients(self, batch: int) -> list[Subscription]:
        share, queries, arrival = self.share, self.account.audience.queries, self.answer.arrival
        members = self.account.members(batch)
        gets = members.get(slice(None), share.width, share.appeared, share.first_qid, batch, arrival)
        return [query for place in np.flatnonzero(gets).tolist() if (query := queries[place]) not in share.withheld]

    def tell(self, query: Subscription, ends: dict[AskedKey, list[int]], rows: list[ToldRow]) -> bool:
        """Returns whether a query outputs it. If so, appends its rows to `rows` and its end to the sorted `ends`."""
        window, t1 = self.window, self.answer.t1
        known = [ends.setdefault((query.qid, *key), []) for key in self.keys]
        near = [is_near(t1, before, window) for before in known]
        if all(near):
            return False
        until = None if window is None or t1 + window > INFINITE else t1 + window  # suppressed until then, or forever
        for key, before, was_told in zip(self.keys, known, near, strict=True):
            if window is not None or not was_told:
                insort(before, t1)
                rows.append((query.qid, *key, t1, until))
        return True


Undecided = tuple[Set[str], Set[HiddenStream]]
"""Form ids and hidden streams for which a step may still find something."""

AllPutOff = dict[Form, dict[int, PutOff]]  # by the answers' ids in the step


def once_key(texts: Sequence[str]) -> OnceKey:
    digest = blake2b("".join([f"{len(text)}:{text}" for text in texts]).encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], signed=True), int.from_bytes(digest[8:], signed=True)


def as_published(query: Subscription, answer: Answer, inputs: Inputs, *, within: bool) -> Record:
    """Returns an answer for a query's readers. It appears now if time decided it, or unless `within` a batch."""
    xml, id = answer.body.xml(query.name), query.identity.id(answer.choice.encode())
    return published_record(query.name, inputs, xml, id, within=within and not query.waits)


class Telling:
    def __init__(self, registry: Registry, store: TableStore) -> None:
        self._registry, self._store, self._rows = registry, store, TableRows(store)

    def decide(self, waiting: AllPutOff, batch: int, undecided: Undecided, answers: AnswerColumns) -> list[Record]:
        """Decides the answers that depend on nothing deferred or `undecided`, and removes them from `waiting`. Appends
        those that have recipients to `answers`, and returns the documents for their readers."""
        due = [waiting.pop(form) for form in self._due(waiting, undecided)]
        decided = [one for some in due for one in sorted(some.values(), key=lambda one: one.answer.order)]
        recipients = [(one, one.recipients(batch)) for one in decided]
        ends = self._ends(recipients)
        rows: list[ToldRow] = []
        untold: list[tuple[int, int]] = []
        documents: list[Record] = []
        for one, some in recipients:
            gone = [query for query in some if not one.tell(query, ends, rows)]
            untold += ((match, query.qid) for query in gone for match in one.answer.matches)
            if len(gone) < len(some):
                one.answer.withheld = (*one.answer.withheld, *(query.qid for query in gone))
                answers.append(one.answer)
                reporting = set(some).difference(gone)
                for query in filter(reporting.__contains__, self._registry.read_of(one.answer.form)):
                    documents.append(as_published(query, one.answer, one.inputs, within=query not in one.backfilled))
        self._rows.append("told", rows)
        self._rows.append("untold", untold)
        return documents

    def _ends(self, recipients: Iterable[tuple[PutOff, list[Subscription]]]) -> dict[AskedKey, list[int]]:
        """Returns the sorted ends of earlier outputs within the windows of these answers, by key."""
        asked: dict[AskedKey, tuple[int, int]] = {}
        for one, queries in recipients:
            window = INFINITE if one.window is None else one.window  # without one, a key has one end
            low, high = max(one.answer.t1 - window, -INFINITE), min(one.answer.t1 + window, INFINITE)
            for query, key in product(queries, one.keys):
                least, greatest = asked.get(whole := (query.qid, *key), (low, high))
                asked[whole] = min(low, least), max(high, greatest)
        found: dict[AskedKey, list[int]] = {}
        if asked:
            rows = told_among(self._store, sorted((*key, *times) for key, times in asked.items()))
            for qid, high, low, t1 in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                found.setdefault((qid, high, low), []).append(t1)
        return {key: sorted(ends) for key, ends in found.items()}

    def _due(self, waiting: AllPutOff, undecided: Undecided) -> list[Form]:
        forms, streams = undecided
        if not (streams or any(self._registry.read_of(form_id) for form_id in (*forms, *(f.id for f in waiting)))):
            return list(waiting)
        ids = {form.id for form in waiting}.union(forms)
        ready = []
        for form in waiting:
            queries, hidden = behind(self._registry, form.audience.queries[0])  # all of a form read the same streams
            # Its own queries may be undecided, too: then more of its answers are to come.
            if streams.isdisjoint(hidden) and not any(one.form_id in ids for one in queries):
                ready.append(form)
        return ready


def is_near(t1: int, ends: Sequence[int], window: int | None) -> bool:
    """Whether one of the sorted `ends` lies within the window of `t1`."""
    if window is None:
        return bool(ends)
    place = bisect_left(ends, t1 - window)
    return place < len(ends) and ends[place] <= t1 + window


@dataclass(slots=True)
class StepContext:
    """Shared state of operators within one step.

    `accounts` are charged. In a backfill, only `owners` get results. `known_tuples` are earlier tuples of hidden
    streams as (stream, parts, bound). Past decisions are repeated for `backfilled` plan nodes. `progress` is None in a
    backfill.
    """

    accounts: Accounts
    owners: Collection[Owner] | None = None
    known_tuples: Collection[tuple[object, ...]] = frozenset()
    backfilled: Collection[Owner] = frozenset()
    progress: Progress | None = None
    answers: AnswerColumns = field(default_factory=AnswerColumns)
    mirrors: Mirrors = field(default_factory=Mirrors)
    ties: set[tuple[Form | EqualTimeBudget, tuple[int, ...], tuple[int, ...]]] = field(default_factory=set)
    """Pairs of documents with equal times, as their parts: with a budget if examined, with a form if counted."""
    emitted: dict[bytes, int] = field(default_factory=dict)
    """The ids of answers by their choice of documents and nodes, as `choices` numbers it."""
    link_counts: GrowingInts = field(default_factory=GrowingInts)
    """By an answer's id, the number of its matches. They are all recorded, if they are not very many: the first ones
    depend on the plan."""
    tuples: set[tuple[object, ...]] = field(default_factory=set)
    """Tuples of hidden streams, as (stream, parts, bound)."""
    put_off: AllPutOff = field(default_factory=dict)
    deferred: dict[int, Answer] = field(default_factory=dict)  # those put off, by id
    _numbers: dict[object, int] = field(default_factory=dict)

    def number(self, key: object) -> int:
        """Numbers forms, and the parts of documents."""
        return self._numbers.setdefault(key, len(self._numbers))

    def link(self, ids: Ints, matches: Ints) -> None:
        """Links answers, also those put off, to matches by number."""
        self.answers.link(ids, matches)
        for id, match in zip(ids.tolist(), matches.tolist(), strict=True) if self.deferred else ():
            if (answer := self.deferred.get(id)) is not None:
                answer.matches.append(match)

    def payers(self, part: TargetGroup, inputs: Inputs, first_qid: int = 0) -> Payers:
        """Returns the accounts of those that get a match, whatever their windows."""
        stream, accounts = part.first.owner, self.accounts
        if isinstance(stream, HiddenStream):
            takes_part = stream.active if self.owners is None else stream in self.owners
            readers = accounts.readers(stream) if takes_part else ()
            return [(group, ALL_READERS) for group in readers if group.want(inputs)]
        account = accounts.of_part(part)
        share = account.share(-1, inputs, max(first_qid, accounts.first_qid))
        return [] if share is None else [(account, share)]


@dataclass(slots=True)
class Expansion:
    """A chunk of a step's matches, as rows of `join_stage.protocol.RESULT` and by columns, and its results: pairs of an
    answer's `ids` and a match's `places`, and `documents` for readers of streams."""

    context: StepContext
    chunk: pa.RecordBatch
    matches: MatchColumns
    values: Values
    ids: list[Ints] = field(default_factory=list)
    places: list[Ints] = field(default_factory=list)
    documents: list[Record] = field(default_factory=list)

    @classmethod
    def of(cls, context: StepContext, chunk: pa.RecordBatch, records: StoredRecords) -> Expansion:
        matches = MatchColumns(chunk, records)
        return cls(context, chunk, matches, Values(matches, records))

    def joints(self, plan: JointPlan, rows: PartRows, allowed: int) -> Joints:
        return Joints(plan, rows, self.matches, self.values, allowed)

    def inputs(self, rows: PartRows) -> Callable[[int], Inputs]:
        """Returns the documents of a row."""
        return lambda row: self.matches.inputs(int(rows.place[row]))


class QuotaExceeded(Exception):
    """Queries exceeded their quotas; rerun the step with `cutoffs`, by qid. Never leaves `mmqjp.answers`."""

    def __init__(self, cutoffs: dict[int, Cutoff]) -> None:
        super().__init__(f"{len(cutoffs)} queries exceeded a bound")
        self.cutoffs = cutoffs


@dataclass(frozen=True, slots=True)
class StepResult:
    answers: AnswerColumns
    members: Mapping[str, Members]
    pauses: list[Pause]


def stored_matches(
    store: JoinEngine, registry: Registry, records: Records, rows: Collection[int], low: int = EARLIEST
) -> Iterator[tuple[Witnesses, Matches]]:
    """Evaluates stored documents that begin from `low` on for these rows of R_T, joined apart from all others. Yields
    witnesses and matches by batches.

    Pairs are found by the plan `signature` in memory, whatever plan and engine the store uses.
    """
    stage1, join = XPathStage(), SignatureJoin()
    needs = registry.catalog.needs_of(rows)
    stage1.add(needs)
    streams = sorted({step.stream for step in needs.steps})
    for row in needs.rows:
        join.rows.put(registry.catalog.templates[row.template], row)
    try:
        for docids in docid_batches(store, streams, starts=range(max(low, EARLIEST), LATEST)):
            witnesses = stage1.evaluate(map(arriving, records.parsed(docids)))
            stage1.finish_batch(committed=True)
            yield witnesses, join.join(witnesses, registry.scope)
            records.release_trees()
    finally:
        stage1.close()


def backfilled_matches(
    store: JoinEngine, registry: Registry, records: Records, state: JoinState, owners: Iterable[Owner]
) -> Iterator[Matches]:
    """Yields the matches of owners in stored documents, whose witnesses also enter the join state."""
    groups = R_GROUP.empty_table()
    rows = {target.row for owner in owners for target in owner.targets}
    for witnesses, matches in stored_matches(store, registry, records, rows):
        yield matches
        groups = pa.concat_tables([groups, witnesses.r_group])
        state.extend(flatten_edges(witnesses.r_bin, groups), witnesses.r_doc, witnesses.r_docts)


def known_tuples(store: JoinEngine, streams: Collection[str]) -> Iterator[tuple[str, tuple[int, ...], object]]:
    """Yields the stored tuples of hidden streams as (stream, parts, bound); `bound`: a (docid, node) per variable."""
    for row in hidden_tuples(store, streams).to_pylist():
        nodes = ((node & 0xFFFFFFFF, node >> 32) for node in row["bound_nodes"])
        yield row["stream"], tuple(row["parts"]), tuple(zip(row["bound_docids"], nodes, strict=True))


MATCH_CHUNK = 10_000  # matches expanded at a time; their documents are in memory together


class MatchLog(Protocol):
    @property
    def next_match(self) -> int: ...

    def save_matches(self, rows: pa.Table) -> None:
        """Appends rows of `match_rows`, numbered from `next_match`."""


OfRow = tuple[RowPart, Ints]  # a part of a row of R_T, and the places of the row's matches

OnMatches = Callable[[Sequence[OfRow], Expansion], None]
"""Adds results of matches, for the plan nodes of parts that take part and see their documents. Charges their accounts;
a node over its quota gets nothing."""


@dataclass(eq=False)
class MatchReader:
    """Expands a step's matches to the plan nodes that subscribe to their rows. `arrivals` has the step's documents."""

    _queries: KnownQueries
    _records: StoredRecords
    _on_matches: OnMatches
    _context: StepContext
    _arrivals: Arrivals
    _log: MatchLog

    @property
    def progress(self) -> Progress | None:
        return self._context.progress

    def read(self, matches: Matches) -> list[Record]:
        """Expands matches: adds answers to those of the step, logs the matches, returns the published documents."""
        published: list[Record] = []
        for chunk in matches.to_batches(max_chunksize=MATCH_CHUNK):
            published += self.read_chunk(chunk)
        return published

    def read_chunk(self, chunk: pa.RecordBatch) -> list[Record]:
        if closed := self._closed(chunk["qid"].unique().to_pylist()):
            until = self._arrivals.latest(chunk) < [closed.get(qid, NEVER) for qid in chunk["qid"].to_pylist()]
            chunk = chunk.filter(pa.array(until))
        of = Expansion.of(self._context, chunk, self._records)
        if (spent := self._spent(of)).any():
            of = Expansion.of(self._context, chunk.filter(pa.array(~spent)), self._records)
        if not len(of.matches):
            return []
        self._on_matches(list(self._parts(of.matches.rows)), of)
        self.log(of)
        return of.documents

    def _parts(self, rows: Ints) -> Iterator[OfRow]:
        order = np.argsort(rows, kind="stable")
        starts = group_starts(rows[order])
        for row, places in zip(rows[order[starts]].tolist(), np.split(order, starts[1:]), strict=True):
            for part in self._queries.parts_of_row(row):
                yield part, places

    def _spent(self, of: Expansion) -> Mask:
        """Returns the pairs of equal times that only serve limited budgets, which do not examine them any more."""
        spent = of.matches.is_tied()
        if spent.any():
            tied = np.flatnonzero(spent)
            rows, arrivals = of.matches.rows[tied], self._arrivals.latest(of.chunk)[tied]
            for row in np.unique(rows).tolist():
                looking, of_row = self._looking(row), rows == row
                for one in looking or ():
                    spent[tied[of_row]] &= one.spent(arrivals[of_row])
                if looking is None:
                    spent[tied[of_row]] = False
        return spent

    def _closed(self, rows: Iterable[int]) -> dict[int, int]:
        """Maps rows of R_T to the arrival from which no plan node needs their matches; omits rows without one."""
        accounts = self._context.accounts
        if not accounts.is_limited():
            return {}
        closed = {row: max(map(accounts.cutoff, self._queries.parts_of_row(row)), default=NEVER) for row in rows}
        return {row: arrival for row, arrival in closed.items() if arrival < NEVER}

    def _looking(self, row: int) -> list[EqualTimeBudget] | None:
        """Returns the limited budgets for examining equal-time pairs, if a row's matches serve nothing else."""
        parts = self._queries.parts_of_row(row)
        if any(part.op != "FOLLOWED BY" for part in parts):
            return None
        looking = [one for part in parts if (one := self._context.accounts.looking(part)) is not None]
        return looking if all(one.is_limited for one in looking) else None

    def log(self, of: Expansion) -> None:
        """Logs the matches that gave answers, and links these to them."""
        if not of.ids:
            return
        ids, places, first = np.concatenate(of.ids), np.concatenate(of.places), self._log.next_match
        logged = distinct(places)
        self._context.link(ids, first + logged.searchsorted(places))
        rows, t0, t1 = of.chunk.take(pa.array(logged)), of.matches.t0[logged], of.matches.t1[logged]
        self._log.save_matches(match_rows(rows, t0, t1, first, self._queries.template_of))


PREFIX = "ties "  # key prefix of the settings with counts, before the form's id

KEYS_KEPT = 8  # above this many keys, counts that apply to no query are dropped


class StoredTies:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, TieCounts] | None = None
        self._here: dict[str, TieCounts] = {}  # counts since the store was opened
        self._found: Mapping[str, TieCounts] = {}  # those of a batch that is not committed

    def _all(self) -> dict[str, TieCounts]:
        if self._known is None:
            self._known = {form: TieCounts.read(text) for form, text in self._ledger.settings(PREFIX).items() if text}
        return self._known

    def looked(self) -> dict[str, int]:
        return {form: ties.looked for form, ties in self._all().items()}

    def save(self, found: Mapping[str, TieCounts], queries_of: Callable[[str], Collection[Subscription]]) -> None:
        """Merges a step's counts into those stored, within the batch. Counts of forms without queries are emptied."""
        self._found = found
        if found:
            known = self._all()
            new = {form: known.get(form, TieCounts()) + step for form, step in found.items()}
            for form, ties in new.items():
                if len(ties.pairs) + len(ties.less) > KEYS_KEPT and (queries := queries_of(form)):
                    new[form] = ties.only_for(queries)
            changed = {form: ties for form, ties in new.items() if ties != known.get(form)}
            gone = [form for form, ties in known.items() if ties.pairs and not queries_of(form)]
            texts = {form: ties.text() for form, ties in changed.items()} | dict.fromkeys(gone, "")
            self._ledger.save_settings({PREFIX + form: text for form, text in texts.items()})
            known.update(changed)
            for form in gone:
                del known[form]

    def finish_batch(self, *, committed: bool) -> None:
        """A rollback makes what was saved be read again."""
        if committed:
            self._here |= {form: self._here.get(form, TieCounts()) + step for form, step in self._found.items()}
        elif self._found:
            self._known = None
        self._found = {}

    def of(self, queries: Iterable[Subscription], *, here: bool) -> dict[str, int]:
        """Returns the nonzero ties by query name, most first. With `here`, only since the store was opened."""
        found: Counter[str] = Counter()
        if known := self._here if here else self._all():
            for query in queries:
                ties = known.get(query.form_id)
                if ties is not None and (count := ties.of(query)):
                    found[query.name] += count
        return dict(found.most_common())

    def at_least(self, queries: Iterable[Subscription], *, here: bool) -> set[str]:
        known = self._here if here else self._all()
        return {query.name for query in queries if (ties := known.get(query.form_id)) is not None and ties.left_out}


MOST_TIES = 1_000_000  # maximum number of pairs per step, which remembers them


def is_tie(left: Record, right: Record) -> bool:
    """Whether one document ends exactly when the other begins, and they share no source document."""
    return left.t1 == right.t0 and not set(left.sources) & set(right.sources)


def forms_of(parts: Iterable[RowPart]) -> list[Form]:
    return [part.form_of_queries for part in parts if isinstance(part, TargetGroup)]


class QueryOperator:
    """Each distinct choice of documents and SELECT nodes is one answer to a form's members; each PUBLISHes it."""

    def __init__(self, registry: KnownQueries, records: StoredRecords, quota: Quota) -> None:
        self._registry, self._records, self._quota = registry, records, quota

    def on_matches(self, parts: Sequence[OfRow], of: Expansion) -> None:
        """Adds the answers of the parts' forms, each once per row of R_T."""
        alike: dict[tuple[JointPlan, Selection | None], list[OfRow]] = {}
        for part, places in parts:
            alike.setdefault(part.plan, []).append((part, places))
        for (plan, selection), some in alike.items():
            rows = PartRows.of(some)
            if plan.op == "FOLLOWED BY":
                in_order = of.matches.is_in_order(rows.place)
                tied = np.flatnonzero(~in_order)
                for row in tied[np.argsort(of.matches.arrival[rows.place[tied]], kind="stable")].tolist():
                    self._count_ties(plan, rows.take(np.array([row])), of)
                rows = rows.take(in_order)
            if selection is None:
                self._answer_literals(plan, rows, of)
            else:
                self._answer(plan, selection, rows, of)

    def _answer(self, plan: JointPlan, selection: Selection, rows: PartRows, of: Expansion) -> None:
        """Answers rows of one selection."""
        rows, shares = self._getting(list(map(of.context.accounts.of_part, rows.parts)), rows, of)
        mirrored, steps = self._mirrored(rows, of)
        if mirrored.any():
            gone, stay = np.flatnonzero(mirrored), np.flatnonzero(~mirrored)
            shares.take(gone).charge(of.matches.arrival[rows.place[gone]], np.zeros_like(gone), 1 + steps[gone])
            rows, shares, steps = rows.take(stay), shares.take(stay), steps[stay]
        if not len(rows):
            return
        joints = of.joints(plan, rows, self._quota.work)
        joints.steps += steps
        emission = _Emission(self._registry, self._quota, of, selection, rows, shares, joints.steps)
        for block in joints.blocks():
            if not emission.emit(block, block.of):
                joints.stop(emission.new > self._quota.matches)
        shares.charge(of.matches.arrival[rows.place], emission.new, joints.steps)

    def _getting(self, accounts: Sequence[SharedAccount], rows: PartRows, of: Expansion) -> tuple[PartRows, Shares]:
        """Returns the rows that somebody gets, of an account for each part."""
        shares = self._shares(accounts, rows, of)
        those = np.flatnonzero(shares.gets)
        return rows.take(those), shares.take(those)

    def _shares(self, accounts: Sequence[SharedAccount], rows: PartRows, of: Expansion) -> Shares:
        width, appeared = of.matches.width[rows.place], of.matches.appeared[rows.place]
        return Shares.of(accounts, rows.part, width, appeared, of.context.accounts.first_qid, of.inputs(rows))

    def _mirrored(self, rows: PartRows, of: Expansion) -> tuple[Mask, Ints]:
        """Returns the rows whose mirrors cover them, or exceed the quota, and the steps to find that."""
        mirrored, steps = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.int64)
        mirrors = [form.mirror for form in forms_of(rows.parts)]
        for row in np.flatnonzero(np.array([one is not None for one in mirrors])[rows.part]).tolist():
            one = Steps(allowed := self._quota.work)
            try:
                mirrored[row] = of.context.mirrors.tell(mirrors[rows.part[row]], of.inputs(rows)(row), one)
            except OutOfSteps:
                mirrored[row] = True
            steps[row] = allowed - one.left
        return mirrored, steps

    def _answer_literals(self, plan: JointPlan, rows: PartRows, of: Expansion) -> None:
        """Answers the forms whose literals occur in the text of a joint binding."""
        rows, shares = self._getting(list(map(of.context.accounts.of_part, rows.parts)), rows, of)
        joints = of.joints(plan, rows, self._quota.work)
        for block in joints.blocks():
            for selection, some, joint, row in _having_literals(plan, rows, block):
                self._answer_forms(selection, some, joint, row, of)
        shares.charge(of.matches.arrival[rows.place], np.zeros(len(rows), np.int64), joints.steps)

    def _answer_forms(
        self, selection: Selection, rows: PartRows, block: JointBlock, of_joint: Ints, of: Expansion
    ) -> None:
        """Answers the forms of rows over joint bindings, `of_joint` a row each."""
        shares = self._shares(list(map(of.context.accounts.of, forms_of(rows.parts))), rows, of)
        mirrored, steps = self._mirrored(rows, of)
        emission = _Emission(self._registry, self._quota, of, selection, rows, shares, steps)
        joint = np.flatnonzero(shares.gets[of_joint] & ~mirrored[of_joint])
        if len(joint):
            emission.emit(block.take(joint), of_joint[joint])
        gets = np.flatnonzero(shares.gets)
        shares.take(gets).charge(of.matches.arrival[rows.place[gets]], emission.new[gets], steps[gets])

    def answer_alone(
        self,
        group: TargetGroup,
        rows: PartRows,
        shares: Sequence[Share],
        block: JointBlock,
        partner_after: Sequence[int],
        of: Expansion,
    ) -> None:
        """Adds a form's answers from joint bindings without a partner, which are already charged. Each is alone except
        for recipients that see everything after a document, its `partner_after`, or an earlier one: the least one of
        the bindings with the same choice counts. If that is less than NOBODY, it is alone for all. `shares` has who
        gets each of the `rows`."""
        form, account = group.form_of_queries, of.context.accounts.of_part(group)
        codes = [block.codes(term.var).tolist() for term in form.selection.terms]
        choices = list(zip(block.of.tolist(), *codes, strict=True))
        seen: dict[tuple[int, ...], int] = {}
        for choice, after in zip(choices, partner_after, strict=True):
            seen[choice] = min(after, seen.get(choice, after))
        numbers: dict[tuple[int, int], int] = {}
        of_joint = [numbers.setdefault((choice[0], seen[choice]), len(numbers)) for choice in choices]
        given: list[Share] = []
        for row, after in numbers:
            share, arrival = shares[row], int(of.matches.arrival[rows.place[row]])
            gone = [q for q in account.audience.queries if q.sees_after <= after] if after >= NOBODY else []
            got = [q for q in gone if account.gets(share, q, arrival)]
            given.append(share._replace(withheld=(*share.withheld, *got)) if got else share)
        some = rows.take(np.array([row for row, _ in numbers]))
        steps = np.zeros(len(some), np.int64)
        emission = _Emission(self._registry, self._quota, of, form.selection, some, Shares.listed(given), steps)
        emission.emit(block, np.array(of_joint))

    def _count_ties(self, plan: JointPlan, rows: PartRows, of: Expansion) -> None:
        """Counts the documents of a match, a single row, for the forms of its part that would get it but for the times.
        A pair counts once for a form, whatever its rows, nodes and order. Takes at most the steps of `looking`, and
        costs the queries nothing."""
        context, part, inputs = of.context, rows.parts[rows.part[0]], of.inputs(rows)(0)
        if not is_tie(*inputs):
            return
        arrival, looking = inputs.arrival, context.accounts.of_part(part).looking
        if not looking.counts(arrival) or len(context.ties) >= MOST_TIES:
            looking.left_out = True
            return
        one, other = sorted((inputs[0].parts, inputs[1].parts))
        pair = looking, one, other
        is_new = pair not in context.ties
        context.ties.add(pair)
        steps = Steps(allowed := min(self._quota.work, MOST_STEPS))
        with suppress(OutOfSteps):
            for form in self._matching(plan, rows, of, steps):
                key = form, inputs[0].parts, inputs[1].parts
                if key in context.ties:
                    continue
                account = context.accounts.of(form)
                if (share := account.share(inputs.t1 - inputs.t0, inputs, context.accounts.first_qid)) is None:
                    continue
                if is_tie(inputs[1], inputs[0]) and context.mirrors.tell(form.tie_mirror, inputs, steps):
                    continue  # the other order is counted
                context.ties.add(key)
                account.tie(arrival, share)
        looking.add(arrival, is_new, 1 + allowed - steps.left)

    def _matching(self, plan: JointPlan, rows: PartRows, of: Expansion, steps: Steps) -> Iterator[Form]:
        """Yields the forms of a row's part that have a joint binding. Takes `steps`."""
        part = rows.parts[rows.part[0]]
        if isinstance(part, TargetGroup) and not part.residual:
            yield part.form_of_queries  # without residual predicates, a match always has a joint binding
            return
        joints, forms = of.joints(plan, rows, steps.left), dict[Form, None]()
        for block in joints.blocks():
            if isinstance(part, TargetGroup):
                forms[part.form_of_queries] = None
                break
            for _, some, _, _ in _having_literals(plan, rows, block):
                forms |= dict.fromkeys(forms_of(some.parts))
        steps.take(int(joints.steps[0]))
        yield from forms


def _having_literals(
    plan: JointPlan, rows: PartRows, block: JointBlock
) -> Iterator[tuple[Selection, PartRows, JointBlock, Ints]]:
    """Yields the forms whose literals occur in the text of a joint binding: by selection, rows whose parts are the
    forms', and joint bindings with a row each."""
    assert plan.operand is not None, "a group of literals tests a text"
    block, (text,) = block.charged([block.text(plan.operand)])
    keys, place = np.unique(rows.part[block.of] * len(text.texts) + text.codes, return_inverse=True)
    groups: list[list[TargetGroup]] = []
    for key in keys.tolist():
        of_part = rows.parts[key // len(text.texts)]
        assert isinstance(of_part, LiteralGroup), "others test no text"
        groups.append(of_part.groups_for(text.texts[key % len(text.texts)]))
    joint = np.repeat(np.arange(len(place)), np.array([len(some) for some in groups], np.int64)[place])
    by_selection: dict[Selection, dict[TargetGroup, int]] = {}
    flat = [group for key in place.tolist() for group in groups[key]]
    for group in dict.fromkeys(flat):
        known = by_selection.setdefault(group.form_of_queries.selection, {})
        known[group] = len(known)
    for selection, known in by_selection.items():
        those = np.flatnonzero([group in known for group in flat])
        numbers = np.array([known[flat[at]] for at in those.tolist()], np.int64)
        pairs, row = np.unique(block.of[joint[those]] * len(known) + numbers, return_inverse=True)
        some = PartRows(list(known), pairs % len(known), rows.place[pairs // len(known)])
        yield selection, some, block.take(joint[those]), row


class _Emission:
    """Answers rows of one selection. `new` counts the answers of each row, and `steps` its steps."""

    def __init__(
        self,
        registry: KnownQueries,
        quota: Quota,
        of: Expansion,
        selection: Selection,
        rows: PartRows,
        shares: Shares,
        steps: Ints,
    ) -> None:
        self._registry, self._quota, self._of, self._selection = registry, quota, of, selection
        self._context, self._matches, self._rows, self._shares = of.context, of.matches, rows, shares
        self._forms = forms_of(rows.parts)
        self._form_numbers = np.array(list(map(of.context.number, self._forms)), np.int64)
        self.new: Ints = np.zeros(len(rows), np.int64)
        self.steps = steps

    def emit(self, block: JointBlock, of: Ints) -> bool:
        """Adds the answers of joint bindings, `of` a row each. Returns whether all rows may have more."""
        selection, known = self._selection, self._context.answers.next_id
        block, those, choices = block.chosen(selection.terms)
        of = of[those]
        place = self._rows.place[of]
        columns = [block.codes(term.var) for term in selection.terms]
        ids = self._ids(of, place, columns, [choice_numbers(*one) for one in choices.values()])
        _, first = number_rows(ids)
        first = first[ids[first] >= known]
        self._link(ids, place)
        if len(first):
            some, values = block.take(first), self._of.values
            terms = zip(columns, selection.terms, strict=True)
            shown = [values.column(codes[first], term.functions) for codes, term in terms]
            for at, (codes, chosen) in choices.items():
                shown[at] = replace(shown[at], places=codes[first], choices=chosen)
            several = {selection.terms[at]: shown[at] for at in choices}
            holes = [
                hole if isinstance(hole, str) else several.get(hole) or some.column(hole) for hole in selection.holes
            ]
            t0, t1 = self._matches.t0[place[first]], self._matches.t1[place[first]]
            self._add(answer_texts(selection, t0, t1, shown, holes), ids[first], of[first], place[first])
        if selection.is_once:
            self._note_keys(block, of, ids)
        return int(self.new.max(initial=0)) <= self._quota.matches

    def _ids(self, of: Ints, place: Ints, columns: Sequence[Ints], choices: Sequence[Ints]) -> Ints:
        """Returns the answers' ids of joint bindings, also of those that are new."""
        matches, answers = self._matches, self._context.answers
        parts, right = matches.parts(self._context.number), matches.right[place]
        keys = [self._form_numbers[self._rows.part[of]], parts[matches.left[place]], parts[right]]
        keys[-1][right < 0] = -1
        for codes in columns:
            keys += self._of.values.documents_and_nodes(codes)
        packed = np.ascontiguousarray(np.stack([*keys, *choices], axis=1))
        as_bytes = packed.view(np.dtype((np.void, packed.dtype.itemsize * packed.shape[1])))[:, 0].tolist()
        known, ids = self._context.emitted, list[int]()
        for key in as_bytes:
            if (id := known.get(key)) is None:
                id = known[key] = answers.next_id
                answers.next_id += 1
            ids.append(id)
        return np.array(ids, np.int64)

    def _link(self, ids: Ints, place: Ints) -> None:
        """Links answers to matches, each to at most MOST_MATCHES."""
        counts = self._context.link_counts
        if (more := self._context.answers.next_id - len(counts)) > 0:
            counts.extend(np.zeros(more, np.int64))
        pairs = distinct(ids * len(self._matches) + place)
        ids, place = pairs // len(self._matches), pairs % len(self._matches)
        starts = group_starts(ids)
        sizes = np.diff(np.append(starts, len(ids)))
        rank = np.arange(len(ids)) - np.repeat(starts, sizes) + counts.values[ids]
        few = rank < MOST_MATCHES
        counts.values[ids[starts]] += sizes
        self._of.ids.append(ids[few])
        self._of.places.append(place[few])

    def _add(self, made: AnswerTexts, ids: Ints, of: Ints, place: Ints) -> None:
        context, matches, shares, count = self._context, self._matches, self._shares, len(of)
        np.add.at(self.new, of, 1)
        np.add.at(self.steps, of, (len(made.head) + lengths(made.tails)) // XML_CHARACTERS_PER_STEP)
        parts = self._rows.part[of]
        documents, streams = matches.sources(place)
        first, second = matches.part_ids(place)
        columns: dict[str, Any] = {
            **{name: getattr(matches, name)[place] for name in ("t0", "t1", "width", "appeared", "arrival")},
            "first_qid": np.full(count, shares.first_qid),
            "form": joined_texts(count, [Encoded(parts, [form.id for form in self._forms])]),
            "documents": documents,
            "streams": streams,
            "nodes": made.nodes,
            "head": joined_texts(count, [made.head]),
            "tail": made.tails,
            "choice": joined_texts(count, [", [", first, second, "], ", *made.node_list, "]"]),  # as `choice_of`
        }
        single = zip(ids.tolist(), of.tolist(), strict=True) if shares.single else ()
        withheld = {
            id: tuple([query.qid for query in alone.withheld])
            for id, row in single
            if (alone := shares.single.get(row)) is not None and alone.withheld
        }
        if not self._selection.is_once:
            context.answers.add(columns, ids)
            context.answers.withheld |= withheld
        forms = [self._forms[part] for part in distinct(parts).tolist()]
        readers = {form: self._registry.read_of(form.id) for form in forms}
        if not (self._selection.is_once or any(readers.values())):
            return
        listed = {name: column if isinstance(column, list) else column.tolist() for name, column in columns.items()}
        for at, (part, id, row) in enumerate(zip(parts.tolist(), ids.tolist(), of.tolist(), strict=True)):
            form = self._forms[part]
            if form.once is None and not readers[form]:
                continue
            answer, account, share = Answer.of(listed, at), context.accounts.of(form), self._share(row)
            inputs = matches.inputs(int(place[at]))
            if form.once is not None:
                answer.withheld = withheld.get(id, ())
                one = PutOff(answer, inputs, account, share, context.backfilled, form.once.window)
                context.put_off.setdefault(form, {})[id] = one
                context.deferred[id] = answer
                continue
            for query in readers[form]:
                if query.active and account.gets(share, query, inputs.arrival):
                    within = query not in context.backfilled
                    self._of.documents.append(as_published(query, answer, inputs, within=within))

    def _share(self, row: int) -> Share:
        if (single := self._shares.single.get(row)) is not None:
            return single
        place, first_qid = self._rows.place[row], self._shares.first_qid
        width, appeared = int(self._matches.width[place]), int(self._matches.appeared[place])
        key = ChargeKey(int(self._shares.window[row]), int(self._shares.since[row]), first_qid, 0)
        return Share(key, width, appeared, first_qid)

    def _note_keys(self, block: JointBlock, of: Ints, ids: Ints) -> None:
        """Notes the keys of ONCE PER answers."""
        for part in distinct(self._rows.part[of]).tolist():
            form = self._forms[part]
            assert form.once is not None, "all forms of the selection have it"
            those = np.flatnonzero(self._rows.part[of] == part)
            some = block.take(those)
            texts = [some.text(key) for key in form.once.keys]
            for one in texts:
                np.add.at(self.steps, of[those], one.costs())
            waiting = self._context.put_off[form]
            rows = zip(*(one.rows() for one in texts), strict=True) if texts else ([()] * len(those))
            for id, row in zip(ids[those].tolist(), rows, strict=True):
                waiting[id].keys.add(once_key(row))


NOBODY = -1  # a docid before all others

MOST_MATCHES = 100
"""Maximum number of matches that are stored for an answer: equal values of two documents may make millions."""


class InnerJoinOperator:
    """Each distinct tuple of an inner join's variables is a document of its hidden stream."""

    def __init__(self, records: Records, quota: Quota) -> None:
        self._records, self._quota = records, quota

    def on_matches(self, parts: Sequence[OfRow], of: Expansion) -> None:
        """Adds the tuples not found before in the step, until they exceed every reader's quota."""
        alike: dict[JointPlan, list[OfRow]] = {}
        for part, places in parts:
            alike.setdefault(part.plan[0], []).append((part, places))
        for plan, some in alike.items():
            rows = PartRows.of(some)
            windows = np.array([part.first.window for part in rows.parts], np.int64)
            gets = of.matches.width[rows.place] <= windows[rows.part]
            if plan.op == "FOLLOWED BY":
                gets &= of.matches.is_in_order(rows.place)
            self._add_tuples(plan, rows.take(gets), of)

    def _add_tuples(self, plan: JointPlan, rows: PartRows, of: Expansion) -> None:
        context = of.context
        streams: list[HiddenStream] = []
        for part in rows.parts:
            assert isinstance(part, TargetGroup), "only queries have literal tests"
            streams.append(part.hidden_stream)
        inputs = list(map(of.inputs(rows), range(len(rows))))
        payers = [context.payers(rows.parts[part], one) for part, one in zip(rows.part.tolist(), inputs, strict=True)]
        work, steps = self._quota.work, np.zeros(len(rows), np.int64)
        for row, part in enumerate(rows.part.tolist()):
            if payers[row]:
                of_row = Steps(work)
                try:
                    is_mirrored = context.mirrors.tell(streams[part].mirror, inputs[row], of_row)
                except OutOfSteps:
                    is_mirrored = True
                steps[row] = work - of_row.left
                if is_mirrored:
                    charge(payers[row], inputs[row].arrival, 0, 1 + int(steps[row]))
                    payers[row] = ()
        those = [row for row, some in enumerate(payers) if some]
        if not those:
            return
        rows, steps = rows.take(np.array(those)), steps[those]
        joints = of.joints(plan, rows, work)
        joints.steps += steps
        counts: Ints = np.zeros(len(rows), np.int64)
        for block in joints.blocks():
            for row, binding in zip(block.of.tolist(), block.bindings(), strict=True):
                if counts[row] <= self._quota.matches:
                    stream = streams[rows.part[row]]
                    new, document = self.tuple_of(stream, context, inputs[those[row]], binding)
                    counts[row] += new > 0
                    joints.steps[row] += new
                    if document is not None:
                        of.documents.append(document)
            joints.stop(counts > self._quota.matches)
        for row, count, taken in zip(those, counts.tolist(), joints.steps.tolist(), strict=True):
            charge(payers[row], inputs[row].arrival, count, taken)

    def tuple_of(
        self, stream: HiddenStream, context: StepContext, inputs: Inputs, binding: JointBinding
    ) -> tuple[int, Record | None]:
        """Returns the steps of a tuple, at least 1, or 0 if it is not new in this step; and its document unless one
        exists from before."""
        values = [binding[var] for var in stream.hidden.variables]
        bound = tuple((value.record.docid, value.node) for value in values)
        key = stream.stream, inputs.parts, bound
        if key in context.tuples:
            return 0, None
        context.tuples.add(key)
        whole = {var for var in stream.hidden.whole if binding[var].is_element()}
        children = "".join(
            values[i].copied_as(f"v{i}") if var in whole else element(f"v{i}", values[i].text())
            for i, var in enumerate(stream.hidden.variables)
        )
        xml = f"<tuple>{children}</tuple>" if children else "<tuple/>"
        steps = 1 + len(xml) // XML_CHARACTERS_PER_STEP
        # A tuple from before the query is charged to it, too.
        return steps, None if key in context.known_tuples else tuple_record(stream.stream, inputs, xml, bound)
