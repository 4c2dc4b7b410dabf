"""The loop of a service: what has come is processed batch by batch, with how far it was read; then it waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from feeds.history import History
from feeds.tail import Tail
from join_stage.store.protocol import OutOfMemory
from mmqjp.answers.output import Output
from mmqjp.documents.batching import BATCH_BYTES, BATCH_DOCUMENTS
from mmqjp.service.intake import Intake, Taken
from mmqjp.service.log import Log
from mmqjp.service.progress import progress
from mmqjp.session import Session
from mmqjp.sinks.delivery import Delivery
from mmqjp.sinks.protocol import Sink
from mmqjp.state.retention import ID_RETENTION
from mmqjp.tables.commit_metadata import CommitMetadata

POLL = 0.1
"""Seconds between looks for commands while there is nothing else to do."""

PRUNED = 50
"""Batches after which what is kept no longer is dropped, whichever process they are of."""

PRUNED_AT = "pruned"
"""The setting with the number of batches when that was done last."""


class Stop(Protocol):
    """Tells when to end (a `threading.Event` will do)."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class Commands(Protocol):
    """What other processes ask for, between batches."""

    def apply(self, engine: Session, log: Log) -> int:
        """Does what is waiting; how many commands that were."""


def nobody_told(engine: Session) -> None:
    """Nothing."""


def nothing_asked() -> bool:
    """No."""
    return False


def no_room() -> bool:
    """Nothing is there that could make room."""
    return False


@dataclass(frozen=True, slots=True)
class Rules:
    """How a service works: with how many documents, or bytes of XML, a batch ends; for how many microseconds what
    nobody needs is kept, and the ids of documents (None: for ever); what the sources share that is known of entries;
    who is told whenever all that had come is processed; whether the output is to be opened anew, asked once; who makes
    room, and says whether there was any to make, when a batch has run out of memory."""

    batch_size: int = BATCH_DOCUMENTS
    batch_bytes: int = BATCH_BYTES
    keep: int | None = None
    keep_ids: int | None = ID_RETENTION
    history: History = field(default_factory=History)
    on_idle: Callable[[Session], object] = nobody_told
    reopening: Callable[[], bool] = nothing_asked
    make_room: Callable[[], bool] = no_room


class Service:
    """An engine that reads sources. Every batch commits its offsets along with its state and outputs."""

    def __init__(
        self, engine: Session, sources: Sequence[Tail], sink: Sink, commands: Commands, log: Log, rules: Rules
    ) -> None:
        self._engine, self._commands, self._log, self._rules = engine, commands, log, rules
        self._delivery = Delivery(engine, sink)
        self._intake = Intake(engine, sources, rules.history, rules.batch_size, rules.batch_bytes, self._unreadable)
        self._pruned = int(engine.setting(PRUNED_AT) or 0)
        self._settings: dict[str, str] = {}
        self._noted: dict[str, str] = {}
        self._write()

    def run(self, trigger: float | None, stop: Stop) -> None:
        """Works until `stop` is set, looking for documents every `trigger` seconds; None: until all is read."""
        while not stop.is_set():
            started = perf_counter()
            self.drain(stop)
            if self._engine.pass_time():
                self._prune()
            self._rules.on_idle(self._engine)
            if trigger is None:
                break
            self._settle()
            while not stop.is_set() and (left := trigger - (perf_counter() - started)) > 0:
                self._obey()
                stop.wait(min(left, POLL))
        self._settle()

    def drain(self, stop: Stop) -> None:
        """Processes all that has come, batch by batch, or up to the end of a batch once `stop` is set."""
        self._obey()
        for taken in self._intake.batches():
            self._process(taken)
            if stop.is_set():
                return
            self._obey()
            self._prune()

    def _pass_time(self) -> None:
        """Lets silent streams go on with the clock, and writes what is decided by that."""
        if self._engine.pass_time():
            self._write()
            self._tell_paused()
            self._prune()

    def _prune(self) -> None:
        """Drops, every PRUNED batches, what is kept no longer."""
        if self._engine.batch - self._pruned < PRUNED:
            return
        self._settle()
        self._engine.prune(self._rules.keep, self._rules.keep_ids, *self._intake.there())
        self._intake.refresh()
        self._pruned = self._engine.batch
        self._delivered()

    def _obey(self) -> None:
        """Does what other processes ask for; a backfill among it has outputs, and may pause queries."""
        if self._rules.reopening():
            self._delivery.prepare()
            self._delivered()
        if self._commands.apply(self._engine, self._log):
            self._write()
            self._tell_paused()

    def _tell_paused(self) -> None:
        """Tells which queries passed a bound."""
        for name, reason in self._engine.take_paused().items():
            self._log.event("paused", name=name, reason=reason)

    def _write(self) -> None:
        """Writes the outputs that are committed and not written."""
        self._delivery.write(self._delivery.pending())
        self._delivered()

    def _process(self, taken: Taken) -> None:
        engine, started, before = self._engine, perf_counter(), self._engine.counters()
        outputs = self._outputs(taken)
        self._noted = self._settings
        self._intake.committed(taken)
        batch = engine.batch - 1
        if outputs:
            self._delivery.write(outputs)
        self._delivered()
        after, seconds = engine.counters(), taken.seconds + perf_counter() - started
        documents = after.documents - before.documents
        self._log.event(
            "batch",
            batch=batch,
            documents=documents,
            outputs=len(outputs),
            duplicates=after.duplicates - before.duplicates,
            dead_letters=after.dead_letters - before.dead_letters,
            seconds=round(seconds, 3),
            documents_a_second=round(documents / seconds),
            outputs_a_second=round(len(outputs) / seconds),
            **progress(engine, self._intake.backlog),
        )
        self._tell_paused()
        for letter in engine.last_dead_letters():
            self._log.event("dead-letter", id=letter["id"], stream=letter["stream"], reason=letter["reason"])

    def _unreadable(self, file: str, reason: str) -> None:
        """Tells that a file cannot be read now and waits, or, without a reason, that it is read again."""
        if reason:
            self._log.event("unreadable", file=file, reason=reason)
        else:
            self._log.event("readable", file=file)

    def _outputs(self, taken: Taken) -> list[Output]:
        """What a batch gives. One that runs out of memory goes before those who only ask, and is tried again."""
        metadata = self._intake.metadata(taken, self._settings)
        try:
            return self._engine.process(taken.items, metadata, taken.found)
        except OutOfMemory:
            if not self._rules.make_room():
                raise
        return self._engine.process(taken.items, metadata, taken.found)

    def _delivered(self) -> None:
        """All outputs so far are written: the next commit notes it."""
        self._settings = {**self._delivery.settings(), PRUNED_AT: str(self._pruned)}

    def _settle(self) -> None:
        """Notes at once what else the next batch would note, if that is news."""
        if self._noted != self._settings:
            self._engine.commit_metadata(CommitMetadata(settings=self._settings))
            self._noted = self._settings
