"""Where a command writes its data, and how `run` counts, reports and writes dead letters.

The sinks and secrets of the configuration files, for the commands that deliver to sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click

from common.files import whole_file
from mmqjp.commands.options import read_configurations
from mmqjp.process import json_line
from mmqjp.sinks.definition import SinkTables, read_tables
from mmqjp.sinks.files import is_stream, refuse_missing_directory, standard_output
from mmqjp.sinks.secrets import BadSink


def check_output(output: Path | None) -> Path | None:
    """The file that --output names, or None for standard output.

    Raises OSError if it could not be written to: now, rather than after hours of work.
    """
    if output is None or str(output) == "-":
        standard_output()
        return None
    refuse_missing_directory(output)
    return output


@contextmanager
def data_file(path: Path | None) -> Iterator[BinaryIO]:
    """Standard output for None; else a file that appears, whole, when the block ends, or a pipe or device."""
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
    """The dead letters of a run: counts them, keeps the first reasons, and writes them to a file if one is named."""

    LISTED = 3

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            refuse_missing_directory(path)
        self.count = 0
        self.reasons: list[str] = []
        self._path = path
        self._file: BinaryIO | None = None

    def begin(self) -> None:
        """Empties the file if it exists: its content is from an earlier run."""
        if self._path is not None and self._path.is_file():
            self._file = self._path.open("wb")

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Adds the dead letters of a committed batch. The file is created for the first one."""
        for row in rows:
            if len(self.reasons) < self.LISTED:
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
        """Closes the file. Errors of writing were raised by `add`."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A dead letter in the form of its line."""
    raw = row["raw"].decode("utf-8", "backslashreplace")
    return {key: raw if key == "raw" else value for key, value in row.items() if key != "noted_at"}


def tables_of(context: click.Context) -> Callable[[], SinkTables]:
    """Returns what reads the sinks and secrets of the configuration that a command was called with, as its files have
    them now."""
    return partial(sinks_of, context.find_root().params.get("config"))


def sinks_of(chosen: Path | None) -> SinkTables:
    """Returns the sinks and secrets of a configuration file, or else of the default files. An earlier file takes
    precedence. Raises BadSink, also for a file that cannot be read."""
    found = SinkTables()
    try:
        for path, settings in read_configurations(chosen):
            found = found.over(read_tables(settings, path))
    except click.UsageError as error:
        raise BadSink(error.format_message()) from None
    return found
