"""Watermarks: how far each stream has come, which decides what is belated, absences, events and eviction
(docs/semantics.md, section 16). A stream that feeds fill has come as far as the least of their last complete visits,
any other as far as its greatest time. `Progress` follows one batch, document by document and visit by visit, so that
nothing depends on where batches are cut."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from common.bounds import EARLIEST, LATEST, Micros
from common.dates import DAY, HOUR
from common.errors import InvalidValue
from feeds.documents import DEFAULT_STREAM, VISITS_STREAM, Visit, VisitOutcome
from join_stage.plans import JoinEngine
from mmqjp.tables.schema import Ledger, TableRows
from pattern_stage.assemble import EVENT_TIME, OTHER_STREAMS

WATERMARKS = "watermarks"
"""Setting with each stream's lateness, progress, greatest document and least watermark. Later rows of `batches` have
the progress and the greatest document of the streams that they moved."""

IDLE_AFTER = HOUR  # `idle_after` of services by default, and of feeds at the end of a finite run
SETTLE = 10 * 60 * 1_000_000  # default of `Timing.settle`, in microseconds

Lateness = int | None | Mapping[str, int | None]
"""Allowed lateness in microseconds, for all streams or by stream; None is unlimited."""

BELATED = "take", "drop"

Belated = str | Mapping[str, str]
"""Whether belated documents are taken or become dead letters, one of BELATED, for all streams or by stream."""


def lateness_of(lateness: Lateness, stream: str) -> int | None:
    return lateness.get(stream, lateness.get(OTHER_STREAMS)) if isinstance(lateness, Mapping) else lateness


def is_lateness_bounded(lateness: Lateness) -> bool:
    allowed = lateness.values() if isinstance(lateness, Mapping) else (lateness,)
    return any(one is not None for one in allowed)


@dataclass(frozen=True, slots=True)
class Timing:
    """Event-time rules, in microseconds; None is unlimited.

    `lateness` is how far a stream's watermark is behind its progress; what ends before the watermark is `belated`. A
    stream without feeds that is idle for `idle_after` follows the clock at that distance, and a feed without a complete
    visit for that long holds its stream no longer. `max_ahead` limits how far a document may be ahead of the clock.
    `settle` is how long events wait for earlier ones; None means until the end of a finite run.
    """

    lateness: Lateness = None
    idle_after: int | None = None
    max_ahead: int | None = None
    settle: Lateness = SETTLE
    belated: Belated = "take"

    def __post_init__(self) -> None:
        """Raises InvalidValue for an unknown rule."""
        rules = self.belated.values() if isinstance(self.belated, Mapping) else (self.belated,)
        if unknown := [rule for rule in rules if rule not in BELATED]:
            raise InvalidValue(f"belated documents are for {' or '.join(BELATED)}, not {unknown[0]!r}")

    def as_written(self, ledger: Ledger) -> Timing:
        """Returns these rules with the lateness, idle time and `settle` of the process that wrote a store last."""
        noted = json.loads(ledger.setting(WATERMARKS) or "null")
        if noted is None:
            return self
        waits = noted.get("settle", self.settle)  # stores of earlier versions do not say
        return replace(self, lateness=noted["lateness"], idle_after=noted.get("idle_after"), settle=waits)

    def drops(self, stream: str) -> bool:
        """Whether belated documents of a stream are dead letters."""
        rule = self.belated
        return (rule.get(stream, rule.get(OTHER_STREAMS)) if isinstance(rule, Mapping) else rule) == "drop"


# ------------------------------------------------------------ feeds

ONE_VISIT = DAY  # how long a feed that was visited once is live, the longest interval of fetching


class LastVisit(NamedTuple):
    """The last complete visit of a feed and the one before that, EARLIEST if there is none, and what was said last.
    For an awaited feed, `earlier` is the time since when it is."""

    visited: int
    earlier: int
    outcome: VisitOutcome

    def is_live(self, idle_after: int | None, now: int) -> bool:
        """Whether its stream waits for it at `now`, the latest visit of any feed: for at least twice the interval of
        its last two visits, since each feed has its own."""
        if self.outcome == "ended":
            return False
        if idle_after is None:
            return True
        if self.outcome == "awaited":
            return now - self.earlier <= max(idle_after, ONE_VISIT)
        own = ONE_VISIT if self.earlier == EARLIEST else 2 * (self.visited - self.earlier)
        return now - self.visited <= max(idle_after, own)


UNKNOWN_FEED = LastVisit(EARLIEST, EARLIEST, "ended")


class FeedTimes:
    """The feeds of a stream. `states` has each, `greatest` the latest complete visit of any."""

    def __init__(self) -> None:
        self.states: dict[str, LastVisit] = {}
        self.greatest: int = EARLIEST
        self._heap: list[tuple[int, str]] = []
        """The live feeds by their last complete visit. Entries that no state has are skipped when they come up."""
        self._awaited: list[tuple[int, str]] = []
        """Like `_heap`: the awaited feeds, latest first, by the negative time since when."""

    def note(self, feed: str, time: int, outcome: VisitOutcome) -> bool:
        """Returns whether that changed anything."""
        visited, earlier, before = self.states.get(feed, UNKNOWN_FEED)
        match outcome:
            case "complete":
                if time <= visited and before == outcome:
                    return False
                if time > visited:
                    visited, earlier = time, visited if before == outcome else EARLIEST
                elif before == "awaited":
                    earlier = EARLIEST
            case "awaited":
                if time <= (visited if before == "complete" else earlier if before == outcome else EARLIEST):
                    return False  # it was visited since, or this is known
                earlier = time
            case "ended":
                if (before == outcome and feed in self.states) or time < visited:
                    return False
        self.put(feed, LastVisit(visited, earlier, outcome))
        return True

    def put(self, feed: str, state: LastVisit) -> None:
        self.states[feed] = state
        self.greatest = max(self.greatest, state.visited)
        if state.outcome == "complete":
            heappush(self._heap, (state.visited, feed))
        elif state.outcome == "awaited":
            heappush(self._awaited, (-state.earlier, feed))
        if len(self._heap) + len(self._awaited) > 2 * len(self.states) + 100:
            self.rebuild()

    def restore(self, before: Mapping[str, LastVisit | None]) -> None:
        """Undoes changes, given the states of some feeds before; None if they were not known."""
        for feed, state in before.items():
            del self.states[feed]
            if state is not None:
                self.states[feed] = state
        self.greatest = max((state.visited for state in self.states.values()), default=EARLIEST)
        self.rebuild()

    def rebuild(self) -> None:
        """Rebuilds the heaps, with the feeds that were found idle."""
        states = self.states.items()
        self._heap = [(one.visited, feed) for feed, one in states if one.outcome == "complete"]
        self._awaited = [(-one.earlier, feed) for feed, one in states if one.outcome == "awaited"]
        heapify(self._heap)
        heapify(self._awaited)

    def awaited(self, idle_after: int | None) -> str | None:
        """Returns the feed that is awaited since the latest time; None if there is none."""
        while self._awaited:
            since, feed = self._awaited[0]
            state = self.states[feed]
            known = state.outcome == "awaited" and state.earlier == -since
            if known and state.is_live(idle_after, self.greatest):
                return feed
            heappop(self._awaited)
        return None

    def least(self, idle_after: int | None) -> int | None:
        """Returns the least last visit of live feeds; None while a feed is awaited, or if none is live."""
        if self.awaited(idle_after) is not None:
            return None
        while self._heap:
            visited, feed = self._heap[0]
            state = self.states[feed]
            known = state.outcome == "complete" and state.visited == visited
            if known and state.is_live(idle_after, self.greatest):
                return visited
            heappop(self._heap)
        return None

    def slowest(self, idle_after: int | None) -> str | None:
        """Returns a feed that is awaited, else the live one whose last visit is the earliest; None if none is live."""
        if (feed := self.awaited(idle_after)) is not None:
            return feed
        return None if self.least(idle_after) is None else self._heap[0][1]


# ------------------------------------------------------------ watermarks


@dataclass(slots=True)
class StreamTimes:
    """By stream: the `progress`, and the greatest time of `documents` that no feed showed. `least` are watermarks of
    earlier sessions, which had less lateness, so that none goes back. `feeds` are those of streams that have any."""

    progress: dict[str, int] = field(default_factory=dict)
    documents: dict[str, int] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    feeds: dict[str, FeedTimes] = field(default_factory=dict)
    noted: Mapping[str, Any] = field(default_factory=dict)
    """The setting."""

    @staticmethod
    def stored(store: JoinEngine, ledger: Ledger, timing: Timing) -> StreamTimes:
        value, batch = ledger.dated_setting(WATERMARKS)
        noted: dict[str, Any] = json.loads(value or "{}")
        found = StreamTimes(noted.get("greatest", {}), noted.get("documents", {}), noted.get("least", {}), noted=noted)
        for moved in map(json.loads, ledger.moved_after(batch)):
            for stream, (progress, documents) in moved.items():
                found.progress |= {} if progress is None else {stream: progress}
                found.documents |= {} if documents is None else {stream: documents}
        for stream, feed, *state, _ in TableRows(store).tuples("feeds", _FEED_COLUMNS, "batch"):
            found.feeds.setdefault(stream, FeedTimes()).put(feed, LastVisit(*state))
        for stream, time in found.progress.items():
            before = _watermark(noted["lateness"], stream, time)
            least = max(found.least.get(stream, EARLIEST), before)
            if least > _watermark(timing.lateness, stream, time):
                found.least[stream] = least
        return found


_FEED_COLUMNS = "stream feed visited earlier outcome batch"
_JSON = json.JSONEncoder(ensure_ascii=False).encode


def note_earlier_documents(store: JoinEngine, ledger: Ledger) -> None:
    """Writes, within a batch, how far streams have come in a store that did not tell documents of feeds from others."""
    noted = json.loads(ledger.setting(WATERMARKS) or '{"lateness": null, "greatest": {}}')
    for stream, time in latest_ends(store).items():
        noted["greatest"][stream] = max(time, noted["greatest"].get(stream, time))
    ledger.save_settings({WATERMARKS: json.dumps(noted, ensure_ascii=False)})


def latest_ends(store: JoinEngine) -> dict[str, int]:
    found = store.select("SELECT stream, max(t1) AS t1 FROM documents WHERE kind = 'external' GROUP BY stream")
    return dict(zip(found["stream"].to_pylist(), found["t1"].to_pylist(), strict=True))


def _watermark(lateness: Lateness, stream: str, progress: int | None) -> Micros:
    late = lateness_of(lateness, stream)
    return EARLIEST if progress is None or late is None else Micros(progress - late)


class Watermarks:
    """Progress and watermark of each external stream as of the last batch. `sources` returns the external streams
    behind a stream. Idle times begin at `opened`."""

    def __init__(
        self, timing: Timing, times: StreamTimes, sources: Callable[[str], Iterable[str]], opened: int
    ) -> None:
        self.timing, self.sources = timing, sources
        self.greatest: Mapping[str, int] = times.progress
        self.documents: Mapping[str, int] = times.documents
        self.least, self.feeds = times.least, times.feeds
        self._noted = times.noted
        self.opened = opened
        self.arrived: dict[str, int] = {}  # when a stream had its last document that no feed showed
        self.released: Callable[[Progress | None, int], Micros] = lambda progress, arrival: EARLIEST
        """Returns the horizon of events, the watermark of streams that event queries publish: as of now, or as of an
        arrival of a batch."""
        self.released_by: Callable[[int], int] = lambda time: 0
        """Returns the arrival of the running batch that moves the horizon past a time."""
        self.reads_visits: Callable[[], bool] = lambda: False
        """Whether a query reads the documents about visits."""
        self.newest: int | None = None  # the greatest document time since `opened`
        self.highest: int = max(self.by_stream().values(), default=EARLIEST)
        self._running: Progress | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether any stream has, or can get, a watermark."""
        return bool(self.least) or is_lateness_bounded(self.timing.lateness)

    def watermark(self, stream: str, progress: int | None) -> Micros:
        """Returns the watermark of an external stream at a progress."""
        return Micros(max(_watermark(self.timing.lateness, stream, progress), self.least.get(stream, EARLIEST)))

    def of(self, streams: Iterable[str], greatest: Mapping[str, int] | None = None) -> Micros:
        """Returns the least watermark of external streams: documents that end earlier are belated on what derives from
        them. `greatest` is their progress, by default that of the last batch."""
        if not self.is_bounded:
            return EARLIEST
        known = self.greatest if greatest is None else greatest

        def watermark(stream: str) -> Micros:
            return self.released(None, 0) if stream == EVENT_TIME else self.watermark(stream, known.get(stream))

        return max(min(map(watermark, streams), default=EARLIEST), EARLIEST)

    def feeds_of(self, stream: str) -> FeedTimes | None:
        """Returns the feeds that a stream waits for; that of documents about visits waits for those of items."""
        return self.feeds.get(DEFAULT_STREAM if stream == VISITS_STREAM else stream)

    def slowest_feed(self, stream: str) -> str | None:
        """Returns the feed that holds a stream; None if it has none, or if its other documents are further behind."""
        if (feeds := self.feeds_of(stream)) is None:
            return None
        visited, documents = feeds.least(self.timing.idle_after), self.documents.get(stream)
        if visited is not None and documents is not None and documents < visited:
            return None
        return feeds.slowest(self.timing.idle_after)

    def at_end(self, streams: Iterable[str]) -> Micros:
        """Returns the watermark at the end of a finite run without a state: streams with feeds are decided up to their
        progress, others to the end."""
        greatest = self.greatest if self._running is None else self._running.greatest
        known = (greatest.get(stream, EARLIEST) for stream in streams if self.feeds_of(stream) is not None)
        return Micros(min(known, default=LATEST))

    def by_stream(self) -> dict[str, int]:
        """Returns the watermarks of the streams that have one."""
        known = ((stream, self.watermark(stream, time)) for stream, time in sorted(self.greatest.items()))
        return {stream: watermark for stream, watermark in known if watermark > EARLIEST}

    def begin(self, first: int) -> Progress:
        """Begins a batch, whose documents arrive from `first` on. It ends with `advance` or `undo`."""
        self._running = Progress(self, first)
        return self._running

    def undo(self) -> None:
        if self._running is not None:
            self._running.undo()
            self._running = None

    def advance(self, progress: Progress, now: int) -> None:
        """Takes over a batch that was committed."""
        self._running = None
        self.greatest, self.documents, self.highest = progress.greatest, progress.documents, progress.highest
        self.newest = max((time for time in (self.newest, progress.newest) if time is not None), default=None)
        self.arrived |= dict.fromkeys(progress.arrived, now)
        self._noted = progress.noted or self._noted

    def save(self, store: JoinEngine, ledger: Ledger, progress: Progress, *, has_row: bool) -> str | None:
        """Writes, within the batch, how far it comes, so that nothing goes back after a restart. Returns what is left
        to write into the batch's row, if it has one."""
        rows = [
            (stream, feed, *self.feeds[stream].states[feed], ledger.batch)
            for stream, feeds in progress.feeds_before.items()
            for feed in feeds
        ]
        TableRows(store).append("feeds", rows)
        timing = self._timing()
        if has_row and timing.items() <= self._noted.items():
            return progress.moved()
        if timing.items() <= self._noted.items() and progress.moved() is None:
            return None
        progress.noted = timing
        ledger.save_settings(self.setting(progress))
        return None

    def _timing(self) -> dict[str, Any]:
        rules = {"lateness": self.timing.lateness, "settle": self.timing.settle}
        plain = {key: dict(rule) if isinstance(rule, Mapping) else rule for key, rule in rules.items()}
        return {**plain, "idle_after": self.timing.idle_after, "least": self.least}

    def setting(self, progress: Progress | None = None) -> dict[str, str]:
        """Returns the whole setting, after a running batch or the last one."""
        found = self if progress is None else progress
        noted = {**self._timing(), "greatest": found.greatest, "documents": found.documents}
        return {WATERMARKS: json.dumps(noted, ensure_ascii=False)}


def compact_feeds(store: JoinEngine, batch: int) -> None:
    """Drops superseded rows of the table `feeds`, within a batch."""
    rows = list(TableRows(store).tuples("feeds", _FEED_COLUMNS, "batch"))
    latest = {row[:2]: row for row in rows}
    if len(latest) < len(rows):
        store.drop_before("feeds", "batch", batch)
        TableRows(store).append("feeds", [(*row[:-1], batch) for row in latest.values()])


# ------------------------------------------------------------ within a batch


class Progress:
    """Progress of streams within a batch, whose documents arrive from `first` on: `enter` each, and tell of each
    `visit`, in order. A step of a stream's progress belongs to the last arrival before it. `greatest` is the progress
    so far."""

    def __init__(self, known: Watermarks, first: int) -> None:
        self.first = self._next = first
        self.greatest, self.documents = dict(known.greatest), dict(known.documents)
        self.arrived: dict[str, int] = {}  # greatest times of the batch's documents that no feed showed
        self.newest: int | None = None  # greatest time of any document
        self.feeds_before: dict[str, dict[str, LastVisit | None]] = {}
        self._known, self._before = known, known.greatest
        self._idle_after = known.timing.idle_after
        self._arrivals, self._times = dict[str, list[int]](), dict[str, list[int]]()
        self._behind: dict[str, list[tuple[str, int | None, int]]] = {}
        self.highest = known.highest
        """The greatest watermark of any external stream."""
        self.noted: Mapping[str, Any] | None = None  # the timing, if the batch writes it
        self._late: dict[str, int | None] = {}

    @property
    def last(self) -> int:
        """The last arrival of the batch; of one without documents, the last before it."""
        return max(self._next - 1, 0)

    @property
    def fed(self) -> Collection[str]:
        """The streams that have feeds."""
        fed = self._known.feeds.keys()
        return {*fed, VISITS_STREAM} if DEFAULT_STREAM in fed else fed

    @property
    def reads_visits(self) -> bool:
        return self._known.reads_visits()

    # ------------------------------------------------------------ what arrives

    def enter(self, stream: str, t1: int, *, by_feed: bool) -> None:
        self._next += 1
        if by_feed:
            self.newest = t1 if self.newest is None else max(self.newest, t1)
        elif t1 > self.arrived.get(stream, EARLIEST):
            self.arrived[stream] = t1
            if self.newest is None or t1 > self.newest:
                self.newest = t1
            if t1 > self.documents.get(stream, EARLIEST):
                self.documents[stream] = t1
                if self._known.feeds:
                    self._move(stream)
                else:
                    self._come_to(stream, t1)

    def visit(self, visit: Visit, now: int) -> None:
        """A visit too far ahead of the clock `now`, or one that failed, counts as none."""
        ahead = self._known.timing.max_ahead
        if visit.outcome == "failed" or visit.time >= LATEST or (ahead is not None and visit.time - now > ahead):
            return
        stream = visit.stream
        if (feeds := self._known.feeds.get(stream)) is None:
            feeds = self._known.feeds[stream] = FeedTimes()
        before = feeds.states.get(visit.feed)
        if feeds.note(visit.feed, visit.time, visit.outcome):
            self.feeds_before.setdefault(stream, {}).setdefault(visit.feed, before)
            for moved in self._fed_with(stream):
                self._move(moved)

    def finish(self) -> None:
        """Ends a finite run. Its feeds are idle after IDLE_AFTER unless another time is set, so that none that died
        long ago holds its stream."""
        if self._idle_after is None:
            for stream, feeds in self._known.feeds.items():
                for moved in self._fed_with(stream):
                    self._move(moved, IDLE_AFTER)
                feeds.rebuild()  # later documents find none of them idle

    def pass_clock(self, streams: Iterable[str], now: int) -> None:
        """Advances idle streams, after the batch's documents. Queries wait for `streams`."""
        if (idle_after := self._idle_after) is None:
            return
        known = self._known
        for stream in sorted({*self.greatest, *streams} - self.arrived.keys() - {EVENT_TIME}):
            if now - known.arrived.get(stream, known.opened) < idle_after:
                continue
            if stream in self.documents:
                self.documents[stream] = max(self.documents[stream], now - idle_after)
                self._move(stream)
            elif known.feeds_of(stream) is None:
                self._come_to(stream, now - idle_after)

    def _fed_with(self, stream: str) -> Collection[str]:
        """The streams that the feeds of a stream move."""
        return (stream, VISITS_STREAM) if stream == DEFAULT_STREAM and self.reads_visits else (stream,)

    def _move(self, stream: str, idle_after: int | None = None) -> None:
        time, idle_after = self.documents.get(stream), idle_after or self._idle_after
        if (feeds := self._known.feeds_of(stream)) is not None:
            if feeds.awaited(idle_after) is not None:
                return
            if (visited := feeds.least(idle_after)) is not None:
                time = visited if time is None else min(time, visited)
        if time is not None:
            self._come_to(stream, time)

    def _come_to(self, stream: str, time: int) -> None:
        if time <= self.greatest.get(stream, EARLIEST):
            return
        self.greatest[stream] = time
        if (arrivals := self._arrivals.get(stream)) is None:
            arrivals, self._times[stream] = self._arrivals.setdefault(stream, []), []
            self._late[stream] = lateness_of(self._known.timing.lateness, stream)
        if (late := self._late[stream]) is not None and time - late > self.highest:
            self.highest = time - late
        times = self._times[stream]
        if arrivals and arrivals[-1] == self._next - 1:
            times[-1] = time
        else:
            arrivals.append(self._next - 1)
            times.append(time)

    def moved(self) -> str | None:
        """Returns the progress and the greatest document of streams that have moved; None if none has."""
        before = self._known.documents
        streams = {*self._times, *(stream for stream, time in self.documents.items() if before.get(stream) != time)}
        moved = {stream: (self.greatest.get(stream), self.documents.get(stream)) for stream in sorted(streams)}
        return _JSON(moved) if moved else None

    def undo(self) -> None:
        """Undoes, after a rollback, what visits have changed."""
        for stream, before in self.feeds_before.items():
            feeds = self._known.feeds[stream]
            feeds.restore(before)
            if not feeds.states:
                del self._known.feeds[stream]
        self.feeds_before = {}

    # ------------------------------------------------------------ how far streams had come

    def belated(self, stream: str, t1: int) -> Micros | None:
        """Returns the watermark of a stream as of now if what ends at `t1` is belated, else None."""
        if t1 >= self.highest or (watermark := self._watermark(stream, self._next)) <= t1:
            return None
        return watermark

    def belated_at(self, stream: str, t1: int, arrival: int) -> Micros | None:
        """As `belated`, as of an arrival: before it moved anything."""
        if t1 >= self.highest or (watermark := self._watermark(stream, arrival)) <= t1:
            return None
        return watermark

    def at(self, stream: str, arrival: int) -> int | None:
        """Returns the progress of an external stream before an arrival."""
        if arrival >= self._next:
            return self.greatest.get(stream)
        if (arrivals := self._arrivals.get(stream)) is None or not (place := bisect_left(arrivals, arrival)):
            return self._before.get(stream)
        return self._times[stream][place - 1]

    def _watermark(self, stream: str, arrival: int) -> Micros:
        if (behind := self._behind.get(stream)) is None:
            lateness, least = self._known.timing.lateness, self._known.least
            behind = self._behind[stream] = [
                (one, lateness_of(lateness, one), least.get(one, EARLIEST)) for one in self._known.sources(stream)
            ]
        found: int = LATEST
        for source, late, least_ in behind:
            if source == EVENT_TIME:
                found = min(found, self._known.released(self, arrival))
                continue
            time = None if late is None else self.at(source, arrival)
            found = min(found, least_ if time is None or late is None else max(time - late, least_))
        return Micros(EARLIEST if found == LATEST else found)

    def moves(self, streams: Iterable[str]) -> list[int]:
        """Returns the arrivals at which the progress of streams moved."""
        return sorted({arrival for stream in streams for arrival in self._arrivals.get(stream, ())})

    def came_to(self, watermark: int, streams: Iterable[str]) -> int:
        """Returns the arrival at which the least watermark of streams came to a time; the last one before the batch if
        it had before."""
        found = self.first - 1
        for stream in streams:
            known = self._known
            if stream == EVENT_TIME:
                found = max(found, known.released_by(watermark - 1))
                continue
            if (late := lateness_of(known.timing.lateness, stream)) is None:
                continue
            if known.watermark(stream, self._before.get(stream)) < watermark:
                place = bisect_left(times := self._times.get(stream, ()), watermark + late)
                if place < len(times):
                    found = max(found, self._arrivals[stream][place])
        return found
