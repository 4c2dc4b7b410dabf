"""The operator of inner joins: makes the tuples of hidden streams, and charges the queries that read them."""

from __future__ import annotations

from collections.abc import Sequence

from lxml import etree

from mmqjp.answers.joint import JointBinding
from mmqjp.answers.match import Match
from mmqjp.answers.operators import Expanded, StatelessOperator, StepContext, in_order, value_of
from mmqjp.answers.quota import CHARACTERS_PER_STEP, NEVER, OutOfSteps, Steps
from mmqjp.documents.record import Inputs, Record, tuple_record
from mmqjp.documents.records import Records
from mmqjp.queries.model import HiddenStream
from mmqjp.queries.row_targets import RowPart
from xscl.algebra.normal import Term


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
        if not (context.serves(stream) and in_window and in_order(part, inputs)):
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
        steps.take(len(xml) // CHARACTERS_PER_STEP)
        # A tuple from before the query is charged to it, too.
        return True, None if key in context.known_tuples else tuple_record(stream.stream, inputs, xml, bound)
