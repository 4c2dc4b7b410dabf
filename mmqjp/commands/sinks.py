"""Where a run's data goes: standard output, or a file that appears whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click


def json_line(values: Mapping[str, object]) -> bytes:
    """A line of JSON in UTF-8."""
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


@contextmanager
def open_sink(path: Path | None) -> Iterator[BinaryIO]:
    """Standard output for None; else a file, put in the place of `path` when the block ends without an error.

    What is no regular file (a pipe, a device) is written to directly.
    """
    if path is None:
        stream = click.get_binary_stream("stdout")
        yield stream
        stream.flush()
        return
    target = path.resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


class DeadLetters:
    """The dead letters of a run: counted, the first reasons kept, all of them written if a file is named."""

    SHOWN = 3

    def __init__(self, path: Path | None) -> None:
        self.count = 0
        self.reasons: list[str] = []
        self._path = path
        self._file: BinaryIO | None = None

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Takes in those of a batch that is committed. The file is made, anew, for the first of them."""
        for row in rows:
            if len(self.reasons) < self.SHOWN:
                known = row["reason"].startswith(f"{row['id']}:")
                self.reasons.append(row["reason"] if known else f"{row['id']}: {row['reason']}")
            if self._path is not None:
                self._file = self._file or self._path.open("wb")
                self._file.write(json_line({**row, "raw": row["raw"].decode("utf-8", "backslashreplace")}))
        self.count += len(rows)
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
