"""Documents from JSON lines, plain or compressed: one a line, a bad line never stops the rest."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from feeds.document import DEFAULT_STREAM, Clock, Document, Reject, unix_time_refusal
from feeds.files import MAX_BYTES, RAW_KEPT, TooLargeError, printable

_BLOCK = 1024 * 1024


def read_jsonl(path: Path, now: Clock, max_line: int = MAX_BYTES) -> Iterator[Document | Reject]:
    """The documents of a `.jsonl` or `.jsonl.gz` file, in its order; blank lines are skipped."""
    name = printable(str(path))
    number = 0
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(_lines(cast(BinaryIO, file), max_line), 1):
                where = f"{name}:{number}"
                if isinstance(line, TooLargeError):
                    yield Reject(where, DEFAULT_STREAM, None, f"{where}: the line is {line}", line.head)
                elif line.strip():
                    yield read_line(line, where, now)
        except (OSError, EOFError, zlib.error) as error:
            where = f"{name}:{number + 1}"
            yield Reject(where, DEFAULT_STREAM, None, f"{where}: the file cannot be read further: {error}", b"")


def follow_jsonl(
    path: Path, start: int, now: Clock, max_line: int = MAX_BYTES, stop: int | None = None
) -> Iterator[tuple[Document | Reject | None, int]]:
    """The documents of a `.jsonl` file that grows, from byte `start` on, each with the byte behind its line.

    A blank line gives None. A last line that is not ended yet is left for later, unless it is a whole object. A file
    that is shorter than `start` was written anew, and is read from its beginning. No line is read that begins at byte
    `stop` or behind it.
    """
    name = printable(str(path))
    end = start
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < start:
                end = 0
            file.seek(end)
            for line in _lines(file, max_line):
                if stop is not None and end >= stop:
                    return
                where = f"{name}: byte {end}"
                if isinstance(line, TooLargeError):
                    end = file.tell()
                    yield Reject(where, DEFAULT_STREAM, None, f"{where}: the line is {line}", line.head), end
                elif not line.strip() and line.endswith(b"\n"):
                    yield None, (end := end + len(line))
                else:
                    item = read_line(line, where, now) if line.strip() else None
                    if not line.endswith(b"\n") and not isinstance(item, Document):
                        return
                    yield item, (end := end + len(line))
    except OSError as error:
        yield Reject(name, DEFAULT_STREAM, None, f"{name}: cannot be read: {error.strerror or error}", b""), end


def line_ends(path: Path, start: int, most: int, most_bytes: int, max_line: int = MAX_BYTES) -> tuple[int, list[int]]:
    """Where the next lines end that `follow_jsonl` would read of a file, from where on: at most `most` lines, and no
    more once they have `most_bytes`. Lines are not read further than that. Raises OSError."""
    ends: list[int] = []
    with path.open("rb") as file:
        begin = start if file.seek(0, os.SEEK_END) >= start else 0
        file.seek(begin)
        end = begin
        for line in _lines(file, max_line):
            whole = isinstance(line, TooLargeError) or line.endswith(b"\n")
            if not whole and not isinstance(read_line(cast(bytes, line), "", lambda: 0), Document):
                break
            end = file.tell()
            ends.append(end)
            if len(ends) >= most or end - begin >= most_bytes:
                break
    return begin, ends


def _lines(file: BinaryIO, limit: int) -> Iterator[bytes | TooLargeError]:
    while line := file.readline(limit + 1):
        if len(line) <= limit or line.endswith(b"\n"):
            yield line
            continue
        yield TooLargeError(line)
        while line and not line.endswith(b"\n"):
            line = file.readline(_BLOCK)


def read_line(line: bytes, where: str, now: Clock) -> Document | Reject:
    """The document of a line; `where` says in words where that stands, and is the id of what has none."""
    found: dict[str, Any] = {}
    try:
        found = _object(line)
        missing = [key for key in ("id", "xml") if key not in found]
        if missing:
            raise ValueError(f'the key "{missing[0]}" is missing')
        if not isinstance(found["xml"], str):
            raise ValueError('"xml" is not a string')
        if (refusal := unix_time_refusal(time := found.get("time"))) is not None:
            raise ValueError(refusal)
        return Document(found["id"], found["xml"], found.get("stream", DEFAULT_STREAM), time, now=now)
    except (ValueError, RecursionError) as error:
        cause = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        id, stream = found.get("id"), found.get("stream")
        return Reject(
            id=printable(id) if isinstance(id, str) and id else where,
            stream=printable(stream) if isinstance(stream, str) and stream else DEFAULT_STREAM,
            time=None,
            reason=f"{where}: {printable(cause)}",
            raw=line[:RAW_KEPT],
        )


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(found, dict):
        raise ValueError('not a JSON object such as {"id": "d1", "stream": "S", "time": "2026-05-04", "xml": "<a/>"}')
    return found
