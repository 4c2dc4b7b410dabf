"""Watermarks: how far each stream has come, which decides lateness and eviction (docs/semantics.md, section 16).
`Progress` tells with which document of a batch each stream reached a time."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.bounds import EARLIEST
from join_stage.protocol import JoinEngine
from mmqjp.documents.record import Record
from mmqjp.tables.ledger import Ledger
from pattern_stage.assemble import EVENT_TIME, OTHER_STREAMS

WATERMARKS = "watermarks"  # setting with each stream's lateness and greatest time


SETTLE = 10 * 60 * 1_000_000  # default of `Timing.settle`, in microseconds

Lateness = int | None | Mapping[str, int | None]
"""Allowed lateness in microseconds, for all streams or by stream; None is unlimited."""


def lateness_of(lateness: Lateness, stream: str) -> int | None:
    return lateness.get(stream, lateness.get(OTHER_STREAMS)) if isinstance(lateness, Mapping) else lateness


def is_lateness_bounded(lateness: Lateness) -> bool:
    allowed = lateness.values() if isinstance(lateness, Mapping) else (lateness,)
    return any(one is not None for one in allowed)


@dataclass(frozen=True, slots=True)
class Timing:
    """Event-time rules, in microseconds; None is unlimited.

    `lateness` is a document's allowed distance behind its stream's greatest time as of the previous batch. A stream
    idle for `idle_after` follows the clock at that distance. `max_ahead` limits how far a document may be ahead of the
    clock. `settle` is how long events wait for earlier ones; None means until the end of a finite run.
    """

    lateness: Lateness = None
    idle_after: int | None = None
    max_ahead: int | None = None
    settle: Lateness = SETTLE


class Watermarks:
    """Greatest time of each external stream. `greatest` are those at `opened`, when idle times begin."""

    def __init__(self, timing: Timing, greatest: Mapping[str, int], opened: int) -> None:
        self.timing = timing
        self.greatest: Mapping[str, int] = dict(greatest)
        self._opened = opened
        self._arrived: dict[str, int] = {}
        self.released: Callable[[], int] = lambda: EARLIEST
        """Returns the horizon of events, the watermark of streams that event queries publish."""
        self.newest: int | None = None  # the greatest document time since `opened`

    def of(self, streams: Iterable[str], greatest: Mapping[str, int] | None = None) -> int:
        """Returns the least watermark of external streams: earlier documents are late on what derives from them."""
        lateness = self.timing.lateness
        if not is_lateness_bounded(lateness):
            return EARLIEST
        known = self.greatest if greatest is None else greatest

        def watermark(stream: str) -> int:
            return self.released() if stream == EVENT_TIME else _watermark(lateness, stream, known.get(stream))

        return max(min(map(watermark, streams), default=EARLIEST), EARLIEST)

    def after(self, arrived: Mapping[str, int], streams: Iterable[str], now: int) -> dict[str, int]:
        """Returns the greatest times after a batch, which has those in `arrived`; queries wait for `streams`."""
        greatest = dict(self.greatest)
        for stream, time in arrived.items():
            greatest[stream] = max(greatest.get(stream, EARLIEST), time)
        if self.timing.idle_after is not None:
            for stream in {*greatest, *streams} - arrived.keys() - {EVENT_TIME}:
                if now - self._arrived.get(stream, self._opened) >= self.timing.idle_after:
                    greatest[stream] = max(greatest.get(stream, EARLIEST), now - self.timing.idle_after)
        return greatest

    def advance(self, greatest: Mapping[str, int], arrived: Mapping[str, int], now: int) -> None:
        self.greatest = dict(greatest)
        times = [*arrived.values()] if self.newest is None else [*arrived.values(), self.newest]
        self.newest = max(times, default=None)
        self._arrived |= dict.fromkeys(arrived, now)


def by_stream(lateness: Lateness, greatest: Mapping[str, int]) -> dict[str, int]:
    known = ((stream, _watermark(lateness, stream, time)) for stream, time in sorted(greatest.items()))
    return {stream: watermark for stream, watermark in known if watermark > EARLIEST}


def _watermark(lateness: Lateness, stream: str, greatest: int | None) -> int:
    late = lateness_of(lateness, stream)
    return EARLIEST if greatest is None or late is None else greatest - late


def saved_watermarks(ledger: Ledger) -> tuple[Lateness, dict[str, int]]:
    if (value := ledger.setting(WATERMARKS)) is None:
        return None, {}
    noted = json.loads(value)
    return noted["lateness"], noted["greatest"]


def latest_stream_times(store: JoinEngine, ledger: Ledger) -> dict[str, int]:
    greatest = saved_watermarks(ledger)[1]
    found = store.select("SELECT stream, max(t1) AS t1 FROM documents WHERE kind = 'external' GROUP BY stream")
    for stream, time in zip(found["stream"].to_pylist(), found["t1"].to_pylist(), strict=True):
        greatest[stream] = max(time, greatest.get(stream, time))
    return greatest


def to_setting(lateness: Lateness, greatest: Mapping[str, int]) -> str:
    allowed = dict(lateness) if isinstance(lateness, Mapping) else lateness
    return json.dumps({"lateness": allowed, "greatest": dict(greatest)}, ensure_ascii=False)


class Progress:
    """Progress of streams within a batch. Arrivals run from `first` to `last`; of an empty batch, both are the last."""

    def __init__(self, records: Sequence[Record], next_arrival: int) -> None:
        """`records` are the batch's numbered external documents; `next_arrival` follows the last of them."""
        self.last = max(next_arrival - 1, 0)
        self.first = records[0].arrival if records else self.last
        self._times: dict[str, list[int]] = {}
        self._arrivals: dict[str, list[int]] = {}
        for record in records:
            times = self._times.setdefault(record.stream, [])
            if not times or times[-1] < record.t1:
                times.append(record.t1)
                self._arrivals.setdefault(record.stream, []).append(record.arrival)

    def came_to(self, watermark: int, streams: Iterable[str], watermarks: Watermarks) -> int:
        """Returns the arrival at which the least watermark of streams, given those before the batch, came to a time."""
        found = self.first
        for stream in streams:
            if stream == EVENT_TIME:
                return self.last
            time = watermark + (lateness_of(watermarks.timing.lateness, stream) or 0)
            place = bisect_left(times := self._times.get(stream, ()), time)
            if place < len(times) and watermarks.greatest.get(stream, EARLIEST) < time:
                found = max(found, self._arrivals[stream][place])
        return found
