"""Ties: pairs of documents that FOLLOWED BY leaves out only because one ends just when the other begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from mmqjp.answers.looking import MOST_STEPS, Looking
from mmqjp.answers.match import Match
from mmqjp.answers.operators import StepContext
from mmqjp.answers.pair_tests import PairTest
from mmqjp.answers.quota import OutOfSteps, Quota, Steps
from mmqjp.documents.record import Inputs, Record
from mmqjp.queries.forms import Form
from mmqjp.queries.model import Subscription
from mmqjp.queries.row_targets import LiteralGroup, RowPart

MOST_TIES = 1_000_000
"""A step looks at no more pairs than this, because it remembers them."""


def is_tie(left: Record, right: Record) -> bool:
    """Returns whether one document ends just when the other begins, and they are made of different documents."""
    return left.t1 == right.t0 and not set(left.sources) & set(right.sources)


def count_ties(part: RowPart, context: StepContext, match: Match, inputs: Inputs, quota: Quota) -> None:
    """Counts the documents of a match for the forms of a part of a row of R_T that would get it but for the times.

    A pair is counted once for a form, whatever rows and nodes match in it, and in whichever order. To look at it may
    take as many steps as `looking` says, and costs the queries nothing.
    """
    if part.op != "FOLLOWED BY" or not is_tie(*inputs):
        return
    arrival, looking = inputs.arrival, looking_at(part, context)
    if not looking.may(arrival):
        return
    one, other = sorted((inputs[0].parts, inputs[1].parts))
    pair = looking, one, other
    if len(context.ties) >= MOST_TIES:
        looking.left_out = True
        return
    is_new = pair not in context.ties
    context.ties.add(pair)
    steps = Steps(allowed := min(quota.most_work, MOST_STEPS))
    with suppress(OutOfSteps):
        for form in _matching(part, context, match, inputs, steps):
            key = form, inputs[0].parts, inputs[1].parts
            if key in context.ties:
                continue
            account = context.accounts.of(form)
            share = account.share(inputs.t1 - inputs.t0, inputs, context.accounts.first_qid)
            if share is None:
                continue
            if is_tie(inputs[1], inputs[0]) and context.mirrors.tell(form.tie_mirror, inputs, steps):
                continue  # the other order is counted
            context.ties.add(key)
            account.tie(arrival, share)
    looking.add(arrival, is_new, 1 + allowed - steps.left)


def looking_at(part: RowPart, context: StepContext) -> Looking:
    """Returns what bounds how many pairs are looked at for a part of a row."""
    accounts = context.accounts
    account = accounts.of_literals(part) if isinstance(part, LiteralGroup) else accounts.of(part.form_of_queries)
    return account.looking


def _matching(part: RowPart, context: StepContext, match: Match, inputs: Inputs, steps: Steps) -> Iterator[Form]:
    """Yields the forms that have a joint binding in a match, some of them perhaps more than once."""
    if isinstance(part, LiteralGroup):
        for binding in context.bindings.of(part, inputs, match.nodes, steps):
            for group in part.groups_for(context.bindings.text(part.operand, binding, steps)):
                yield group.form_of_queries
    elif not part.residual or any(True for _ in context.bindings.of(part, inputs, match.nodes, steps)):
        yield part.form_of_queries  # without residual predicates, a match always has a joint binding


def left_out_for_equal_times(query: Subscription, documents: Sequence[Record], quota: Quota) -> bool:
    """Returns whether two stored documents, of the streams that the sides of a query read, satisfy it but for their
    equal times: whether FOLLOWED BY leaves them out because of these alone. Of a chain, the left one is a tuple."""
    left, right = documents
    normal, distance = query.normal, right.t1 - left.t0
    if normal.op != "FOLLOWED BY" or not is_tie(left, right) or distance > query.width:
        return False
    first = normal.conjuncts[0]
    if first.right is None or (left.stream, right.stream) != (first.left.stream, first.right.stream):
        return False
    if not (query.sees(left.appeared) and query.sees(right.appeared)):
        return False
    with suppress(OutOfSteps):
        return PairTest(normal.conjuncts).holds(left, right, Steps(quota.most_work))
    return False
