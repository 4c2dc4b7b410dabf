"""The work for sinks that the thread of the service does: hands out what they want, and takes in what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol, cast

from common.errors import InputError
from feeds.times import Now
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.present.match import Match
from mmqjp.session import Session
from mmqjp.sinks.course import Course
from mmqjp.sinks.definition import SinkDefinition
from mmqjp.sinks.group import Group
from mmqjp.sinks.jobs import Event, Jobs
from mmqjp.sinks.message import Message, Receiver, Verdict, down
from mmqjp.sinks.offering import offer
from mmqjp.sinks.refill import READ_AT_A_TIME, WANTED_AT_A_TIME, Cursor, with_times
from mmqjp.sinks.showing import Showing
from mmqjp.sinks.sink import MatchSink, Sink, TimedSink, Warn

REFILLED_AT_A_TIME, MOST_CURSORS = 2, 8
"""So many sinks are refilled from the store between two batches, and so many readings are not begun anew each time."""

MOST_NAMES = 10_000
"""It is remembered which sinks want the outputs of so many queries."""

Tell = Callable[..., object]
"""Logs something about a sink: its name, and fields."""


class Opener(Protocol):
    """Opens sinks. Methods raise InputError and OSError."""

    def receiver(self, definition: SinkDefinition) -> Receiver:
        """Opens a push sink."""

    def file_sink(self, definition: SinkDefinition, position: Position, warn: Warn) -> Sink:
        """Opens a sink of files at a position."""


class Work:
    """The courses of all sinks, by name, and the work for them."""

    def __init__(self, engine: Session, opener: Opener, jobs: Jobs, tell: Tell, now: Now, random: Callable[[], float]):
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
        self._wanting: dict[str, tuple[Course, ...]] = {}

    # ------------------------------------------------------------ sinks come and go

    def add(self, course: Course) -> None:
        """Adds a course, and counts what is waiting for it."""
        self.committed()
        self.courses[course.definition.name] = course
        self._wanting.clear()
        self.recount(course)

    def recount(self, course: Course) -> None:
        """Counts what is stored after the position of a course, whose memory is empty. All that is stored must have
        been offered to it."""
        self._cursors.pop(course.definition.name, None)
        for query, count, t0, since in self._engine.waiting_after(course.acked):
            if course.definition.wants(query):
                course.backlog.count_beyond(count, t0, since)
        course.backlog.pass_over(self._end - 1)
        course.pass_on()

    def let_go(self, name: str) -> None:
        """Forgets the receiver of a sink, which is closed once its job has ended. Nothing that comes of the job any
        more counts."""
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
        """Removes a course."""
        self.let_go(name)
        del self.courses[name]
        self._wanting.clear()

    def cancel(self, course: Course) -> None:
        """Ends what is being done for a sink. What came of it until then counts."""
        if course.job is not None:
            self._jobs.cancel(course.job)

    def close(self, seconds: float) -> None:
        """Ends all jobs, which may take so long, takes in what came of them, and closes all receivers."""
        self._jobs.close(seconds, list(self._open.values()))
        self._open.clear()
        self.take_in()

    # ------------------------------------------------------------ outputs come

    def committed(self, outputs: Sequence[Output] = ()) -> None:
        """Offers the outputs of a batch that was committed, or reads from the store what was committed meanwhile."""
        end = self._engine.last_seq + 1
        if end == self._end:
            return
        if self.courses:
            self._offer(outputs, end)
        self._end = end
        for course in self.courses.values():
            course.backlog.pass_over(end - 1)
            if course.job is None:
                course.pass_on()

    def _offer(self, outputs: Sequence[Output], end: int) -> None:
        if len(outputs) == end - self._end:
            offer(self.courses.values(), outputs, self._engine.committed_at)
            return
        for output, committed_at in self._since(self._end - 1):
            for course in self._courses_wanting(output.query):
                course.backlog.offer(output, committed_at)

    def _since(self, after: int) -> Iterator[tuple[Output, int]]:
        stored = iter(self._engine.outputs(after))
        while some := list(islice(stored, READ_AT_A_TIME)):
            yield from with_times(self._engine, some, self._now())

    def _courses_wanting(self, query: str) -> tuple[Course, ...]:
        found = self._wanting.get(query)
        if found is None:
            if len(self._wanting) >= MOST_NAMES:
                self._wanting.clear()
            found = tuple(course for course in self.courses.values() if course.definition.wants(query))
            self._wanting[query] = found
        return found

    # ------------------------------------------------------------ a turn

    def turn(self) -> None:
        """Takes in what came of jobs, gives up what is too much, reads what there is room for, and begins jobs."""
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
        """Whether a sink of files has something to do although there is nothing to write."""
        sink = self._open.get(course.definition.name)
        if course.job is not None or course.state != "running" or not isinstance(sink, TimedSink):
            return False
        return sink.closes_at is not None and sink.closes_at <= now

    def take_in(self) -> None:
        """Takes in what came of jobs."""
        now = self._now()
        for event in self._jobs.events(self._read):
            self._apply(event, now)

    def is_idle(self) -> bool:
        """Whether nothing is being done, and nothing can be until time passes or an output comes."""
        return (
            not self._running
            and not self._closing
            and not any(
                course.is_urgent or (course.backlog.has_room() and course.state == "running")
                for course in self.courses.values()
            )
        )

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
        """Returns the next outputs that the sink of a job wants, for a sink of files that looks after itself."""
        name = self._running.get(job)
        if name is None:
            return None
        wants = self.courses[name].definition.wants
        wanted = (output for output in self._engine.outputs(after) if wants(output.query))
        return list(islice(wanted, WANTED_AT_A_TIME))

    # ------------------------------------------------------------ jobs

    def _begin(self, course: Course, groups: list[Group], now: int) -> None:
        name, definition = course.definition.name, course.definition
        try:
            receiver = self._receiver(course)
        except (InputError, OSError) as error:
            self._failed(course, down(str(error)), now)
            return
        self._next_job += 1
        course.job = self._next_job
        self._running[course.job] = name
        if definition.is_push:
            # Mails are for people, who want to know why.
            showing = self._explaining if definition.kind == "mail" else self._showing
            self._jobs.send(course.job, cast(Receiver, receiver), list(showing.messages(name, groups)))
            return
        outputs = [output for group in groups for output in group.outputs]
        shows = isinstance(receiver, MatchSink)
        matches = self._showing.matches(outputs) if shows else [Match(output, ()) for output in outputs]
        self._jobs.write(course.job, cast(Sink, receiver), matches)

    def _receiver(self, course: Course) -> Receiver | Sink:
        name, definition = course.definition.name, course.definition
        if name not in self._open:
            if definition.is_push:
                self._open[name] = self._opener.receiver(definition)
            else:
                position = Position(course.acked, course.details)

                def warn(text: str) -> None:
                    self._tell(name, what=text)

                self._open[name] = self._opener.file_sink(definition, position, warn)
        return self._open[name]

    def test(self, name: str) -> None:
        """Begins to send a test message."""
        receiver = self._receiver(self.courses[name])
        self._next_job += 1
        self._tests[self._next_job], self.tested[name] = name, None
        now = self._now()
        message = Message(f"msg_test_{now}_{self._next_job}", name, -1, -1, (), 0, now)
        self._jobs.send(self._next_job, cast(Receiver, receiver), [message])

    def _apply(self, event: Event, now: int) -> None:
        """Takes in an event."""
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
            reason = event.verdict.reason if event.verdict is not None else ""
            course.acknowledged(event.last, reason, now)
            if reason:
                self._tell(name, undelivered=event.last, reason=reason)
        elif event.kind == "written" and event.position is not None:
            course.written(event.last, event.position)
        elif event.kind == "prepared" and event.position is not None:
            course.prepared(event.position)
        elif event.kind == "failed" and event.verdict is not None:
            self._failed(course, event.verdict, now)
        if was == "waiting" and course.state == "running":
            self._tell(name, state="running")

    def _apply_to_test(self, event: Event) -> None:
        name = self._tests[event.job]
        if event.kind == "acknowledged":
            self.tested[name] = event.verdict.reason if event.verdict is not None else ""
        elif event.kind == "failed" and event.verdict is not None:
            self.tested[name] = event.verdict.reason or event.verdict.kind
        elif event.kind == "ended":
            del self._tests[event.job]
            if self.tested.get(name) is None:
                self.tested[name] = "the sink was closed meanwhile"

    def _failed(self, course: Course, verdict: Verdict, now: int) -> None:
        step = course.failure(verdict, now, self._random())
        shown: Mapping[str, object] = {"state": course.state, "reason": verdict.reason}
        if step == "leave out":
            letter = course.undelivered[-1] if course.undelivered else None
            shown = {"undelivered": None if letter is None else letter.seq, "reason": verdict.reason}
        elif course.next is not None:
            shown = {**shown, "again_in_seconds": round((course.next - now) / 1e6)}
        self._tell(course.definition.name, **shown)
