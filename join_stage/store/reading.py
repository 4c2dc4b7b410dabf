"""Questions: untrusted SQL, of which a single SELECT over the relations of a store is answered. What engines share."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

import pyarrow as pa

from common.errors import InputError, OperationalError
from join_stage.store.schema import StoreSchema

LONGEST = 100_000
"""The largest number of characters of a question."""

ONLY_READ = "the tables are only read: write a SELECT"

_OF_THE_ENGINE = re.compile(r"^(?:duckdb|pragma|pg|sqlite)_|\W")
"""Matches the names of an engine's own relations and of files. A question must not give such a name to one of its CTEs:
elsewhere it could mean the other."""


class QuestionRefused(InputError, ValueError):
    """A question that is not answered; the message says why and what to do, in one line."""


class QuestionInterrupted(OperationalError, RuntimeError):
    """A question that was ended before it was answered."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest answer, in `rows` and in bytes (`size`) of Arrow. None is no bound."""

    rows: int | None = None
    size: int | None = None

    def check(self, rows: int, size: int) -> None:
        """Raises QuestionRefused for an answer of so many rows and bytes."""
        if self.rows is not None and rows > self.rows:
            raise QuestionRefused(f"the answer has more than {self.rows:,} rows: narrow it down, or raise --most-rows")
        if self.size is not None and size > self.size:
            raise QuestionRefused(
                f"the answer has more than {self.size:,} bytes: narrow it down, or raise --most-bytes"
            )


UNBOUNDED = Bounds()


class Question(Protocol):
    """A question over the tables. It sees the batches that are committed when it begins.

    It is answered once, in any thread, while other threads use the store.
    """

    def answer(self) -> pa.Table:
        """The answer. Raises QuestionRefused for what is no question or has too large an answer, QuestionInterrupted if
        it was interrupted, and StoreError if the store is damaged."""

    def interrupt(self) -> None:
        """Makes `answer` raise QuestionInterrupted soon. May be called from any thread, at any time, and repeatedly."""


def check_known(name: str, schema: StoreSchema, made: Collection[str]) -> None:
    """Raises QuestionRefused for the name of a relation that is neither in the schema nor in `made`, the CTEs of the
    question."""
    lower = name.lower()
    if schema.has(lower) or (lower in made and not _OF_THE_ENGINE.search(lower)):
        return
    close = get_close_matches(lower, [*schema.relations, *made], 1)
    numbered = f" and {schema.numbered.prefix}0, {schema.numbered.prefix}1, ..." if schema.numbered else ""
    advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(schema.documented)}{numbered}"
    raise QuestionRefused(f"there is no table {name!r:.80}; {advice}")


def short_enough(sql: str) -> None:
    """Raises QuestionRefused for SQL that is too long to be read."""
    if len(sql) > LONGEST:
        raise QuestionRefused(f"the question has {len(sql):,} characters, and at most {LONGEST:,} are read")


def measured(chunks: pa.RecordBatchReader, bounds: Bounds) -> pa.Table:
    """The rows of a reader, which is read no further than the bounds go. Raises QuestionRefused."""
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for chunk in chunks:
        rows, size = rows + chunk.num_rows, size + chunk.nbytes
        bounds.check(rows, size)
        found.append(chunk)
    return pa.Table.from_batches(found, chunks.schema)


def parts_of(root: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value, such as a parsed question."""
    waiting = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
