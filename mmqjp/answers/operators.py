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
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import product
from operator import attrgetter
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from common.bounds import EARLIEST, INFINITE, LATEST
from common.limits import Quota
from join_stage.plans import JoinEngine
from join_stage.protocol import Matches, flatten_edges
from join_stage.signature.join import SignatureJoin
from join_stage.store.protocol import TableStore
from mmqjp.answers.accounts import ALL_READERS, Accounts, Cutoff, Payers, charge
from mmqjp.answers.output import (
    Answer,
    BoundValue,
    JointBinding,
    JointBindings,
    Match,
    Mirrors,
    body,
    match_rows,
    matches_in,
)
from mmqjp.answers.quota import (
    MOST_STEPS,
    NEVER,
    XML_CHARACTERS_PER_STEP,
    Arrivals,
    EqualTimeBudget,
    OutOfSteps,
    Share,
    SharedAccount,
    Steps,
    TieCounts,
)
from mmqjp.documents.record import (
    Inputs,
    Progress,
    Record,
    Records,
    StoredRecords,
    Watermarks,
    docid_batches,
    published_record,
    tuple_record,
)
from mmqjp.queries.forms import DirectSelection, DirectTerm, Form, LiteralGroup, RowPart, TargetGroup, element
from mmqjp.queries.model import HiddenStream, Members, Owner, Pause, Subscription, choice_of
from mmqjp.queries.registry import KnownQueries, Registry, behind
from mmqjp.state.eviction import JoinState, arriving
from mmqjp.tables.schema import Ledger, TableRows, ToldRow, hidden_tuples, told_among
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


MATCH_CHUNK = 2_000
"""Matches expanded at a time; their documents are in memory together."""


class MatchLog(Protocol):
    @property
    def next_match(self) -> int: ...

    def save_matches(self, rows: pa.Table) -> None:
        """Appends rows of `match_rows`, numbered from `next_match`."""


OnMatch = Callable[[RowPart, StepContext, Match, Inputs], Sequence[Expanded]]
"""Returns a match's results for the plan nodes of a part that take part and see its documents. Charges their accounts;
a node over its quota gets nothing."""


@dataclass(eq=False)
class MatchReader:
    """Expands a step's matches to the plan nodes that subscribe to their rows. `arrivals` has the step's documents."""

    _queries: KnownQueries
    _records: StoredRecords
    _on_match: OnMatch
    _context: StepContext
    _arrivals: Arrivals
    _log: MatchLog

    def read(self, matches: Matches, answers: list[Answer]) -> list[Record]:
        """Expands matches: appends to `answers`, logs the matches, returns the published documents."""
        published: list[Record] = []
        for chunk in matches.to_batches(max_chunksize=MATCH_CHUNK):
            published += self.read_chunk(chunk, answers)
        return published

    def read_chunk(self, chunk: pa.RecordBatch, answers: list[Answer]) -> list[Record]:
        if closed := self._closed(chunk["qid"].unique().to_pylist()):
            until = self._arrivals.latest(chunk) < [closed.get(qid, NEVER) for qid in chunk["qid"].to_pylist()]
            chunk = chunk.filter(pa.array(until))
        if chunk.num_rows:
            chunk = self._without_spent(chunk)
        if not chunk.num_rows:
            return []
        matches = matches_in(chunk)
        self._records.load(docid for match in matches for docid in match.docids)
        return self.note(self._expand(matches), chunk, answers)

    def _without_spent(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        qids = chunk["qid"].to_numpy()
        bounds = {row: looking for row in np.unique(qids).tolist() if (looking := self._looking(row)) is not None}
        among = np.isin(qids, list(bounds))
        if not among.any():
            return chunk
        left, right = (chunk[name].fill_null(-1).to_numpy(zero_copy_only=False) for name in ("docid1", "docid2"))
        docids = np.unique(np.concatenate([left[among], right[among]]))
        self._records.load(docids.tolist())
        records = [self._records[docid] for docid in docids.tolist()]
        t0, t1 = (np.array(list(map(attrgetter(name), records)), np.int64) for name in ("t0", "t1"))
        is_spent = t1[np.searchsorted(docids, left[among])] == t0[np.searchsorted(docids, right[among])]
        arrivals = self._arrivals.latest(chunk)[among]
        for row, looking in bounds.items():
            of_row = qids[among] == row
            for one in looking:
                is_spent[of_row] &= one.spent(arrivals[of_row])
        stays = np.ones(len(qids), np.bool_)
        stays[among] = ~is_spent
        return chunk.filter(pa.array(stays))

    def _expand(self, matches: Iterable[Match]) -> Iterator[tuple[Inputs, list[Expanded]]]:
        for match in matches:
            inputs = Inputs([self._records[docid] for docid in match.docids])
            found: list[Expanded] = []
            for part in self._queries.parts_of_row(match.row):
                found += self._on_match(part, self._context, match, inputs)
            yield inputs, found

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

    def note(
        self,
        expanded: Iterable[tuple[Inputs | Answer | None, Sequence[Expanded]]],
        chunk: pa.RecordBatch,
        answers: list[Answer],
    ) -> list[Record]:
        """Appends to `answers`, logs the matches behind them, rows of a chunk, and returns published documents."""
        published: list[Record] = []
        places: list[int] = []
        times: list[tuple[int, int]] = []
        for place, (interval, found) in enumerate(expanded):
            number = self._log.next_match + len(places)
            for item in found:
                published += item.documents
                if item.answer is not None:
                    item.answer.matches.append(number)
                    if not (item.duplicate or item.put_off):
                        answers.append(item.answer)
            if interval is not None and any(item.answer is not None for item in found):
                places.append(place)
                times.append((interval.t0, interval.t1))
        if places:
            rows = chunk.take(pa.array(places))
            self._log.save_matches(match_rows(rows, times, self._log.next_match, self._queries.template_of))
        return published


PREFIX = "ties "
"""Key prefix of the settings with counts, before the form's id."""

KEYS_KEPT = 8
"""Above this many keys, counts that apply to no query are dropped."""


class StoredTies:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, TieCounts] | None = None
        self._here: dict[str, TieCounts] = {}
        """Counts since the store was opened."""
        self._found: Mapping[str, TieCounts] = {}
        """Those of a batch that is not committed."""

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


MOST_TIES = 1_000_000
"""Maximum number of pairs per step, which remembers them."""


def is_tie(left: Record, right: Record) -> bool:
    """Whether one document ends exactly when the other begins, and they share no source document."""
    return left.t1 == right.t0 and not set(left.sources) & set(right.sources)


def count_ties(part: RowPart, context: StepContext, match: Match, inputs: Inputs, quota: Quota) -> None:
    """Counts a match's documents for the forms of a part that would get it but for the times. A pair counts once for a
    form, whatever its rows, nodes and order. Takes at most the steps of `looking`, and costs the queries nothing."""
    if part.op != "FOLLOWED BY" or not is_tie(*inputs):
        return
    arrival, looking = inputs.arrival, context.accounts.of_part(part).looking
    if not looking.counts(arrival) or len(context.ties) >= MOST_TIES:
        looking.left_out = True
        return
    one, other = sorted((inputs[0].parts, inputs[1].parts))
    pair = looking, one, other
    is_new = pair not in context.ties
    context.ties.add(pair)
    steps = Steps(allowed := min(quota.work, MOST_STEPS))
    with suppress(OutOfSteps):
        for form in _matching(part, context, match, inputs, steps):
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


def _matching(part: RowPart, context: StepContext, match: Match, inputs: Inputs, steps: Steps) -> Iterator[Form]:
    if isinstance(part, LiteralGroup):
        for binding in context.bindings.of(part, inputs, match.nodes, steps):
            for group in part.groups_for(context.bindings.text(part.operand, binding, steps)):
                yield group.form_of_queries
    elif not part.residual or any(True for _ in context.bindings.of(part, inputs, match.nodes, steps)):
        yield part.form_of_queries  # without residual predicates, a match always has a joint binding


class QueryOperator:
    """Each distinct choice of documents and SELECT nodes is one answer to a form's members; each PUBLISHes it."""

    def __init__(self, registry: KnownQueries, records: StoredRecords, quota: Quota) -> None:
        self._registry, self._records, self._quota = registry, records, quota

    def on_match(self, part: RowPart, context: StepContext, match: Match, inputs: Inputs) -> Sequence[Expanded]:
        """Returns the answers of a part's forms, each once per row of R_T."""
        if not is_in_order(part, inputs):
            count_ties(part, context, match, inputs, self._quota)
            return ()
        account = context.accounts.of_part(part)
        if (share := account.share(_width(inputs), inputs, context.accounts.first_qid)) is None:
            return ()
        if isinstance(part, TargetGroup) and (direct := part.direct) is not None and self._is_free(part, direct):
            form, arrival = part.form_of_queries, inputs.arrival
            if form.mirror is not None and context.mirrors.tell(form.mirror, inputs, Steps()):
                account.charge(arrival, share, 0, 1)
                return ()
            item = self._expanded(form, share, context, match, inputs, _direct_values(direct, inputs, match.nodes))
            if item is None or item.answer is None or item.duplicate:
                account.charge(arrival, share, 0, direct.steps)
            else:
                account.charge(arrival, share, 1, direct.steps + len(item.answer.body) // XML_CHARACTERS_PER_STEP)
            return () if item is None else (item,)
        steps = Steps(allowed := self._quota.work)
        if isinstance(part, LiteralGroup):
            answered = self._answer_literals(part, context, match, inputs, steps)
            account.charge(inputs.arrival, share, 0, allowed - steps.left)
            for one in answered:
                one.account.charge(inputs.arrival, one.share, one.new, allowed - one.steps.left)
        else:
            answered = [one := _Answering(part.form_of_queries, account, share, steps)]
            with suppress(OutOfSteps):
                steps.take()
                told = context.mirrors.tell(one.form.mirror, inputs, steps)
                for binding in () if told else context.bindings.of(part, inputs, match.nodes, steps):
                    if not self._answer(one, context, match, inputs, binding):
                        break
            account.charge(inputs.arrival, share, one.new, allowed - steps.left)
        return [expanded for one in answered for expanded in self._published(one, context, inputs)]

    def answer_alone(
        self, group: TargetGroup, share: Share, context: StepContext, match: Match, inputs: Inputs, alone: list[Alone]
    ) -> list[Expanded]:
        """Returns a form's answers from joint bindings without a partner, which are already charged."""
        form, account = group.form_of_queries, context.accounts.of_part(group)
        seen: dict[tuple[object, ...], int] = {}
        for one in alone:
            choice = _choice(form, inputs, self._values(form, one.binding)[0])
            seen[choice] = min(one.partner_after, seen.get(choice, one.partner_after))
        found: list[Expanded] = []
        for one in alone:
            after = seen[_choice(form, inputs, self._values(form, one.binding)[0])]
            gone = tuple(q for q in account.audience.queries if q.sees_after <= after) if after >= NOBODY else ()
            got = [q for q in gone if account.gets(share, q, inputs.arrival)]
            ours = share._replace(withheld=(*share.withheld, *got)) if got else share
            answering = _Answering(form, account, ours, Steps())
            self._answer(answering, context, match, inputs, one.binding)
            found += self._published(answering, context, inputs)
        return [item._replace(match=match) for item in found]

    def _is_free(self, group: TargetGroup, direct: DirectSelection) -> bool:
        form = group.form_of_queries
        costs_nothing = direct.steps <= self._quota.work and (form.mirror is None or form.mirror.always)
        return costs_nothing and not self._registry.read_of(form.id)

    def _answer_literals(
        self, group: LiteralGroup, context: StepContext, match: Match, inputs: Inputs, steps: Steps
    ) -> list[_Answering]:
        """Returns results for the forms whose literals occur in a joint binding's text. They share `steps`."""
        found: dict[TargetGroup, _Answering | None] = {}
        with suppress(OutOfSteps):
            steps.take()
            for binding in context.bindings.of(group, inputs, match.nodes, steps):
                for one in group.groups_for(context.bindings.text(group.operand, binding, steps)):
                    if one not in found:
                        found[one] = self._begun(one.form_of_queries, context, inputs, steps)
                    if (answering := found[one]) is not None:
                        with suppress(OutOfSteps):
                            self._answer(answering, context, match, inputs, binding)
        ordered = sorted(found.items(), key=lambda item: item[0].number)
        return [answering for _, answering in ordered if answering is not None]

    def _begun(self, form: Form, context: StepContext, inputs: Inputs, steps: Steps) -> _Answering | None:
        """Returns a form's empty result; None if no member gets the match or its mirror covers it. Takes `steps`."""
        account = context.accounts.of(form)
        share = account.share(_width(inputs), inputs, context.accounts.first_qid)
        if share is None or context.mirrors.tell(form.mirror, inputs, steps):
            return None
        return _Answering(form, account, share, Steps(self._quota.work))

    def _values(self, form: Form, binding: JointBinding) -> _Values:
        records, holes = self._records, form.selection.normal.holes
        return (
            [value_of(records, binding, term) for term in form.selection.terms],
            [hole if isinstance(hole, str) else value_of(records, binding, hole) for hole in holes],
        )

    def _answer(
        self, answering: _Answering, context: StepContext, match: Match, inputs: Inputs, binding: JointBinding
    ) -> bool:
        """Adds a joint binding's answer. Returns whether more may follow. Raises OutOfSteps if no quota allows it."""
        if answering.new > self._quota.matches or answering.steps.left < 0:
            return False
        form, share = answering.form, answering.share
        values = self._values(form, binding)
        item = self._expanded(form, share, context, match, inputs, values)
        if form.once is not None:
            emitted = context.emitted[_choice(form, inputs, values[0])]
            assert emitted is not None, "answers are emitted with their rows"
            waiting, answer = context.put_off.setdefault(form, {}), emitted[0]
            if (one := waiting.get(answer)) is None:
                told = answering.account, share, context.backfilled, form.once.window
                one = waiting[answer] = PutOff(answer, inputs, *told)
            one.keys.add(once_key([context.bindings.text(key, binding, answering.steps) for key in form.once.keys]))
            item = item and item._replace(put_off=True)
        if item is not None:
            answering.found.append(item)
            if item.answer is not None and not item.duplicate:
                answering.new += 1
                answering.steps.take(len(item.answer.body) // XML_CHARACTERS_PER_STEP)
        return True

    def _published(self, answering: _Answering, context: StepContext, inputs: Inputs) -> list[Expanded]:
        found = answering.found
        if not found or answering.form.once is not None:
            return found
        if readers := self._registry.read_of(answering.form.id):
            account, share = answering.account, answering.share
            getting = [query for query in readers if query.active and account.gets(share, query, inputs.arrival)]
            for place, item in enumerate(found):
                if item.answer is not None and not item.duplicate:
                    documents = [
                        as_published(query, item.answer, inputs, within=query not in context.backfilled)
                        for query in getting
                    ]
                    found[place] = item._replace(documents=documents)
        return found

    def _expanded(
        self, form: Form, share: Share, context: StepContext, match: Match, inputs: Inputs, found: _Values
    ) -> Expanded | None:
        values, holes = found
        key = _choice(form, inputs, values)
        if (emitted := context.emitted.get(key)) is not None:
            answer, last = emitted
            if last is match or len(answer.matches) >= MOST_MATCHES:
                return None
            context.emitted[key] = answer, match
            return Expanded(answer, duplicate=True)
        selection, t0, t1 = form.selection, inputs.t0, inputs.t1
        nodes, withheld = tuple([value.json() for value in values]), tuple([query.qid for query in share.withheld])
        text, shown = body(selection, t0, t1, values, holes), selection.nodes % nodes
        choice = choice_of(inputs.part_ids_json, selection.node_list % nodes)
        given = form.id, share.width, share.appeared, share.first_qid, inputs.arrival
        answer = Answer(t0, t1, inputs.documents, inputs.streams, shown, text, choice, *given, withheld)
        context.emitted[key] = answer, match
        return Expanded(answer)


MOST_MATCHES = 100
"""Maximum number of matches that are stored for an answer: equal values of two documents may make millions."""

NOBODY = -1
"""A docid before all others."""


class Alone(NamedTuple):
    """A joint binding that is alone except for recipients that see everything after document `partner_after` or an
    earlier one; if that is less than NOBODY, it is alone for all."""

    binding: JointBinding
    partner_after: int


@dataclass(slots=True)
class _Answering:
    """A form's results for a match; `new` counts those in `found` that are not duplicates."""

    form: Form
    account: SharedAccount
    share: Share
    steps: Steps
    found: list[Expanded] = field(default_factory=list)
    new: int = 0


def _choice(form: Form, inputs: Inputs, values: Sequence[BoundValue]) -> tuple[object, ...]:
    return form, inputs.parts, tuple([(value.record.docid, value.node) for value in values])


_Values = tuple[list[BoundValue], list[BoundValue | str]]
"""Values of a selection's terms, and of the holes of its constructor."""


def _direct_values(direct: DirectSelection, inputs: Inputs, nodes: Sequence[int]) -> _Values:
    def value(term: DirectTerm) -> BoundValue:
        side, variable, functions = term
        record = inputs[side]
        return BoundValue(record, variable.node(record.tree, nodes), functions)

    return list(map(value, direct.terms)), [hole if isinstance(hole, str) else value(hole) for hole in direct.holes]


def _width(inputs: Inputs) -> int:
    return inputs.t1 - inputs.t0 if len(inputs) > 1 else -1


class InnerJoinOperator:
    """Each distinct tuple of an inner join's variables is a document of its hidden stream."""

    def __init__(self, records: Records, quota: Quota) -> None:
        self._records, self._quota = records, quota

    def on_match(self, part: RowPart, context: StepContext, match: Match, inputs: Inputs) -> Sequence[Expanded]:
        """Returns the tuples not emitted before, until they exceed every reader's quota."""
        assert isinstance(part, TargetGroup), "only queries have literal tests"
        if _width(inputs) > part.first.window or not is_in_order(part, inputs):
            return ()
        if not (payers := context.payers(part, inputs)):
            return ()
        stream = part.hidden_stream
        found: list[Record] = []
        count = 0
        steps = Steps(allowed := self._quota.work)
        with suppress(OutOfSteps):
            steps.take()
            told = context.mirrors.tell(stream.mirror, inputs, steps)
            for binding in () if told else context.bindings.of(part, inputs, match.nodes, steps):
                new, document = self.tuple_of(stream, context, inputs, binding, steps)
                count += new
                if count > self._quota.matches:
                    break
                if document is not None:
                    found.append(document)
        charge(payers, inputs.arrival, count, allowed - steps.left)
        return [Expanded(documents=found)] if found else ()

    def tuple_of(
        self, stream: HiddenStream, context: StepContext, inputs: Inputs, binding: JointBinding, steps: Steps
    ) -> tuple[bool, Record | None]:
        """Returns whether a tuple is new in this step, and its document unless one exists from before."""
        values = [value_of(self._records, binding, Term(var)) for var in stream.hidden.variables]
        bound = tuple((value.record.docid, value.node) for value in values)
        key = stream.stream, inputs.parts, bound
        if key in context.emitted:
            return False, None
        context.emitted[key] = None
        children = "".join(element(f"v{i}", value.text()) for i, value in enumerate(values))
        xml = f"<tuple>{children}</tuple>" if children else "<tuple/>"
        steps.take(len(xml) // XML_CHARACTERS_PER_STEP)
        # A tuple from before the query is charged to it, too.
        return True, None if key in context.known_tuples else tuple_record(stream.stream, inputs, xml, bound)
