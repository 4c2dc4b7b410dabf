"""Committed outputs, the position that is noted, and a sink of files that gets them as from the deliverer."""

import errno
import os
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.sinks.sink import Sink
from tests.support.messages import TIME, output

S = TypeVar("S", bound=Sink)


def full() -> None:
    """Fails as on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SinkStore(Generic[S]):
    """What a store has for a sink. Its `setting` is what is noted of the sink, and `now` the clock."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.setting: str | None = None
        self.now = TIME
        self.warnings: list[str] = []
        self.sink: S | None = None
        self.written = -1

    def opened(self, position: Position) -> S:
        """Opens the sink at a position."""
        raise NotImplementedError

    def commit(self, count: int, *, wanted: Callable[[int], bool] = lambda seq: True) -> None:
        """Commits outputs, of which the sink wants some."""
        start = len(self.outputs)
        self.outputs += [output(seq, "q1" if wanted(seq) else "q2") for seq in range(start, start + count)]

    def wanted(self, after: int) -> Iterator[Output]:
        return (one for one in self.outputs if one.seq > after and one.query == "q1")

    def pending(self) -> Iterator[Output]:
        return self.wanted(Position.from_setting(self.setting).acked)

    def open(self) -> S:
        """What a process does that begins, or begins anew."""
        position = Position.from_setting(self.setting)
        self.written = position.acked
        self.sink = self.opened(position)
        return self.sink

    def note(self) -> None:
        """Stores the position."""
        assert self.sink is not None
        self.setting = self.sink.position().to_setting()

    def deliver(self, at_a_time: int = 2, *, noting: bool = True) -> None:
        """Hands over what the sink has not got, some at a time, and notes the position after each."""
        sink = self.sink or self.open()
        while True:
            if sink.prepare(self.pending):
                self.note()
            some = list(self.wanted(self.written))[:at_a_time]
            assert sink.write(some) == len(some)
            if some:
                self.written = some[-1].seq
            if noting:
                self.note()
            if not some:
                return
