"""How far external streams have come, arrival by arrival (docs/semantics.md, section 16).

A step belongs to the last document that was admitted before it, so that batches do not matter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from feeds.documents import Visit


@dataclass
class Stream:
    """`visits` has the last complete visit of each feed, the one before, and what was said of it last; of an awaited
    feed since when in place of the one before. `own` is the
    greatest end of the documents without a feed. `steps` are the arrivals at which the watermark moved, and `reached`
    to where."""

    visits: dict[str, tuple[float, float, str]] = field(default_factory=dict)
    own: float | None = None
    progress: float = -inf
    watermark: float = -inf
    steps: list[int] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)

    def come_to(self, idle_after: int | None) -> float:
        """Where the stream has come to by its feeds and by its own documents."""
        newest = max((time for time, _, _ in self.visits.values()), default=-inf)
        holding = [one for one in self.visits.values() if one[2] != "ended"]
        live = []
        for time, before, said in holding:
            if said == "awaited":
                if idle_after is None or newest - before <= max(idle_after, 24 * 3600e6):
                    return -inf
                continue
            longest = 24 * 3600e6 if before == -inf else 2 * (time - before)
            if idle_after is None or newest - time <= max(idle_after, longest):
                live.append(time)
        return min(live if self.own is None else [*live, self.own], default=-inf)


ByStream = Any
"""A value for all streams, or a mapping with `*` for others."""


def of_stream(value: ByStream, name: str) -> Any:
    return value.get(name, value.get("*")) if isinstance(value, Mapping) else value


class Course:
    """`lateness` is None without a limit; `belated` is "take" or "drop". Of one that `has_ended` nothing more comes."""

    def __init__(
        self,
        lateness: ByStream = None,
        idle_after: int | None = None,
        belated: ByStream = "take",
        *,
        has_ended: bool = False,
    ) -> None:
        self.streams: dict[str, Stream] = {}
        self.arrivals = 0
        self.taken: dict[tuple[str, str], tuple[int, float | None]] = {}
        """The arrival of each document, by stream and id, and the watermark then if it is belated."""
        self.belated = Counter[str]()
        """How many documents of each stream came behind its watermark."""
        self._has_ended = has_ended
        self.reopen(lateness, idle_after, belated)

    def reopen(self, lateness: ByStream, idle_after: int | None, belated: ByStream = "take") -> None:
        self._lateness, self._idle_after, self._rule = lateness, idle_after, belated
        for name in self.streams:
            self._move(name)

    def visit(self, visit: Visit) -> None:
        visits = self.streams.setdefault(visit.stream, Stream()).visits
        time, before, said = visits.get(visit.feed, (-inf, -inf, "ended"))
        if visit.outcome == "complete":
            if visit.time > time:
                time, before = visit.time, time if said == "complete" else -inf
            elif said == "awaited":
                before = -inf
            visits[visit.feed] = time, before, "complete"
        elif visit.outcome == "ended" and visit.time >= time:
            visits[visit.feed] = time, before, "ended"
        elif visit.outcome == "awaited" and visit.time > {"complete": time, "awaited": before, "ended": -inf}[said]:
            visits[visit.feed] = time, visit.time, "awaited"
        self._move(visit.stream)

    def drops(self, document: Any, sources: Iterable[str]) -> bool:
        return bool(of_stream(self._rule, document.stream) == "drop" and document.t1 < self.as_of(sources))

    def take(self, document: Any, sources: Iterable[str]) -> None:
        """A document is admitted. `sources` are the external streams behind its stream."""
        watermark = self.as_of(sources)
        is_belated = document.t1 < watermark
        self.taken[document.stream, document.id] = self.arrivals, watermark if is_belated else None
        self.belated[document.stream] += is_belated
        self.arrivals += 1
        stream = self.streams.setdefault(document.stream, Stream())
        if not document.feed:
            stream.own = document.t1 if stream.own is None else max(stream.own, document.t1)
            self._move(document.stream)

    def pass_clock(self, name: str, time: int) -> None:
        """A stream without news follows the clock, unless all its news are of feeds."""
        stream = self.streams.setdefault(name, Stream())
        if stream.own is not None:
            stream.own = max(stream.own, time)
        elif not stream.visits:
            stream.progress = max(stream.progress, time)
        self._move(name)

    def reach(self, name: str, watermark: float) -> None:
        """The watermark of a stream moves, at the last arrival."""
        stream = self.streams.setdefault(name, Stream())
        if watermark > stream.watermark:
            stream.watermark = watermark
            stream.steps.append(self.arrivals - 1)
            stream.reached.append(watermark)

    def finish(self) -> None:
        """The end of a finite run: what visits say is over at once, and all else is."""
        self._has_ended = True
        for name, stream in self.streams.items():
            if stream.visits:
                stream.progress = max(stream.progress, stream.come_to(self._idle_after or 3_600_000_000))
                self.reach(name, stream.progress)

    def progress(self) -> dict[str, int]:
        return {name: int(stream.progress) for name, stream in self.streams.items() if stream.progress > -inf}

    def _move(self, name: str) -> None:
        stream, late = self.streams[name], of_stream(self._lateness, name)
        stream.progress = max(stream.progress, stream.come_to(self._idle_after))
        if isinstance(late, int):
            self.reach(name, stream.progress - late)

    def as_of(self, streams: Iterable[str], arrival: float = inf) -> float:
        """The least watermark of external streams when this document arrived, by default now."""
        return min((self._before(stream, arrival) for stream in streams), default=-inf)

    def _before(self, name: str, arrival: float) -> float:
        stream = self.streams.get(name, Stream())
        place = bisect_left(stream.steps, arrival)
        return stream.reached[place - 1] if place else -inf

    def came_to(self, streams: Iterable[str], time: float) -> float:
        """The arrival at which the least watermark of external streams reached a time; infinite if it has not."""
        return max((self._reached(stream, time) for stream in streams), default=inf)

    def _reached(self, name: str, time: float) -> float:
        stream = self.streams.get(name, Stream())
        place = bisect_left(stream.reached, time)
        if place < len(stream.steps):
            return stream.steps[place]
        return self.arrivals - 1 if self._has_ended and not stream.visits else inf


ENDED = Course(has_ended=True)
"""Of documents that came in no order that matters, and are all."""
