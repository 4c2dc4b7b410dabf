"""One Parquet file of outputs: it grows under a hidden name, and appears whole under its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.whole_file import sync_directory, sync_file
from mmqjp.answers.output import Output, json_nodes

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("query", pa.string()),
        pa.field("t0", pa.timestamp("us", "UTC")),
        pa.field("t1", pa.timestamp("us", "UTC")),
        pa.field("documents", pa.list_(pa.string())),
        pa.field("streams", pa.list_(pa.string())),
        pa.field("nodes", pa.string()),
        pa.field("xml", pa.string()),
    ]
)
"""The columns: those of an output line, with times as such and `nodes` as JSON."""

GROUP_ROWS, GROUP_CHARACTERS = 10_000, 16 << 20
"""So many outputs, or characters of XML, are in memory before they become a row group."""

OWNER = b"mmqjp.sink"
"""The key of a file's metadata with the id of the sink that wrote it."""


class ParquetFile:
    """A file that grows. Outputs come in the order of `seq`."""

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
        """Adds outputs. Raises OSError, after which the file is of no use."""
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
        self._writer.write_table(_table(waiting))

    def add_rows(self, rows: pa.RecordBatch) -> None:
        """Adds rows of another file. Raises OSError."""
        if len(rows):
            numbers = rows["seq"]
            self.first = numbers[0].as_py() if self.first < 0 else self.first
            self.last = numbers[-1].as_py()
            self.rows += len(rows)
            self._writer.write_batch(rows)

    def finish(self, *, again: bool = False) -> Path:
        """Makes the file appear under its name, which says what it has, and returns its path. It may be there already
        if this is done `again`. Raises OSError."""
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
        """Returns whether the draft is where it was made, and not removed or moved by others."""
        try:
            return self.draft.stat().st_ino == self._inode
        except OSError:
            return False

    def abandon(self) -> None:
        """Gives up the file, and removes its draft if it is there."""
        self._writer.is_open = False  # else it would write its end when it is forgotten
        for step in (self.draft.unlink, self._file.close):  # the latter writes what is left, which may fail again
            with suppress(OSError):
                step()


def cut_file(path: Path, last: int, owner: str) -> None:
    """Leaves only the outputs up to a number in a file, under another name. Raises OSError."""
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
    """Returns the id of the sink that wrote a Parquet file; None if none did, or it cannot be read."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return None
    owner = metadata.get(OWNER)
    return None if owner is None else owner.decode("utf-8", "replace")


def _table(outputs: Sequence[Output]) -> pa.Table:
    columns = {
        "id": [output.id for output in outputs],
        "seq": [output.seq for output in outputs],
        "query": [output.query for output in outputs],
        "t0": [output.t0 for output in outputs],
        "t1": [output.t1 for output in outputs],
        "documents": [list(output.documents) for output in outputs],
        "streams": [list(output.streams) for output in outputs],
        "nodes": [json_nodes(output.nodes) for output in outputs],
        "xml": [output.xml for output in outputs],
    }
    return pa.table(columns, schema=SCHEMA)
