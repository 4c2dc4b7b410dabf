"""The loop of a service: it processes what has arrived, batch by batch, commits the offsets with it, and waits.

Reads the sources batch by batch, and says what to commit with each batch so that everything is read once.

Watchers: a service waits until something may have come, told by the file system, or else by the clock alone.

What a service watches: its sources and its spool. Says where changes may not be told at once.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Protocol

from watchfiles._rust_notify import RustNotify

from common.tools import in_batches
from feeds.documents import Document, Reject
from feeds.history import History, InputItem, size_of
from feeds.readers import Offset, Positions
from feeds.tail import ReadItem, Tail, WaitingFile, judged, read_waiting, waiting_files
from join_stage.store.protocol import OutOfMemory
from mmqjp.answers.output import Output
from mmqjp.documents.admission import BATCH_BYTES, BATCH_DOCUMENTS, EvaluatedBatch
from mmqjp.engine import Session
from mmqjp.service.log import InputBacklog, Log, progress
from mmqjp.service.spool import Spool, is_command
from mmqjp.sinks.deliverer import Delivery
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.positions import Notes
from mmqjp.sinks.sink import Sink
from mmqjp.state.eviction import ID_RETENTION
from mmqjp.tables.schema import CommitMetadata

HISTORY = "history "
"""Prefix of the settings that store what is known of the entries of each feed."""


@dataclass(slots=True)
class ReadBatch:
    """A batch as it was read: its documents, and the offsets to commit with them.

    If executors have evaluated the documents already, `evaluated` is their result and `seconds` the time that took.
    """

    items: list[Document | Reject] = field(default_factory=list)
    offsets: dict[tuple[str, str], Offset] = field(default_factory=dict)
    evaluated: EvaluatedBatch | None = None
    seconds: float = 0.0

    @classmethod
    def of(cls, batch: Sequence[ReadItem[Document | Reject]]) -> ReadBatch:
        """The batch made of these items."""
        items = [read.item for read in batch if read.item is not None]
        return cls(items, {(read.offset.source, read.offset.file): read.offset for read in batch})


def _size(read: ReadItem[Document | Reject]) -> int | None:
    return None if read.item is None else size_of(read.item)


class Intake:
    """The sources of an engine. Reading resumes at the offsets that the store has committed.

    `history` is shared by all sources and is loaded here. Each batch must be committed with its `metadata` before
    the next one is read.
    """

    def __init__(
        self,
        engine: Session,
        sources: Sequence[Tail],
        history: History,
        batch_size: int,
        batch_bytes: int,
        report: Callable[[str, str], object],
    ) -> None:
        """`report` is called once with each file that cannot be read now and the reason, and with "" as the reason when
        the file is read again."""
        self._report, self._failed = report, dict[tuple[str, str], str]()
        self._engine, self._sources, self._history = engine, sources, history
        self._batch_size, self._batch_bytes = batch_size, batch_bytes
        self._positions = engine.offsets()
        self.backlog = InputBacklog()
        history.load(engine.settings(HISTORY))

    def batches(self) -> Iterator[ReadBatch]:
        """Batches of everything that can be read now."""
        found = waiting_files(self._sources, self._positions)
        self._forget_missing({(waiting.source, waiting.file) for waiting in found})

        def report(waiting: WaitingFile, cause: str) -> None:
            self.fail((waiting.source, waiting.file), cause)

        return self.in_batches(self.judged(read_waiting(self.backlog.counting(found), report)))

    def fail(self, file: tuple[str, str], cause: str) -> None:
        """Notes that a file, given as (source, file), cannot be read now, or not to its end."""
        if file not in self._failed:
            self._failed[file] = cause
            self._report(file[1], cause)

    def _forget_missing(self, present: Container[tuple[str, str]]) -> None:
        """Forgets unreadable files that no longer exist."""
        self._failed = {file: cause for file, cause in self._failed.items() if file in present}

    def in_batches(self, items: Iterable[ReadItem[Document | Reject]]) -> Iterator[ReadBatch]:
        """Items in batches. Nothing is read ahead of the batch that is taken."""
        return map(ReadBatch.of, in_batches(items, self._batch_size, self._batch_bytes, _size))

    def judged(self, items: Iterable[ReadItem[InputItem]]) -> Iterator[ReadItem[Document | Reject]]:
        """Items after the history has judged them: which are new documents, and which are rejected."""
        return judged(items, self._history)

    @property
    def positions(self) -> Positions:
        """How far each file has been read, by (source, file)."""
        return self._positions

    def position(self, source: str, file: str) -> int:
        """How far a file has been read; 0 if nothing has been."""
        offset = self._positions.get((source, file))
        return 0 if offset is None else offset.position

    def metadata(self, batch: ReadBatch, settings: Mapping[str, str]) -> CommitMetadata:
        """What to commit with the batch that was just read, including `settings`."""
        known = {HISTORY + feed: text for feed, text in self._history.changed().items()}
        return CommitMetadata(tuple(batch.offsets.values()), {**settings, **known})

    def committed(self, batch: ReadBatch) -> None:
        """Must be called once the batch is committed."""
        self._positions.update(batch.offsets)
        for file in self._failed.keys() & batch.offsets.keys():
            del self._failed[file]
            self._report(file[1], "")

    def listing(self) -> tuple[list[str], set[tuple[str, str]]]:
        """The names of the sources that can be listed now, and the files that exist in them, as (source, file)."""
        names = {source.name: source.names() for source in self._sources}
        files = {(source, file) for source, found in names.items() for file in found or ()}
        if None not in names.values():
            self._forget_missing(files)
        return [source for source, found in names.items() if found is not None], files

    def refresh(self) -> None:
        """Reloads the offsets from the store, after some were dropped there."""
        self._positions = self._engine.offsets()


STEP = 5
"""Milliseconds between two looks at what the file system has told. A change is passed on at the second look."""

MOST_DIRECTORIES = 10_000
"""A source with more directories is polled: the notices of the system are limited, and other programs need some."""

CHECK = 1.0
"""Seconds between two checks that the paths still lead to the directories that are watched."""

RETRY = 10.0
"""Seconds until watching is tried again after it has failed."""


DELETED = 3
"""The number that watchfiles gives to a change after which a path is no more."""

_Clock = Callable[[], float]
IsWanted = Callable[[str], bool]


class Stop(Protocol):
    """Says when to stop. A `threading.Event` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class Watcher(Protocol):
    """Waits for what may have come. It may miss something, so a service also looks when no watcher has told it to."""

    def wait(self, seconds: float, stop: Stop) -> bool:
        """Waits for `seconds`, or until `stop` is set. Returns True, early, if something may have come."""

    def close(self) -> None:
        """Ends the watch."""


class Polling:
    """A watcher that only waits."""

    def wait(self, seconds: float, stop: Stop) -> bool:
        stop.wait(seconds)
        return False

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class WatchedPath:
    """A file, or a directory with all below it. A change of a name matters if `is_wanted` says so."""

    path: Path
    is_wanted: IsWanted


class Notices(Protocol):
    """What the file system tells of some directories. `watchfiles.RustNotify` is one; its page explains the numbers."""

    def watch(self, debounce_ms: int, step_ms: int, timeout_ms: int, stop_event: Stop) -> set[tuple[int, str]] | str:
        """Waits for changes. Raises OSError or RuntimeError, now and from then on, if they cannot be told."""

    def close(self) -> None: ...


def notices(directories: Sequence[str]) -> Notices:
    """The notices of the system. Directories that may not be read are left out. Raises OSError, RuntimeError."""
    # Not recursive: the library would follow links to directories, which sources do not.
    return RustNotify(list(directories), False, False, 0, False, True)


class FileWatcher:
    """A watcher of files and directories. Where the system tells nothing, it only waits, and logs the event `polling`
    with the reason; it tries again every RETRY seconds, and logs the event `watching` when it succeeds.

    Directories are watched one by one, each with its parent, so that one that is made, moved or replaced is noticed.
    """

    def __init__(
        self,
        watched: Iterable[WatchedPath],
        log: Log,
        open_notices: Callable[[Sequence[str]], Notices] = notices,
        clock: _Clock = time.monotonic,
    ) -> None:
        self._watched, self._log, self._open, self._clock = tuple(watched), log, open_notices, clock
        self._notices: Notices | None = None
        self._wanted: dict[str, list[IsWanted]] = {}
        self._inside: set[str] = set()
        self._identities: list[tuple[int, int] | None] = []
        self._is_stale, self._check_at, self._not_before = False, 0.0, 0.0
        self._said: str | None = None
        self._set_up()

    def wait(self, seconds: float, stop: Stop) -> bool:
        """Raises KeyboardInterrupt if a signal's handler raises it meanwhile."""
        until = self._clock() + seconds
        if self._is_due():
            self._set_up()
            if self._notices is not None:
                return True  # what came before the watch was set up was not told
        if self._notices is None:
            stop.wait(seconds)
            return False
        while (left := until - self._clock()) > 0:
            try:
                changes = self._notices.watch(0, STEP, max(round(left * 1000), 1), stop)
            except (OSError, RuntimeError) as error:
                self._fail(error)
                return True
            if changes == "signal":
                raise KeyboardInterrupt
            if isinstance(changes, str):  # the time is over, or `stop` is set
                return False
            if self._matter(changes):
                return True
        return False

    def close(self) -> None:
        if self._notices is not None:
            self._notices.close()
            self._notices = None

    def _matter(self, changes: Iterable[tuple[int, str]]) -> bool:
        """Whether any of the changes matters. Notes whether the directories are others now."""
        found = False
        for kind, path in changes:
            directory, name = os.path.split(path)
            if kind == DELETED:
                self._is_stale = self._is_stale or path in self._wanted
                continue
            wanted = any(is_wanted(name) for is_wanted in self._wanted.get(directory, ()))
            if (wanted or directory in self._inside) and os.path.isdir(path):  # noqa: PTH112  # may be hot
                self._is_stale = wanted = True
            found = found or wanted
        return found

    def _is_due(self) -> bool:
        """Whether the watch must be set up again, and it is time for that."""
        now = self._clock()
        if now >= self._check_at:
            self._check_at = now + CHECK
            self._is_stale = self._is_stale or self._identities != self._identify()
        return self._is_stale and now >= self._not_before

    def _set_up(self) -> None:
        """Watches the directories that are there now."""
        self.close()
        started = self._clock()
        self._is_stale = False
        self._identities = self._identify()
        try:
            self._wanted, self._inside = self._list()
            self._notices = self._open(sorted(self._wanted))
        except (OSError, RuntimeError, ValueError) as error:
            self._fail(error)
        else:
            self._say("")
            now = self._clock()
            self._check_at, self._not_before = now + CHECK, now + SHARE * (now - started)

    def _fail(self, error: Exception) -> None:
        """Falls back to waiting, for RETRY seconds."""
        self.close()
        self._is_stale = True
        self._check_at = self._not_before = self._clock() + RETRY
        self._say(str(error).partition(" (Error {")[0])

    def _say(self, reason: str) -> None:
        """Logs whether and why there is no watch, if that has changed."""
        if reason != self._said:
            self._said = reason
            if reason:
                self._log.event("polling", reason=reason)
            else:
                self._log.event("watching", directories=len(self._wanted))

    def _list(self) -> tuple[dict[str, list[IsWanted]], set[str]]:
        """The directories to watch, each with what is wanted in it, and which of them are inside what is watched.

        Raises OSError if there are too many.
        """
        wanted: dict[str, list[IsWanted]] = defaultdict(list)
        inside: set[str] = set()
        for watched in self._watched:
            is_directory = watched.path.is_dir()
            if watched.path.parent.is_dir():
                named = watched.path.name
                wanted[str(watched.path.parent)].append(watched.is_wanted if watched.path.is_file() else named.__eq__)
            for directory in _directories(watched.path) if is_directory else ():
                wanted[directory].append(watched.is_wanted)
                inside.add(directory)
                if len(wanted) > MOST_DIRECTORIES:
                    raise OSError(f"{watched.path} has more than {MOST_DIRECTORIES:,} directories")
        return dict(wanted), inside

    def _identify(self) -> list[tuple[int, int] | None]:
        """What tells whether the paths, and their parents, lead to other directories than before."""
        return [_identity(path) for watched in self._watched for path in (watched.path, watched.path.parent)]


def _directories(top: Path) -> Iterator[str]:
    """A directory and those below it. Links are not followed."""
    found = [str(top)]
    while found:
        directory = found.pop()
        yield directory
        try:
            with os.scandir(directory) as children:
                found += [child.path for child in children if child.is_dir(follow_symlinks=False)]
        except OSError:  # it has just gone, or may not be read, which the source reports
            continue


def _identity(path: Path) -> tuple[int, int] | None:
    """The device and inode of a directory; None for anything else."""
    try:
        return (found.st_dev, found.st_ino) if path.is_dir() and (found := path.stat()) else None
    except OSError:
        return None


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


MOUNTS = Path("/proc/self/mountinfo")

REMOTE = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
)
"""File systems that tell nothing of what other machines change. Those of FUSE may do so, or not: they count, too."""

_PLACE = 4
"""The number of the field with the place of a mount."""


def watch(sources: Sequence[Tail], spool: Spool, log: Log) -> FileWatcher:
    """A watcher of the sources and of the commands in the spool.

    The event `polling` names the sources where other machines may make changes that nobody tells of.
    """
    mounts = mounted_file_systems(_lines(MOUNTS))
    for source in sources:
        if (kind := file_system_of(source.path, mounts)) in REMOTE or kind.startswith("fuse."):
            reason = f"{kind} may not tell of changes that are made on other machines"
            log.event("polling", path=source.path, reason=reason)
    watched = [WatchedPath(source.path, source.is_wanted) for source in sources]
    return FileWatcher([*watched, WatchedPath(spool.directory(), is_command)], log)


def mounted_file_systems(lines: Iterable[str]) -> dict[Path, str]:
    r"""The kind of the file system that is mounted at each place, from the lines of `/proc/self/mountinfo`.

    >>> mounted_file_systems([r"7 1 0:3 / /my\040share rw shared:2 - nfs4 host:/x rw"])
    {PosixPath('/my share'): 'nfs4'}
    """
    found = {}
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) > _PLACE:
            place = re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), fields[_PLACE])
            found[Path(place)] = after.partition(" ")[0]
    return found


def file_system_of(path: Path, mounts: dict[Path, str]) -> str:
    """The kind of the file system that a path is on; "" if it is not known."""
    resolved = path.resolve()
    return next((mounts[place] for place in (resolved, *resolved.parents) if place in mounts), "")


def _lines(path: Path) -> list[str]:
    """The lines of a file; none if it cannot be read, as on systems that have no such file."""
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
