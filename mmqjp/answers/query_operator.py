"""The operator of queries: evaluates a match once for all members of a form, and charges them together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from mmqjp.answers.answer import Answer
from mmqjp.answers.construct import Value, body
from mmqjp.answers.joint import JointBinding
from mmqjp.answers.looking import Looking
from mmqjp.answers.match import Match
from mmqjp.answers.operators import Expanded, StatelessOperator, StepContext, in_order, value_of
from mmqjp.answers.quota import CHARACTERS_PER_STEP, OutOfSteps, Quota, Steps
from mmqjp.answers.shared_account import Share, SharedAccount
from mmqjp.answers.telling import PutOff, as_published, key_of
from mmqjp.answers.ties import count_ties, looking_at
from mmqjp.documents.record import Inputs
from mmqjp.documents.records import StoredRecords
from mmqjp.queries.forms import Form
from mmqjp.queries.identity import choice_of
from mmqjp.queries.known_queries import KnownQueries
from mmqjp.queries.row_targets import DirectSelection, DirectTerm, LiteralGroup, RowPart, TargetGroup


class QueryOperator(StatelessOperator):
    """Queries: each distinct choice of documents and SELECT nodes is one answer to the members of a form. Each of them
    PUBLISHes it to its readers."""

    def __init__(self, registry: KnownQueries, records: StoredRecords, quota: Quota) -> None:
        self._registry, self._records, self._quota = registry, records, quota

    def cutoff(self, part: RowPart, context: StepContext) -> int:
        """Returns the arrival at which the last member exceeded its quota."""
        return _account(part, context).cutoff

    def looking(self, part: RowPart, context: StepContext) -> Looking | None:
        """Returns what bounds the counting of pairs with equal times."""
        return looking_at(part, context)

    def on_match(self, part: RowPart, context: StepContext, match: Match, inputs: Inputs) -> Sequence[Expanded]:
        """Returns the answers of the forms of a part, each once for a row of R_T."""
        if not in_order(part, inputs):
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
            account.charge(inputs.arrival, share, 1, direct.steps + len(item.answer.body) // CHARACTERS_PER_STEP)
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

    def _values(self, form: Form, binding: JointBinding) -> tuple[list[Value], list[Value | str]]:
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
                answering.steps.take(len(item.answer.body) // CHARACTERS_PER_STEP)
        return True

    def _put_off(
        self,
        answering: _Answering,
        context: StepContext,
        inputs: Inputs,
        values: Sequence[Value],
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
        one.keys.add(key_of([context.bindings.text(key, binding, answering.steps) for key in form.once.keys]))

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
        values: list[Value],
        holes: list[Value | str],
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


def _choice(form: Form, inputs: Inputs, values: Sequence[Value]) -> tuple[object, ...]:
    """Returns what distinguishes an answer from all others of a step."""
    return form, inputs.parts, tuple([(value.record.docid, value.node) for value in values])


def _direct_value(term: DirectTerm, inputs: Inputs, nodes: Sequence[int]) -> Value:
    side, variable, functions = term
    record = inputs[side]
    return Value(record, variable.node(record.tree, nodes), functions)


def _account(part: RowPart, context: StepContext) -> SharedAccount:
    if isinstance(part, LiteralGroup):
        return context.accounts.of_literals(part)
    return context.accounts.of(part.form_of_queries)


def _width(inputs: Inputs) -> int:
    """Returns the window that a match needs: -1 for a filter, which has none."""
    return inputs.t1 - inputs.t0 if len(inputs) > 1 else -1
