"""The operator of absences: keeps what both inputs have matched, and decides what has no partner when its time is over.

What a left document may give is charged when it arrives. What is decided belongs to the document that decides it: the
one with which the watermark passed its time. So bounds and pauses do not depend on how documents are cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from join_stage.joiner import JoinEngine
from mmqjp.answers.absence.decided import ABSENCES, Decided, Mark
from mmqjp.answers.absence.kept import KeptMatches
from mmqjp.answers.absence.partners import Partners
from mmqjp.answers.absence.plans import Group, LeftPlan, terms_of
from mmqjp.answers.absence.seen_by import SeenBy
from mmqjp.answers.absence.times import decided_at, over_at
from mmqjp.answers.absence.waiting import Entry
from mmqjp.answers.backfill import known_tuples
from mmqjp.answers.inner_join_operator import InnerJoinOperator
from mmqjp.answers.looking import Looking
from mmqjp.answers.match import Match
from mmqjp.answers.operators import Expanded, Operator, StepContext, value_of
from mmqjp.answers.query_operator import Alone, QueryOperator
from mmqjp.answers.quota import OutOfSteps, Quota, Steps
from mmqjp.documents.progress import Progress
from mmqjp.documents.record import Inputs, Record
from mmqjp.documents.records import Records
from mmqjp.documents.watermarks import EARLIEST, EVENT_TIME, LATEST, Watermarks, lateness_of
from mmqjp.queries.model import HiddenStream, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.queries.row_targets import RowPart, TargetGroup
from mmqjp.tables.ledger import Ledger


class AbsenceOperator:
    """Absences of queries and of hidden streams."""

    def __init__(
        self,
        store: JoinEngine,
        registry: Registry,
        records: Records,
        ledger: Ledger,
        watermarks: Watermarks,
        quota: Quota,
        queries: QueryOperator,
        inner: InnerJoinOperator,
    ) -> None:
        """`queries` and `inner` make answers and tuples of what has no partner."""
        self._store, self._registry, self._records, self._ledger = store, registry, records, ledger
        self._watermarks, self._quota, self._queries, self._inner = watermarks, quota, queries, inner
        self._kept = KeptMatches(store, registry, records, watermarks, ledger)
        self._plans = self._kept.plans
        self._decided = Decided.from_setting(ledger.setting(ABSENCES))
        # What the running batch has changed.
        self._now: dict[str, int] = {}
        self._done: dict[TargetGroup, set[Entry]] = {}
        self._noted = self._decided

    # ------------------------------------------------------------ operators

    def _of(self, part: RowPart) -> Operator:
        return self._queries if isinstance(part.first.owner, Subscription) else self._inner

    def cutoff(self, part: RowPart, context: StepContext) -> int:
        """Returns the arrival at which the last plan node exceeded its quota."""
        return self._of(part).cutoff(part, context)

    def looking(self, part: RowPart, context: StepContext) -> Looking | None:
        """Returns None."""
        return None

    def on_match(self, part: RowPart, context: StepContext, match: Match, inputs: Inputs) -> Sequence[Expanded]:
        """Keeps a match of either input. What it gives is decided later."""
        assert isinstance(part, TargetGroup), "absences have no literal tests"
        steps = Steps(self._quota.most_work)
        if part.first.disjunct:
            right = self._plans.right(part)
            self._charged(part, context, inputs, lambda: (0, self._kept.see(right, match, inputs[0], steps)))
        elif self._charged(part, context, inputs, lambda: self._size(part, context, match, inputs, steps)):
            self._kept.wait(match.row, Entry(inputs.t0, match.docid1, tuple(match.nodes)))
        return ()

    def is_due(self, greatest: Mapping[str, int] | None) -> bool:
        """Returns whether anything is decided at these greatest times, by stream."""
        return any(
            self._wanted(plan, self._kept.due(group, self._watermark(group, greatest), self._decided))
            for group, plans in self._plans.groups.items()
            for plan in plans
        )

    def on_watermark(self, context: StepContext, greatest: Mapping[str, int] | None) -> Iterator[Expanded]:
        """Yields what is decided at these greatest times, by stream, if no more is to come of what it is made of. None
        stands for the end of all streams."""
        has_given = False
        while not has_given and (ready := self._ready(self._due(context, greatest), context)):
            for group, plan, wanted in ready:
                self._kept.recall(plan, wanted)
                for entry, told_before in wanted.items():
                    self._done.setdefault(plan.part, set()).add(entry)
                    inputs = Inputs([record := self._records[entry.docid]])
                    inputs.t1 = over_at(plan.op, plan.window, record.t0, record.t1)
                    inputs.arrival = self._decided_by(group, record, context.progress, greatest)
                    for found in self._decide(plan, entry, inputs, context, told_before):
                        has_given = True
                        yield found

    def _due(
        self, context: StepContext, greatest: Mapping[str, int] | None
    ) -> list[tuple[Group, LeftPlan, dict[Entry, int]]]:
        """Returns what each absence has to decide at these greatest times."""
        due: list[tuple[Group, LeftPlan, dict[Entry, int]]] = []
        for group, plans in self._plans.groups.items():
            watermark = self._watermark(group, greatest)
            self._now[group[3]] = watermark
            entries = self._kept.due(group, watermark, self._decided)
            for plan in plans:
                if context.backfilled and plan.is_one_of(context.backfilled):
                    # Others were told before.
                    again = self._kept.due(group, watermark, self._decided, again=True)
                    wanted = self._wanted(plan, again)
                else:
                    wanted = self._wanted(plan, entries)
                if wanted:
                    due.append((group, plan, wanted))
        return due

    def _wanted(self, plan: LeftPlan, due: Mapping[Entry, int]) -> dict[Entry, int]:
        """Returns those of the entries that are due that an absence did not decide for all that there are."""
        done = self._done.get(plan.part, ())
        return {
            entry: told_before
            for entry, told_before in due.items()
            if entry not in done and (not told_before or self._is_newer(plan, told_before))
        }

    def _is_newer(self, plan: LeftPlan, told_before: int) -> bool:
        """Returns whether some query came after others were told; of those that share an inner join, whether all
        did."""
        qids = (query.qid for query in self._kept.queries_of(plan) if query.active)
        last = max(qids, default=-1) if plan.part.form is not None else min(qids, default=-1)
        return last >= told_before

    def undecided(self, greatest: Mapping[str, int] | None) -> tuple[set[str], set[HiddenStream]]:
        """Returns the forms and hidden streams with something to decide, which waits for what was put off."""
        forms, streams = set[str](), set[HiddenStream]()
        for group, plans in self._plans.groups.items():
            entries = self._kept.due(group, self._watermark(group, greatest), self._decided)
            for plan in plans if entries else ():
                if self._wanted(plan, entries):
                    if plan.part.form is not None:
                        forms.add(plan.part.form.id)
                    elif isinstance(plan.owner, HiddenStream):
                        streams.add(plan.owner)
        return forms, streams

    def waiting(self) -> dict[str, int]:
        """Returns, by the names of queries, how many left documents wait for their absence to be decided, in the order
        of names."""
        found: dict[str, set[int]] = {}
        for (row, op, window, stream), plans in self._plans.groups.items():
            self._kept.load(row, self._decided)
            entries = self._kept.waiting(row).between(EARLIEST, LATEST)
            told = {entry.docid: self._decided.told_before(stream, op, window, entry) for entry in entries}
            for plan in plans:
                for query in filter(_is_active, self._kept.queries_of(plan)):
                    after, qid = query.sees_after, query.qid
                    if some := {docid for docid, before in told.items() if docid > after and qid >= before}:
                        found.setdefault(query.name, set()).update(some)
        return {name: len(docids) for name, docids in sorted(found.items())}

    def never_decided(self) -> dict[str, str]:
        """Returns the queries that decide nothing before the end, because a stream may be late without a limit: that
        stream, by their names."""
        lateness, found = self._watermarks.timing.lateness, dict[str, str]()
        for (_, _, _, stream), plans in self._plans.groups.items():
            sources = sorted(self._registry.sources(stream) - {EVENT_TIME})
            endless = [one for one in sources if lateness_of(lateness, one) is None]
            for plan in plans if endless else ():
                found |= {query.name: endless[0] for query in self._kept.queries_of(plan)}
        return found

    def save(self) -> None:
        """Writes, within the batch, what was decided."""
        noted = self._decided.only(self._now)
        latest = next(reversed(self._registry.subscriptions), -1)
        for stream, watermark in self._now.items():
            if watermark < LATEST:
                noted.note(stream, Mark(self._ledger.next_docid, watermark, latest + 1))
        if noted.by_stream != self._decided.by_stream:
            self._ledger.save_settings({ABSENCES: noted.to_setting()})
        self._kept.save()
        self._noted = noted

    def finish_batch(self, *, committed: bool) -> None:
        """Ends the batch. If it was not committed, forgets what it has kept."""
        if committed:
            self._decided = self._noted
            self._kept.committed(self._decided, self._now)
        else:
            self._kept.rolled_back()
            self._noted = self._decided
        self._done.clear()
        self._now.clear()

    # ------------------------------------------------------------ what was matched

    def _charged(
        self, part: TargetGroup, context: StepContext, inputs: Inputs, take: Callable[[], tuple[int, int]]
    ) -> bool:
        """Charges the plan nodes of a part for a match: `take` returns outputs and steps. Returns whether any of them
        gets it."""
        if part.form is not None:
            account = context.accounts.of(part.form)
            share = account.share(-1, inputs, context.accounts.first_qid)
            if share is None:
                return False
            account.charge(inputs.arrival, share, *take())
            return True
        stream, arrival = part.first.owner, inputs.arrival
        assert isinstance(stream, HiddenStream), "what has no form is a hidden stream"
        accounts = [one.account for one in context.accounts.readers(stream) if one.want(inputs, arrival)]
        if not accounts or not context.serves(stream):
            return False
        outputs, steps = take()
        for account_of_readers in accounts:
            account_of_readers.take_steps(arrival, steps)
            account_of_readers.take_outputs(arrival, outputs)
        return True

    def _size(
        self, part: TargetGroup, context: StepContext, match: Match, inputs: Inputs, steps: Steps
    ) -> tuple[int, int]:
        """Returns how many outputs a left match may give, and the steps to find them."""
        allowed, choices = steps.left, set[object]()
        terms = terms_of(part)
        with suppress(OutOfSteps):
            steps.take()
            for binding in context.bindings.of(part, inputs, match.nodes, steps):
                values = [value_of(self._records, binding, term) for term in terms]
                choices.add(tuple((value.record.docid, value.node) for value in values))
                if len(choices) > self._quota.most_outputs:
                    break
        return len(choices), allowed - steps.left

    # ------------------------------------------------------------ what is due

    def _watermark(self, group: Group, greatest: Mapping[str, int] | None) -> int:
        if greatest is None:
            return LATEST
        return self._watermarks.of(self._registry.sources(group[3]), greatest)

    def _ready(
        self, due: Sequence[tuple[Group, LeftPlan, dict[Entry, int]]], context: StepContext
    ) -> list[tuple[Group, LeftPlan, dict[Entry, int]]]:
        """Returns what is made of nothing that has to be decided first, in the order of time."""
        forms = {plan.part.form.id for _, plan, _ in due if plan.part.form is not None}
        forms |= {form.id for form in context.put_off}
        streams = {plan.owner for _, plan, _ in due if plan.part.form is None}
        if not (forms or streams):
            return []
        ready = []
        for group, plan, entries in due:
            behind_forms, behind_streams = self._plans.behind(plan)
            if behind_forms.isdisjoint(forms) and streams.isdisjoint(behind_streams):
                ready.append((group, plan, entries))
        return ready

    def _decided_by(
        self, group: Group, record: Record, progress: Progress | None, greatest: Mapping[str, int] | None
    ) -> int:
        """Returns the arrival that decides the absence of a partner of a document: in a backfill, its own."""
        if progress is None:
            return record.arrival
        if greatest is None:
            return progress.last
        _, op, window, stream = group
        needed = decided_at(op, window, record.t0)
        return max(record.arrival, progress.came_to(needed, self._registry.sources(stream), self._watermarks))

    # ------------------------------------------------------------ decisions

    def _decide(
        self, plan: LeftPlan, entry: Entry, inputs: Inputs, context: StepContext, told_before: int
    ) -> Iterator[Expanded]:
        """Yields what the absences of an entry give to queries from number `told_before` on."""
        record = inputs[0]
        match = Match(plan.row, entry.docid, None, entry.nodes)
        partners = Partners(self._records, self._kept.order, plan.op, plan.window, plan.watched)
        steps = Steps(self._quota.most_work)
        if plan.part.form is None:
            if told_before and isinstance(plan.owner, HiddenStream):
                # There may be tuples from when other queries read the stream.
                known = frozenset(known_tuples(self._store, [plan.owner.stream]))
                context = replace(context, known_tuples=known)
            yield from self._decide_tuples(plan, match, inputs, partners, context, steps)
            return
        account = context.accounts.of(plan.part.form)
        share = account.share(-1, inputs, max(told_before, context.accounts.first_qid))
        if share is None:
            return
        seen_by = SeenBy(account, share, inputs)
        try:
            alone = [
                Alone(binding, until)
                for binding in context.bindings.of(plan.part, (record,), entry.nodes, steps)
                if (until := seen_by.partner_seen(partners, record, binding, steps)) is not None
            ]
        except OutOfSteps:
            account.charge(inputs.arrival, share, 0, self._quota.most_work + 1)
            return
        if partners.in_vain:
            account.charge(inputs.arrival, share, 0, partners.in_vain)
        yield from self._queries.answer_alone(plan.part, account, share, context, match, inputs, alone)

    def _decide_tuples(
        self,
        plan: LeftPlan,
        match: Match,
        inputs: Inputs,
        partners: Partners,
        context: StepContext,
        steps: Steps,
    ) -> Iterator[Expanded]:
        stream, record = plan.owner, inputs[0]
        assert isinstance(stream, HiddenStream), "what has no form is a hidden stream"
        accounts = [one.account for one in context.accounts.readers(stream) if one.want(inputs, inputs.arrival)]
        if not accounts:
            return
        sees_after = [query.sees_after for query in stream.readers(self._registry.readers) if query.active]
        found: list[Record] = []
        try:
            for binding in context.bindings.of(plan.part, (record,), match.nodes, steps):
                if partners.first(record, binding, min(sees_after), steps) is None:
                    found += self._inner.tuple_of(stream, context, inputs, binding, steps)
        except OutOfSteps:
            partners.in_vain = self._quota.most_work + 1
            found.clear()
        for account in accounts:
            account.take_steps(inputs.arrival, partners.in_vain)
        if found:
            yield Expanded(documents=found)


def _is_active(query: Subscription) -> bool:
    return query.active
