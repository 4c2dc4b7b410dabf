"""The kind `parquet`: a directory of Parquet files, in which each output is exactly once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from uuid import uuid4

from common.batches import in_batches
from feeds.times import Now, now_us
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.sinks.options import ParquetOptions
from mmqjp.sinks.parquet_file import GROUP_ROWS, ParquetFile, cut_file, owner_of
from mmqjp.sinks.sink import Pending, Warn

_NAME = re.compile(r"(\d{12,})-(\d{12,})\.parquet")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a sink writes: its directory, the id by which it knows its files, and when the file that is open was begun,
    in microseconds; None if none is."""

    directory: str
    owner: str
    opened: int | None = None

    @staticmethod
    def of(position: Position) -> _Place | None:
        noted = position.details
        return _Place(noted["directory"], noted["owner"], noted.get("opened")) if "owner" in noted else None


class ParquetSink:
    """Files of whole writes. Each has the outputs from the first to the last number in its name.

    A file is closed after some rows or some time. Its outputs are acknowledged when it is. What is in a file that is
    open when the process ends is written again. So is what a process had in a file that it could not note: its files
    past the position are removed first.
    """

    def __init__(
        self, options: ParquetOptions, position: Position, warn: Warn = lambda text: None, now: Now = now_us
    ) -> None:
        self._options, self._warn, self._now = options, warn, now
        self._acked = position.acked
        self._place = _Place.of(position)
        self._file: ParquetFile | None = None
        self._reached = position.acked
        self._swept = False

    def prepare(self, pending: Pending) -> bool:
        """Makes the directory, and removes what an earlier process has left behind the position. If the file that was
        open is gone, its outputs are written again. Raises OSError."""
        directory, before = self._options.path.absolute(), self._place
        if before is not None and not self._swept:
            self._sweep(Path(before.directory), before.owner)
        self._swept = True
        if not directory.is_dir():
            directory.mkdir()
        if before is None or before.directory != str(directory):
            self._refuse_others(directory)
            self._place = _Place(str(directory), uuid4().hex, None if before is None else before.opened)
        if self._file is not None and not self._file.is_in_place():
            self._warn(f"{self._file.draft} was removed or replaced: its outputs are written again")
            self._give_up()
        if self._file is None and self._reached > self._acked:
            self._add(list(takewhile(lambda output: output.seq <= self._reached, pending())))
        return self._place != before

    def write(self, outputs: Iterable[Output]) -> int:
        """Adds outputs to the file, which is closed if it is time. Without outputs, only looks whether it is. Raises
        OSError."""
        count, last = 0, self._reached
        for some in in_batches(outputs, GROUP_ROWS, GROUP_ROWS, lambda output: 1):
            self._add(some)
            count, last = count + len(some), some[-1].seq
        file, closes_at = self._file, self.closes_at
        if file is not None and (file.rows >= self._options.rows or (closes_at or 0) <= self._now()):
            self._close_file(file)
        self._reached = last
        return count

    @property
    def closes_at(self) -> int | None:
        """When `write` must be called, with or without outputs, in microseconds; None if nothing is open."""
        if self._file is None or self._place is None or self._place.opened is None:
            return None
        return self._place.opened + self._options.every_us

    def position(self) -> Position:
        """Returns the position after the last file that was closed."""
        place = self._place
        if place is None:
            return Position(self._acked)
        return Position(self._acked, {"directory": place.directory, "owner": place.owner, "opened": place.opened})

    def close(self) -> None:
        """Drops the file that is open. It is written again from the position on."""
        if self._file is not None:
            with suppress(OSError):
                self._file.abandon()
            self._file = None

    # ------------------------------------------------------------ the file that is open

    def _add(self, outputs: list[Output]) -> None:
        place = self._place
        assert place is not None, "prepare comes first"
        if not outputs:
            return
        try:
            if self._file is None:
                self._file = ParquetFile(Path(place.directory) / f".{place.owner}.draft", place.owner)
            self._file.add(outputs)
        except BaseException:
            self._give_up()
            raise
        if place.opened is None:
            self._place = _Place(place.directory, place.owner, self._now())

    def _close_file(self, file: ParquetFile) -> None:
        try:
            file.finish()
        except BaseException:
            self._give_up()
            raise
        assert self._place is not None
        self._acked, self._file = file.last, None
        self._place = _Place(self._place.directory, self._place.owner)

    def _give_up(self) -> None:
        """Drops the file that is open. `prepare` writes its outputs again."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.abandon()

    # ------------------------------------------------------------ what is there already

    def _sweep(self, directory: Path, owner: str) -> None:
        """Removes our draft, and our files past the position. Raises OSError."""
        with suppress(FileNotFoundError):
            (directory / f".{owner}.draft").unlink()
        for path, first, last in _files(directory):
            if last > self._acked and owner_of(path) == owner:
                if first > self._acked:
                    path.unlink()
                else:  # somebody asked for what comes after a number that is in the middle of it
                    cut_file(path, self._acked, owner)

    def _refuse_others(self, directory: Path) -> None:
        """Refuses a directory with files that could be taken for ours. Raises FileExistsError."""
        if (found := next(_files(directory), None)) is not None:
            cause = f"{found[0]} is of another sink, or of a state that is gone"
            raise FileExistsError(f"{cause}: choose another directory, or move its files away")


def _files(directory: Path) -> Iterator[tuple[Path, int, int]]:
    """Yields the files of a directory that have the name of one of ours, and the first and the last number in it."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if (found := _NAME.fullmatch(entry.name)) is not None:
                yield Path(entry.path), int(found[1]), int(found[2])
