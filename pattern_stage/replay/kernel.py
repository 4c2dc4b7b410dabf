"""A kernel for one interval, which has all events: a database runs the statements that it can, and says which windows
of patterns may have matches; kernels do the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import pyarrow as pa

from pattern_stage.columns import Columns, Ints
from pattern_stage.kernel import Kernel, Results
from pattern_stage.limits import Excess
from pattern_stage.reads import streams_of
from pattern_stage.replay.database import Database
from pattern_stage.replay.replay import Replay, runs_as_sql
from pattern_stage.replay.windowed import MakeMatcher, WindowedReplay, has_match_windows
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import Pattern
from xscl.algebra.event_sequences import Statement as AnyStatement
from xscl.algebra.events import Stream


class ReplayKernel:
    """Has the methods of `pattern_stage.kernel.Kernel`, but ends with its first interval that has events, and keeps
    nothing then.

    What a database runs begins as soon as all streams that it reads are there: statements that read the same streams
    are asked together.
    """

    def __init__(self, texts: Texts, database: Database, others: Kernel, make_matcher: MakeMatcher) -> None:
        """`others` runs what the database cannot. `make_matcher` makes what matches patterns in the windows that the
        database has found."""
        self._texts, self._database, self._others, self._make_matcher = texts, database, others, make_matcher
        self._statements: dict[int, tuple[Stream | Pattern, int]] = {}
        self._exceeded: dict[int, Excess] = {}
        self._events: dict[str, Columns] = {}
        self._ended = False

    def add(self, statement: int, stream: AnyStatement, since: int) -> None:
        """Adds a statement, before the interval. It sees events whose first part has a t1 after `since`."""
        if runs_as_sql(stream) or has_match_windows(stream):
            self._statements[statement] = stream, since
        else:
            self._others.add(statement, stream, since)

    def narrow(self, statement: int, since: int) -> None:
        """Lets a statement see less, before the interval."""
        if statement in self._statements:
            self._statements[statement] = self._statements[statement][0], since
        else:
            self._others.narrow(statement, since)

    def remove(self, statements: Sequence[int]) -> None:
        """Removes statements."""
        for number in statements:
            self._exceeded.pop(number, None)
        others = [number for number in statements if self._statements.pop(number, None) is None]
        if others:
            self._others.remove(others)

    @property
    def exceeded(self) -> Mapping[int, Excess]:
        """The statements that have exceeded a limit: patterns, and others that the database cannot run."""
        return {**self._others.exceeded, **self._exceeded}

    def begin(self, until: int) -> None:
        """Begins an interval, which ends before `until`.

        Raises:
            RuntimeError: if there were events before.
        """
        if self._ended:
            raise RuntimeError("a replay has one interval with events, which has all of them")
        self._events, self._until = {}, until
        self._waiting = dict(self._statements)
        self._others.begin(until)

    def feed(self, events: Mapping[str, Columns]) -> list[Results]:
        """Takes all events of some streams. Returns the results of all statements that no longer depend on a stream
        that is lacking."""
        self._events |= events
        found = self._others.feed(events)
        ready = [number for number, (stream, _) in self._waiting.items() if _streams(stream) <= self._events.keys()]
        return found + self._run(ready)

    def end(self) -> list[Results]:
        """Ends the interval: streams that are lacking had no events."""
        found = self._others.end() + self._run(list(self._waiting))
        self._ended = any(map(len, self._events.values()))
        self._events = {}
        return found

    def _run(self, numbers: Sequence[int]) -> list[Results]:
        if not numbers:
            return []
        replay = Replay(self._texts, self._database)
        windowed = WindowedReplay(self._texts, self._database, self._make_matcher)
        for number in numbers:
            stream, since = self._waiting.pop(number)
            if isinstance(stream, Pattern):
                windowed.add(number, stream, since)
            else:
                replay.add(number, stream, since)
        found = replay.run(self._events) + windowed.run(self._events, self._until)
        self._exceeded |= windowed.exceeded
        return found

    # ------------------------------------------------------------ upkeep

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of the events that wait, before the interval and after it."""
        return self._others.parts()

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts in use here."""
        return self._others.codes()

    def instances(self) -> tuple[Ints, Ints]:
        """Returns statements and how many instances wait for each."""
        return self._others.instances()

    def due(self) -> int | None:
        """Returns a time: nothing becomes known before without another event."""
        return self._others.due()

    def state(self) -> dict[str, pa.Table]:
        """Returns what waits: before the interval nothing, and after it nothing that could find anything."""
        return self._others.state()

    def restore(self, state: Mapping[str, pa.Table]) -> None:
        """Takes over what waited before the interval, which is nothing."""
        self._others.restore(state)


def _streams(stream: Stream | Pattern) -> Set[str]:
    return stream.streams.keys() if isinstance(stream, Pattern) else streams_of(stream)
