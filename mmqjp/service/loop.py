"""The loop of a service: it processes what has arrived, batch by batch, commits the offsets with it, and waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

from feeds.history import History
from feeds.tail import Tail
from join_stage.store.protocol import OutOfMemory
from mmqjp.answers.output import Output
from mmqjp.documents.batching import BATCH_BYTES, BATCH_DOCUMENTS
from mmqjp.service.intake import Intake, ReadBatch
from mmqjp.service.log import Log
from mmqjp.service.progress import progress
from mmqjp.service.watcher import Polling, Stop, Watcher
from mmqjp.session import Session
from mmqjp.sinks.delivery import Delivery
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.notes import Notes
from mmqjp.sinks.sink import Sink
from mmqjp.state.retention import ID_RETENTION
from mmqjp.tables.commit_metadata import CommitMetadata

POLL = 0.1
"""Seconds between two looks for commands while the service waits."""

SHARE = 9
"""A look that found nothing, though the watcher had called for it, is followed by a rest that takes so many times as
long. So a storm of changes that do not matter costs at most one part in ten of a processor."""

PRUNE_INTERVAL = 50
"""Every so many batches, counted across restarts, the service drops what it need not keep any longer."""

PRUNED_AT_BATCH = "pruned"
"""The setting that stores the number of the batch at which that was last done."""


class Commands(Protocol):
    """Commands from other processes, which run between two batches."""

    def apply(self, engine: Session, log: Log) -> int:
        """Runs the waiting commands. Returns how many there were."""


def do_nothing(engine: Session) -> None:
    """The default of `ServiceOptions.on_idle`."""


def never() -> bool:
    """The default of the options that ask a question: no."""
    return False


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of a service.

    - `batch_size`, `batch_bytes`: a batch ends after so many documents or bytes of XML.
    - `keep`: microseconds for which data that no join needs is kept (None: for ever).
    - `keep_ids`: microseconds for which the ids of dropped documents are remembered (None: for ever).
    - `history`: what is known of feed entries, shared by all sources.
    - `on_idle`: called whenever everything that has arrived is processed.
    - `should_reopen`: returns True, once, if the output file must be opened again.
    - `free_memory`: called when a batch runs out of memory. Returns whether it freed any, so that a retry is worth it.
    - `watcher`: waits between two looks, and calls for one when something may have come. The caller closes it.
    - `sinks`: the sinks beside that of `--output`.
    """

    batch_size: int = BATCH_DOCUMENTS
    batch_bytes: int = BATCH_BYTES
    keep: int | None = None
    keep_ids: int | None = ID_RETENTION
    history: History = field(default_factory=History)
    on_idle: Callable[[Session], object] = do_nothing
    should_reopen: Callable[[], bool] = never
    free_memory: Callable[[], bool] = never
    watcher: Watcher = field(default_factory=Polling)
    sinks: SinkManager | None = None


class Service:
    """An engine that reads sources. Each batch commits its offsets together with its state and outputs."""

    def __init__(
        self,
        engine: Session,
        sources: Sequence[Tail],
        sink: Sink,
        commands: Commands,
        log: Log,
        options: ServiceOptions,
    ) -> None:
        self._engine, self._commands, self._log, self._options = engine, commands, log, options
        self._delivery, self._sinks = Delivery(engine, sink), options.sinks
        self._intake = Intake(
            engine, sources, options.history, options.batch_size, options.batch_bytes, self._log_unreadable
        )
        self._pruned = int(engine.setting(PRUNED_AT_BATCH) or 0)
        self._settings: dict[str, str] = {}
        self._committed_settings: dict[str, str] = {}
        self._write()

    def run(self, trigger: float | None, stop: Stop) -> None:
        """Looks for documents whenever the watcher calls for it, and at least every `trigger` seconds, until `stop` is
        set. With None, looks once and returns."""
        while not stop.is_set():
            started = perf_counter()
            self.drain(stop)
            self._pass_time()
            self._options.on_idle(self._engine)
            if trigger is None:
                break
            self._commit_settings()
            self._wait(started + trigger, stop)
        self._commit_settings()
        self._close_sinks(trigger, stop)

    def _wait(self, until: float, stop: Stop) -> None:
        """Waits for the next regular look, and looks in between when the watcher calls for it. Upkeep that only time
        calls for, such as advancing silent streams, is left to the regular looks."""
        rest_until = 0.0
        while not stop.is_set() and (left := until - (now := perf_counter())) > 0:
            self._run_commands()
            watcher = self._options.watcher if now >= rest_until else Polling()
            if watcher.wait(min(left, POLL), stop):
                started = perf_counter()
                if not self.drain(stop):
                    now = perf_counter()
                    rest_until = now + SHARE * (now - started)

    def drain(self, stop: Stop) -> bool:
        """Processes all that has arrived, batch by batch. Once `stop` is set, returns after the current batch.

        Returns whether there was anything, be it a document or a command.
        """
        found = self._run_commands()
        for batch in self._intake.batches():
            found = True
            self._process(batch)
            if stop.is_set():
                break
            self._run_commands()
            self._prune()
        return found

    def _close_sinks(self, trigger: float | None, stop: Stop) -> None:
        """Ends the delivery to sinks. If there was only one look, delivers first what can be delivered now."""
        if self._sinks is not None:
            if trigger is None:
                self._sinks.finish(stop.is_set)
            self._sinks.close()

    def _pass_time(self) -> None:
        """Advances silent streams with the clock, and writes the outputs that this decides."""
        if self._engine.pass_time():
            self._write()
            self._log_paused()
            self._prune()

    def _prune(self) -> None:
        """Every PRUNE_INTERVAL batches, drops what need not be kept any longer."""
        if self._engine.batch - self._pruned < PRUNE_INTERVAL:
            return
        self._commit_settings()
        owed = None if self._sinks is None else self._sinks.owed()
        self._engine.prune(self._options.keep, self._options.keep_ids, *self._intake.listing(), owed)
        self._intake.refresh()
        self._pruned = self._engine.batch
        self._note_delivered()

    def _run_commands(self) -> bool:
        """Runs the commands of other processes, and returns whether there were any. A backfill among them has outputs,
        and may pause queries. Sinks get their turn."""
        if self._options.should_reopen():
            self._delivery.prepare()
            self._note_delivered()
        ran = bool(self._commands.apply(self._engine, self._log))
        if self._sinks is not None:
            self._sinks.turn()
        if not ran:
            return False
        self._write()
        self._log_paused()
        return True

    def _log_paused(self) -> None:
        """Logs which queries passed a bound and were paused."""
        for name, reason in self._engine.take_paused().items():
            self._log.event("paused", name=name, reason=reason)

    def _write(self) -> None:
        """Writes the outputs that are committed but not yet written."""
        self._delivery.write(self._delivery.pending())
        self._note_delivered()

    def _process(self, read: ReadBatch) -> None:
        """Commits a batch, writes its outputs and logs it."""
        engine, started, before = self._engine, perf_counter(), self._engine.counters()
        notes = Notes() if self._sinks is None else self._sinks.notes()
        outputs = self._answer(read, notes)
        self._committed_settings = self._settings
        if self._sinks is not None:
            self._sinks.noted(notes)
            self._sinks.committed(outputs)
        self._intake.committed(read)
        batch = engine.batch - 1
        if outputs:
            self._delivery.write(outputs)
        self._note_delivered()
        after, seconds = engine.counters(), read.seconds + perf_counter() - started
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
        self._log_paused()
        for letter in engine.last_dead_letters():
            self._log.event("dead-letter", id=letter["id"], stream=letter["stream"], reason=letter["reason"])

    def _log_unreadable(self, file: str, reason: str) -> None:
        """Logs that a file cannot be read now, or, if the reason is "", that it is read again."""
        if reason:
            self._log.event("unreadable", file=file, reason=reason)
        else:
            self._log.event("readable", file=file)

    def _answer(self, read: ReadBatch, notes: Notes) -> Sequence[Output]:
        """Commits a batch, with notes about sinks, and returns its outputs. If memory runs out, questions are ended and
        the batch is retried."""
        metadata = self._intake.metadata(read, {**self._settings, **notes.values()})
        metadata = replace(metadata, gaps=notes.gaps, undelivered=notes.undelivered)
        try:
            return self._engine.process(read.items, metadata, read.evaluated)
        except OutOfMemory:
            if not self._options.free_memory():
                raise
        return self._engine.process(read.items, metadata, read.evaluated)

    def _note_delivered(self) -> None:
        """Notes, to be committed with the next batch, that all outputs so far are written."""
        self._settings = {**self._delivery.settings(), PRUNED_AT_BATCH: str(self._pruned)}

    def _commit_settings(self) -> None:
        """Commits at once the settings that the next batch would commit, if they have changed."""
        if self._committed_settings != self._settings:
            self._engine.commit_metadata(CommitMetadata(settings=self._settings))
            self._committed_settings = self._settings
