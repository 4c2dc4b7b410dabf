"""The sinks of a service: stores definitions and positions, and runs operations. For the service's thread only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import random as random_number
from types import MappingProxyType
from typing import Any, Protocol

from common.dates import SECOND
from common.errors import InputError
from feeds.documents import Now, now_us
from mmqjp.answers.fan_out import SINK_PREFIX, Position
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.sinks.definition import SinkDefinition, Start, check_deliverable
from mmqjp.sinks.deliverer import Deliverer, SinkScheduler
from mmqjp.sinks.files import Opener, try_to_write
from mmqjp.sinks.positions import Course, SinkExists, SinkOfFile, SinkState, UnknownSink, least
from mmqjp.tables.schema import CommitMetadata, GapRow, Owed, UndeliveredRow

DEFINITION_PREFIX = "sink-definition:"  # prefix of the settings with definitions of live sinks; the name follows
REMOVED = ""  # the value of a removed sink's setting

NOTED_AFTER, URGENT_AFTER = 5 * SECOND, 1 * SECOND
"""Positions are stored with a batch, or this long after the last store; urgent are those of groups about to be sent."""

CLOSED_AFTER = 5.0  # seconds that jobs have to end when the service stops
WAIT = 0.1  # seconds between two polls of jobs when nothing else is left to do

ReadLive = Callable[[str, Mapping[str, Any]], SinkDefinition]
"""Returns the definition of a live sink, from its name and table. Raises InputError."""


class EventLog(Protocol):
    def event(self, name: str, /, **fields: object) -> None: ...


class NotASink(InputError, ValueError):
    """A sink does not support the operation."""


class SinkManager:
    """The sinks of a service: `definitions` of the configuration file, and stored live ones. Changes raise UnknownSink,
    SinkOfFile, SinkExists and NotASink, and last once `save` or the next batch has committed them."""

    def __init__(
        self,
        engine: Session,
        definitions: Iterable[SinkDefinition],
        opener: Opener,
        jobs: Deliverer,
        log: EventLog,
        read_live: ReadLive,
        *,
        now: Now = now_us,
        random: Callable[[], float] = random_number,
        read_only: bool = False,
    ) -> None:
        """Starts new sinks and stores their positions, unless `read_only`. `random` returns numbers from 0 to 1."""
        self._engine, self._jobs, self._log, self._now, self._read_only = engine, jobs, log, now, read_only
        self._work = SinkScheduler(engine, opener, jobs, self._tell, now, random)
        self._stored, tables = (
            {name: value for name, value in engine.ledger.settings(prefix).items() if value != REMOVED}
            for prefix in (SINK_PREFIX, DEFINITION_PREFIX)
        )
        self._settings: dict[str, str] = {}  # settings to store, besides positions
        self._noted_at = now()
        for definition in definitions:
            self._open(definition)
        for name, value in tables.items():
            if name in self._work.courses:
                self._tell(name, what="a live sink of this name gives way to that of the configuration file")
                continue
            try:
                self._open(read_live(name, json.loads(value)))
            except InputError as error:
                self._tell(name, what=f"its stored definition cannot be read: {error}")
        self.save()

    def _tell(self, sink: str, /, **fields: object) -> None:
        self._log.event("sink", name=sink, **fields)

    # ------------------------------------------------------------ for the loop of the service

    def turn(self) -> None:
        """Does what is possible without waiting, and stores positions that are due."""
        self._work.turn()
        if self.is_due():
            self.save()

    def committed(self, outputs: Sequence[Output] = ()) -> None:
        """Must be called after outputs are committed. Without `outputs`, reads them from the store."""
        self._work.committed(outputs)

    def notes(self) -> CommitMetadata:
        settings, gaps, undelivered = dict(self._settings), list[GapRow](), list[UndeliveredRow]()
        for name, course in self._work.courses.items():
            value = course.position().to_setting()
            if self._stored.get(name) != value or course.is_urgent or course.gaps or course.undelivered:
                settings[SINK_PREFIX + name] = value
                gaps += course.gaps
                undelivered += course.undelivered
        return CommitMetadata(settings=settings, gaps=gaps, undelivered=undelivered)

    def noted(self, notes: CommitMetadata) -> None:
        for key, value in notes.settings.items():
            name = key.removeprefix(SINK_PREFIX)
            if name != key and value != REMOVED:
                self._stored[name] = value
                if name in self._work.courses:
                    self._work.courses[name].was_noted(Position.from_setting(value), notes)
        self._settings = dict(self._settings.items() - notes.settings.items())
        self._noted_at = self._now()

    def is_due(self) -> bool:
        passed = self._now() - self._noted_at
        if 0 <= passed < URGENT_AFTER:
            return False
        is_urgent = any(course.is_urgent for course in self._work.courses.values())
        return (is_urgent or not 0 <= passed < NOTED_AFTER) and bool(self.notes().settings)

    def owed(self) -> Owed | None:
        """Returns what must not be deleted because sinks still need it."""
        return least(owed for course in self._work.courses.values() if (owed := course.owed()) is not None)

    def finish(self, should_stop: Callable[[], bool]) -> None:
        """Delivers what can be delivered now, until done or stopped, and stores positions. Open groups stay open."""
        self._work.committed()
        self._work.turn()
        while not should_stop() and not self._work.is_idle():
            self._jobs.wait(WAIT)
            self._work.turn()
            if any(course.is_urgent for course in self._work.courses.values()):
                self.save()
                self._work.turn()
        self.save()

    def close(self) -> None:
        self._work.close(CLOSED_AFTER)
        self.save()

    def save(self, answers: Mapping[str, str] = MappingProxyType({})) -> None:
        if ((notes := self.notes()).settings or answers) and not self._read_only:
            self._engine.commit_metadata(replace(notes, answers=answers))
            self.noted(notes)

    # ------------------------------------------------------------ for commands

    def list(self) -> list[SinkState]:
        return [course.shown() for _, course in sorted(self._work.courses.items())]

    def definition(self, name: str) -> SinkDefinition:
        return self._course(name).definition

    def live_course(self, name: str) -> Course:
        course = self._course(name)
        if not course.definition.is_live:
            cause = f"the sink {name} is defined in {course.definition.file}"
            raise SinkOfFile(f"{cause}: change it there, and run mmqjp sinks reload")
        return course

    def add(self, definition: SinkDefinition) -> None:
        name = definition.name
        if name in self._work.courses:
            raise SinkExists(f"there is a sink {name} already: change it with mmqjp sinks set")
        check_deliverable(definition)
        self._stored.pop(name, None)
        self._open(definition)
        self._note_definition(definition)

    def set(self, definition: SinkDefinition) -> None:
        """Replaces the definition of a sink of the same name and kind, which keeps its position."""
        course = self.live_course(definition.name)
        if course.definition.kind != definition.kind:
            advice = f"to make it a {definition.kind}, remove it and add another one"
            raise NotASink(f"the sink {definition.name} is a {course.definition.kind}: {advice}")
        check_deliverable(definition)
        self._change(course, definition)
        self._note_definition(definition)

    def pause(self, name: str) -> None:
        course = self._course(name)
        course.pause()
        if course.job is not None:
            self._jobs.cancel(course.job)

    def resume(self, name: str) -> None:
        """Retries a paused, stopped or waiting sink at once."""
        self._course(name).resume()

    def test(self, name: str) -> None:
        """Starts sending a message `mmqjp.test`; `tested` returns the result later. A sink of files tries to write."""
        course = self._course(name)
        if not course.definition.is_push:
            self._work.tested[name] = try_to_write(course.definition)
            return
        try:
            self._work.test(name)
        except OSError as error:
            raise NotASink(str(error)) from error

    def tested(self, name: str) -> str | None:
        """Returns the result of the last test: None if pending, "" if acknowledged, else the reason."""
        self._course(name)
        return self._work.tested.get(name)

    def replay(self, name: str, start: Start) -> int:
        """Delivers again from an output or a time on, besides what waits. Returns how many outputs did not wait."""
        course = self._course(name)
        waiting = course.backlog.count
        self._work.committed()
        self._work.let_go(name)
        course.begin(min(self._before(start), course.acked), self._now())  # or what waits between would be lost
        self._work.recount(course)
        return course.backlog.count - waiting

    def remove(self, name: str) -> None:
        self.live_course(name)
        self._work.remove(name)
        self._settings |= {SINK_PREFIX + name: REMOVED, DEFINITION_PREFIX + name: REMOVED}
        self._stored.pop(name, None)

    def reload(self, definitions: Iterable[SinkDefinition]) -> None:
        """Applies the definitions of the configuration file. Sinks that it no longer has keep their positions."""
        wanted = {definition.name: definition for definition in definitions}
        for name, definition in wanted.items():
            known = self._work.courses.get(name)
            if known is not None and known.definition.is_live:
                raise SinkExists(f"there is a live sink {name} already: remove it, or choose another name")
            if known is not None and known.definition.kind != definition.kind:
                raise NotASink(f"the sink {name} was a {known.definition.kind}: choose another name for the new one")
        self.save()
        for name, course in list(self._work.courses.items()):
            if not course.definition.is_live and name not in wanted:
                self._work.remove(name)
        for name, definition in wanted.items():
            if name not in self._work.courses:
                self._open(definition)
            elif self._work.courses[name].definition != definition:
                self._change(self._work.courses[name], definition)

    # ------------------------------------------------------------ details

    def _course(self, name: str) -> Course:
        if name not in self._work.courses:
            raise UnknownSink(name)
        return self._work.courses[name]

    def _open(self, definition: SinkDefinition) -> None:
        self._settings.pop(SINK_PREFIX + definition.name, None)  # of one that was removed
        value = self._stored.get(definition.name)
        if value is None:
            course = Course(definition, Position(acked := self._before(definition.start)))
            if acked < self._engine.last_seq:
                course.begin(acked, self._now())
        else:
            course = Course(definition, Position.from_setting(value))
            dropped, begin = self._engine.first_seq() - 1, course.acked + 1
            if begin <= dropped:
                reason = "dropped while the sink was not defined; it may not have wanted all"
                count = dropped - course.acked
                course.gaps.append(GapRow(definition.name, begin, dropped, count, reason, self._now()))
                course.acked = dropped
                course.rewind()
        self._work.add(course)

    def _change(self, course: Course, definition: SinkDefinition) -> None:
        """Replaces a definition. The sink continues after its last finished output."""
        name = definition.name
        self._work.let_go(name)
        course.definition = definition
        course.rewind()
        self._work.remove(name)
        self._work.add(course)

    def _note_definition(self, definition: SinkDefinition) -> None:
        if definition.is_live:
            self._settings[DEFINITION_PREFIX + definition.name] = json.dumps(dict(definition.table), ensure_ascii=False)

    def _before(self, start: Start) -> int:
        newest = self._engine.last_seq
        if start.seq is not None:
            return min(start.seq - 1, newest)
        if start.time is None:
            return newest
        found = self._engine.first_committed_from(start.time)
        return newest if found is None else found - 1
