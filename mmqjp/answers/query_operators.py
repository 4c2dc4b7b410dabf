"""Operators of queries and inner joins, and the reader that feeds them matches in chunks. A match is evaluated once for
all members of a form; inner joins build the tuples of hidden streams and charge the queries that read them. Also counts
ties: pairs of documents that FOLLOWED BY excludes only because one ends just as the other begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from common.limits import Quota
from join_stage.protocol import Matches
from mmqjp.answers.matches import JointBinding, Match, match_rows, matches_in
from mmqjp.answers.operators import Expanded, PutOff, StepContext, as_published, is_in_order, once_key, value_of
from mmqjp.answers.output import Answer, BoundValue, body
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
from mmqjp.answers.usage import charge
from mmqjp.documents.record import Inputs, Record, Records, StoredRecords, tuple_record
from mmqjp.queries.forms import DirectSelection, DirectTerm, Form, LiteralGroup, RowPart, TargetGroup, element
from mmqjp.queries.model import HiddenStream, Subscription, choice_of
from mmqjp.queries.registry import KnownQueries
from mmqjp.tables.ledger import Ledger
from xscl.algebra.joins import Term

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
