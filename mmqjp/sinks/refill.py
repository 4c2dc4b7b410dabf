"""Reads what sinks want from the store: some outputs at a time, with the times when they were committed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

from mmqjp.answers.output import Output
from mmqjp.session import Session
from mmqjp.sinks.backlog import Entry

WANTED_AT_A_TIME, READ_AT_A_TIME = 500, 2_500
"""So many wanted outputs are read between two batches, among so many."""


def with_times(engine: Session, outputs: list[Output], now: int) -> Iterator[Entry]:
    """Yields stored outputs, which are in order, with the times when they were committed. A time that is no longer
    stored is `now`."""
    if not outputs:
        return
    found = engine.committed_between(outputs[0].seq, outputs[-1].seq)
    firsts = [first for first, _ in found]
    for output in outputs:
        place = bisect_right(firsts, output.seq) - 1
        yield output, found[place][1] if place >= 0 else now


class Cursor:
    """Reads the stored outputs after a number. It sees those that are stored when it is made."""

    def __init__(self, engine: Session, after: int) -> None:
        self._engine, self._outputs = engine, iter(engine.outputs(after))
        self.end = engine.last_seq + 1
        """The number of the first output that it does not see."""
        self._left: list[Entry] = []

    def read(self, wants: Callable[[str], bool], now: int) -> tuple[list[Entry], bool]:
        """Returns the next wanted outputs, and whether there are no others."""
        if self._left:
            found, self._left = self._left, []
            return found, False
        wanted: list[Output] = []
        for count, output in enumerate(self._outputs, 1):
            if wants(output.query):
                wanted.append(output)
            if len(wanted) >= WANTED_AT_A_TIME or count >= READ_AT_A_TIME:
                return list(with_times(self._engine, wanted, now)), False
        return list(with_times(self._engine, wanted, now)), True

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Gives back outputs that there was no room for."""
        self._left = [*entries, *self._left]
