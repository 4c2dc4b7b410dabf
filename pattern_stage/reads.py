"""Which streams of events a statement reads."""

from __future__ import annotations

from collections.abc import Iterator

from xscl.algebra.events import Aggregate, Events, Filter, Fold, Next, Select, Stream, Union


def sources_of(stream: Stream) -> Iterator[Events]:
    """Yields the streams that a statement reads, from left to right, as often as it does."""
    match stream:
        case Events():
            yield stream
        case Select(source=source) | Filter(source=source) | Aggregate(source=source):
            yield from sources_of(source)
        case Union(left=left, right=right) | Next(left=left, right=right) | Fold(left=left, right=right):
            yield from sources_of(left)
            yield from sources_of(right)


def streams_of(stream: Stream) -> frozenset[str]:
    """Returns the names of the streams that a statement reads."""
    return frozenset(source.stream for source in sources_of(stream))
