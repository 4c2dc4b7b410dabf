"""When absences are decided, and what is kept for that."""

from __future__ import annotations

from collections.abc import Iterator

from mmqjp.explain.terms import window_text
from mmqjp.text import printable_line
from xscl.algebra.normal import Hidden, NormalQuery


def absences_in(query: NormalQuery | Hidden) -> Iterator[NormalQuery | Hidden]:
    """Yields the absences that a query is made of, each once, those within others first. It may be one itself."""
    met = dict.fromkeys(
        side.hidden for conjunct in query.conjuncts for side in conjunct.sides() if side.hidden is not None
    )
    met |= dict.fromkeys(absent.right.hidden for absent in query.absent if absent.right.hidden is not None)
    found = [one for hidden in met for one in absences_in(hidden)]
    yield from {id(one): one for one in found}.values()
    if query.absent:
        yield query


def decided_when(absence: NormalQuery | Hidden) -> str:
    """Returns which watermark decides an absence."""
    stream = f"the watermark of {right_stream(absence)}"
    if absence.op == "NOT PRECEDED BY":
        return f"decided when {stream} has come to the beginning of a left document"
    return f"decided when {stream} is more than {window_text(absence.window)} past the beginning of a left document"


def answers_after(absence: NormalQuery | Hidden) -> str:
    """Returns how long after a document it is told, in short, and for how long what it asks for is kept."""
    stream = right_stream(absence)
    before = "" if absence.op == "NOT PRECEDED BY" else f"{window_text(absence.window)} and "
    return f"{absence.op} is decided {before}the lateness of {stream} after a document; {kept_for(absence)}"


def kept_for(absence: NormalQuery | Hidden) -> str:
    """Returns for how long documents of the right input are kept."""
    window, stream = absence.window, right_stream(absence)
    if window is None:
        return f"{stream} is kept for good"
    return f"{stream} is kept for {window_text(2 * window if absence.op == 'NOT JOIN' else window)}"


def right_stream(absence: NormalQuery | Hidden) -> str:
    """Returns the stream of the right input."""
    right = absence.absent[0].right
    return "its right input" if right.hidden is not None else printable_line(right.stream)
