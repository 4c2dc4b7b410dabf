"""Documents from JSON lines, plain or compressed: one per line. A bad line does not stop the rest."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, cast

from feeds.document import DEFAULT_STREAM, Document, Reject
from feeds.files import MAX_BYTES, RAW_KEPT, TooLargeError, printable
from feeds.fingerprints import Fingerprinter, has_fingerprint
from feeds.kinds import is_compressed
from feeds.times import Now, unix_time_refusal
from feeds.unreadable import ReplacedError, is_unreadable

_BLOCK = 1024 * 1024


def read_jsonl(path: Path, now: Now, max_line: int = MAX_BYTES) -> Iterator[Document | Reject]:
    """The documents of a `.jsonl` or `.jsonl.gz` file, in its order; blank lines are skipped. Raises OSError if it
    cannot be read."""
    name = printable(str(path))
    number = 0
    with path.open("rb") as raw, gzip.open(raw) if is_compressed(path.name) else nullcontext(raw) as file:
        try:
            for number, line in enumerate(_lines(cast(BinaryIO, file), max_line), 1):
                where = f"{name}:{number}"
                if isinstance(line, TooLargeError):
                    yield Reject(where, DEFAULT_STREAM, None, f"{where}: the line is {line}", line.head)
                elif line.strip():
                    yield read_line(line, where, now)
        except (OSError, EOFError, zlib.error) as error:
            if is_unreadable(error):
                raise
            where = f"{name}:{number + 1}"
            yield Reject(where, DEFAULT_STREAM, None, f"{where}: the file cannot be read further: {error}", b"")


def follow_jsonl(
    path: Path,
    start: int,
    now: Now,
    max_line: int = MAX_BYTES,
    stop: int | None = None,
    fingerprint: str = "",
    stop_fingerprint: str = "",
) -> Iterator[tuple[Document | Reject | None, int, str]]:
    """The documents of a `.jsonl` file that grows, from byte `start` on, each with the byte behind its line and the
    fingerprint there.

    A blank line gives None. A last line that is not ended yet is left for later, unless it is a whole object. Only
    lines that begin before byte `stop` are read. Raises ReplacedError for a file that has not the fingerprints at
    `start` and at `stop`, and OSError if it cannot be read.
    """
    name = printable(str(path))
    with path.open("rb") as file:
        if stop is not None and not has_fingerprint(file, stop, stop_fingerprint):
            raise ReplacedError(f"{name} was replaced")
        fingerprinter, end = _opened_at(file, start, fingerprint), start
        for line in _lines(file, max_line):
            if stop is not None and end >= stop:
                return
            where = f"{name}: byte {end}"
            if isinstance(line, TooLargeError):
                end = file.tell()
                refused = Reject(where, DEFAULT_STREAM, None, f"{where}: the line is {line}", line.head)
                yield refused, end, fingerprinter.after(None)
                continue
            item = read_line(line, where, now) if line.strip() else None
            if not line.endswith(b"\n") and not isinstance(item, Document):
                return
            yield item, (end := end + len(line)), fingerprinter.after(line)


def line_ends(
    path: Path, start: int, most: int, most_bytes: int, max_line: int = MAX_BYTES, fingerprint: str = ""
) -> list[tuple[int, str]]:
    """Where the next lines end that `follow_jsonl` would read of a file, with the fingerprints there: at most `most`
    lines, and no more once they have `most_bytes` or cannot be read. Raises as `follow_jsonl` does if not even the
    first can be read."""
    ends: list[tuple[int, str]] = []
    with path.open("rb") as file:
        fingerprinter = _opened_at(file, start, fingerprint)
        try:
            for line in _lines(file, max_line):
                if isinstance(line, TooLargeError):
                    ends.append((file.tell(), fingerprinter.after(None)))
                elif line.endswith(b"\n") or isinstance(read_line(line, "", lambda: 0), Document):
                    ends.append((file.tell(), fingerprinter.after(line)))
                else:
                    break
                if len(ends) >= most or ends[-1][0] - start >= most_bytes:
                    break
        except OSError:
            if not ends:
                raise
    return ends


def _opened_at(file: BinaryIO, start: int, fingerprint: str) -> Fingerprinter:
    """Moves a file to byte `start`, where it must have the fingerprint, and returns what makes its next ones."""
    if not has_fingerprint(file, start, fingerprint):
        raise ReplacedError(f"{printable(file.name)} was replaced")
    fingerprinter = Fingerprinter(file, start)
    file.seek(start)
    return fingerprinter


def _lines(file: BinaryIO, limit: int) -> Iterator[bytes | TooLargeError]:
    while line := file.readline(limit + 1):
        if len(line) <= limit or line.endswith(b"\n"):
            yield line
            continue
        yield TooLargeError(line)
        while line and not line.endswith(b"\n"):
            line = file.readline(_BLOCK)


def read_line(line: bytes, where: str, now: Now) -> Document | Reject:
    """The document in a line. `where` names the line in words, and is the id of a reject that has none."""
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
