"""Watermarks: how far each stream has come, and with it what is late and what may be let go of (section 7)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from join_stage.joiner import JoinEngine
from mmqjp.tables import documents
from mmqjp.tables.ledger import Ledger

EARLIEST, LATEST = -(2**61), 2**61
"""Times further away, microseconds, would overflow in the arithmetic of windows."""

WATERMARKS = "watermarks"
"""The setting with the lateness, and each stream's greatest time."""


OTHERS = "*"
"""Stands for all streams that a lateness is not said of. No query reads a stream of that name."""

Lateness = int | None | Mapping[str, int | None]
"""How late documents may come, microseconds, None for as late as they like: on all streams, or on each by its name."""


def lateness_of(lateness: Lateness, stream: str) -> int | None:
    """How late the documents of a stream may come; None: as late as they like."""
    return lateness.get(stream, lateness.get(OTHERS)) if isinstance(lateness, Mapping) else lateness


def is_bounded(lateness: Lateness) -> bool:
    """Whether documents of some stream may be late."""
    allowed = lateness.values() if isinstance(lateness, Mapping) else (lateness,)
    return any(one is not None for one in allowed)


@dataclass(frozen=True, slots=True)
class Timing:
    """How time passes, microseconds; None is without limit.

    `lateness` is how far a document may be behind its stream's greatest time as of the previous batch. Of live streams,
    one that is silent for `idle_after` goes on with the clock, that far behind it; and a document may be at most
    `max_ahead` ahead of the clock.
    """

    lateness: Lateness = None
    idle_after: int | None = None
    max_ahead: int | None = None


class Watermarks:
    """The greatest time of each stream from outside. `greatest` is what was known at `opened`, from when on silence
    counts."""

    def __init__(self, timing: Timing, greatest: Mapping[str, int], opened: int) -> None:
        self.timing = timing
        self._greatest, self._opened = dict(greatest), opened
        self._arrived: dict[str, int] = {}
        self.newest: int | None = None
        """The greatest time of a document since `opened`."""

    def of(self, streams: Iterable[str], greatest: Mapping[str, int] | None = None) -> int:
        """The least watermark of these streams from outside: what is older is late on all that is made of them.
        EARLIEST if there are none."""
        lateness = self.timing.lateness
        if not is_bounded(lateness):
            return EARLIEST
        known = self._greatest if greatest is None else greatest
        least = min((_watermark(lateness, stream, known.get(stream)) for stream in streams), default=EARLIEST)
        return max(least, EARLIEST)

    def after(self, arrived: Mapping[str, int], streams: Iterable[str], now: int) -> dict[str, int]:
        """The greatest times after a batch: `arrived` has those of the batch, by stream, and `streams` are those from
        outside that are waited for. Nothing is changed yet."""
        greatest = dict(self._greatest)
        for stream, time in arrived.items():
            greatest[stream] = max(greatest.get(stream, EARLIEST), time)
        if self.timing.idle_after is not None:
            for stream in {*greatest, *streams} - arrived.keys():
                if now - self._arrived.get(stream, self._opened) >= self.timing.idle_after:
                    greatest[stream] = max(greatest.get(stream, EARLIEST), now - self.timing.idle_after)
        return greatest

    def advance(self, greatest: Mapping[str, int], arrived: Mapping[str, int], now: int) -> None:
        """Takes over what `after` gave: the batch is committed."""
        self._greatest = dict(greatest)
        times = [*arrived.values()] if self.newest is None else [*arrived.values(), self.newest]
        self.newest = max(times, default=None)
        self._arrived |= dict.fromkeys(arrived, now)

    def by_stream(self) -> dict[str, int]:
        """The watermark of each stream from outside that has one."""
        return by_stream(self.timing.lateness, self._greatest)


def by_stream(lateness: Lateness, greatest: Mapping[str, int]) -> dict[str, int]:
    """The watermark of each stream that has one, given the greatest times."""
    known = ((stream, _watermark(lateness, stream, time)) for stream, time in sorted(greatest.items()))
    return {stream: watermark for stream, watermark in known if watermark > EARLIEST}


def _watermark(lateness: Lateness, stream: str, greatest: int | None) -> int:
    """The watermark of a stream of this greatest time; EARLIEST if it has none."""
    late = lateness_of(lateness, stream)
    return EARLIEST if greatest is None or late is None else greatest - late


def noted_watermarks(ledger: Ledger) -> tuple[Lateness, dict[str, int]]:
    """The lateness and the greatest times that a store has noted last."""
    return from_setting(ledger.setting(WATERMARKS))


def greatest_times(store: JoinEngine, ledger: Ledger) -> dict[str, int]:
    """The greatest time met on each stream from outside, as a store knows it."""
    greatest = noted_watermarks(ledger)[1]
    for stream, time in documents.greatest_times(store).items():
        greatest[stream] = max(time, greatest.get(stream, time))
    return greatest


def to_setting(lateness: Lateness, greatest: Mapping[str, int]) -> str:
    """What is noted of watermarks."""
    allowed = dict(lateness) if isinstance(lateness, Mapping) else lateness
    return json.dumps({"lateness": allowed, "greatest": dict(greatest)}, ensure_ascii=False)


def from_setting(value: str | None) -> tuple[Lateness, dict[str, int]]:
    """The lateness and the greatest times that were noted; None and nothing if there is no note."""
    if value is None:
        return None, {}
    noted = json.loads(value)
    return noted["lateness"], noted["greatest"]
