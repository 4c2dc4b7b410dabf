"""A store, receivers and a deliverer for tests of sinks: in memory, without threads, killed where a test says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import pyarrow as pa

from mmqjp.answers.fan_out import Position
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.present.item import ShownMatch
from mmqjp.sinks.definition import SinkDefinition, read_sink
from mmqjp.sinks.deliverer import Deliverer
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.sink import ACKNOWLEDGED, DeliveryResult, JobEvent, Message, ReadOutputs, Receiver, Sink, Warn
from mmqjp.tables.schema import CommitMetadata, GapRow, UndeliveredRow
from tests.support.service import Events

SECOND, DAY = 1_000_000, 86_400_000_000
START = 1_795_000_000 * SECOND


@dataclass
class Clock:
    time: int = START

    def __call__(self) -> int:
        return self.time


@dataclass
class FakeStore:
    """What `SinkManager` uses of a session. `kill` is called around each commit of metadata."""

    clock: Clock
    kill: Callable[[str], None] = lambda place: None
    all: list[tuple[Output, int]] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    gaps: list[GapRow] = field(default_factory=list)
    undelivered: list[UndeliveredRow] = field(default_factory=list)
    committed_at: int = 0

    @property
    def ledger(self) -> Self:
        return self

    @property
    def last_seq(self) -> int:
        return len(self.all) - 1

    def commit(self, queries: Iterable[str], metadata: CommitMetadata | None = None) -> list[Output]:
        self.committed_at = self.clock()
        found = []
        for query in queries:
            seq = len(self.all)
            found.append(Output(query, seq, seq, (f"d{seq}",), ("S",), {}, f"<m>{seq}</m>", f"id{seq}", seq))
            self.all.append((found[-1], self.committed_at))
        self._save(metadata or CommitMetadata())
        return found

    def commit_metadata(self, metadata: CommitMetadata) -> None:
        self.kill("before the note")
        self._save(metadata)
        self.kill("after the note")

    def _save(self, metadata: CommitMetadata) -> None:
        self.kept |= metadata.settings
        self.gaps += metadata.gaps
        self.undelivered += metadata.undelivered

    def settings(self, prefix: str) -> dict[str, str]:
        return {key.removeprefix(prefix): value for key, value in self.kept.items() if key.startswith(prefix)}

    def outputs(self, after: int) -> Iterable[Output]:
        return (self.all[seq][0] for seq in range(after + 1, len(self.all)))

    def committed_between(self, first: int, last: int) -> list[tuple[int, int]]:
        return [(output.seq, time) for output, time in self.all[first : last + 1]]

    def waiting_after(self, seq: int) -> list[tuple[str, int, int, int]]:
        by_query: dict[str, list[tuple[Output, int]]] = {}
        for output, time in self.all[seq + 1 :]:
            by_query.setdefault(output.query, []).append((output, time))
        return [(query, len(some), min(o.t0 for o, _ in some), some[0][1]) for query, some in by_query.items()]

    def first_seq(self) -> int:
        return 0

    def first_committed_from(self, time: int) -> int | None:
        return next((output.seq for output, at in self.all if at >= time), None)

    def matches_behind(self, outputs: Sequence[Output]) -> dict[int, object]:
        return {}

    def sql(self, query: str, *, trusted: bool) -> pa.Table:
        return pa.table({})


class Endpoint(Receiver):
    """A receiver outside of the process. It keeps each message that it got, with its answer."""

    def __init__(self, answer: Callable[[Message], DeliveryResult] = lambda message: ACKNOWLEDGED) -> None:
        self.got: list[tuple[Message, DeliveryResult]] = []
        self.answer = answer

    async def send(self, message: Message) -> DeliveryResult:
        return self.take(message)

    def take(self, message: Message) -> DeliveryResult:
        verdict = self.answer(message)
        self.got.append((message, verdict))
        return verdict


class Disk:
    """What a sink of files has written: it outlives processes."""

    def __init__(self, fail: Callable[[], bool] = lambda: False) -> None:
        self.lines: list[str] = []
        self.fail = fail


class DiskSink(Sink):
    """A sink of files: it is cut back to its position, and writes each output once."""

    def __init__(self, disk: Disk, position: Position, kill: Callable[[str], None]) -> None:
        self._disk, self._acked, self._length = disk, position.acked, position.details.get("length")
        self._kill = kill

    def prepare(self, pending: object) -> bool:
        if self._length is None:
            self._length = len(self._disk.lines)
            return True
        del self._disk.lines[self._length :]
        return False

    def write(self, outputs: Iterable[Output]) -> int:
        found = list(outputs)
        for output in found:
            if self._disk.fail():
                raise OSError(28, "No space left on device", "disk")
            self._disk.lines.append(output.id)
            self._kill("in a file")
            self._acked = output.seq
        self._length = len(self._disk.lines)
        return len(found)

    def position(self) -> Position:
        return Position(self._acked, {} if self._length is None else {"length": self._length})


class FakeJobs(Deliverer):
    """Does jobs when it is asked for events, as many steps as `steps` says. `kill` is called around each attempt."""

    def __init__(self, kill: Callable[[str], None] = lambda place: None, steps: Callable[[], int] = lambda: 10**6):
        self._kill, self._steps = kill, steps
        self._jobs: deque[tuple[int, Any, deque[Any]]] = deque()
        self._cancelled: set[int] = set()

    def send(self, job: int, receiver: Receiver, messages: Sequence[Message]) -> None:
        self._jobs.append((job, receiver, deque(messages)))

    def write(self, job: int, sink: Sink, matches: Sequence[ShownMatch]) -> None:
        self._jobs.append((job, sink, deque([matches])))

    def cancel(self, job: int) -> None:
        self._cancelled.add(job)

    def events(self, read: ReadOutputs) -> list[JobEvent]:
        found: list[JobEvent] = []
        for _ in range(self._steps()):
            if not self._jobs:
                break
            job, receiver, left = self._jobs.popleft()
            if job in self._cancelled or not left:
                found.append(JobEvent(job, "ended"))
                continue
            event = self._step(job, receiver, left.popleft(), read)
            found.append(event)
            if event.kind in ("failed", "prepared"):
                left.clear()
            self._jobs.append((job, receiver, left))
        return found

    def _step(self, job: int, receiver: Any, what: Any, read: ReadOutputs) -> JobEvent:
        if isinstance(what, Message):
            self._kill("before the send")
            verdict = receiver.take(what)
            self._kill("after the send")
            if verdict.kind == "acknowledged":
                return JobEvent(job, "acknowledged", what.last, verdict)
            return JobEvent(job, "failed", verdict=verdict)
        try:
            if receiver.prepare(lambda: read(job, receiver.position().acked)):
                return JobEvent(job, "prepared", position=receiver.position())
            receiver.write(match.output for match in what)
        except OSError as error:
            return JobEvent(job, "failed", verdict=DeliveryResult("down", str(error)))
        last = what[-1].output.seq if what else -1
        return JobEvent(job, "written", last, position=receiver.position())

    def close_receiver(self, receiver: object) -> None:
        pass

    def wait(self, seconds: float) -> None:
        pass

    def close(self, seconds: float, receivers: Sequence[object] = ()) -> None:
        self._jobs.clear()


@dataclass
class Endpoints:
    known: dict[str, Endpoint | Disk]
    kill: Callable[[str], None] = lambda place: None

    def opened(self, definition: SinkDefinition, position: Position, warn: Warn) -> Receiver | Sink:
        known = self.known[definition.name]
        return DiskSink(known, position, self.kill) if isinstance(known, Disk) else known


def definition(name: str, **table: object) -> SinkDefinition:
    """The definition of a live sink: a webhook, unless it says otherwise. A mail is of a file."""
    given = {"kind": "webhook", "url": "https://example.org/"} if "kind" not in table else {}
    if table.get("kind") == "mail":
        given = {"server": "smtp://mail.example.org", "to": "ann@example.org"}
    return read_sink(name, given | table, Path("/nowhere"), file="x.toml" if "server" in given else "")


def manager(
    store: FakeStore | Session,
    endpoints: dict[str, Endpoint | Disk],
    definitions: Iterable[SinkDefinition] = (),
    jobs: FakeJobs | None = None,
    log: Events | None = None,
    clock: Clock | None = None,
) -> SinkManager:
    """Sinks over a fake store, or over a session with a clock."""
    kill = store.kill if isinstance(store, FakeStore) else lambda place: None
    return SinkManager(
        cast(Session, store),
        definitions,
        Endpoints(endpoints, kill).opened,
        jobs or FakeJobs(kill),
        Events() if log is None else log,
        lambda name, table: read_sink(name, table, Path("/nowhere")),
        now=clock or cast(FakeStore, store).clock,
        random=lambda: 0.5,
    )
