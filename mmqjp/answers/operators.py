"""Operators: how each kind of plan node turns matches and watermarks into outputs and documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from lxml import etree

from mmqjp.answers.construct import Value, construct
from mmqjp.answers.joint import JointBinding
from mmqjp.answers.output import Draft, Identity, Output
from mmqjp.answers.quota import CHARACTERS_PER_STEP, NEVER, Account, Steps
from mmqjp.answers.usage import Accounts
from mmqjp.documents.records import Inputs, Record, Records, published_record, tuple_record
from mmqjp.documents.watermarks import Watermarks
from mmqjp.queries.model import HiddenStream, Owner, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.tables.ledger import Ledger
from xscl.algebra.normal import Term


class Expanded(NamedTuple):
    """What one joint binding gives one plan node: an output of a query, a document for readers of a stream, or both.

    With `duplicate`, the output was already given by another row of R_T. If all fields are empty, there is nothing new.
    """

    draft: Draft | None = None
    query: Subscription | None = None
    document: Record | None = None
    duplicate: bool = False


@dataclass(slots=True)
class StepContext:
    """What operators share within one step.

    `accounts` are charged for what operators give. In a backfill, only `owners` get anything. `known_tuples` are the
    tuples of hidden streams that existed before, as (stream, parts, bound).
    """

    accounts: Accounts
    owners: Collection[Owner] | None = None
    known_tuples: Collection[tuple[object, ...]] = frozenset()
    emitted: dict[tuple[object, ...], tuple[Draft, set[int]] | None] = field(default_factory=dict)
    """By identity of the output or tuple. An output has its draft and the rows of R_T that gave it."""

    def serves(self, owner: Owner) -> bool:
        """Returns whether a plan node takes part in the step."""
        return owner.active if self.owners is None else owner in self.owners


class Operator(Protocol):
    """The behaviour of one kind of plan node. An operator with state reads it when it is created and writes it in
    `save`."""

    def accounts_for(self, node: Any, context: StepContext, inputs: Inputs, arrival: int) -> list[Account]:
        """Returns the accounts to charge for a match of these documents. If there are none, nobody wants the match."""

    def cutoff(self, node: Any, context: StepContext) -> int:
        """Returns the arrival from which on a node gets nothing, or NEVER."""

    def on_match(
        self, node: Any, context: StepContext, row: int, inputs: Inputs, binding: JointBinding, steps: Steps
    ) -> Expanded | None:
        """Returns what a joint binding of a match gives a node; None if this row of R_T gave it before."""

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """Returns whether `on_watermark` would give anything at these greatest times, by stream."""

    def on_watermark(self, context: StepContext, greatest: Mapping[str, int]) -> Iterator[Expanded]:
        """Yields what is decided at these greatest times, by stream.

        It is called again after its results were answered, until it gives nothing. It charges the accounts of the
        recipients.
        """

    def save(self) -> None:
        """Writes, within the batch, the state to restore later."""

    def finish_batch(self, *, committed: bool) -> None:
        """Ends the batch. If it was not committed, restores the state from before it."""


class StatelessOperator:
    """An operator that decides by matches alone and waits for no watermark."""

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """Returns False."""
        return False

    def on_watermark(self, context: StepContext, greatest: Mapping[str, int]) -> Iterator[Expanded]:
        """Yields nothing."""
        return iter(())

    def save(self) -> None:
        """Does nothing."""

    def finish_batch(self, *, committed: bool) -> None:
        """Does nothing."""


class QueryOperator(StatelessOperator):
    """Queries: each distinct choice of documents and SELECT nodes is one output, and is PUBLISHed to readers."""

    def __init__(self, registry: Registry, records: Records) -> None:
        self._registry, self._records = registry, records
        self._identities: WeakKeyDictionary[Subscription, Identity] = WeakKeyDictionary()

    def accounts_for(self, node: Subscription, context: StepContext, inputs: Inputs, arrival: int) -> list[Account]:
        """Returns the query's account, if it sees the documents and is within its quota."""
        account = context.accounts.of(node)
        if arrival >= account.cutoff or not all(node.sees(record.appeared) for record in inputs):
            return []
        return [account]

    def cutoff(self, node: Subscription, context: StepContext) -> int:
        """Returns the arrival at which the query exceeded its quota."""
        return context.accounts.of(node).cutoff

    def on_match(
        self,
        node: Subscription,
        context: StepContext,
        row: int,
        inputs: Inputs,
        binding: JointBinding,
        steps: Steps,
    ) -> Expanded | None:
        """Returns the output, unless this row of R_T gave it before."""

        def value(term: Term | str) -> Value | str:
            return term if isinstance(term, str) else _value(self._records, binding, term)

        normal = node.normal
        values = {entry.key: value(entry.value) for entry in normal.entries}
        chosen = {key: v for key, v in values.items() if isinstance(v, Value)}
        key = node.qid, inputs.parts, tuple((v.record.docid, v.node) for v in chosen.values())
        if (emitted := context.emitted.get(key)) is not None:
            draft, rows = emitted
            if row in rows:
                return None
            rows.add(row)
            return Expanded(draft, node, duplicate=True)
        root = construct(normal, node.name, inputs.t0, inputs.t1, values, [value(hole) for hole in normal.holes])
        xml = etree.tostring(root, encoding="unicode")
        steps.take(len(xml) // CHARACTERS_PER_STEP)
        nodes = {key: v.json_id() for key, v in chosen.items()}
        identity = self._identities.get(node)
        if identity is None:
            identity = self._identities[node] = Identity(node.name, node.text, node.occurrence)
        id = identity.id(inputs.part_ids_json, nodes.values())
        draft = Draft(Output(node.name, inputs.t0, inputs.t1, inputs.documents, inputs.streams, nodes, xml, id))
        context.emitted[key] = draft, {row}
        document = None
        if node.publishes and self._registry.has_readers(node.name):
            document = published_record(node.name, inputs, xml, id, within=context.owners is None)
        return Expanded(draft, node, document)


class InnerJoinOperator(StatelessOperator):
    """Inner joins: each distinct tuple of their variables is a document of their hidden stream."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def accounts_for(self, node: HiddenStream, context: StepContext, inputs: Inputs, arrival: int) -> list[Account]:
        """Returns the accounts of the queries that read the stream and see the documents."""
        return [one.account for one in context.accounts.readers(node) if one.want(inputs, arrival)]

    def cutoff(self, node: HiddenStream, context: StepContext) -> int:
        """Returns the arrival at which the last reader of the stream exceeded its quota."""
        return max((min(one.cutoff, one.account.cutoff) for one in context.accounts.readers(node)), default=NEVER)

    def on_match(
        self,
        node: HiddenStream,
        context: StepContext,
        row: int,
        inputs: Inputs,
        binding: JointBinding,
        steps: Steps,
    ) -> Expanded | None:
        """Returns the tuple, unless it was emitted before."""
        values = [_value(self._records, binding, Term(var)) for var in node.hidden.variables]
        bound = tuple((value.record.docid, value.node) for value in values)
        key = node.stream, inputs.parts, bound
        if key in context.emitted:
            return None
        context.emitted[key] = None
        root = etree.Element("tuple")
        for i, value in enumerate(values):
            etree.SubElement(root, f"v{i}").text = value.text()
        xml = etree.tostring(root, encoding="unicode")
        steps.take(len(xml) // CHARACTERS_PER_STEP)
        # A tuple from before the query is charged to it, too.
        return Expanded(document=None if key in context.known_tuples else tuple_record(node.stream, inputs, xml, bound))


class Operators:
    """The operators of an engine, by kind of plan node."""

    def __init__(self, by_kind: Mapping[type[Owner], Operator]) -> None:
        self._by_kind = dict(by_kind)

    def of(self, node: Owner) -> Operator:
        """Returns the operator of a node."""
        return self._by_kind[type(node)]

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """Returns whether any operator has something to decide at these greatest times."""
        return any(operator.is_due(greatest) for operator in self._by_kind.values())

    def on_watermark(self, context: StepContext, greatest: Mapping[str, int]) -> Iterator[Expanded]:
        """Yields what the operators decide at these greatest times."""
        for operator in self._by_kind.values():
            yield from operator.on_watermark(context, greatest)

    def save(self) -> None:
        """Writes, within the batch, the state of all operators."""
        for operator in self._by_kind.values():
            operator.save()

    def finish_batch(self, *, committed: bool) -> None:
        """Ends the batch for all operators."""
        for operator in self._by_kind.values():
            operator.finish_batch(committed=committed)


MakeOperators = Callable[[Registry, Records, Ledger, Watermarks], Operators]
"""Creates the operators of an engine. They store state through the ledger and read times from the watermarks."""


def make_operators(registry: Registry, records: Records, ledger: Ledger, watermarks: Watermarks) -> Operators:
    """Creates the operators of the language: queries and inner joins."""
    return Operators({Subscription: QueryOperator(registry, records), HiddenStream: InnerJoinOperator(records)})


def _value(records: Records, binding: JointBinding, term: Term) -> Value:
    """Returns the value of a term. A variable of a tuple stands for a node of an earlier document."""
    record, node = binding[term.var]
    if record.kind == "hidden":
        docid, node = record.bound[node[0] - 1]
        record = records[docid]
    return Value(record, node, term.functions)
