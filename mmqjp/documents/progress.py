"""How far each external stream came in a batch, and with which document: as if documents came one at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from mmqjp.documents.record import Record
from mmqjp.documents.watermarks import EARLIEST, EVENT_TIME, Watermarks, lateness_of


class Progress:
    """The progress of the streams in a batch. Documents are told by their arrivals (see `mmqjp.answers.quota`), which
    come one after the other from `first` to `last`. Without any, both are the latest arrival before the batch."""

    def __init__(self, records: Sequence[Record], next_arrival: int) -> None:
        """`records` are the external documents of the batch, numbered, and `next_arrival` is one more than the last of
        them, or than the last one before."""
        self.last = max(next_arrival - 1, 0)
        self.first = records[0].arrival if records else self.last
        self._times: dict[str, list[int]] = {}
        self._arrivals: dict[str, list[int]] = {}
        for record in records:
            times = self._times.setdefault(record.stream, [])
            if not times or times[-1] < record.t1:
                times.append(record.t1)
                self._arrivals.setdefault(record.stream, []).append(record.arrival)

    def reached(self, stream: str, time: int) -> int:
        """Returns the arrival with which a stream came to a time, in microseconds: `first` if none did, so that it was
        there before, or went on with the clock."""
        times = self._times.get(stream, ())
        place = bisect_left(times, time)
        return self._arrivals[stream][place] if place < len(times) else self.first

    def came_to(self, watermark: int, streams: Iterable[str], watermarks: Watermarks) -> int:
        """Returns the arrival with which the least watermark of some external streams came to a time. `watermarks` are
        those before the batch."""
        found = self.first
        for stream in streams:
            if stream == EVENT_TIME:
                return self.last
            time = watermark + (lateness_of(watermarks.timing.lateness, stream) or 0)
            if watermarks.greatest.get(stream, EARLIEST) < time:
                found = max(found, self.reached(stream, time))
        return found
