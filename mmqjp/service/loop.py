"""The loop of a service: reads, commits, delivers, runs commands, prunes, and waits. Each batch is committed with its
offsets, so that everything is read exactly once. The wait ends early when the file system reports changes of sources or
spool; where it cannot, as on network file systems, the service polls."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from common.tools import in_batches
from feeds.documents import SourceItem
from feeds.history import History, InputItem, size_of
from feeds.readers import Offset
from feeds.tail import ReadItem, Tail, Turns, WaitingFile, is_little, judged, waiting_files
from join_stage.store.protocol import OutOfMemory
from mmqjp.answers.output import Output
from mmqjp.documents.admission import BATCH_BYTES, BATCH_DOCUMENTS, EvaluatedDocuments
from mmqjp.engine import Session
from mmqjp.service.log import Log
from mmqjp.service.spool import Spool, is_command
from mmqjp.sinks.deliverer import OutputDelivery
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.sink import Sink
from mmqjp.state.eviction import ID_RETENTION
from mmqjp.tables.schema import NO_METADATA, CommitMetadata

if sys.platform == "linux":
    from inotify_simple import INotify, flags

    _REMOVED = flags.DELETE | flags.MOVED_FROM
    _REMOVED_ITSELF = flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT

if TYPE_CHECKING:
    from mmqjp.service.commands import CommandQueue
    from mmqjp.service.pushes import PushQueue

HISTORY = "history "  # prefix of the settings that store the history of each feed


@dataclass(slots=True)
class ReadBatch:
    """Items and the offsets to commit. If executors `evaluated` the documents, that took `seconds`. `answers` returns
    what to commit for commands, given what became of the items."""

    items: list[SourceItem] = field(default_factory=list)
    offsets: dict[tuple[str, str], Offset] = field(default_factory=dict)
    evaluated: EvaluatedDocuments | None = None
    seconds: float = 0.0
    answers: Callable[[Sequence[str | None]], Mapping[str, str]] | None = None


class Intake:
    """The sources of an engine. Resumes at the committed offsets. `history`, shared by all sources, is loaded here.
    Each batch must be committed with its `metadata` before the next one is read."""

    def __init__(
        self,
        engine: Session,
        sources: Sequence[Tail],
        history: History,
        batch_size: int,
        batch_bytes: int,
        report: Callable[[str, str], object],
        turns: Turns | None = None,
    ) -> None:
        """`report` is called once for each unreadable file with the reason, and with "" when it is readable again."""
        self._turns = turns or Turns()
        self._report, self._failed = report, dict[tuple[str, str], str]()
        self._engine, self._sources, self._history = engine, sources, history
        self._batch_size, self._batch_bytes = batch_size, batch_bytes
        self.positions = engine.ledger.offsets()
        self.waiting_files: int | None = None  # files that were listed and not yet read
        history.load(engine.ledger.settings(HISTORY))

    def batches(
        self, *, wait: bool = False, little: bool = False, changed: Collection[str] | None = None
    ) -> Iterator[ReadBatch]:
        """Reads what is waiting, each feed in turn. With `wait`, also what takes long to parse. With `little`, nothing
        unless it `is_little`. `changed` as in `waiting_files`."""

        def report(waiting: WaitingFile, cause: str) -> None:
            self.fail((waiting.source, waiting.file), cause)

        def counted(found: Sequence[WaitingFile]) -> Iterator[WaitingFile]:
            for number, file in enumerate(found, 1):
                self.waiting_files = len(found) - number
                yield file

        is_left = True
        while is_left:
            found, changed = waiting_files(self._sources, self.positions, changed), None
            if little and not is_little(found):
                return
            present = {(waiting.source, waiting.file) for waiting in found}
            self._failed = {file: cause for file, cause in self._failed.items() if file in present}
            read = self._turns.read(counted(found), report, wait=wait)
            yield from self.in_batches(self.judged(read))
            is_left = self._turns.is_ready()

    def is_ready(self) -> bool:
        """Whether there is something to read, in a file that was listed before."""
        return self._turns.is_ready()

    def fail(self, file: tuple[str, str], cause: str) -> None:
        """Records that a file, given as (source, file), cannot be read now, or not to its end."""
        if file not in self._failed:
            self._failed[file] = cause
            self._report(file[1], cause)

    def in_batches(self, items: Iterable[ReadItem[SourceItem]]) -> Iterator[ReadBatch]:
        """Groups items into batches without reading ahead."""
        for batch in in_batches(items, self._batch_size, self._batch_bytes, lambda read: size_of(read.item)):
            offsets = {(read.offset.source, read.offset.file): read.offset for read in batch}
            yield ReadBatch([read.item for read in batch if read.item is not None], offsets)

    def judged(self, items: Iterable[ReadItem[InputItem]]) -> Iterator[ReadItem[SourceItem]]:
        return judged(items, self._history)

    def metadata(self, batch: ReadBatch, settings: Mapping[str, str]) -> CommitMetadata:
        """Returns what to commit with the last batch read, including `settings`."""
        known = {HISTORY + feed: text for feed, text in self._history.changed().items()}
        return CommitMetadata(tuple(batch.offsets.values()), {**settings, **known})

    def committed(self, batch: ReadBatch) -> None:
        """Must be called once the batch is committed."""
        self.positions.update(batch.offsets)
        for file in self._failed.keys() & batch.offsets.keys():
            del self._failed[file]
            self._report(file[1], "")

    def listing(self) -> tuple[list[str], set[tuple[str, str]]]:
        listed, files = listing(self._sources)
        if len(listed) == len(self._sources):
            self._failed = {file: cause for file, cause in self._failed.items() if file in files}
        return listed, files

    def refresh(self) -> None:
        """Reloads offsets, after some were deleted from the store."""
        self.positions = self._engine.ledger.offsets()


def listing(sources: Sequence[Tail]) -> tuple[list[str], set[tuple[str, str]]]:
    """Returns the sources that can be listed now, and their files as (source, file)."""
    names = {source.name: source.names() for source in sources}
    files = {(source, file) for source, found in names.items() for file in found or ()}
    return [source for source, found in names.items() if found is not None], files


STEP = 5
"""Milliseconds between two polls of file system events. The second poll passes a change on."""

CHANGED, DELETED = 2, 3  # the numbers of watchfiles' events of changes and deletions

MOST_DIRECTORIES = 10_000
"""A source with more directories is polled, because the system's watches are limited and shared."""

CHECK, RETRY = 1.0, 10.0
"""Seconds between two checks that watched paths are still the same directories, and until a failed watch is retried."""

_Clock = Callable[[], float]
IsWanted = Callable[[str], bool]


class Stop(Protocol):
    """Says when to stop, like `threading.Event`."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class Watcher:
    """Waits for input. May miss changes, so a service also polls; this one misses all."""

    def wait(self, seconds: float, stop: Stop) -> bool:
        """Waits for `seconds`, or until `stop` is set. Returns True, early, if there may be input."""
        stop.wait(seconds)
        return False

    def changed(self) -> Collection[str] | None:
        """The paths that may have been changed since the last call; None if any may."""
        return None

    def close(self) -> None:
        """Ends the watch."""


@dataclass(frozen=True, slots=True)
class WatchedPath:
    """A file, or a directory tree. `is_wanted` filters the names whose changes matter."""

    path: Path
    is_wanted: IsWanted


class Notices(Protocol):
    """File system events, as from `watchfiles.RustNotify`, whose page explains the numbers."""

    def watch(self, debounce_ms: int, step_ms: int, timeout_ms: int, stop_event: Stop) -> set[tuple[int, str]] | str:
        """Waits for changes. Raises OSError or RuntimeError, from then on each time, if they cannot be watched."""

    def close(self) -> None: ...


def notices(directories: Sequence[str]) -> Notices:
    """Watches directories; unreadable ones are skipped. Raises OSError, RuntimeError."""
    if sys.platform == "linux":
        return LinuxNotices(directories)
    from watchfiles._rust_notify import RustNotify

    # Not recursive: the library would follow links to directories, which sources do not.
    return RustNotify(list(directories), False, False, 0, False, True)


STOP_SECONDS = 0.05  # the most seconds until a watch notices that it is to stop


class LinuxNotices:
    """Events of Linux, at once: `watchfiles` passes them on after 5 to 10 ms."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._inotify, self._paths = INotify(), defaultdict[int, list[str]](list)
        self.close = self._inotify.close
        events = flags.MODIFY | flags.ATTRIB | flags.CREATE | flags.MOVED_TO | _REMOVED | _REMOVED_ITSELF
        for directory in directories:
            try:
                # Several names of a directory have one number.
                self._paths[self._inotify.add_watch(directory, events)].append(directory)
            except PermissionError:
                continue
            except OSError as error:
                self.close()
                is_full = error.errno == errno.ENOSPC
                reason = "the limit of watches is reached" if is_full else error.strerror
                raise OSError(error.errno, reason, directory) from None

    def watch(self, debounce_ms: int, step_ms: int, timeout_ms: int, stop_event: Stop) -> set[tuple[int, str]] | str:
        until = time.monotonic() + timeout_ms / 1000
        while not stop_event.is_set():
            if (left := until - time.monotonic()) <= 0:
                return "timeout"
            if changes := set(self._changes(min(left, STOP_SECONDS))):
                return changes
        return "stop"

    def _changes(self, seconds: float) -> Iterator[tuple[int, str]]:
        for number, event, _, name in self._inotify.read(timeout=seconds * 1000):
            if event & flags.Q_OVERFLOW:  # some events are lost: all directories are watched anew
                yield from ((DELETED, path) for paths in self._paths.values() for path in paths)
            elif event & _REMOVED_ITSELF:
                yield from ((DELETED, path) for path in self._paths[number])
            elif name:
                kind = DELETED if event & _REMOVED else CHANGED
                yield from ((kind, f"{path}/{name}") for path in self._paths[number])


class FileWatcher(Watcher):
    """Watches files and directories. Where that fails, it only waits, logs the event `polling` with the reason, retries
    every RETRY seconds, and logs `watching` on success. Directories are watched singly, each with its parent, to notice
    when one is created, moved or replaced."""

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
        self._changed: set[str] | None = None
        self._set_up()

    def wait(self, seconds: float, stop: Stop) -> bool:
        """Raises KeyboardInterrupt if a signal handler does."""
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

    def changed(self) -> Collection[str] | None:
        changed, self._changed = self._changed, set()
        return changed

    def close(self) -> None:
        self._changed = None
        if self._notices is not None:
            self._notices.close()
            self._notices = None

    def _matter(self, changes: Iterable[tuple[int, str]]) -> bool:
        """Whether any change matters. Notes whether directories were replaced."""
        found = False
        for kind, path in changes:
            directory, name = os.path.split(path)
            if kind == DELETED:
                self._is_stale = self._is_stale or path in self._wanted
                continue
            wanted = any(is_wanted(name) for is_wanted in self._wanted.get(directory, ()))
            if (wanted or directory in self._inside) and os.path.isdir(path):  # noqa: PTH112  # may be hot
                self._is_stale = wanted = True
                self._changed = None
            if wanted and self._changed is not None:
                self._changed.add(path)
            found = found or wanted
        return found

    def _is_due(self) -> bool:
        now = self._clock()
        if now >= self._check_at:
            self._check_at = now + CHECK
            self._is_stale = self._is_stale or self._identities != self._identify()
        return self._is_stale and now >= self._not_before

    def _set_up(self) -> None:
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
        self.close()
        self._is_stale = True
        self._check_at = self._not_before = self._clock() + RETRY
        self._say(str(error).partition(" (Error {")[0])

    def _say(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            if reason:
                self._log.event("polling", reason=reason)
            else:
                self._log.event("watching", directories=len(self._wanted))

    def _list(self) -> tuple[dict[str, list[IsWanted]], set[str]]:
        """Returns directories to watch, with filters, and those inside watched paths. Raises OSError if too many."""
        wanted: dict[str, list[IsWanted]] = defaultdict(list)
        inside: set[str] = set()
        for watched in self._watched:
            if watched.path.parent.is_dir():
                named = watched.path.name
                wanted[str(watched.path.parent)].append(watched.is_wanted if watched.path.is_file() else named.__eq__)
            for directory, *_ in os.walk(watched.path):  # which does not follow links
                wanted[directory].append(watched.is_wanted)
                inside.add(directory)
                if len(wanted) > MOST_DIRECTORIES:
                    raise OSError(f"{watched.path} has more than {MOST_DIRECTORIES:,} directories")
        return dict(wanted), inside

    def _identify(self) -> list[tuple[int, int] | None]:
        """The devices and inodes of the watched directories and of parents; None for anything else."""
        found: list[tuple[int, int] | None] = []
        for path in (path for watched in self._watched for path in (watched.path, watched.path.parent)):
            try:
                found.append((seen.st_dev, seen.st_ino) if path.is_dir() and (seen := path.stat()) else None)
            except OSError:
                found.append(None)
        return found


POLL = 0.1  # seconds between two polls for commands while waiting

SHARE = 9
"""A rest is this multiple of the vain poll before it: irrelevant changes cost at most a tenth of a processor."""

MEASURED_EVERY = 1.0  # least seconds between two measurements of the state's size

PRUNE_INTERVAL, PRUNED_AT_BATCH = 50, "pruned"
"""Batches between two prunings, counted across restarts, and the setting with the number of the last one."""

PRUNE_SECONDS = 30.0
"""Least seconds between two prunings: one holds the documents up that come meanwhile."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of a service. `batch_size` and `batch_bytes` limit a batch, in documents and bytes of XML. `keep` is
    the retention of data that no join needs, `keep_ids` that of deleted documents' ids, both in microseconds (None: for
    ever). `history` of feed entries is shared by all sources. `on_idle` is called whenever all input is processed.
    `should_reopen` returns True, once, if the output file must be reopened. `free_memory` is called when a batch runs
    out of memory; it returns whether a retry is worthwhile. `watcher` waits for input; the caller closes it. `sinks`
    are those besides that of `--output`. `pushes` has the documents of clients."""

    batch_size: int = BATCH_DOCUMENTS
    batch_bytes: int = BATCH_BYTES
    keep: int | None = None
    keep_ids: int | None = ID_RETENTION
    history: History = field(default_factory=History)
    on_idle: Callable[[Session], object] = lambda engine: None
    should_reopen: Callable[[], bool] = lambda: False
    free_memory: Callable[[], bool] = lambda: False
    watcher: Watcher = field(default_factory=Watcher)
    sinks: SinkManager | None = None
    pushes: PushQueue | None = None


class Service:
    """An engine that reads sources. Each batch commits its offsets together with its state and outputs."""

    def __init__(
        self,
        engine: Session,
        sources: Sequence[Tail],
        sink: Sink,
        commands: CommandQueue,
        log: Log,
        options: ServiceOptions,
    ) -> None:
        self._engine, self._commands, self._log, self._options = engine, commands, log, options
        self._delivery, self._sinks = OutputDelivery(engine, sink), options.sinks

        def report(file: str, reason: str) -> None:
            log.event("unreadable" if reason else "readable", file=file, **({"reason": reason} if reason else {}))

        self._intake = Intake(engine, sources, options.history, options.batch_size, options.batch_bytes, report)
        self._pruned = int(engine.ledger.setting(PRUNED_AT_BATCH) or 0)
        self._prune_at = 0.0
        self._measured, self._state_bytes = float("-inf"), engine.state_bytes()
        self._committed_settings: Mapping[str, str] = {}
        self._write()

    def run(self, trigger: float | None, stop: Stop) -> None:
        """Polls on input, and every `trigger` seconds, until `stop` is set; once if `trigger` is None."""
        while not stop.is_set():
            started = perf_counter()
            self.drain(stop, wait=trigger is None)
            self._pass_time()
            self._options.on_idle(self._engine)
            if trigger is None:
                break
            self._commit_settings()
            self._wait(started + trigger, stop)
        self._commit_settings()
        self._close_sinks(trigger, stop)

    def _wait(self, until: float, stop: Stop) -> None:
        """Waits for the next regular poll, and polls in between when the watcher reports input. Time-driven upkeep,
        such as advancing silent streams, is left to the regular polls."""
        rest_until, has_news = 0.0, False
        while not stop.is_set() and (left := until - (now := perf_counter())) > 0:
            self._run_commands()
            self._take_pushes(stop)
            # News that are not pushes wait until the rest is over, which pushes and commands do not.
            seconds = min(left, POLL, max(rest_until - now, 0)) if has_news else min(left, POLL)
            has_news = self._options.watcher.wait(seconds, stop) or has_news or self._intake.is_ready()
            if has_news and self._take_pushes(stop):
                has_news = False  # most likely it was these that changed: to list the sources takes longer
            elif has_news and (started := perf_counter()) >= rest_until:
                has_news = False
                if not self.drain(stop, changed=self._options.watcher.changed()):
                    now = perf_counter()
                    rest_until = now + SHARE * (now - started)

    def drain(
        self, stop: Stop, *, wait: bool = False, little: bool = False, changed: Collection[str] | None = None
    ) -> bool:
        """Processes all input, batch by batch; once `stop` is set, returns after the current batch. `wait`, `little`
        and `changed` are those of `Intake.batches`. Returns whether there were documents or commands."""
        found = self._run_commands()
        found = self._take_pushes(stop) or found
        for batch in self._intake.batches(wait=wait, little=little, changed=changed):
            found = True
            self._process(batch)
            if stop.is_set():
                break
            self._run_commands()
            self._take_pushes(stop)
            self._prune()
        return found

    def _take_pushes(self, stop: Stop) -> bool:
        """Processes the documents that clients push. Returns whether there were any."""
        pushes, options, found = self._options.pushes, self._options, False
        while pushes is not None and not stop.is_set():
            pushed = pushes.take(options.history.judge, options.batch_size, options.batch_bytes)
            if pushed is None:
                break
            self._process(ReadBatch(pushed.items, answers=pushed.answers))
            pushes.reply(pushed)
            self._prune()
            found = True
        return found

    def _close_sinks(self, trigger: float | None, stop: Stop) -> None:
        """Ends the delivery to sinks; if `trigger` is None, delivers first what can be delivered now."""
        if self._sinks is not None and trigger is None:
            self._sinks.finish(stop.is_set)
        if self._sinks is not None:
            self._sinks.close()

    def _pass_time(self) -> None:
        if self._engine.pass_time():
            self._write()
            self._log_paused()
            self._prune()

    def _prune(self) -> None:
        if self._engine.batch - self._pruned < PRUNE_INTERVAL or perf_counter() < self._prune_at:
            return
        self._commit_settings()
        owed = None if self._sinks is None else self._sinks.owed()
        self._engine.prune(self._options.keep, self._options.keep_ids, *self._intake.listing(), owed)
        self._intake.refresh()
        self._pruned, self._prune_at = self._engine.batch, perf_counter() + PRUNE_SECONDS

    def _run_commands(self) -> bool:
        """Runs commands; returns whether there were any. A backfill among them has outputs, and may pause queries."""
        if self._options.should_reopen():
            self._delivery.prepare()
        ran = bool(self._commands.apply(self._engine, self._log))
        if self._sinks is not None:
            self._sinks.turn()
        if ran:
            self._write()
            self._log_paused()
        return ran

    def _log_paused(self) -> None:
        for name, reason in self._engine.take_paused().items():
            self._log.event("paused", name=name, reason=reason)

    def _write(self) -> None:
        self._delivery.write(self._delivery.pending())

    def _process(self, read: ReadBatch) -> None:
        engine, started, before = self._engine, perf_counter(), self._engine.counters()
        notes = NO_METADATA if self._sinks is None else self._sinks.notes()
        outputs = self._answer(read, notes)
        if self._sinks is not None:
            self._sinks.noted(notes)
            self._sinks.committed(outputs)
        self._intake.committed(read)
        batch = engine.batch - 1
        if outputs:
            self._delivery.write(outputs)
        after, seconds = engine.counters(), read.seconds + perf_counter() - started
        documents, lag = after.documents - before.documents, engine.lag()
        if (now := perf_counter()) >= self._measured + MEASURED_EVERY:  # to list its files takes as long as a document
            self._measured, self._state_bytes = now, engine.state_bytes()
        progress = {
            "waiting_files": self._intake.waiting_files,
            "lag_seconds": None if lag is None else round(lag / 1e6, 3),
            "state_bytes": self._state_bytes,
        }
        self._log.event(
            "batch", batch=batch, documents=documents, outputs=len(outputs),
            duplicates=after.duplicates - before.duplicates, dead_letters=after.dead_letters - before.dead_letters,
            seconds=round(seconds, 3), documents_a_second=round(documents / seconds),
            outputs_a_second=round(len(outputs) / seconds),
            **{key: value for key, value in progress.items() if value is not None},
        )  # fmt: skip
        self._log_paused()
        for letter in engine.last_dead_letters():
            self._log.event("dead-letter", id=letter["id"], stream=letter["stream"], reason=letter["reason"])

    def _answer(self, read: ReadBatch, notes: CommitMetadata) -> Sequence[Output]:
        """Commits a batch with notes about sinks. If memory runs out, ends questions and retries."""
        settings: Mapping[str, str] = {}

        def metadata(fates: Sequence[str | None]) -> CommitMetadata:
            nonlocal settings
            settings = self._settings()  # as late as this: the lines before may still be on their way to the disk
            noted = self._intake.metadata(read, {**settings, **notes.settings})
            answers = {} if read.answers is None else read.answers(fates)
            return replace(noted, gaps=notes.gaps, undelivered=notes.undelivered, answers=answers)

        try:
            outputs = self._engine.process(read.items, metadata, read.evaluated)
        except OutOfMemory:
            if not self._options.free_memory():
                raise
            outputs = self._engine.process(read.items, metadata, read.evaluated)
        self._committed_settings = settings
        return outputs

    def _settings(self) -> Mapping[str, str]:
        return {**self._delivery.settings(), PRUNED_AT_BATCH: str(self._pruned)}

    def _commit_settings(self) -> None:
        if self._committed_settings != (settings := self._settings()):
            self._engine.commit_metadata(CommitMetadata(settings=settings))
            self._committed_settings = settings


MOUNTS = Path("/proc/self/mountinfo")

REMOTE = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
)
"""File systems that do not report other machines' changes. FUSE file systems count, too, as some do not."""


def watch(sources: Sequence[Tail], spools: Iterable[Spool], log: Log) -> FileWatcher:
    """Watches the sources and the spools' commands. Logs `polling` for sources that others may change unreported."""
    mounts: dict[Path, str] = {}
    with suppress(OSError):
        mounts = mounted_file_systems(MOUNTS.read_text("utf-8", "replace").splitlines())
    for source in sources:
        if (kind := file_system_of(source.path, mounts)) in REMOTE or kind.startswith("fuse."):
            reason = f"{kind} may not tell of changes that are made on other machines"
            log.event("polling", path=source.path, reason=reason)
    watched = [WatchedPath(source.path, source.is_wanted) for source in sources]
    return FileWatcher([*watched, *(WatchedPath(spool.directory(), is_command) for spool in spools)], log)


def mounted_file_systems(lines: Iterable[str]) -> dict[Path, str]:
    r"""The kind of the file system that is mounted at each place, from the lines of `/proc/self/mountinfo`.

    >>> mounted_file_systems([r"7 1 0:3 / /my\040share rw shared:2 - nfs4 host:/x rw"])
    {PosixPath('/my share'): 'nfs4'}
    """
    found = {}
    for line in lines:
        before, _, after = line.partition(" - ")
        if fields := before.split(" ")[4:]:
            place = re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), fields[0])
            found[Path(place)] = after.partition(" ")[0]
    return found


def file_system_of(path: Path, mounts: dict[Path, str]) -> str:
    """Returns the type of a path's file system; "" if unknown."""
    resolved = path.resolve()
    return next((mounts[place] for place in (resolved, *resolved.parents) if place in mounts), "")
