"""The protocol of sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.present.match import Match

Pending = Callable[[], Iterable[Output]]
"""Returns the outputs after the stored position of a sink, in the order of `seq`."""

Warn = Callable[[str], object]
"""Is called with a sentence about what others did to a sink's file."""


@runtime_checkable
class Sink(Protocol):
    """Writes outputs.

    Its position is stored with the state before the first output is written, and again whenever `prepare` asks for it.
    After a crash, outputs after the stored position are undone or written again.
    """

    def prepare(self, pending: Pending) -> bool:
        """Prepares for writing. Returns whether the position must be stored first, because the destination has changed.
        Raises OSError."""

    def write(self, outputs: Iterable[Output]) -> int:
        """Writes outputs durably and returns how many. Raises OSError."""

    def position(self) -> Position:
        """Returns the position to resume from."""

    def close(self) -> None:
        """Closes what is open."""


@runtime_checkable
class TimedSink(Sink, Protocol):
    """A sink that has something to do when some time has passed, without new outputs too."""

    @property
    def closes_at(self) -> int | None:
        """When `write` must be called, with or without outputs, in microseconds; None if it need not be."""


@runtime_checkable
class MatchSink(Sink, Protocol):
    """A sink that shows the documents behind outputs, too. The deliverer calls `write_matches` instead of `write`."""

    def write_matches(self, matches: Iterable[Match]) -> int:
        """Writes outputs with their items durably and returns how many. Raises OSError."""
