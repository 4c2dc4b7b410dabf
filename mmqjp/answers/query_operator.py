"""The operator of queries: evaluates a match once for all queries of a form, and charges each that gets an answer."""

from __future__ import annotations

from collections.abc import Sequence

from mmqjp.answers.answer import Answer
from mmqjp.answers.construct import Value, body
from mmqjp.answers.joint import JointBinding
from mmqjp.answers.match import Match
from mmqjp.answers.operators import Expanded, Recipient, StatelessOperator, StepContext, in_order, value_of
from mmqjp.answers.output import json_node_list, json_nodes
from mmqjp.answers.quota import CHARACTERS_PER_STEP, OutOfSteps, Steps
from mmqjp.documents.records import Inputs, Record, Records, published_record
from mmqjp.queries.forms import TargetGroup
from mmqjp.queries.identity import choice_bytes
from mmqjp.queries.model import Form, Subscription
from mmqjp.queries.registry import Registry
from xscl.algebra.normal import Term


class QueryOperator(StatelessOperator):
    """Queries: each distinct choice of documents and SELECT nodes is one answer to all queries of a form. Each of them
    PUBLISHes it to its readers."""

    def __init__(self, registry: Registry, records: Records) -> None:
        self._registry, self._records = registry, records

    def cutoff(self, node: Subscription, context: StepContext) -> int:
        """Returns the arrival at which the query exceeded its quota."""
        return context.accounts.of(node).cutoff

    def on_match(self, group: TargetGroup, context: StepContext, match: Match, inputs: Inputs) -> Sequence[Expanded]:
        """Returns the answers of the form, each once for a row of R_T, and the queries that get them."""
        recipients = self._recipients(group, context, inputs)
        if not recipients:
            return ()
        found, steps = self._evaluate(group, context, match, inputs, recipients)
        new = [item.answer for item in found if item.answer is not None and not item.duplicate]
        live = _charged(recipients, inputs.arrival, new, steps)
        if not live or not found:
            return ()
        queries = [one.query for one in live]
        readers = [one.query for one in live if one.is_read]
        return [
            item._replace(
                queries=queries,
                documents=() if item.duplicate else self._published(readers, item.answer, context, inputs),
            )
            for item in found
        ]

    def _recipients(self, group: TargetGroup, context: StepContext, inputs: Inputs) -> list[Recipient]:
        """Returns the queries of a group that see the documents, have them in their window and are within their
        quota."""
        if not in_order(group, inputs):
            return []
        served = context.recipients.get(group)
        if served is None:
            served = context.recipients[group] = self._served(group, context)
        width = inputs.t1 - inputs.t0 if len(inputs) > 1 else -1
        arrival, appeared = inputs.arrival, inputs.appeared
        found = []
        for one in served:
            query, window, account, _ = one
            if width > window:
                break
            if arrival >= account.cutoff:
                continue
            if appeared <= query.since if not query.gaps else not inputs.are_seen_by(query.sees):
                continue
            found.append(one)
        return found

    def _served(self, group: TargetGroup, context: StepContext) -> list[Recipient]:
        """Returns the queries of a group that take part in the step."""
        return [
            Recipient(query, target.window, context.accounts.of(query), self._is_read(query))
            for target in group.targets
            if isinstance(query := target.owner, Subscription) and context.serves(query)
        ]

    def _is_read(self, query: Subscription) -> bool:
        return query.publishes and self._registry.has_readers(query.name)

    def _evaluate(
        self,
        group: TargetGroup,
        context: StepContext,
        match: Match,
        inputs: Inputs,
        recipients: Sequence[Recipient],
    ) -> tuple[list[Expanded], int]:
        """Returns what the form gives, and the steps that it took without those for the names of queries. Ends where it
        is too much for all recipients."""
        arrival = inputs.arrival
        steps = Steps(allowed := max(one.account.steps(arrival) for one in recipients))
        most = max(one.account.outputs.left(arrival) for one in recipients)
        assert group.form is not None, "queries have forms"
        found: list[Expanded] = []
        try:
            steps.take()
            for binding in context.bindings.of(group, inputs, match.nodes, steps):
                item = self._expanded(group.form, context, match.row, inputs, binding)
                if item is None:
                    continue
                found.append(item)
                if item.answer is not None and not item.duplicate:
                    most -= 1
                    if most < 0:
                        break
                    steps.take(item.answer.body.length(0) // CHARACTERS_PER_STEP)
        except OutOfSteps:
            pass
        return found, allowed - steps.left

    def _expanded(
        self, form: Form, context: StepContext, row: int, inputs: Inputs, binding: JointBinding
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
            choice_bytes(inputs.part_ids_json, json_node_list(nodes.values())),
        )
        context.emitted[key] = answer, {row}
        return Expanded(answer)

    def _published(
        self, readers: Sequence[Subscription], answer: Answer | None, context: StepContext, inputs: Inputs
    ) -> list[Record]:
        """Returns an answer as documents: one for each query whose stream is read."""
        if answer is None or not readers:
            return []
        within = context.owners is None
        return [
            published_record(
                query.name, inputs, answer.body.xml(query.name), query.identity.id(answer.choice), within=within
            )
            for query in readers
        ]


def _charged(recipients: Sequence[Recipient], arrival: int, new: Sequence[Answer], steps: int) -> list[Recipient]:
    """Charges recipients for new answers and for steps. Returns those that are within their quota."""
    live = []
    steps_by_name: dict[int, int] = {}
    for one in recipients:
        query, _, account, _ = one
        length = len(query.name)
        own = steps_by_name.get(length)
        if own is None:
            own = steps_by_name[length] = steps + sum(_steps_of_name(answer, length) for answer in new)
        if new:
            account.take_outputs(arrival, len(new))
        account.take_steps(arrival, own)
        if arrival < account.cutoff:
            live.append(one)
    return live


def _steps_of_name(answer: Answer, length: int) -> int:
    """Returns the steps that a query's name adds to those for an answer."""
    body = answer.body
    return body.length(length) // CHARACTERS_PER_STEP - body.length(0) // CHARACTERS_PER_STEP
