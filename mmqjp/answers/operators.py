"""Operators: what each kind of node of the plan makes of its matches, and of the watermarks: outputs and documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lxml import etree

from mmqjp.answers.allowance import CHARACTERS_A_STEP, NEVER, Account, Steps
from mmqjp.answers.construct import Value, construct
from mmqjp.answers.joint import Place
from mmqjp.answers.output import Draft, Output, digest
from mmqjp.answers.spending import Accounts
from mmqjp.documents.records import Record, Records, published_record, tuple_record
from mmqjp.documents.watermarks import Watermarks
from mmqjp.queries.model import HiddenStream, Owner, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.tables.ledger import Ledger
from xscl.algebra.normal import Term


@dataclass(frozen=True, slots=True)
class Expanded:
    """What one joint binding gives one node of the plan: an output of a query, a document for those who read a stream,
    or both. With `again` the output is there already, by another row of R_T. Neither: nothing new."""

    draft: Draft | None = None
    query: Subscription | None = None
    document: Record | None = None
    again: bool = False


@dataclass(slots=True)
class Scope:
    """What operators share within one step: whose accounts are charged, and what was made so far.

    With `only`, a backfill, nobody else gets anything. `known` are tuples of hidden streams that were there before, as
    (stream, parts, what is bound).
    """

    accounts: Accounts
    only: Collection[Owner] | None = None
    known: Collection[tuple[object, ...]] = frozenset()
    made: dict[tuple[object, ...], tuple[Draft, set[int]] | None] = field(default_factory=dict)
    """By what tells outputs and tuples apart. Of an output its draft, and the rows of R_T that gave it."""

    def serves(self, owner: Owner) -> bool:
        """Whether a node of the plan gets anything."""
        return owner.active if self.only is None else owner in self.only


class Operator(Protocol):
    """What the nodes of one kind do. An operator that keeps state reads it when it is made, and writes it in `save`."""

    def takers(self, node: Any, scope: Scope, inputs: Sequence[Record], arrival: int) -> list[Account]:
        """The accounts to which is charged what a match of these documents gives a node; none if it is for nobody."""

    def until(self, node: Any, scope: Scope) -> int:
        """The arrival from which on a node gets nothing, NEVER if there is none."""

    def on_match(
        self, node: Any, scope: Scope, row: int, inputs: Sequence[Record], place: Place, steps: Steps
    ) -> Iterator[Expanded]:
        """What a joint binding of a match, on a row of R_T, gives a node."""

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """Whether `on_watermark` would give anything once streams from outside have come to these greatest times."""

    def on_watermark(self, scope: Scope, greatest: Mapping[str, int]) -> Iterator[Expanded]:
        """What is decided once streams from outside have come to these greatest times. It is asked again, after what it
        gave was answered, until it gives nothing. What it gives it charges to the accounts of those who get it."""

    def save(self) -> None:
        """Writes, within the batch, what is to be found again."""

    def finish_batch(self, *, committed: bool) -> None:
        """Tells whether the batch is there. If it is not, all is as it was before, and may come again."""


class Decided:
    """Of an operator that decides by matches alone, keeps nothing, and waits for no watermark."""

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """It never is."""
        return False

    def on_watermark(self, scope: Scope, greatest: Mapping[str, int]) -> Iterator[Expanded]:
        """Nothing."""
        return iter(())

    def save(self) -> None:
        """There is nothing to write."""

    def finish_batch(self, *, committed: bool) -> None:
        """There is nothing to take back."""


class Outputs(Decided):
    """Queries: each distinct choice of documents and SELECT nodes is one output, and is PUBLISHed to those who read."""

    def __init__(self, registry: Registry, records: Records) -> None:
        self._registry, self._records = registry, records

    def takers(self, node: Subscription, scope: Scope, inputs: Sequence[Record], arrival: int) -> list[Account]:
        """The query's own account, if it sees the documents and has not passed a bound."""
        account = scope.accounts.of(node)
        if arrival >= account.cut or not all(node.sees(record.appeared) for record in inputs):
            return []
        return [account]

    def until(self, node: Subscription, scope: Scope) -> int:
        """Where the query passed a bound."""
        return scope.accounts.of(node).cut

    def on_match(
        self, node: Subscription, scope: Scope, row: int, inputs: Sequence[Record], place: Place, steps: Steps
    ) -> Iterator[Expanded]:
        """The output, unless this row of R_T gave it before."""

        def value(term: Term | str) -> Value | str:
            return term if isinstance(term, str) else _value(self._records, place, term)

        normal = node.normal
        values = {entry.key: value(entry.value) for entry in normal.entries}
        chosen = {key: v for key, v in values.items() if isinstance(v, Value)}
        parts = tuple(part for record in inputs for part in record.parts)
        key = node.qid, parts, tuple((v.record.docid, v.node) for v in chosen.values())
        if (made := scope.made.get(key)) is not None:
            draft, rows = made
            if row not in rows:
                rows.add(row)
                yield Expanded(draft, node, again=True)
            return
        t0, t1 = min(r.t0 for r in inputs), max(r.t1 for r in inputs)
        root = construct(normal, node.name, t0, t1, values, [value(hole) for hole in normal.holes])
        xml = etree.tostring(root, encoding="unicode")
        steps.take(len(xml) // CHARACTERS_A_STEP)
        nodes = {key: v.json_id() for key, v in chosen.items()}
        part_ids = [part for record in inputs for part in record.part_ids]
        id = digest([node.name, node.text, node.occurrence, part_ids, list(nodes.values())])
        sources = [source for record in inputs for source in record.sources]
        documents, streams = tuple(source[0] for source in sources), tuple(source[1] for source in sources)
        draft = Draft(Output(node.name, t0, t1, documents, streams, nodes, xml, id))
        scope.made[key] = draft, {row}
        document = None
        if node.publishes and self._registry.has_readers(node.name):
            document = published_record(node.name, inputs, xml, id, within=scope.only is None)
        yield Expanded(draft, node, document)


class Tuples(Decided):
    """Inner joins: each distinct tuple of their variables is a document of their hidden stream."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def takers(self, node: HiddenStream, scope: Scope, inputs: Sequence[Record], arrival: int) -> list[Account]:
        """The accounts of the queries that read the stream and see the documents."""
        return [one.account for one in scope.accounts.readers(node) if one.want(inputs, arrival)]

    def until(self, node: HiddenStream, scope: Scope) -> int:
        """Where the last of those who read the stream passed a bound."""
        return max((min(one.until, one.account.cut) for one in scope.accounts.readers(node)), default=NEVER)

    def on_match(
        self, node: HiddenStream, scope: Scope, row: int, inputs: Sequence[Record], place: Place, steps: Steps
    ) -> Iterator[Expanded]:
        """The tuple, unless it is there."""
        values = [_value(self._records, place, Term(var)) for var in node.hidden.variables]
        parts = tuple(part for record in inputs for part in record.parts)
        bound = tuple((value.record.docid, value.node) for value in values)
        key = node.stream, parts, bound
        if key in scope.made:
            return
        scope.made[key] = None
        root = etree.Element("tuple")
        for i, value in enumerate(values):
            etree.SubElement(root, f"v{i}").text = value.text()
        xml = etree.tostring(root, encoding="unicode")
        steps.take(len(xml) // CHARACTERS_A_STEP)
        # What was there before a query counts as if it had come with it.
        yield Expanded(document=None if key in scope.known else tuple_record(node.stream, inputs, xml, bound))


class Operators:
    """The operators of an engine, by the kind of node that each is for."""

    def __init__(self, by_kind: Mapping[type[Owner], Operator]) -> None:
        self._by_kind = dict(by_kind)

    def of(self, node: Owner) -> Operator:
        """The operator of a node."""
        return self._by_kind[type(node)]

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """Whether any waits for streams to come to these greatest times."""
        return any(operator.is_due(greatest) for operator in self._by_kind.values())

    def on_watermark(self, scope: Scope, greatest: Mapping[str, int]) -> Iterator[Expanded]:
        """What all decide once streams have come to these greatest times."""
        for operator in self._by_kind.values():
            yield from operator.on_watermark(scope, greatest)

    def save(self) -> None:
        """Has all write, within the batch, what they must find again."""
        for operator in self._by_kind.values():
            operator.save()

    def finish_batch(self, *, committed: bool) -> None:
        """Tells all whether the batch is there."""
        for operator in self._by_kind.values():
            operator.finish_batch(committed=committed)


MakeOperators = Callable[[Registry, Records, Ledger, Watermarks], Operators]
"""Makes the operators of an engine: `ledger` is where they note things, `watermarks` how they read times."""


def make_operators(registry: Registry, records: Records, ledger: Ledger, watermarks: Watermarks) -> Operators:
    """The operators of the language: queries and inner joins."""
    return Operators({Subscription: Outputs(registry, records), HiddenStream: Tuples(records)})


def _value(records: Records, place: Place, term: Term) -> Value:
    """The value of a term. A variable of a tuple stands for a node of a document behind it."""
    record, node = place[term.var]
    if record.kind == "hidden":
        docid, node = record.bound[node[0] - 1]
        record = records[docid]
    return Value(record, node, term.functions)
