"""Delivers committed outputs to sinks, each once, even if the process is killed. The service's thread offers outputs,
refills backlogs from the store and collects results (SinkScheduler); jobs run beside it, push sinks on one thread with
an event loop, each write to files on its own thread. A failing sink affects neither others nor the service."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from threading import Event as Flag
from threading import Lock, Thread
from time import monotonic
from typing import cast

from common.errors import InputError
from common.tools import LruCache
from feeds.documents import Now
from mmqjp.answers.fan_out import SINK_PREFIX, OutputChunk, Outputs, Position
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.present.item import ShownMatch
from mmqjp.present.newest import shown_outputs
from mmqjp.process import printable_line
from mmqjp.sinks.files import Opener
from mmqjp.sinks.positions import BacklogEntry, Course
from mmqjp.sinks.sink import DeliveryGroup, DeliveryResult, JobEvent, Message, ReadOutputs, Receiver, Sink, down
from mmqjp.tables.schema import CommitMetadata

ATTEMPT_SECONDS = 120.0
JOB_SECONDS = 5.0  # a job that has sent messages for this many seconds ends after the current one


class _Closed(Exception):
    """The service no longer answers: the job ends."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A file sink's request for outputs after a number. The answer is None if the job was dropped."""

    job: int
    after: int
    answer: Future[list[Output] | None] = field(default_factory=Future)


class Deliverer:
    """Runs jobs, one at a time per sink, without blocking on receivers. `job` is a new number."""

    def __init__(self, attempt_seconds: float = ATTEMPT_SECONDS) -> None:
        self._attempt_seconds = attempt_seconds
        self._lock, self._changed = Lock(), Flag()
        self._events: list[JobEvent] = []
        self._questions: list[_Question] = []
        self._writing: dict[int, Flag] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}  # for the thread of the loop alone
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    # ------------------------------------------------------------ for the thread of the service

    def send(self, job: int, receiver: Receiver, messages: Sequence[Message]) -> None:
        """Sends messages in order, until one is not acknowledged."""
        self._started_loop().call_soon_threadsafe(self._begin, job, receiver, messages)

    def write(self, job: int, sink: Sink, matches: Sequence[ShownMatch]) -> None:
        self._writing[job] = done = Flag()
        Thread(target=self._write, args=(job, sink, matches, done), name=f"sink job {job}", daemon=True).start()

    def cancel(self, job: int) -> None:
        """Cancels a job if possible. It still ends with an event."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end, job)

    def events(self, read: ReadOutputs) -> list[JobEvent]:
        """Returns the events since the last call. `read` answers requests of file sinks."""
        with self._lock:
            events, self._events = self._events, []
            asked, self._questions = self._questions, []
        for question in asked:
            found = None
            try:
                found = read(question.job, question.after)
            finally:
                question.answer.set_result(found)
        for event in events:
            if event.kind == "ended":
                self._writing.pop(event.job, None)
        return events

    def close_receiver(self, receiver: Receiver | Sink) -> None:
        if isinstance(receiver, Sink):
            Thread(target=_close_quietly, args=(receiver,), daemon=True).start()
        else:
            asyncio.run_coroutine_threadsafe(_close_receiver(receiver), self._started_loop())

    def wait(self, seconds: float) -> None:
        self._changed.wait(seconds)
        self._changed.clear()

    def close(self, seconds: float, receivers: Sequence[Receiver | Sink] = ()) -> None:
        """Ends all jobs and closes receivers and sinks, waiting at most `seconds`. Events may be left."""
        until = monotonic() + seconds
        with self._lock:
            self._is_closed = True
            for question in self._questions:
                question.answer.set_result(None)
            self._questions = []
        for done in list(self._writing.values()):
            done.wait(max(until - monotonic(), 0))
        for receiver in receivers:
            if isinstance(receiver, Sink):
                _close_quietly(receiver)
        if self._loop is not None:
            pushed = [receiver for receiver in receivers if not isinstance(receiver, Sink)]
            loop, self._loop = self._loop, None
            ending = asyncio.run_coroutine_threadsafe(_end_loop(pushed), loop)
            ending.add_done_callback(lambda ended: loop.call_soon_threadsafe(loop.stop))
            wait([ending], max(until - monotonic(), 0))

    # ------------------------------------------------------------ in other threads

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            Thread(target=_run, args=(loop,), name="sinks", daemon=True).start()
        return self._loop

    def _begin(self, job: int, receiver: Receiver, messages: Sequence[Message]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[job]
            self._tell(JobEvent(job, "ended"))

        self._tasks[job] = task = asyncio.get_running_loop().create_task(self._send(job, receiver, messages))
        task.add_done_callback(ended)  # also if it is cancelled before it runs

    def _end(self, job: int) -> None:
        if (task := self._tasks.get(job)) is not None:
            task.cancel()

    def _tell(self, event: JobEvent) -> None:
        with self._lock:
            self._events.append(event)
        self._changed.set()

    async def _send(self, job: int, receiver: Receiver, messages: Sequence[Message]) -> None:
        began = monotonic()
        for message in messages:
            verdict = await self._attempt(receiver, message)
            if verdict.kind != "acknowledged":
                self._tell(JobEvent(job, "failed", verdict=verdict))
                return
            self._tell(JobEvent(job, "acknowledged", message.last, verdict))
            if monotonic() - began > JOB_SECONDS:
                return

    async def _attempt(self, receiver: Receiver, message: Message) -> DeliveryResult:
        try:
            async with asyncio.timeout(self._attempt_seconds):
                return await receiver.send(message)
        except TimeoutError:
            return down(f"no answer in {self._attempt_seconds:g} s")
        except Exception as error:
            return down(_reason(error))

    def _write(self, job: int, sink: Sink, matches: Sequence[ShownMatch], done: Flag) -> None:
        try:
            if sink.prepare(lambda: self._pending(job, sink.position().acked)):
                self._tell(JobEvent(job, "prepared", position=sink.position()))
                return
            sink.write_matches(matches)
            last = matches[-1].output.seq if matches else -1
            self._tell(JobEvent(job, "written", last, position=sink.position()))
        except _Closed:
            pass
        except Exception as error:
            self._tell(JobEvent(job, "failed", verdict=down(_reason(error))))
        finally:
            done.set()
            self._tell(JobEvent(job, "ended"))

    def _pending(self, job: int, after: int) -> Iterator[Output]:
        while True:
            with self._lock:
                if self._is_closed:
                    raise _Closed
                self._questions.append(question := _Question(job, after))
            self._changed.set()
            if (found := question.answer.result()) is None:
                raise _Closed
            if not found:
                return
            yield from found
            after = found[-1].seq


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end_loop(receivers: Sequence[Receiver]) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.gather(*map(_close_receiver, receivers))


async def _close_receiver(receiver: Receiver) -> None:
    with suppress(Exception):
        await receiver.close()


def _close_quietly(sink: Sink) -> None:
    with suppress(Exception):
        sink.close()


def _reason(error: Exception) -> str:
    return printable_line(str(error)) or type(error).__name__


OUTPUT_SINK = "output"  # the name of the sink of `--output`


class OutputDelivery:
    """The sink of `--output`. Its position is stored with the state."""

    def __init__(self, engine: Session, sink: Sink) -> None:
        self._engine, self._sink, self._key = engine, sink, SINK_PREFIX + OUTPUT_SINK

    def prepare(self) -> None:
        """Prepares the sink and stores its position if it changed. Raises OSError."""
        if self._sink.prepare(self.pending):
            self.save_position()

    @property
    def acked(self) -> int:
        """The `seq` up to which the sink has all outputs; -1 for none."""
        return self._sink.position().acked

    def pending(self) -> Iterable[Output]:
        return self._engine.outputs(self.acked)

    def write(self, outputs: Iterable[Output]) -> int:
        """Writes outputs, in any order, and returns their number. They must be all that the sink lacks."""
        self.prepare()
        return self._sink.write(outputs)

    def settings(self) -> dict[str, str]:
        return {self._key: self._sink.position().to_setting()}

    def save_position(self) -> None:
        self._engine.commit_metadata(CommitMetadata(settings=self.settings()))


def offer(courses: Iterable[Course], outputs: Sequence[Output], committed_at: int) -> None:
    """Offers the ordered outputs of a batch to the courses that want them."""
    courses = list(courses)
    if not isinstance(outputs, Outputs):
        _offer_each(courses, outputs, committed_at)
        return
    for chunk in outputs.chunks():
        if isinstance(chunk, OutputChunk):
            _offer_chunk(courses, chunk, committed_at)
        else:
            _offer_each(courses, chunk.outputs(), committed_at)


def _offer_chunk(courses: list[Course], chunk: OutputChunk, committed_at: int) -> None:
    by_query = chunk.by_query()
    every = sum(count for count, _ in by_query.values()), min(t0 for _, t0 in by_query.values())
    taking: list[Course] = []
    taken: set[str] = set()
    for course in courses:
        wants, backlog = course.definition.wants, course.backlog
        if not backlog.beyond:
            if wanted := [name for name in by_query if wants(name)]:
                taking.append(course)
                taken.update(wanted)
        elif not course.definition.queries:
            backlog.count_beyond(*every, committed_at)
        else:
            for name, (count, t0) in by_query.items():
                if wants(name):
                    backlog.count_beyond(count, t0, committed_at)
    if taking:
        _offer_each(taking, chunk.of_queries(taken).outputs(), committed_at)


def _offer_each(courses: list[Course], outputs: Iterable[Output], committed_at: int) -> None:
    wanting: dict[str, list[Course]] = {}
    for output in outputs:
        if output.query not in wanting:
            wanting[output.query] = [course for course in courses if course.definition.wants(output.query)]
        for course in wanting[output.query]:
            course.backlog.offer(output, committed_at)


WANTED_AT_A_TIME, READ_AT_A_TIME = 500, 2_500
"""Maximum number of wanted outputs taken, and of outputs read, between two batches."""


def with_times(engine: Session, outputs: list[Output], now: int) -> Iterator[BacklogEntry]:
    """Yields stored, ordered outputs with their commit times; `now` if a time is no longer stored."""
    if not outputs:
        return
    found = engine.committed_between(outputs[0].seq, outputs[-1].seq)
    firsts = [first for first, _ in found]
    for output in outputs:
        place = bisect_right(firsts, output.seq) - 1
        yield output, found[place][1] if place >= 0 else now


class Cursor:
    """Reads the outputs after a number that were stored when the cursor was created."""

    def __init__(self, engine: Session, after: int) -> None:
        self._engine, self._outputs = engine, iter(engine.outputs(after))
        self.end = engine.last_seq + 1  # the number of the first output beyond the cursor
        self._left: list[BacklogEntry] = []

    def read(self, wants: Callable[[str], bool], now: int) -> tuple[list[BacklogEntry], bool]:
        """Returns the next wanted outputs, and whether the cursor is exhausted."""
        if self._left:
            found, self._left = self._left, []
            return found, False
        wanted: list[Output] = []
        for count, output in enumerate(self._outputs, 1):
            if wants(output.query):
                wanted.append(output)
            if len(wanted) >= WANTED_AT_A_TIME or count >= READ_AT_A_TIME:
                return list(with_times(self._engine, wanted, now)), False
        return list(with_times(self._engine, wanted, now)), True

    def put_back(self, entries: Iterable[BacklogEntry]) -> None:
        self._left = [*entries, *self._left]


MOST_CHARACTERS, OVERHEAD = 8 << 20, 4_000  # size of the cache, in characters of XML, and what an output counts besides


class Showing:
    """Looks up the documents of outputs in groups, with a cache shared by sinks."""

    def __init__(self, engine: Session, *, reasons: bool = False) -> None:
        self._engine = engine
        self._shown = partial(shown_outputs, engine, reasons=reasons)
        self._known = LruCache[int, ShownMatch](MOST_CHARACTERS, lambda match: OVERHEAD + len(match.output.xml))

    def matches(self, outputs: Sequence[Output]) -> list[ShownMatch]:
        found = self._known.found(output.seq for output in outputs)
        unknown = [output for output in outputs if output.seq not in found]
        for match in self._shown(unknown) if unknown else ():
            found[match.output.seq] = match
            self._known.put(match.output.seq, match)
        return [found[output.seq] for output in outputs]

    def messages(self, name: str, groups: Sequence[DeliveryGroup]) -> Iterator[Message]:
        outputs = [[self._stored(one) for one in group.shown] for group in groups]
        shown = iter(self.matches([output for some in outputs for output in some]))
        for group, some in zip(groups, outputs, strict=True):
            matches = tuple(islice(shown, len(some)))
            yield Message(group.id, name, group.first, group.last, matches, group.more, group.opened)

    def _stored(self, output: Output | int) -> Output:
        return next(iter(self._engine.outputs(output - 1))) if isinstance(output, int) else output


REFILLED_AT_A_TIME, MOST_CURSORS = 2, 8
"""Maximum number of sinks refilled from the store between two batches, and of open cursors."""

Tell = Callable[..., object]  # logs an event about a sink: its name, and fields


class SinkScheduler:
    """The courses of all sinks, by name, and their jobs."""

    def __init__(
        self, engine: Session, opener: Opener, jobs: Deliverer, tell: Tell, now: Now, random: Callable[[], float]
    ):
        self.courses: dict[str, Course] = {}
        self._engine, self._opener, self._jobs, self._tell = engine, opener, jobs, tell
        self._now, self._random = now, random
        self._showing, self._explaining = Showing(engine), Showing(engine, reasons=True)
        self._open: dict[str, Receiver | Sink] = {}
        self._closing: dict[int, tuple[str, Receiver | Sink | None]] = {}
        self._running: dict[int, str] = {}
        self._tests: dict[int, str] = {}
        self.tested: dict[str, str | None] = {}
        self._next_job = 0
        self._end = engine.last_seq + 1
        self._cursors: dict[str, Cursor] = {}

    # ------------------------------------------------------------ sinks come and go

    def add(self, course: Course) -> None:
        self.committed()
        self.courses[course.definition.name] = course
        self.recount(course)

    def recount(self, course: Course) -> None:
        """Counts the stored outputs after a course's position. Its backlog must be empty, and all outputs offered."""
        self._cursors.pop(course.definition.name, None)
        for query, count, t0, since in self._engine.waiting_after(course.acked):
            if course.definition.wants(query):
                course.backlog.count_beyond(count, t0, since)
        course.backlog.pass_over(self._end - 1)
        course.pass_on()

    def let_go(self, name: str) -> None:
        """Drops a sink's receiver, which is closed when its job ends. Later results of the job are ignored."""
        course, receiver = self.courses[name], self._open.pop(name, None)
        self._cursors.pop(name, None)
        if course.job is not None:
            self._jobs.cancel(course.job)
            self._running.pop(course.job, None)
            self._closing[course.job] = name, receiver
            course.job = None
        elif receiver is not None:
            self._jobs.close_receiver(receiver)

    def remove(self, name: str) -> None:
        self.let_go(name)
        del self.courses[name]

    def close(self, seconds: float) -> None:
        """Ends all jobs within `seconds`, collects their results, and closes all receivers."""
        self._jobs.close(seconds, list(self._open.values()))
        self._open.clear()
        self.take_in()

    # ------------------------------------------------------------ outputs come

    def committed(self, outputs: Sequence[Output] = ()) -> None:
        """Offers the outputs of a committed batch, or reads from the store what was committed meanwhile."""
        end = self._engine.last_seq + 1
        if end == self._end:
            return
        given = outputs.numbered if isinstance(outputs, Outputs) else len(outputs)
        if self.courses and given == end - self._end:
            offer(self.courses.values(), outputs, self._engine.committed_at)
        elif self.courses:
            stored = iter(self._engine.outputs(self._end - 1))
            while some := list(islice(stored, READ_AT_A_TIME)):
                for committed_at, several in groupby(with_times(self._engine, some, self._now()), itemgetter(1)):
                    offer(self.courses.values(), [output for output, _ in several], committed_at)
        self._end = end
        for course in self.courses.values():
            course.backlog.pass_over(end - 1)
            if course.job is None:
                course.pass_on()

    # ------------------------------------------------------------ a turn

    def turn(self) -> None:
        now = self._now()
        self.committed()
        self.take_in()
        for name, course in self.courses.items():
            if course.is_held_up(now):
                self.let_go(name)
                course.rewind()
                self.recount(course)
            if count := course.give_up(now):
                self._tell(name, given_up=count, reason=course.gaps[-1].reason)
        self._refill(now)
        still_open = {name for name, _ in self._closing.values()}  # two never write to one file
        for name, course in self.courses.items():
            if name not in still_open and ((groups := course.window(now)) or self._is_due(course, now)):
                self._begin(course, groups, now)

    def _is_due(self, course: Course, now: int) -> bool:
        sink = self._open.get(course.definition.name)
        closes_at = sink.closes_at if isinstance(sink, Sink) else None
        return closes_at is not None and closes_at <= now and course.job is None and course.state == "running"

    def take_in(self) -> None:
        now = self._now()
        for event in self._jobs.events(self._read):
            self._apply(event, now)

    def is_idle(self) -> bool:
        """Whether no job runs and none can until time passes or an output arrives."""
        if self._running or self._closing or any(course.is_urgent for course in self.courses.values()):
            return False
        return not any(one.backlog.has_room() and one.state == "running" for one in self.courses.values())

    def _refill(self, now: int) -> None:
        some = [course for course in self.courses.values() if course.backlog.has_room()][:REFILLED_AT_A_TIME]
        for course in some:
            name, backlog = course.definition.name, course.backlog
            self.courses[name] = self.courses.pop(name)  # the others are first the next time
            cursor = self._cursors.pop(name, None) or Cursor(self._engine, backlog.taken)
            entries, is_end = cursor.read(course.definition.wants, now)
            cursor.put_back(left := backlog.refill(entries))
            if not is_end or left:
                self._cursors[name] = cursor
            else:
                backlog.read_up_to(cursor.end - 1, is_all=cursor.end == self._end)
            backlog.pass_over(self._end - 1)
            if course.job is None:
                course.pass_on()
        while len(self._cursors) > MOST_CURSORS:
            del self._cursors[next(iter(self._cursors))]

    def _read(self, job: int, after: int) -> list[Output] | None:
        name = self._running.get(job)
        if name is None:
            return None
        wants = self.courses[name].definition.wants
        wanted = (output for output in self._engine.outputs(after) if wants(output.query))
        return list(islice(wanted, WANTED_AT_A_TIME))

    # ------------------------------------------------------------ jobs

    def _begin(self, course: Course, groups: list[DeliveryGroup], now: int) -> None:
        name, definition = course.definition.name, course.definition
        try:
            receiver = self._receiver(course)
        except (InputError, OSError) as error:
            self._failed(course, down(str(error)), now)
            return
        self._next_job += 1
        course.job = self._next_job
        self._running[course.job] = name
        if isinstance(receiver, Receiver):
            # Mails are for people, who want to know why.
            showing = self._explaining if definition.kind == "mail" else self._showing
            self._jobs.send(course.job, receiver, list(showing.messages(name, groups)))
            return
        outputs = [output for group in groups for output in group.outputs]
        shows = receiver.shows_items
        matches = self._showing.matches(outputs) if shows else [ShownMatch(output, ()) for output in outputs]
        self._jobs.write(course.job, receiver, matches)

    def _receiver(self, course: Course) -> Receiver | Sink:
        name, position = course.definition.name, Position(course.acked, course.details)
        if name not in self._open:
            self._open[name] = self._opener(course.definition, position, lambda text: self._tell(name, what=text))
        return self._open[name]

    def test(self, name: str) -> None:
        receiver = self._receiver(self.courses[name])
        self._next_job += 1
        self._tests[self._next_job], self.tested[name] = name, None
        now = self._now()
        message = Message(f"msg_test_{now}_{self._next_job}", name, -1, -1, (), 0, now)
        self._jobs.send(self._next_job, cast(Receiver, receiver), [message])

    def _apply(self, event: JobEvent, now: int) -> None:
        if event.kind == "ended" and event.job in self._closing:
            _, receiver = self._closing.pop(event.job)
            if receiver is not None:
                self._jobs.close_receiver(receiver)
        if event.job in self._tests:
            self._apply_to_test(event)
        name = self._running.get(event.job)
        if name is None:
            return
        course = self.courses[name]
        if event.kind == "ended":
            del self._running[event.job]
            course.job = None
            course.pass_on()
            return
        was = course.state
        if event.kind == "acknowledged":
            course.acknowledged(event.last, reason := event.verdict.reason, now)
            if reason:
                self._tell(name, undelivered=event.last, reason=reason)
        elif event.kind == "written":
            course.written(event.last, event.position)
        elif event.kind == "prepared":
            course.prepared(event.position)
        else:
            self._failed(course, event.verdict, now)
        if was == "waiting" and course.state == "running":
            self._tell(name, state="running")

    def _apply_to_test(self, event: JobEvent) -> None:
        name, verdict = self._tests[event.job], event.verdict
        if event.kind in ("acknowledged", "failed"):
            self.tested[name] = verdict.reason or ("" if verdict.kind == "acknowledged" else verdict.kind)
        elif event.kind == "ended":
            del self._tests[event.job]
            if self.tested.get(name) is None:
                self.tested[name] = "the sink was closed meanwhile"

    def _failed(self, course: Course, verdict: DeliveryResult, now: int) -> None:
        step = course.failure(verdict, now, self._random())
        shown: Mapping[str, object] = {"state": course.state, "reason": verdict.reason}
        if step == "leave out":
            letter = course.undelivered[-1] if course.undelivered else None
            shown = {"undelivered": None if letter is None else letter.seq, "reason": verdict.reason}
        elif course.next is not None:
            shown = {**shown, "again_in_seconds": round((course.next - now) / 1e6)}
        self._tell(course.definition.name, **shown)
