"""A sink that writes nothing: what is committed is delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.sinks.sink import Pending


class Nowhere:
    """Acknowledges all outputs. `last_seq` returns the number of the last one that is committed."""

    def __init__(self, last_seq: Callable[[], int]) -> None:
        self._last_seq = last_seq
        self._acked = last_seq()

    def prepare(self, pending: Pending) -> bool:
        """Needs nothing."""
        return False

    def write(self, outputs: Iterable[Output]) -> int:
        """Takes note of the outputs without making them, and returns how many there are."""
        before, self._acked = self._acked, self._last_seq()
        return self._acked - before

    def position(self) -> Position:
        """Returns the position to resume from."""
        return Position(self._acked)

    def close(self) -> None:
        """Has nothing to close."""
