"""Reads matches, some at a time: expands them to answers, numbers those that have any, and keeps their rows.

The stored counts of ties: for each form, by whom they count for. They are committed with the batches.

Ties: pairs of documents that FOLLOWED BY leaves out only because one ends just when the other begins.

The operator of queries: evaluates a match once for all members of a form, and charges them together.

The operator of inner joins: makes the tuples of hidden streams, and charges the queries that read them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from lxml import etree

from join_stage.protocol import Matches
from mmqjp.answers.matches import JointBinding, Match, PairTest, match_rows, matches_in
from mmqjp.answers.operators import (
    Expanded,
    Expansion,
    PutOff,
    StatelessOperator,
    StepContext,
    as_published,
    is_in_order,
    once_key,
    value_of,
)
from mmqjp.answers.output import Answer, BoundValue, body
from mmqjp.answers.quota import (
    MOST_STEPS,
    NEVER,
    XML_CHARACTERS_PER_STEP,
    Arrivals,
    ChargeKey,
    EqualTimeBudget,
    OutOfSteps,
    Quota,
    Share,
    SharedAccount,
    Steps,
    TieCounts,
)
from mmqjp.documents.record import Inputs, Record, Records, StoredRecords, tuple_record
from mmqjp.queries.forms import DirectSelection, DirectTerm, Form, LiteralGroup, RowPart, TargetGroup
from mmqjp.queries.model import HiddenStream, Subscription, choice_of
from mmqjp.queries.query_lookup import KnownQueries
from mmqjp.tables.ledger import Ledger
from xscl.algebra.joins import Term

MATCH_CHUNK = 2_000
"""The number of matches expanded at a time. Their documents are in memory together."""


class MatchLog(Protocol):
    """Where the rows of matches with answers go."""

    @property
    def next_match(self) -> int:
        """The number of the next match."""

    def save_matches(self, rows: pa.Table) -> None:
        """Keeps rows of the table `match_rows`, which are numbered from `next_match` on."""


class MatchReader:
    """Reads the matches of one step."""

    def __init__(
        self,
        expansion: Expansion,
        records: StoredRecords,
        arrivals: Arrivals,
        template_of: Callable[[int], int],
        log: MatchLog,
    ) -> None:
        """`arrivals` has the documents of the step, and `template_of` returns the template of a row of R_T."""
        self._expansion, self._records, self._arrivals = expansion, records, arrivals
        self._template_of, self._log = template_of, log

    def read(self, matches: Matches, answers: list[Answer]) -> list[Record]:
        """Expands matches: appends to `answers`, keeps the matches, returns the published documents."""
        published: list[Record] = []
        for chunk in matches.to_batches(max_chunksize=MATCH_CHUNK):
            published += self.read_chunk(chunk, answers)
        return published

    def read_chunk(self, chunk: pa.RecordBatch, answers: list[Answer]) -> list[Record]:
        """Does the same for at most MATCH_CHUNK matches."""
        closed = self._expansion.closed(chunk["qid"].unique().to_pylist())
        open_ones = self._arrivals.before(chunk, closed) if closed else chunk
        if not open_ones.num_rows:
            return []
        open_ones = self._without_spent(open_ones)
        return self._read_open(open_ones, answers) if open_ones.num_rows else []

    def _without_spent(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Leaves out the pairs with equal times that nobody looks at any more."""
        qids = chunk["qid"].to_numpy()
        bounds = {
            row: looking for row in np.unique(qids).tolist() if (looking := self._expansion.looking(row)) is not None
        }
        among = np.isin(qids, list(bounds))
        if not among.any():
            return chunk
        left, right = (chunk[name].fill_null(-1).to_numpy(zero_copy_only=False) for name in ("docid1", "docid2"))
        docids = np.unique(np.concatenate([left[among], right[among]]))
        self._records.load(docids.tolist())
        times = np.array(
            [(record.t0, record.t1) for record in map(self._records.__getitem__, docids.tolist())], np.int64
        )
        places = np.searchsorted(docids, left[among]), np.searchsorted(docids, right[among])
        is_spent = times[places[0], 1] == times[places[1], 0]
        arrivals = self._arrivals.latest(chunk)[among]
        for row, looking in bounds.items():
            of_row = qids[among] == row
            for one in looking:
                is_spent[of_row] &= one.spent(arrivals[of_row])
        stays = np.ones(len(qids), np.bool_)
        stays[among] = ~is_spent
        return chunk.filter(pa.array(stays))

    def _read_open(self, chunk: pa.RecordBatch, answers: list[Answer]) -> list[Record]:
        matches = matches_in(chunk)
        self._records.load(docid for match in matches for docid in match.docids)
        published: list[Record] = []
        answered: list[int] = []
        times: list[tuple[int, int]] = []
        for place, (inputs, found) in enumerate(self._expansion.expand(matches)):
            number = self._log.next_match + len(answered)
            is_answered = False
            for item in found:
                published += item.documents
                if item.answer is not None:
                    is_answered = True
                    item.answer.matches.append(number)
                    if not (item.duplicate or item.put_off):
                        answers.append(item.answer)
            if is_answered:
                answered.append(place)
                times.append((inputs.t0, inputs.t1))
        if answered:
            rows = chunk.take(pa.array(answered))
            self._log.save_matches(match_rows(rows, times, self._log.next_match, self._template_of))
        return published


PREFIX = "ties "
"""What the keys of the settings begin with that hold the counts. The id of a form follows."""

KEYS_KEPT = 8
"""Counts by more keys than this are looked through for those that count for nobody."""


@dataclass(frozen=True, slots=True)
class _Ties:
    """The ties of a form: `pairs` by key, and `less` of them by qid and `begun` of the query. So many were `looked`
    at. With `left_out`, there were more."""

    pairs: Counter[ChargeKey] = field(default_factory=Counter)
    less: Counter[tuple[int, int]] = field(default_factory=Counter)
    looked: int = 0
    left_out: bool = False

    @classmethod
    def read(cls, text: str) -> _Ties:
        pairs, less, looked, left_out = json.loads(text)
        withheld = Counter({(qid, begun): count for qid, begun, count in less})
        return cls(Counter({ChargeKey(*key): count for *key, count in pairs}), withheld, looked, left_out)

    def with_those_of(self, step: TieCounts) -> _Ties:
        left_out = self.left_out or step.left_out
        return _Ties(self.pairs + step.pairs, self.less + step.less, self.looked + step.looked, left_out)

    def text(self) -> str:
        pairs, less = ([(*key, count) for key, count in counts.items()] for counts in (self.pairs, self.less))
        return json.dumps([pairs, less, self.looked, self.left_out])

    def only_for(self, queries: Collection[Subscription]) -> _Ties:
        """Returns the ties without keys that count for none of the queries."""
        since, begun = min(query.since for query in queries), min(query.begun for query in queries)
        known = {(query.qid, query.begun) for query in queries}
        pairs = {key: count for key, count in self.pairs.items() if key.since >= since and key.begun >= begun}
        less = {key: count for key, count in self.less.items() if key in known}
        return replace(self, pairs=Counter(pairs), less=Counter(less))

    def of(self, query: Subscription) -> int:
        """Returns how many count for a query: those since it was registered, or was resumed last."""
        found = sum(
            count
            for (width, since, first_qid, begun), count in self.pairs.items()
            if width <= query.width and since >= query.since and first_qid <= query.qid and begun >= query.begun
        )
        return max(found - self.less[query.qid, query.begun], 0)


class StoredTies:
    """The counts of a store. The caller begins and commits batches."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, _Ties] | None = None
        self._here: dict[str, _Ties] = {}
        """What was counted since the store was opened."""
        self._saved: dict[str, _Ties] = {}
        self._gone: set[str] = set()
        self._found: Mapping[str, TieCounts] = {}

    def _all(self) -> dict[str, _Ties]:
        if self._known is None:
            self._known = {form: _Ties.read(text) for form, text in self._ledger.settings(PREFIX).items() if text}
        return self._known

    def looked(self) -> dict[str, int]:
        """Returns how many pairs were looked at, by whom they were looked at for."""
        return {form: ties.looked for form, ties in self._all().items()}

    def save(self, found: Mapping[str, TieCounts], queries_of: Callable[[str], Collection[Subscription]]) -> None:
        """Writes, within the batch, the counts of forms with those of a step. `queries_of` returns the queries of a
        form. Counts of forms without queries are emptied."""
        self._found = found
        if found:
            known = self._all()
            new = {form: known.get(form, _Ties()).with_those_of(step) for form, step in found.items()}
            for form, ties in new.items():
                if len(ties.pairs) + len(ties.less) > KEYS_KEPT and (queries := queries_of(form)):
                    new[form] = ties.only_for(queries)
            self._saved = {form: ties for form, ties in new.items() if ties != known.get(form)}
            self._gone = {form for form, ties in known.items() if ties.pairs and not queries_of(form)}
            texts = {form: ties.text() for form, ties in self._saved.items()} | dict.fromkeys(self._gone, "")
            self._ledger.save_settings({PREFIX + form: text for form, text in texts.items()})

    def committed(self) -> None:
        """Adopts what `save` wrote: the batch was committed."""
        if self._found:
            self._all().update(self._saved)
            for form in self._gone:
                del self._all()[form]
            self._here |= {
                form: self._here.get(form, _Ties()).with_those_of(step) for form, step in self._found.items()
            }
            self._saved, self._found, self._gone = {}, {}, set()

    def rolled_back(self) -> None:
        """Discards what `save` wrote: the batch was rolled back."""
        self._saved, self._found, self._gone = {}, {}, set()

    def of(self, queries: Iterable[Subscription], *, here: bool) -> dict[str, int]:
        """Returns how many pairs of documents with equal times each name has, the most first; only those that have
        some. With `here`, counts those since the store was opened."""
        found: Counter[str] = Counter()
        if known := self._here if here else self._all():
            for query in queries:
                ties = known.get(query.form_id)
                if ties is not None and (count := ties.of(query)):
                    found[query.name] += count
        return dict(found.most_common())

    def at_least(self, queries: Iterable[Subscription], *, here: bool) -> set[str]:
        """Returns the names whose pairs may be more than `of` says: some were not looked at."""
        known = self._here if here else self._all()
        return {query.name for query in queries if (ties := known.get(query.form_id)) is not None and ties.left_out}


MOST_TIES = 1_000_000
"""A step looks at no more pairs than this, because it remembers them."""


def is_tie(left: Record, right: Record) -> bool:
    """Returns whether one document ends just when the other begins, and they are made of different documents."""
    return left.t1 == right.t0 and not set(left.sources) & set(right.sources)


def count_ties(part: RowPart, context: StepContext, match: Match, inputs: Inputs, quota: Quota) -> None:
    """Counts the documents of a match for the forms of a part of a row of R_T that would get it but for the times.

    A pair is counted once for a form, whatever rows and nodes match in it, and in whichever order. To look at it may
    take as many steps as `looking` says, and costs the queries nothing.
    """
    if part.op != "FOLLOWED BY" or not is_tie(*inputs):
        return
    arrival, looking = inputs.arrival, looking_at(part, context)
    if not looking.may(arrival):
        return
    one, other = sorted((inputs[0].parts, inputs[1].parts))
    pair = looking, one, other
    if len(context.ties) >= MOST_TIES:
        looking.left_out = True
        return
    is_new = pair not in context.ties
    context.ties.add(pair)
    steps = Steps(allowed := min(quota.most_work, MOST_STEPS))
    with suppress(OutOfSteps):
        for form in _matching(part, context, match, inputs, steps):
            key = form, inputs[0].parts, inputs[1].parts
            if key in context.ties:
                continue
            account = context.accounts.of(form)
            share = account.share(inputs.t1 - inputs.t0, inputs, context.accounts.first_qid)
            if share is None:
                continue
            if is_tie(inputs[1], inputs[0]) and context.mirrors.tell(form.tie_mirror, inputs, steps):
                continue  # the other order is counted
            context.ties.add(key)
            account.tie(arrival, share)
    looking.add(arrival, is_new, 1 + allowed - steps.left)


def looking_at(part: RowPart, context: StepContext) -> EqualTimeBudget:
    """Returns what bounds how many pairs are looked at for a part of a row."""
    accounts = context.accounts
    account = accounts.of_literals(part) if isinstance(part, LiteralGroup) else accounts.of(part.form_of_queries)
    return account.looking


def _matching(part: RowPart, context: StepContext, match: Match, inputs: Inputs, steps: Steps) -> Iterator[Form]:
    """Yields the forms that have a joint binding in a match, some of them perhaps more than once."""
    if isinstance(part, LiteralGroup):
        for binding in context.bindings.of(part, inputs, match.nodes, steps):
            for group in part.groups_for(context.bindings.text(part.operand, binding, steps)):
                yield group.form_of_queries
    elif not part.residual or any(True for _ in context.bindings.of(part, inputs, match.nodes, steps)):
        yield part.form_of_queries  # without residual predicates, a match always has a joint binding


def left_out_for_equal_times(query: Subscription, documents: Sequence[Record], quota: Quota) -> bool:
    """Returns whether two stored documents, of the streams that the sides of a query read, satisfy it but for their
    equal times: whether FOLLOWED BY leaves them out because of these alone. Of a chain, the left one is a tuple."""
    left, right = documents
    normal, distance = query.normal, right.t1 - left.t0
    if normal.op != "FOLLOWED BY" or not is_tie(left, right) or distance > query.width:
        return False
    first = normal.conjuncts[0]
    if first.right is None or (left.stream, right.stream) != (first.left.stream, first.right.stream):
        return False
    if not (query.sees(left.appeared) and query.sees(right.appeared)):
        return False
    with suppress(OutOfSteps):
        return PairTest(normal.conjuncts).holds(left, right, Steps(quota.most_work))
    return False


class QueryOperator(StatelessOperator):
    """Queries: each distinct choice of documents and SELECT nodes is one answer to the members of a form. Each of them
    PUBLISHes it to its readers."""

    def __init__(self, registry: KnownQueries, records: StoredRecords, quota: Quota) -> None:
        self._registry, self._records, self._quota = registry, records, quota

    def cutoff(self, part: RowPart, context: StepContext) -> int:
        """Returns the arrival at which the last member exceeded its quota."""
        return _account(part, context).cutoff

    def looking(self, part: RowPart, context: StepContext) -> EqualTimeBudget | None:
        """Returns what bounds the counting of pairs with equal times."""
        return looking_at(part, context)

    def on_match(self, part: RowPart, context: StepContext, match: Match, inputs: Inputs) -> Sequence[Expanded]:
        """Returns the answers of the forms of a part, each once for a row of R_T."""
        if not is_in_order(part, inputs):
            count_ties(part, context, match, inputs, self._quota)
            return ()
        account = _account(part, context)
        share = account.share(_width(inputs), inputs, context.accounts.first_qid)
        if share is None:
            return ()
        if isinstance(part, TargetGroup) and part.direct is not None and self._is_free(part, part.direct):
            mirror = part.form_of_queries.mirror
            if mirror is not None and context.mirrors.tell(mirror, inputs, Steps()):
                account.charge(inputs.arrival, share, 0, 1)
                return ()
            return self._answer_directly(part.form_of_queries, part.direct, account, share, context, match, inputs)
        steps = Steps(allowed := self._quota.most_work)
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
                    if not self._answer(one, context, match.row, inputs, binding):
                        break
            account.charge(inputs.arrival, share, one.new, allowed - steps.left)
        return [expanded for one in answered for expanded in self._published(one, context, inputs)]

    def answer_alone(
        self,
        group: TargetGroup,
        account: SharedAccount,
        share: Share,
        context: StepContext,
        match: Match,
        inputs: Inputs,
        alone: Sequence[Alone],
    ) -> list[Expanded]:
        """Returns the answers that joint bindings without a partner give a form. It was charged for them before."""
        form = group.form_of_queries
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
            self._answer(answering, context, match.row, inputs, one.binding)
            found += self._published(answering, context, inputs)
        return [item._replace(match=match) for item in found]

    def _is_free(self, group: TargetGroup, direct: DirectSelection) -> bool:
        """Returns whether nothing but charges stands in the way of the answers of a group: no reader waits for them,
        no mirror has to be looked for, and a match may take its steps."""
        mirror = group.form_of_queries.mirror
        if direct.steps > self._quota.most_work or not (mirror is None or mirror.always):
            return False
        return not self._registry.read_of(group.form_of_queries.id)

    def _answer_directly(
        self,
        form: Form,
        direct: DirectSelection,
        account: SharedAccount,
        share: Share,
        context: StepContext,
        match: Match,
        inputs: Inputs,
    ) -> Sequence[Expanded]:
        """Returns the only answer that there can be, from the joined nodes."""
        values = [_direct_value(term, inputs, match.nodes) for term in direct.terms]
        holes = [hole if isinstance(hole, str) else _direct_value(hole, inputs, match.nodes) for hole in direct.holes]
        item = self._expanded(form, context, match.row, inputs, values, holes, share)
        if item is None or item.answer is None or item.duplicate:
            account.charge(inputs.arrival, share, 0, direct.steps)
        else:
            account.charge(inputs.arrival, share, 1, direct.steps + len(item.answer.body) // XML_CHARACTERS_PER_STEP)
        return () if item is None else (item,)

    def _answer_literals(
        self, group: LiteralGroup, context: StepContext, match: Match, inputs: Inputs, steps: Steps
    ) -> list[_Answering]:
        """Returns what the forms get whose literals are in the text of a joint binding. `steps` are those that all of
        the group take."""
        found: dict[TargetGroup, _Answering | None] = {}
        with suppress(OutOfSteps):
            steps.take()
            for binding in context.bindings.of(group, inputs, match.nodes, steps):
                for one in group.groups_for(context.bindings.text(group.operand, binding, steps)):
                    if one not in found:
                        found[one] = self._begun(one.form_of_queries, context, inputs, steps)
                    answering = found[one]
                    if answering is not None:
                        with suppress(OutOfSteps):
                            self._answer(answering, context, match.row, inputs, binding)
        ordered = sorted(found.items(), key=lambda item: item[0].number)
        return [answering for _, answering in ordered if answering is not None]

    def _begun(self, form: Form, context: StepContext, inputs: Inputs, steps: Steps) -> _Answering | None:
        """Returns what a form gets for a match so far: nothing. None if none of its members gets the match, or if the
        mirror of the match tells them. To find that takes `steps`."""
        account = context.accounts.of(form)
        share = account.share(_width(inputs), inputs, context.accounts.first_qid)
        if share is None or context.mirrors.tell(form.mirror, inputs, steps):
            return None
        return _Answering(form, account, share, Steps(self._quota.most_work))

    def _values(self, form: Form, binding: JointBinding) -> tuple[list[BoundValue], list[BoundValue | str]]:
        """Returns the values of the terms that a form SELECTs, and of the holes in its constructor."""
        selection, records = form.selection, self._records
        holes = selection.normal.holes
        return (
            [value_of(records, binding, term) for term in selection.terms],
            [hole if isinstance(hole, str) else value_of(records, binding, hole) for hole in holes],
        )

    def _answer(
        self,
        answering: _Answering,
        context: StepContext,
        row: int,
        inputs: Inputs,
        binding: JointBinding,
    ) -> bool:
        """Adds what a joint binding gives a form. Returns whether it may get more. Raises OutOfSteps if it is too much
        for any member."""
        if answering.new > self._quota.most_outputs or answering.steps.left < 0:
            return False
        values, holes = self._values(answering.form, binding)
        item = self._expanded(answering.form, context, row, inputs, values, holes, answering.share)
        if answering.form.once is not None:
            self._put_off(answering, context, inputs, values, binding)
            item = item and item._replace(put_off=True)
        if item is not None:
            answering.found.append(item)
            if item.answer is not None and not item.duplicate:
                answering.new += 1
                answering.steps.take(len(item.answer.body) // XML_CHARACTERS_PER_STEP)
        return True

    def _put_off(
        self,
        answering: _Answering,
        context: StepContext,
        inputs: Inputs,
        values: Sequence[BoundValue],
        binding: JointBinding,
    ) -> None:
        """Notes what a joint binding says of that which is told once."""
        form = answering.form
        assert form.once is not None, "other answers are not put off"
        emitted = context.emitted[_choice(form, inputs, values)]
        assert emitted is not None, "answers are emitted with their rows"
        waiting, answer = context.put_off.setdefault(form, {}), emitted[0]
        one = waiting.get(answer)
        if one is None:
            one = waiting[answer] = PutOff(answer, inputs, answering.account, answering.share, context.backfilled)
        one.keys.add(once_key([context.bindings.text(key, binding, answering.steps) for key in form.once.keys]))

    def _published(self, answering: _Answering, context: StepContext, inputs: Inputs) -> list[Expanded]:
        """Returns what a form got for a match, with documents for the readers of the members that it has."""
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
        self,
        form: Form,
        context: StepContext,
        row: int,
        inputs: Inputs,
        values: list[BoundValue],
        holes: list[BoundValue | str],
        share: Share,
    ) -> Expanded | None:
        """Returns the answer that a joint binding gives, unless this row of R_T gave it before."""
        key = _choice(form, inputs, values)
        if (emitted := context.emitted.get(key)) is not None:
            answer, rows = emitted
            if row in rows:
                return None
            rows.add(row)
            return Expanded(answer, duplicate=True)
        selection = form.selection
        nodes = tuple([value.json() for value in values])
        answer = Answer(
            inputs.t0,
            inputs.t1,
            inputs.documents,
            inputs.streams,
            selection.nodes % nodes,
            body(selection, inputs.t0, inputs.t1, values, holes),
            choice_of(inputs.part_ids_json, selection.node_list % nodes),
            form.id,
            share.width,
            share.appeared,
            share.first_qid,
            inputs.arrival,
            tuple([query.qid for query in share.withheld]),
        )
        context.emitted[key] = answer, {row}
        return Expanded(answer)


NOBODY = -1
"""A document that all see after it who see any."""


class Alone(NamedTuple):
    """A joint binding that has no partner, but for those that see everything after the document `partner_after`, or an
    earlier one: for nobody if it is less than NOBODY."""

    binding: JointBinding
    partner_after: int


@dataclass(slots=True)
class _Answering:
    """What a match gives a form: `new` counts the answers in `found` that are no duplicates."""

    form: Form
    account: SharedAccount
    share: Share
    steps: Steps
    found: list[Expanded] = field(default_factory=list)
    new: int = 0


def _choice(form: Form, inputs: Inputs, values: Sequence[BoundValue]) -> tuple[object, ...]:
    """Returns what distinguishes an answer from all others of a step."""
    return form, inputs.parts, tuple([(value.record.docid, value.node) for value in values])


def _direct_value(term: DirectTerm, inputs: Inputs, nodes: Sequence[int]) -> BoundValue:
    side, variable, functions = term
    record = inputs[side]
    return BoundValue(record, variable.node(record.tree, nodes), functions)


def _account(part: RowPart, context: StepContext) -> SharedAccount:
    if isinstance(part, LiteralGroup):
        return context.accounts.of_literals(part)
    return context.accounts.of(part.form_of_queries)


def _width(inputs: Inputs) -> int:
    """Returns the window that a match needs: -1 for a filter, which has none."""
    return inputs.t1 - inputs.t0 if len(inputs) > 1 else -1


class InnerJoinOperator(StatelessOperator):
    """Inner joins: each distinct tuple of their variables is a document of their hidden stream."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def cutoff(self, part: RowPart, context: StepContext) -> int:
        """Returns the arrival at which the last reader of the stream exceeded its quota."""
        stream = part.first.owner
        assert isinstance(stream, HiddenStream), "each operator gets its kind of plan node"
        return max((min(one.cutoff, one.account.cutoff) for one in context.accounts.readers(stream)), default=NEVER)

    def on_match(self, part: RowPart, context: StepContext, match: Match, inputs: Inputs) -> Sequence[Expanded]:
        """Returns the tuples that were not emitted before, up to where all readers have exceeded their quota."""
        target, stream = part.first, part.first.owner
        assert isinstance(stream, HiddenStream), "each operator gets its kind of plan node"
        in_window = len(inputs) == 1 or inputs.t1 - inputs.t0 <= target.window
        if not (context.serves(stream) and in_window and is_in_order(part, inputs)):
            return ()
        arrival = inputs.arrival
        accounts = live = [one.account for one in context.accounts.readers(stream) if one.want(inputs, arrival)]
        if not accounts:
            return ()
        found: list[Record] = []
        steps = Steps(allowed := max(account.steps(arrival) for account in accounts))
        try:
            steps.take()
            told = context.mirrors.tell(stream.mirror, inputs, steps)
            for binding in () if told else context.bindings.of(part, inputs, match.nodes, steps):
                new, document = self._tuple(stream, context, inputs, binding, steps)
                if new:
                    live = [account for account in live if account.take_outputs(arrival, 1)]
                    if not live:
                        break
                if document is not None:
                    found.append(document)
        except OutOfSteps:
            pass
        for account in accounts:
            account.take_steps(arrival, allowed - steps.left)
        return [Expanded(documents=found)] if found else ()

    def tuple_of(
        self, stream: HiddenStream, context: StepContext, inputs: Inputs, binding: JointBinding, steps: Steps
    ) -> list[Record]:
        """Returns the tuple of a joint binding that has no partner, unless it was there before."""
        _, document = self._tuple(stream, context, inputs, binding, steps)
        return [] if document is None else [document]

    def _tuple(
        self, stream: HiddenStream, context: StepContext, inputs: Inputs, binding: JointBinding, steps: Steps
    ) -> tuple[bool, Record | None]:
        """Returns whether a tuple is new in this step, and its document, unless there is one from before."""
        values = [value_of(self._records, binding, Term(var)) for var in stream.hidden.variables]
        bound = tuple((value.record.docid, value.node) for value in values)
        key = stream.stream, inputs.parts, bound
        if key in context.emitted:
            return False, None
        context.emitted[key] = None
        root = etree.Element("tuple")
        for i, value in enumerate(values):
            etree.SubElement(root, f"v{i}").text = value.text()
        xml = etree.tostring(root, encoding="unicode")
        steps.take(len(xml) // XML_CHARACTERS_PER_STEP)
        # A tuple from before the query is charged to it, too.
        return True, None if key in context.known_tuples else tuple_record(stream.stream, inputs, xml, bound)
