"""The outputs of a batch whose answers, and output lines, executors have put into files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from mmqjp.answers.answer_rows import by_answer
from mmqjp.answers.fan_out import FanOut, OutputChunk, OutputLines
from mmqjp.answers.outputs import Chunk, Outputs
from mmqjp.queries.members import Members
from mmqjp.tables.answers import TABLES

Stored = Callable[[int], Iterator[Chunk]]
"""Returns the stored outputs with numbers greater than the given one, in the order of their numbers."""


class Piece(NamedTuple):
    """Output lines that follow each other in a file: their bytes, their number, and the greatest `seq`."""

    size: int
    lines: int
    greatest: int


@dataclass(frozen=True, slots=True)
class RangeFiles:
    """What was written of a range of times: the file of each table, and that of the output lines, in pieces."""

    tables: Mapping[str, Path]
    lines: Path
    pieces: Sequence[Piece]


class WrittenOutputs(Outputs):
    """The outputs with the numbers `seqs`, which are read a piece at a time when they are asked for. What is not in its
    file any more is read from the store."""

    def __init__(
        self, ranges: Sequence[RangeFiles], members: Mapping[str, Members], seqs: range, stored: Stored
    ) -> None:
        """`ranges` are in the order of their times, and `members` has those of each form."""
        parts = [partial(_fan_out, one.tables, members) for one in ranges if "answers" in one.tables]
        super().__init__(lambda: _chunks(parts, seqs, stored), len(seqs))
        self._ranges, self._seqs, self._from_store = ranges, seqs, stored

    def lines(self) -> Iterator[OutputLines]:
        given = 0
        for one in self._ranges:
            try:
                for lines in _lines_in(one):
                    yield lines
                    given += lines.count
            except FileNotFoundError:
                for chunk in _stored_between(self._seqs.start + given, self._seqs.stop, self._from_store):
                    yield chunk.lines()
                return


def _lines_in(one: RangeFiles) -> Iterator[OutputLines]:
    if one.pieces:
        with one.lines.open("rb") as file:
            for size, count, greatest in one.pieces:
                yield OutputLines(file.read(size), count, greatest)


def _chunks(parts: Sequence[Callable[[], FanOut]], seqs: range, stored: Stored) -> Iterator[OutputChunk]:
    given = 0
    for part in parts:
        try:
            fan_out = part()
        except FileNotFoundError:
            yield from _stored_between(seqs.start + given, seqs.stop, stored)
            return
        for chunk in fan_out.chunks():
            given += len(chunk)
            yield chunk


def _stored_between(seq: int, end: int, stored: Stored) -> Iterator[OutputChunk]:
    """Yields the stored outputs from a number on and before another one."""
    for chunk in stored(seq - 1):
        assert isinstance(chunk, OutputChunk), "outputs of earlier formats came before"
        some = chunk.until(end)
        yield some
        if len(some) < len(chunk):
            return


def _fan_out(files: Mapping[str, Path], members: Mapping[str, Members]) -> FanOut:
    withheld = files.get("withheld")
    rows = TABLES["withheld"].empty_table() if withheld is None else pq.read_table(withheld)
    return FanOut(pq.read_table(files["answers"]), members, by_answer(rows))
