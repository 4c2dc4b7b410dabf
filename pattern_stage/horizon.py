"""Time in event patterns: the horizon, before which everything is known, and the events that wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from pattern_stage.columns import Columns, Ints, joined

START, END = -(2**62), 2**62
"""Horizons before and after all times."""

OTHER_STREAMS = "*"
"""In a mapping of `settle`, stands for all streams that it does not name."""

Settle = int | None | Mapping[str, int | None]
"""How long events wait for earlier ones, in microseconds: for all streams, or by stream. None means to the end."""


def settle_of(settle: Settle, stream: str) -> int | None:
    """Returns how long events of an external stream wait; None means to the end."""
    return settle.get(stream, settle.get(OTHER_STREAMS)) if isinstance(settle, Mapping) else settle


def next_horizon(
    horizon: int, greatest: Mapping[str, int], streams: Iterable[str], settle: Settle, clock: int | None = None
) -> int:
    """Returns the horizon after a batch, which is never before `horizon`.

    `greatest` has the greatest time of each external stream, and `streams` are those behind any event statement. A live
    one counts to the `clock` only.
    """
    least = END
    for stream in streams:
        waits, time = settle_of(settle, stream), greatest.get(stream)
        if waits is None or time is None:
            return horizon
        least = min(least, (time if clock is None else min(time, clock)) - waits)
    return horizon if least == END else max(horizon, least)


def last_horizon(
    horizon: int, greatest: Mapping[str, int], streams: Iterable[str], settle: Settle, *, lasts: bool
) -> int:
    """Returns the horizon at the end of a finite run: END if no `settle` is given. If its state `lasts`, it is just
    past the greatest time, so that another run may go on."""
    if settle is not None:
        return horizon
    if not lasts:
        return END
    times = [greatest[stream] + 1 for stream in streams if stream in greatest]
    return max([horizon, *times])


class Buffer:
    """Events that wait until the horizon has passed them, by stream."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Columns]] = {}

    def __len__(self) -> int:
        return sum(len(events) for parts in self._waiting.values() for events in parts)

    def add(self, stream: str, events: Columns) -> None:
        """Adds events, in any order."""
        if len(events):
            self._waiting.setdefault(stream, []).append(events)

    def is_due(self, until: int) -> bool:
        """Returns whether any event ends before a time."""
        return any((events.t1 < until).any() for parts in self._waiting.values() for events in parts)

    def release(self, streams: Iterable[str], until: int) -> dict[str, Columns]:
        """Removes the events of some streams that end before a time. Returns them by stream, in the order of t1."""
        released: dict[str, Columns] = {}
        for stream in streams:
            if parts := self._waiting.pop(stream, None):
                events = joined(parts)
                gone = events.t1 < until
                if not gone.all():
                    self._waiting[stream] = [events.take(~gone)]
                if gone.any():
                    due = events.take(gone)
                    released[stream] = due.take(np.argsort(due.t1, kind="stable"))
        return released

    def pass_over(self, until: int) -> None:
        """Drops the events that end before a time."""
        for stream, parts in self._waiting.items():
            self._waiting[stream] = [left for part in parts if len(left := part.take(part.t1 >= until))]

    def drop(self, streams: Iterable[str]) -> None:
        """Drops the events of streams that nothing reads any more."""
        for stream in streams:
            self._waiting.pop(stream, None)

    def parts(self) -> list[Ints]:
        """Returns the numbers of the events that wait."""
        return [events.parts for parts in self._waiting.values() for events in parts]

    def codes(self) -> list[Ints]:
        """Returns the codes of their texts."""
        columns = [column for parts in self._waiting.values() for events in parts for column in events.values]
        return [column for column in columns if column.dtype == np.int64]  # type: ignore[misc]  # the others have numbers
