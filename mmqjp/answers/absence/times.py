"""The times of absences: when they are decided, how long they last, and which documents are partners in time."""

from __future__ import annotations

from mmqjp.documents.watermarks import EARLIEST, LATEST
from templates.catalog import INFINITE
from xscl.algebra.normal import JoinOp


def decided_before(op: JoinOp, window: int, watermark: int) -> int:
    """Returns the time before which a left document must begin for its absence to be decided at a watermark of the
    right input: what could be a partner of it is late from then on. Times are in microseconds."""
    if watermark <= EARLIEST:
        return EARLIEST
    if watermark >= LATEST:
        return LATEST
    return watermark + 1 if op == "NOT PRECEDED BY" else watermark - window


def decided_at(op: JoinOp, window: int, t0: int) -> int:
    """Returns the least watermark that decides the absence of a partner of a left document that begins at `t0`."""
    return t0 if op == "NOT PRECEDED BY" else t0 + window + 1


def over_at(op: JoinOp, window: int, t0: int, t1: int) -> int:
    """Returns when the absence of a partner of a left document is over: the t1 of its output."""
    return t1 if op == "NOT PRECEDED BY" else max(t1, t0 + window)


def partners_from(op: JoinOp, window: int, t1: int) -> int:
    """Returns the time from which on a partner begins of a left document that ends at `t1`."""
    if op == "NOT FOLLOWED BY":
        return t1 + 1
    return EARLIEST if window == INFINITE else t1 - window


def needed_from(op: JoinOp, window: int, left: int, right: int) -> int:
    """Returns the time from which on right documents must be kept when the watermarks of the left and the right input
    have come to `left` and `right`: for left documents that are still to come, and for those that wait."""
    if min(left, right) <= EARLIEST or window == INFINITE:
        return EARLIEST
    waiting = right if op == "NOT PRECEDED BY" else right - window
    return min(partners_from(op, window, left - 1), partners_from(op, window, waiting - 1))
