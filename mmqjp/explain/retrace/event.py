"""Events with how each came about: of a document or an output, or made of others by an operator."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from xscl.algebra.events import Aggregate, Filter, Fold, Next

Plain = str | float | None
"""The value of an attribute: a text, a number, or None for NULL."""

Values = Mapping[str, Plain]

Source = tuple[str, str]
"""A document or an output: its id and its stream."""


@dataclass(frozen=True, slots=True)
class Given:
    """An event of a stream that is defined, or that queries publish.

    `source` is its document, or, with `output`, the output that it is. `behind` are the external documents behind that,
    and `roots` the nodes that output lines show of them: that of the event's root alone if it is of a document. Then
    `nodes` tell it from other events of the document.
    """

    stream: str
    source: Source
    behind: tuple[Source, ...]
    roots: tuple[int | str, ...]
    nodes: tuple[tuple[int, int], ...] = ()
    output: bool = False


@dataclass(frozen=True, slots=True)
class Filtered:
    """It passed a FILTER."""

    by: Filter
    source: Event


@dataclass(frozen=True, slots=True)
class Selected:
    """It was made of another one by SELECT."""

    source: Event


@dataclass(frozen=True, slots=True)
class Followed:
    """A left event with a right one, by NEXT."""

    by: Next
    left: Event
    right: Event


@dataclass(frozen=True, slots=True)
class Folded:
    """A run: a left event, and right ones, each with the values that the run had then."""

    by: Fold
    first: Event
    steps: tuple[tuple[Event, Values], ...]

    @property
    def latest(self) -> Event:
        """The last event of the run."""
        return self.steps[-1][0] if self.steps else self.first

    @property
    def values(self) -> Values:
        """The latest values."""
        return self.steps[-1][1] if self.steps else self.first.values


@dataclass(frozen=True, slots=True)
class Together:
    """Values of a group: the events of its window, in the order of time. Those that end with the window are its
    parts."""

    by: Aggregate
    window: tuple[Event, ...]


Made = Given | Filtered | Selected | Followed | Folded | Together


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An event: its attributes, its interval in microseconds, and how it was made."""

    values: Values
    t0: int
    t1: int
    made: Made

    @property
    def parts(self) -> tuple[Event, ...]:
        """The events that it is said to be made of: of a run the first and the latest, of a group those that end with
        its window."""
        match self.made:
            case Given():
                return ()
            case Filtered(source=source) | Selected(source=source):
                return (source,)
            case Followed(left=left, right=right):
                return left, right
            case Folded(first=first, latest=latest):
                return first, latest
            case Together(window=window):
                return tuple(one for one in window if one.t1 == self.t1)

    @property
    def inputs(self) -> tuple[Event, ...]:
        """All events that it was made of: also those inside a run."""
        if isinstance(self.made, Folded):
            return self.made.first, *(step for step, _ in self.made.steps)
        return self.parts


def given_parts(event: Event) -> Iterator[Given]:
    """Yields what an event is made of in the end, as outputs tell it."""
    if isinstance(event.made, Given):
        yield event.made
    for part in event.parts:
        yield from given_parts(part)


def before(left: Event, right: Event) -> bool:
    """Returns whether an event has ended when another one begins."""
    return left.t1 < right.t0


def is_same(one: Event, other: Event) -> bool:
    """Returns whether two events are one, computed twice."""
    if one is other:
        return True
    return one.t1 == other.t1 and identity(one) == identity(other)


def identity(event: Event) -> Hashable:
    """Returns what tells an event from others: its attributes, its interval and its parts, however it was made."""
    return tuple(event.values.items()), event.t0, event.t1, frozenset(given_parts(event))
