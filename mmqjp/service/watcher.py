"""Watchers: a service waits until something may have come, told by the file system, or else by the clock alone."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from watchfiles._rust_notify import RustNotify

from mmqjp.service.log import Log

STEP = 5
"""Milliseconds between two looks at what the file system has told. A change is passed on at the second look."""

MOST_DIRECTORIES = 10_000
"""A source with more directories is polled: the notices of the system are limited, and other programs need some."""

CHECK = 1.0
"""Seconds between two checks that the paths still lead to the directories that are watched."""

RETRY = 10.0
"""Seconds until watching is tried again after it has failed."""

SHARE = 9
"""Setting up the watch takes at most one part of the time for so many others."""

DELETED = 3
"""The number that watchfiles gives to a change after which a path is no more."""

Clock = Callable[[], float]
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
class Watched:
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
        watched: Iterable[Watched],
        log: Log,
        open_notices: Callable[[Sequence[str]], Notices] = notices,
        clock: Clock = time.monotonic,
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
