"""The protocol of sinks: what takes outputs, and says up to which one it has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output

Pending = Callable[[], Iterable[Output]]
"""Gives the outputs behind the noted position of a sink, in the order of `seq`."""

Tell = Callable[[str], object]
"""Is told, in a sentence, what others did to a sink's file."""


class Sink(Protocol):
    """Takes outputs. Its position is noted with the state before the first output is written, and again whenever
    `prepare` says so; what was written behind a noted position is undone, or comes again, after a kill."""

    def prepare(self, pending: Pending) -> bool:
        """Makes sure that outputs can be written. Returns whether the position must be noted before any is: it is
        another place than noted. Raises OSError."""

    def write(self, outputs: Iterable[Output]) -> int:
        """Writes outputs, so that they last whatever happens next, and returns how many. Raises OSError."""

    def position(self) -> Position:
        """What to note in order to go on from here."""

    def close(self) -> None:
        """Lets go of what is open."""
