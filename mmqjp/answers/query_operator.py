"""The operator of queries: evaluates a match once for all members of a form, and charges them together."""

from __future__ import annotations

from collections.abc import Sequence

from mmqjp.answers.answer import Answer
from mmqjp.answers.construct import Value, body
from mmqjp.answers.form_account import Share
from mmqjp.answers.joint import JointBinding
from mmqjp.answers.match import Match
from mmqjp.answers.operators import Expanded, StatelessOperator, StepContext, in_order, value_of
from mmqjp.answers.output import json_node_list, json_nodes
from mmqjp.answers.quota import CHARACTERS_PER_STEP, OutOfSteps, Quota, Steps
from mmqjp.documents.records import Inputs, Record, Records, published_record
from mmqjp.queries.forms import Form, TargetGroup
from mmqjp.queries.identity import choice_of
from mmqjp.queries.model import Subscription
from mmqjp.queries.registry import Registry
from xscl.algebra.normal import Term


class QueryOperator(StatelessOperator):
    """Queries: each distinct choice of documents and SELECT nodes is one answer to the members of a form. Each of them
    PUBLISHes it to its readers."""

    def __init__(self, registry: Registry, records: Records, quota: Quota) -> None:
        self._registry, self._records, self._quota = registry, records, quota

    def cutoff(self, group: TargetGroup, context: StepContext) -> int:
        """Returns the arrival at which the last member of the form exceeded its quota."""
        return context.accounts.of(_form(group)).cutoff

    def on_match(self, group: TargetGroup, context: StepContext, match: Match, inputs: Inputs) -> Sequence[Expanded]:
        """Returns the answers of the form, each once for a row of R_T."""
        if not in_order(group, inputs):
            return ()
        form = _form(group)
        account = context.accounts.of(form)
        width = inputs.t1 - inputs.t0 if len(inputs) > 1 else -1
        share = account.share(width, inputs, context.accounts.first_qid)
        if share is None:
            return ()
        found, new, steps = self._evaluate(form, group, context, match, inputs, share)
        account.charge(inputs.arrival, share, new, steps)
        if not found:
            return ()
        if readers := self._registry.read_of(form.id):
            getting = [query for query in readers if query.active and account.gets(share, query, inputs.arrival)]
            for place, item in enumerate(found):
                if item.answer is not None and not item.duplicate:
                    within = not context.accounts.first_qid
                    documents = [_published(query, item.answer, inputs, within=within) for query in getting]
                    found[place] = item._replace(documents=documents)
        return found

    def _evaluate(
        self, form: Form, group: TargetGroup, context: StepContext, match: Match, inputs: Inputs, share: Share
    ) -> tuple[list[Expanded], int, int]:
        """Returns what the form gives, the number of new answers, and the steps that it took. Ends where it is too much
        for any member."""
        steps, new = Steps(allowed := self._quota.most_work), 0
        found: list[Expanded] = []
        try:
            steps.take()
            for binding in context.bindings.of(group, inputs, match.nodes, steps):
                item = self._expanded(form, context, match.row, inputs, binding, share)
                if item is None:
                    continue
                found.append(item)
                if item.answer is not None and not item.duplicate:
                    new += 1
                    if new > self._quota.most_outputs:
                        break
                    steps.take(len(item.answer.body) // CHARACTERS_PER_STEP)
        except OutOfSteps:
            pass
        return found, new, allowed - steps.left

    def _expanded(
        self, form: Form, context: StepContext, row: int, inputs: Inputs, binding: JointBinding, share: Share
    ) -> Expanded | None:
        """Returns the answer that a joint binding gives, unless this row of R_T gave it before."""

        def value(term: Term | str) -> Value | str:
            return term if isinstance(term, str) else value_of(self._records, binding, term)

        normal = form.normal
        values = {entry.key: value(entry.value) for entry in normal.entries}
        chosen = {key: v for key, v in values.items() if isinstance(v, Value)}
        key = form, inputs.parts, tuple((v.record.docid, v.node) for v in chosen.values())
        if (emitted := context.emitted.get(key)) is not None:
            answer, rows = emitted
            if row in rows:
                return None
            rows.add(row)
            return Expanded(answer, duplicate=True)
        nodes = {key: v.json_id() for key, v in chosen.items()}
        answer = Answer(
            inputs.t0,
            inputs.t1,
            inputs.documents,
            inputs.streams,
            nodes,
            json_nodes(nodes),
            body(normal, inputs.t0, inputs.t1, values, [value(hole) for hole in normal.holes]),
            choice_of(inputs.part_ids_json, json_node_list(nodes.values())),
            form.id,
            share.width,
            share.appeared,
            share.first_qid,
            inputs.arrival,
            tuple(query.qid for query in share.withheld),
        )
        context.emitted[key] = answer, {row}
        return Expanded(answer)


def _form(group: TargetGroup) -> Form:
    assert group.form is not None, "queries have forms"
    return group.form


def _published(query: Subscription, answer: Answer, inputs: Inputs, *, within: bool) -> Record:
    """Returns an answer as a document of a query's stream."""
    return published_record(
        query.name, inputs, answer.body.xml(query.name), query.identity.id(answer.choice.encode()), within=within
    )
