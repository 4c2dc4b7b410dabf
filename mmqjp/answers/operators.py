"""Operators: how each kind of plan node turns matches and watermarks into answers and documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mmqjp.answers.answer import Answer
from mmqjp.answers.construct import Value
from mmqjp.answers.joint import JointBinding, JointBindings
from mmqjp.answers.looking import Looking
from mmqjp.answers.match import Match
from mmqjp.answers.pair_tests import Mirrors
from mmqjp.answers.quota import Quota
from mmqjp.answers.telling import AllPutOff
from mmqjp.answers.usage import Accounts
from mmqjp.documents.record import Inputs, Record
from mmqjp.documents.records import Records, StoredRecords
from mmqjp.documents.watermarks import Watermarks
from mmqjp.queries.forms import Form
from mmqjp.queries.model import Owner
from mmqjp.queries.registry import Registry
from mmqjp.queries.row_targets import RowPart
from mmqjp.tables.ledger import Ledger
from xscl.algebra.normal import Term


class Expanded(NamedTuple):
    """What a match or a watermark gives: an answer, and documents for readers of streams.

    With `duplicate`, another row of R_T gave the answer before; with `put_off`, the end of the step decides whether
    anybody gets it. If all fields are empty, there is nothing new.
    """

    answer: Answer | None = None
    documents: Sequence[Record] = ()
    duplicate: bool = False
    put_off: bool = False


@dataclass(slots=True)
class StepContext:
    """What operators share within one step.

    `accounts` are charged for what operators give. In a backfill, only `owners` get anything. `known_tuples` are the
    tuples of hidden streams that existed before, as (stream, parts, bound).
    """

    accounts: Accounts
    owners: Collection[Owner] | None = None
    known_tuples: Collection[tuple[object, ...]] = frozenset()
    bindings: JointBindings = field(default_factory=JointBindings)
    mirrors: Mirrors = field(default_factory=Mirrors)
    ties: set[tuple[Form | Looking, tuple[int, ...], tuple[int, ...]]] = field(default_factory=set)
    """The pairs of documents with equal times, as the parts of each: with what bounds looking at them if they were
    looked at, and with their form if they are counted."""
    emitted: dict[tuple[object, ...], tuple[Answer, set[int]] | None] = field(default_factory=dict)
    """By identity of the answer or tuple. An answer comes with the rows of R_T that gave it."""
    put_off: AllPutOff = field(default_factory=dict)
    """The answers of queries with ONCE PER."""

    def serves(self, owner: Owner) -> bool:
        """Returns whether a plan node takes part in the step."""
        return owner.active if self.owners is None else owner in self.owners


class Operator(Protocol):
    """The behaviour of one kind of plan node. An operator with state reads it when it is created and writes it in
    `save`."""

    def cutoff(self, part: RowPart, context: StepContext) -> int:
        """Returns the arrival from which on the plan nodes of a part of a row get nothing, or NEVER."""

    def looking(self, part: RowPart, context: StepContext) -> Looking | None:
        """Returns what bounds the looking at pairs with equal times of a part that leaves them out; None if it does not
        look at them."""

    def on_match(self, part: RowPart, context: StepContext, match: Match, inputs: Inputs) -> Sequence[Expanded]:
        """Returns what a match gives the plan nodes of a part of its row: those that take part and see its documents.

        Charges their accounts, and gives nothing to those that exceed their quota.
        """

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

    def looking(self, part: RowPart, context: StepContext) -> Looking | None:
        """Returns None."""
        return None

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


def in_order(part: RowPart, inputs: Inputs) -> bool:
    """Returns whether documents come in the order that a part of a row asks for."""
    return part.op != "FOLLOWED BY" or len(inputs) == 1 or inputs[0].t1 < inputs[1].t0


def value_of(records: StoredRecords, binding: JointBinding, term: Term) -> Value:
    """Returns the value of a term. A variable of a tuple stands for a node of an earlier document."""
    record, node = binding[term.var]
    if record.kind == "hidden":
        docid, node = record.bound[node[0] - 1]
        record = records[docid]
    return Value(record, node, term.functions)


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


MakeOperators = Callable[[Registry, Records, Ledger, Watermarks, Quota], Operators]
"""Creates the operators of an engine. They store state through the ledger and read times from the watermarks."""
