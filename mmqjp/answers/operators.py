"""Operators: how each kind of plan node turns matches and watermarks into answers and documents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from join_stage.joiner import JoinEngine
from mmqjp.answers.answer import Answer
from mmqjp.answers.construct import Value
from mmqjp.answers.joint import JointBinding, JointBindings
from mmqjp.answers.looking import Looking
from mmqjp.answers.match import Match
from mmqjp.answers.pair_tests import Mirrors
from mmqjp.answers.quota import Quota
from mmqjp.answers.telling import AllPutOff
from mmqjp.answers.usage import Accounts
from mmqjp.documents.progress import Progress
from mmqjp.documents.record import Inputs, Record
from mmqjp.documents.records import Records, StoredRecords
from mmqjp.documents.watermarks import Watermarks
from mmqjp.queries.forms import Form
from mmqjp.queries.model import HiddenStream, Owner
from mmqjp.queries.registry import Registry
from mmqjp.queries.row_targets import RowPart
from mmqjp.tables.ledger import Ledger
from xscl.algebra.normal import NEGATED, Term

_LOG = logging.getLogger("mmqjp")


class Expanded(NamedTuple):
    """What a match or a watermark gives: an answer, and documents for readers of streams.

    With `duplicate`, another row of R_T gave the answer before; with `put_off`, the end of the step decides whether
    anybody gets it. `match` is the match behind what a watermark decides. If all fields are empty, there is nothing
    new.
    """

    answer: Answer | None = None
    documents: Sequence[Record] = ()
    duplicate: bool = False
    put_off: bool = False
    match: Match | None = None


@dataclass(slots=True)
class StepContext:
    """What operators share within one step.

    `accounts` are charged for what operators give. In a backfill, only `owners` get anything. `known_tuples` are the
    tuples of hidden streams that existed before, as (stream, parts, bound). What was decided before is decided again
    for plan nodes that are `backfilled`. `progress` is that of the streams; None in a backfill.
    """

    accounts: Accounts
    owners: Collection[Owner] | None = None
    known_tuples: Collection[tuple[object, ...]] = frozenset()
    backfilled: Collection[Owner] = frozenset()
    progress: Progress | None = None
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

    def on_watermark(self, context: StepContext, greatest: Mapping[str, int] | None) -> Iterator[Expanded]:
        """Yields what is decided at these greatest times, by stream. None stands for the end of all streams.

        It is called again after its results were answered, until it gives nothing.
        """

    def undecided(self, greatest: Mapping[str, int] | None) -> tuple[set[str], set[HiddenStream]]:
        """Returns the forms and hidden streams for which something is decided at these greatest times that waits for
        what was put off."""

    def waiting(self) -> Mapping[str, int]:
        """Returns, by the names of queries, how many left documents wait for their absence to be decided."""

    def never_decided(self) -> Mapping[str, str]:
        """Returns the queries that decide nothing before the end, because a stream may be late without a limit: that
        stream, by their names."""

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

    def on_watermark(self, context: StepContext, greatest: Mapping[str, int] | None) -> Iterator[Expanded]:
        """Yields nothing."""
        return iter(())

    def undecided(self, greatest: Mapping[str, int] | None) -> tuple[set[str], set[HiddenStream]]:
        """Returns nothing."""
        return set(), set()

    def waiting(self) -> Mapping[str, int]:
        """Returns nothing."""
        return {}

    def never_decided(self) -> Mapping[str, str]:
        """Returns nothing."""
        return {}

    def save(self) -> None:
        """Does nothing."""

    def finish_batch(self, *, committed: bool) -> None:
        """Does nothing."""


def warn_of_waiting(names: Iterable[str], never: Mapping[str, str]) -> None:
    """Logs which of some queries decide nothing before the end (see `Operator.never_decided`)."""
    for name in dict.fromkeys(names):
        if name in never:
            text = "%s: it is never decided that nothing came, because %s may be late without a limit; give a lateness"
            _LOG.warning(text, name, never[name])


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
    """The operators of an engine, by kind of plan node, and that of absences."""

    def __init__(self, by_kind: Mapping[type[Owner], Operator], absences: Operator | None = None) -> None:
        self._by_kind, self._absences = dict(by_kind), absences
        self._all = [*by_kind.values(), *([] if absences is None else [absences])]

    def of(self, part: RowPart) -> Operator:
        """Returns the operator of the plan nodes of a part of a row."""
        if self._absences is not None and part.op in NEGATED:
            return self._absences
        return self._by_kind[type(part.first.owner)]

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """Returns whether any operator has something to decide at these greatest times."""
        return any(operator.is_due(greatest) for operator in self._all)

    def on_watermark(self, context: StepContext, greatest: Mapping[str, int] | None) -> Iterator[Expanded]:
        """Yields what the operators decide at these greatest times."""
        for operator in self._all:
            yield from operator.on_watermark(context, greatest)

    def undecided(self, greatest: Mapping[str, int] | None) -> tuple[set[str], set[HiddenStream]]:
        """Returns the forms and hidden streams with something to decide that waits for what was put off."""
        found = [operator.undecided(greatest) for operator in self._all]
        return set().union(*(forms for forms, _ in found)), set().union(*(streams for _, streams in found))

    def waiting(self) -> dict[str, int]:
        """Returns, by the names of queries, how many left documents wait for their absence to be decided."""
        return {name: count for operator in self._all for name, count in operator.waiting().items()}

    def never_decided(self) -> dict[str, str]:
        """Returns the queries that decide nothing before the end, because a stream may be late without a limit: that
        stream, by their names."""
        return {name: stream for operator in self._all for name, stream in operator.never_decided().items()}

    def save(self) -> None:
        """Writes, within the batch, the state of all operators."""
        for operator in self._all:
            operator.save()

    def finish_batch(self, *, committed: bool) -> None:
        """Ends the batch for all operators."""
        for operator in self._all:
            operator.finish_batch(committed=committed)


MakeOperators = Callable[[JoinEngine, Registry, Records, Ledger, Watermarks, Quota], Operators]
"""Creates the operators of an engine. They store state through the ledger and read times from the watermarks."""
