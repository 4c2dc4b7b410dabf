"""Where a run's data goes, and what becomes of its dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from common.whole_file import whole_file
from mmqjp.sinks.jsonl import is_stream, refuse_missing_directory
from mmqjp.sinks.standard_output import standard_output
from mmqjp.text import json_line


def checked(output: Path | None) -> Path | None:
    """The file that --output names, None for standard output. Raises OSError if nothing could be written there: now
    rather than after hours."""
    if output is None or str(output) == "-":
        standard_output()
        return None
    refuse_missing_directory(output)
    return output


@contextmanager
def data_file(path: Path | None) -> Iterator[BinaryIO]:
    """Standard output for None; else a file that appears whole when the block ends, or a pipe or device as it is."""
    if path is None:
        file = standard_output()
        yield file
        file.flush()
    elif is_stream(path):
        with path.open("wb") as file:
            yield file
    else:
        with whole_file(path) as file:
            yield file


class DeadLetters:
    """The dead letters of a run: counted, the first reasons kept, all of them written if a file is named."""

    SHOWN = 3

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            refuse_missing_directory(path)
        self.count = 0
        self.reasons: list[str] = []
        self._path = path
        self._file: BinaryIO | None = None

    def begin(self) -> None:
        """Empties the file if there is one: what it has is of another run."""
        if self._path is not None and self._path.is_file():
            self._file = self._path.open("wb")

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Takes in those of a batch that is committed. For the first of them the file is made, if there is none."""
        for row in rows:
            if len(self.reasons) < self.SHOWN:
                known = row["reason"].startswith(f"{row['id']}:")
                self.reasons.append(row["reason"] if known else f"{row['id']}: {row['reason']}")
        self.count += len(rows)
        if self._path is None or not rows:
            return
        try:
            self._file = self._file or self._path.open("wb")
            self._file.writelines(json_line(_shown(row)) for row in rows)
            self._file.flush()
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise

    def close(self) -> None:
        """Lets go of the file; what could not be written is told by then."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A dead letter as a line shows it."""
    raw = row["raw"].decode("utf-8", "backslashreplace")
    return {key: raw if key == "raw" else value for key, value in row.items() if key != "noted_at"}
