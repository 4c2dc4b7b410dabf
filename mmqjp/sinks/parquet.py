"""The sink kind `parquet`: a directory of Parquet files with each output exactly once. A file grows under a hidden name
and is renamed when complete; its outputs are acknowledged then."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.files import sync_directory, sync_file
from common.tools import in_batches
from feeds.documents import Now, now_us
from mmqjp.answers.bindings import json_nodes
from mmqjp.answers.fan_out import Position
from mmqjp.answers.output import Output
from mmqjp.sinks.definition import ParquetOptions
from mmqjp.sinks.sink import Pending, Sink, Warn

_TEXT, _TIME, _TEXTS = pa.string(), pa.timestamp("us", "UTC"), pa.list_(pa.string())
SCHEMA = pa.schema(
    {"id": _TEXT, "seq": pa.int64(), "query": _TEXT, "t0": _TIME, "t1": _TIME}
    | {"documents": _TEXTS, "streams": _TEXTS, "nodes": _TEXT, "xml": _TEXT}
)
"""The columns of an output line, with times as timestamps and `nodes` as JSON."""

GROUP_ROWS, GROUP_CHARACTERS = 10_000, 16 << 20  # size limits of a row group: outputs, and characters of XML
OWNER = b"mmqjp.sink"  # the metadata key for the id of the sink that wrote a file


class ParquetFile:
    """A file under construction. Outputs are added in order of `seq`."""

    def __init__(self, draft: Path, owner: str) -> None:
        """Raises OSError."""
        self.draft, self.rows = draft, 0
        self.first = self.last = -1
        self._waiting: list[Output] = []
        self._characters = 0
        self._file = draft.open("wb")
        self._inode = os.fstat(self._file.fileno()).st_ino
        self._writer = pq.ParquetWriter(self._file, SCHEMA.with_metadata({OWNER: owner.encode()}), compression="zstd")

    def add(self, outputs: Sequence[Output]) -> None:
        """Raises OSError, after which the file is unusable."""
        for output in outputs:
            self.first = output.seq if self.first < 0 else self.first
            self.last = output.seq
            self.rows += 1
            self._waiting.append(output)
            self._characters += len(output.xml)
            if len(self._waiting) >= GROUP_ROWS or self._characters >= GROUP_CHARACTERS:
                self._write_group()

    def _write_group(self) -> None:
        waiting, self._waiting, self._characters = self._waiting, [], 0
        columns = {name: [getattr(output, name) for output in waiting] for name in SCHEMA.names}
        self._writer.write_table(pa.table(columns | {"nodes": list(map(json_nodes, columns["nodes"]))}, schema=SCHEMA))

    def add_rows(self, rows: pa.RecordBatch) -> None:
        """Adds rows of another file. Raises OSError."""
        if len(rows):
            numbers = rows["seq"]
            self.first = numbers[0].as_py() if self.first < 0 else self.first
            self.last = numbers[-1].as_py()
            self.rows += len(rows)
            self._writer.write_batch(rows)

    def finish(self, *, again: bool = False) -> Path:
        """Renames the file to its range of numbers, and returns the path, which may exist only if `again`."""
        if self._waiting:
            self._write_group()
        self._writer.close()
        self._file.flush()
        sync_file(self._file.fileno())
        self._file.close()
        path = self.draft.with_name(f"{self.first:012d}-{self.last:012d}.parquet")
        if path.exists() and not again:
            raise FileExistsError(f"{path} is there already, and is not ours: remove it, or write to another directory")
        self.draft.rename(path)
        sync_directory(path.parent)
        return path

    def is_in_place(self) -> bool:
        try:
            return self.draft.stat().st_ino == self._inode
        except OSError:
            return False

    def abandon(self) -> None:
        self._writer.is_open = False  # else it would write its end when it is forgotten
        for step in (self.draft.unlink, self._file.close):  # the latter writes what is left, which may fail again
            with suppress(OSError):
                step()


def cut_file(path: Path, last: int, owner: str) -> None:
    """Keeps only the outputs up to a number, under another name. Raises OSError."""
    draft = path.with_name(f".{path.name}.draft")
    kept = ParquetFile(draft, owner)
    try:
        for batch in pq.ParquetFile(path).iter_batches(GROUP_ROWS, use_threads=False):
            kept.add_rows(batch.filter(pc.less_equal(batch["seq"], last)))
        if kept.rows:
            kept.finish(again=True)
    finally:
        kept.abandon()
    path.unlink()


def owner_of(path: Path) -> str | None:
    """Returns the id of the sink that wrote a file; None if none did or it is unreadable."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return None
    owner = metadata.get(OWNER)
    return None if owner is None else owner.decode("utf-8", "replace")


_NAME = re.compile(r"(\d{12,})-(\d{12,})\.parquet")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a sink writes: directory, owner id, and start of the open file in microseconds (None: none)."""

    directory: str
    owner: str
    opened: int | None = None


class ParquetSink(Sink):
    """A directory of complete files, named by the range of their outputs' numbers. A file is closed, and its outputs
    acknowledged, after a number of rows or a time. Outputs in a file still open at exit are written again, as are those
    in files past the position, which are removed first."""

    def __init__(self, options: ParquetOptions, position: Position, warn: Warn, now: Now = now_us) -> None:
        self._options, self._warn, self._now = options, warn, now
        self._acked = self._reached = position.acked
        self._place = _Place(**position.details) if "owner" in position.details else None
        self._file: ParquetFile | None = None
        self._swept = False

    def prepare(self, pending: Pending) -> bool:
        """Creates the directory, removes files past the position, and writes outputs of a lost open file again."""
        directory, before = self._options.path.absolute(), self._place
        if before is not None and not self._swept:
            self._sweep(Path(before.directory), before.owner)
        self._swept = True
        if not directory.is_dir():
            directory.mkdir()
        if before is None or before.directory != str(directory):
            if (found := next(_files(directory), None)) is not None:  # it could be taken for ours
                cause = f"{found[0]} is of another sink, or of a state that is gone"
                raise FileExistsError(f"{cause}: choose another directory, or move its files away")
            self._place = _Place(str(directory), uuid4().hex, None if before is None else before.opened)
        if self._file is not None and not self._file.is_in_place():
            self._warn(f"{self._file.draft} was removed or replaced: its outputs are written again")
            self._give_up()
        if self._file is None and self._reached > self._acked:
            self._add(list(takewhile(lambda output: output.seq <= self._reached, pending())))
        return self._place != before

    def write(self, outputs: Iterable[Output]) -> int:
        """Adds outputs and closes the file if due, also without outputs. Raises OSError."""
        count, last = 0, self._reached
        for some in in_batches(outputs, GROUP_ROWS, GROUP_ROWS, lambda output: 1):
            self._add(some)
            count, last = count + len(some), some[-1].seq
        file, closes_at = self._file, self.closes_at
        if file is not None and (file.rows >= self._options.rows or (closes_at or 0) <= self._now()):
            with self._giving_up():
                file.finish()
            assert self._place is not None
            self._acked, self._file, self._place = file.last, None, replace(self._place, opened=None)
        self._reached = last
        return count

    @property
    def closes_at(self) -> int | None:
        if self._file is None or self._place is None or self._place.opened is None:
            return None
        return self._place.opened + self._options.every_us

    def position(self) -> Position:
        return Position(self._acked, {} if self._place is None else asdict(self._place))

    def close(self) -> None:
        """Drops the open file, which is written again from the position on."""
        self._give_up()

    def _add(self, outputs: list[Output]) -> None:
        place = self._place
        assert place is not None, "prepare comes first"
        if not outputs:
            return
        with self._giving_up():
            if self._file is None:
                self._file = ParquetFile(Path(place.directory) / f".{place.owner}.draft", place.owner)
            self._file.add(outputs)
        if place.opened is None:
            self._place = replace(place, opened=self._now())

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.abandon()

    def _sweep(self, directory: Path, owner: str) -> None:
        with suppress(FileNotFoundError):
            (directory / f".{owner}.draft").unlink()
        for path, first, last in _files(directory):
            if last > self._acked and owner_of(path) == owner:
                if first > self._acked:
                    path.unlink()
                else:  # somebody asked for what comes after a number that is in the middle of it
                    cut_file(path, self._acked, owner)


def _files(directory: Path) -> Iterator[tuple[Path, int, int]]:
    """Yields files named like ours, with their first and last number."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if (found := _NAME.fullmatch(entry.name)) is not None:
                yield Path(entry.path), int(found[1]), int(found[2])
