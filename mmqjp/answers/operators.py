"""What operators share: how a match or a watermark becomes answers and documents. Outputs of ONCE PER queries are
deferred to the end of the step and decided together in the order of their numbers, so the result does not depend on the
order in which a step finds them. Backfill answers new queries over stored documents."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import product
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from common.bounds import EARLIEST, INFINITE, LATEST
from common.limits import Quota
from join_stage.protocol import JoinEngine, Matches
from join_stage.signature.join import SignatureJoin
from join_stage.store.protocol import TableStore
from join_stage.tables import flatten_edges
from mmqjp.answers.matches import JointBinding, JointBindings, Match, Mirrors
from mmqjp.answers.output import Answer, BoundValue
from mmqjp.answers.quota import EqualTimeBudget, Share, SharedAccount
from mmqjp.answers.usage import ALL_READERS, Accounts, Cutoff, Payers
from mmqjp.documents.record import Inputs, Record, Records, StoredRecords, docid_batches, published_record
from mmqjp.documents.watermarks import Progress, Watermarks
from mmqjp.queries.forms import Form, RowPart, TargetGroup
from mmqjp.queries.model import HiddenStream, Members, Owner, Pause, Subscription
from mmqjp.queries.registry import Registry, behind
from mmqjp.state.eviction import JoinState, arriving
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.schema import TableRows, ToldRow, hidden_tuples, told_among
from templates.witness import R_GROUP, Witnesses
from xpath_stage.evaluator import XPathStage
from xscl.algebra.joins import Term


class Components(NamedTuple):
    """What the operators of an engine share."""

    store: JoinEngine
    ledger: Ledger
    registry: Registry
    records: Records
    watermarks: Watermarks
    quota: Quota


OnceKey = tuple[int, int]
"""Two halves of a key's digest."""

AskedKey = tuple[int, int, int]
"""A qid and the halves of a key's digest."""


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

AllPutOff = dict[Form, dict[Answer, PutOff]]


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

    def decide(self, waiting: AllPutOff, batch: int, undecided: Undecided, answers: list[Answer]) -> list[Record]:
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
                told = set(some).difference(gone)
                for query in filter(told.__contains__, self._registry.read_of(one.answer.form)):
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


class Expanded(NamedTuple):
    """Result of a match or watermark: an answer, and documents for readers of streams.

    `duplicate`: another match gave the answer before. `put_off`: decided at the end of the step. `match` is the
    match behind a watermark's decision. All fields empty: nothing new.
    """

    answer: Answer | None = None
    documents: Sequence[Record] = ()
    duplicate: bool = False
    put_off: bool = False
    match: Match | None = None


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
    bindings: JointBindings = field(default_factory=JointBindings)
    mirrors: Mirrors = field(default_factory=Mirrors)
    ties: set[tuple[Form | EqualTimeBudget, tuple[int, ...], tuple[int, ...]]] = field(default_factory=set)
    """Pairs of documents with equal times, as their parts: with a budget if examined, with a form if counted."""
    emitted: dict[tuple[object, ...], tuple[Answer, Match] | None] = field(default_factory=dict)
    """By identity of the answer or tuple; an answer comes with the last match that gave it. It is recorded with all
    its matches, if they are not very many: the first ones depend on the plan."""
    put_off: AllPutOff = field(default_factory=dict)

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


def is_in_order(part: RowPart, inputs: Inputs) -> bool:
    return part.op != "FOLLOWED BY" or len(inputs) == 1 or inputs[0].t1 < inputs[1].t0


def value_of(records: StoredRecords, binding: JointBinding, term: Term) -> BoundValue:
    """Returns a term's value. A tuple's variable refers to a node of an earlier document."""
    record, node = binding[term.var]
    if record.kind == "hidden":
        docid, node = record.bound[node[0] - 1]
        record = records[docid]
    return BoundValue(record, node, term.functions)


class QuotaExceeded(Exception):
    """Queries exceeded their quotas; rerun the step with `cutoffs`, by qid. Never leaves `mmqjp.answers`."""

    def __init__(self, cutoffs: dict[int, Cutoff]) -> None:
        super().__init__(f"{len(cutoffs)} queries exceeded a bound")
        self.cutoffs = cutoffs


@dataclass(frozen=True, slots=True)
class StepResult:
    answers: list[Answer]
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
