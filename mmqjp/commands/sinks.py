"""Where commands write their data: output files, dead letters, and the configured sinks. `run` counts and reports dead
letters and writes them to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click

from common.files import whole_file
from mmqjp.commands.configuration import read_configurations
from mmqjp.process import json_line, standard_output
from mmqjp.sinks.definition import SinkTables, read_tables
from mmqjp.sinks.files import is_stream, refuse_missing_directory
from mmqjp.sinks.secrets import BadSink


def check_output(output: Path | None) -> Path | None:
    """Returns the file of --output, or None for standard output. Raises OSError up front if it is not writable."""
    if output is None or str(output) == "-":
        standard_output()
        return None
    refuse_missing_directory(output)
    return output


@contextmanager
def data_file(path: Path | None) -> Iterator[BinaryIO]:
    """Yields standard output for None, a pipe or device, or a file that appears atomically at the end."""
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
    """Counts a run's dead letters, keeps the first reasons, and writes them to an optional file."""

    LISTED = 3

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            refuse_missing_directory(path)
        self.count = 0
        self.reasons: list[str] = []
        self._path = path
        self._file: BinaryIO | None = None

    def begin(self) -> None:
        if self._path is not None and self._path.is_file():
            self._file = self._path.open("wb")

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Adds a committed batch's dead letters; the first one creates the file."""
        for row in rows:
            if len(self.reasons) < self.LISTED:
                known = row["reason"].startswith(f"{row['id']}:")
                self.reasons.append(row["reason"] if known else f"{row['id']}: {row['reason']}")
        self.count += len(rows)
        if self._path is None or not rows:
            return
        try:
            self._file = self._file or self._path.open("wb")
            for row in rows:
                shown = row | {"raw": row["raw"].decode("utf-8", "backslashreplace")}
                self._file.write(json_line({key: value for key, value in shown.items() if key != "noted_at"}))
            self._file.flush()
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


def tables_of(context: click.Context) -> Callable[[], SinkTables]:
    """Returns a function that reads the sinks and secrets of the command's configuration, afresh on each call."""
    return partial(sinks_of, context.find_root().params.get("config"))


def sinks_of(chosen: Path | None) -> SinkTables:
    """Returns the sinks and secrets of a file, else of the default files, earlier ones first. Raises BadSink, also for
    an unreadable file."""
    found = SinkTables()
    try:
        for path, settings in read_configurations(chosen):
            found = found.over(read_tables(settings, path))
    except click.UsageError as error:
        raise BadSink(error.format_message()) from None
    return found
