"""The drop directory of a crawl: `SOURCE/<fetched-at>-<sha256>.xml`, each with a sidecar `.json` about the fetch.

Both are written under other names and then renamed, the `.json` before the `.xml`: whoever sees a feed's file sees all
of it, and its sidecar. Names sort by the time of the fetch. A JSON Feed is kept in an `.xml` too, because readers look
at the content.

Reads feed files, each with its sidecar's notes on the fetch.

Fingerprints tell which JSON lines file was read so far, whatever it is called now.

A fingerprint has the file's inode, a digest of how the file begins, and a checksum of what was read last. The content
decides: it tells a copy of the file from another file that took its name. An inode may be given again, so it only says
where to look.

Documents from JSON lines, plain or compressed: one per line. A bad line does not stop the rest.

How far the files of sources are read.

The order in which files are read: that of their fetches.

Tells files that cannot be read now, but maybe later, from files with bad content.

Reads crawls in WARC files: responses and resources that hold XML or feeds, with the times of their records.

Reads an XML file as one document, whose time is in the document or the file's.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from zlib import crc32

from warcio.archiveiterator import ArchiveIterator

from common.errors import InvalidValue, OperationalError
from feeds.documents import (
    DEFAULT_STREAM,
    EPOCH,
    Document,
    Now,
    Reject,
    TimeReader,
    from_datetime,
    iso_utc,
    parse_iso,
    unix_time_refusal,
)
from feeds.feed import EntryForm, is_json_feed, read_entries
from feeds.files import (
    FEED_SUFFIXES,
    MAX_BYTES,
    RAW_KEPT,
    SIDECAR_SUFFIX,
    FileKind,
    TooLargeError,
    is_compressed,
    kind_of_body,
    kind_of_file,
    modified_us,
    printable,
    read_file,
)
from feeds.history import InputItem
from feeds.items import LONGEST_TITLE, Origin, bounded_folders, one_line, without_credentials

_STEM = re.compile(r"(\d{8}T\d{6})(\d{6})?Z-([0-9a-f]{12,64})")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The notes on a fetch: `url` is the feed's address in the subscription, which stays when the feed moves, or its
    name in the crawl; `final_url` is the address that answered; `fetched` is in microseconds. `title` and `folders` are
    what the reader calls the feed, and where it is in the reader's list. "", () and None: not noted.
    """

    url: str = ""
    fetched: int | None = None
    final_url: str = ""
    status: int = 200
    etag: str = ""
    last_modified: str = ""
    content_type: str = ""
    sha256: str = ""
    title: str = ""
    folders: tuple[str, ...] = ()


def drop_stem(fetched: int, sha256: str) -> str:
    """The name, without suffix, of a version that was fetched at a time (microseconds) and has a hash (hexadecimal).

    >>> drop_stem(1778068800000001, "5bac81b4bd80")
    '20260506T120000000001Z-5bac81b4bd80'
    """
    return f"{EPOCH + timedelta(microseconds=fetched):%Y%m%dT%H%M%S%f}Z-{sha256}"


def read_stem(stem: str) -> tuple[int, str] | None:
    """The time and the hash in such a name; None for any other. Older crawls give the time to the second."""
    match = _STEM.fullmatch(stem)
    if match is None:
        return None
    try:
        moment = datetime.strptime(f"{match[1]}{match[2] or '000000'}", "%Y%m%dT%H%M%S%f")
    except ValueError:
        return None
    return from_datetime(moment), match[3]


def sidecar_json(sidecar: Sidecar) -> bytes:
    """The content of a sidecar."""
    notes = {
        "url": sidecar.url,
        "final_url": sidecar.final_url,
        "status": sidecar.status,
        "fetched_at": None if sidecar.fetched is None else iso_utc(sidecar.fetched),
        "etag": sidecar.etag,
        "last_modified": sidecar.last_modified,
        "content_type": sidecar.content_type,
        "sha256": sidecar.sha256,
        "title": sidecar.title,
        "folders": list(sidecar.folders),
    }
    return json.dumps(notes, ensure_ascii=False, indent=1).encode("utf-8", "replace") + b"\n"


def read_sidecar(path: Path) -> Sidecar | None:
    """The notes in a JSON file; None if it is a feed itself. Raises InvalidValue and OSError if it cannot be read."""
    try:
        notes = json.loads(read_file(path))
    except RecursionError:
        raise InvalidValue("JSON nested too deeply") from None
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    if is_json_feed(notes):
        return None
    if not isinstance(notes, dict):
        raise InvalidValue("a sidecar is a JSON object")
    fetched, status, folders = notes.get("fetched_at"), notes.get("status"), notes.get("folders")
    told = folders if isinstance(folders, list) else []
    return Sidecar(
        url=without_credentials(next(filter(None, (_text(notes, key) for key in ("url", "feed_url", "source"))), "")),
        fetched=parse_iso(fetched) if isinstance(fetched, str) else None,
        final_url=without_credentials(_text(notes, "final_url")),
        status=status if isinstance(status, int) else 200,
        etag=_text(notes, "etag"),
        last_modified=_text(notes, "last_modified"),
        content_type=_text(notes, "content_type"),
        sha256=_text(notes, "sha256"),
        title=_text(notes, "title")[:LONGEST_TITLE].strip(),
        folders=bounded_folders(one_line(one) for one in told if isinstance(one, str)),
    )


def sidecar_of(path: Path) -> Sidecar | None:
    """The notes beside a feed's file; None if there are none. Raises InvalidValue or OSError if they are unreadable."""
    beside = sidecar_path(path)
    return None if beside is None else read_sidecar(beside)


def sidecar_path(path: Path) -> Path | None:
    """The path of the sidecar beside a feed's file; None if there is none. Raises OSError if that cannot be seen."""
    beside = path.with_suffix(SIDECAR_SUFFIX)
    try:
        return beside if beside != path and beside.is_file() else None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # no file can have this name
            return None
        raise


def _text(notes: dict[str, Any], key: str) -> str:
    value = notes.get(key)
    return one_line(value) if isinstance(value, str) else ""


def read_feed_file(path: Path, name: str, form: EntryForm) -> Iterator[InputItem]:
    """What `read_entries` gives of a feed file; nothing if the file is another feed's sidecar. Raises OSError if it or
    its sidecar cannot be read: without the sidecar it would be taken for another feed."""
    try:
        if path.suffix.lower() == SIDECAR_SUFFIX and _is_sidecar(path):
            return
        data, modified = read_file(path), modified_us(path)
    except TooLargeError as error:
        yield Reject(name, DEFAULT_STREAM, None, f"{name}: the feed is {error}", error.head)
        return
    sidecar = Sidecar()
    try:
        sidecar = sidecar_of(path) or sidecar
    except ValueError as error:
        reason = f"{name}: its sidecar {path.with_suffix(SIDECAR_SUFFIX).name} cannot be used: {error}"
        yield Reject(name, DEFAULT_STREAM, modified, reason, b"")
    fetched = sidecar.fetched
    if fetched is None and (named := read_stem(path.stem)):
        fetched = named[0]
    answer = sidecar.final_url, sidecar.content_type
    origin = Origin(name, modified, sidecar.url, fetched, *answer, sidecar.title, sidecar.folders)
    yield from read_entries(data, origin, form)


def _is_sidecar(path: Path) -> bool:
    """Whether a JSON file is a sidecar: its name says so (its feed may not be there yet), or the feed beside it and its
    content do."""
    if read_stem(path.stem) is not None:
        return True
    if not any(path.with_suffix(suffix).is_file() for suffix in FEED_SUFFIXES if suffix != SIDECAR_SUFFIX):
        return False
    try:
        return read_sidecar(path) is not None
    except ValueError:
        return True


HEAD = 4096
"""The digest covers at most this many bytes from the file's beginning."""

LAST = 64
"""The checksum covers at most this many of the bytes that were read last."""


class Fingerprint(NamedTuple):
    """The digest is of the first `head` bytes, the checksum of the `last` bytes before the position."""

    inode: int
    head: int
    digest: str
    last: int
    checksum: int

    def fits(self, head: bytes, file: BinaryIO, position: int) -> bool:
        """Whether a file that begins with `head` has the content that was read up to a position."""
        if digest_of(head[: self.head]) != self.digest or len(head) < self.head:
            return False
        file.seek(position - self.last)
        return crc32(file.read(self.last)) == self.checksum


def parse_fingerprint(text: str) -> Fingerprint | None:
    """The fingerprint in a text as `Fingerprinter` writes it; None for "", which stands for none."""
    if not text:
        return None
    inode, head, digest, last, checksum = text.split()
    return Fingerprint(int(inode), int(head), digest, int(last), int(checksum))


def with_inode(text: str, path: Path) -> str:
    """A fingerprint with the inode of a file that has the same content, such as a copy."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return text
    return " ".join([str(inode), *text.split()[1:]])


def digest_of(head: bytes) -> str:
    """The digest of how a file begins."""
    return blake2b(head, digest_size=12).hexdigest()


def has_fingerprint(file: BinaryIO, position: int, fingerprint: str) -> bool:
    """Whether a file has the content that was read up to a position. Without a fingerprint, as in older stores, whether
    it is long enough."""
    if os.fstat(file.fileno()).st_size < position:
        return False
    found = parse_fingerprint(fingerprint)
    if found is None or position == 0:
        return True
    file.seek(0)
    return found.fits(file.read(found.head), file, position)


class Fingerprinter:
    """Makes the fingerprints of a file that is read line by line from a position on."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._inode = os.fstat(file.fileno()).st_ino
        file.seek(0)
        self._head = file.read(min(start, HEAD))
        self._begin()

    def _begin(self) -> None:
        self._prefix = f"{self._inode} {len(self._head)} {digest_of(self._head)}"

    def after(self, line: bytes | None) -> str:
        """The fingerprint behind the next line. None stands for a line that is not in memory."""
        if line is None:
            return f"{self._prefix} 0 0"
        if len(self._head) < HEAD:
            self._head += line[: HEAD - len(self._head)]
            self._begin()
        last = line[-LAST:]
        return f"{self._prefix} {len(last)} {crc32(last)}"


class ReplacedError(OperationalError, OSError):
    """The file is not the one that was to be read, or no longer. The next look finds out what it is."""


def is_unreadable(error: BaseException) -> bool:
    """Whether the system refuses to read (permissions, a bad disk, a file that has gone), and not a library that does
    not understand the content: some of those errors are OSErrors too, but have no number."""
    return isinstance(error, OSError) and (error.errno is not None or isinstance(error, ReplacedError))


def read_error_text(error: OSError) -> str:
    """Why a file cannot be read."""
    return f"cannot be read: {error.strerror or error}"


def or_reject(items: Iterable[InputItem], name: str) -> Iterator[InputItem]:
    """The items of a file, and a Reject if it cannot be read further: for readers that do not come back."""
    try:
        yield from items
    except OSError as error:
        if not is_unreadable(error):
            raise
        yield Reject(name, DEFAULT_STREAM, None, f"{name}: {read_error_text(error)}", b"")


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


ALL_READ = -1
"""The position of a file that is read to its end and not looked at again."""


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a file of a source was read: a byte of a JSON lines file, else a number of items, or ALL_READ.

    `fingerprint` tells which JSON lines file that was (see `feeds.readers`); "" if it is not known.
    """

    source: str
    file: str
    position: int
    fingerprint: str = ""


Positions = Mapping[tuple[str, str], Offset]
"""How far files were read, by source and file name."""


FINAL_URI = "WARC-Final-URI"
"""A field of our own: the address that answered. The record's target is the address in the subscription."""

TITLE, FOLDER = "WARC-Feed-Title", "WARC-Feed-Folder"
"""Fields of our own: what the reader calls the feed, and each folder of the reader's list that it is in."""

_HEAD = 64 * 1024


def read_warc(path: Path, feeds: EntryForm | None, max_bytes: int = MAX_BYTES) -> Iterator[InputItem]:
    """The items of the archive in its order. Other records (requests, pages, pictures, failures) are passed over.

    Without `feeds` each XML body is a document: its id is the address and the record's date, its stream S. With it, the
    entries of feeds are read: the address is the feed's, the record's date the time of the fetch. Raises OSError if the
    archive cannot be read.
    """
    name = printable(str(path))
    with path.open("rb") as file:
        bodies = _bodies(file, name, feeds is not None, max_bytes)
        while True:
            # warcio does not look whether what it reads is there: damage shows as any kind of exception.
            try:
                body = next(bodies, None)
            except Exception as error:
                if is_unreadable(error):
                    raise
                yield Reject(name, DEFAULT_STREAM, None, f"{name}: the archive cannot be read further: {error}", b"")
                return
            if body is None:
                return
            yield from _documents(body, name, feeds, max_bytes)


def first_date(path: Path) -> int | None:
    """The date of the archive's first record, microseconds; None if it has none that can be read. Raises OSError."""
    with path.open("rb") as file:
        try:
            record = next(iter(ArchiveIterator(file)))
            return parse_iso(record.rec_headers.get_header("WARC-Date") or "")
        except Exception:  # damage shows as any kind of exception
            return None


@dataclass(frozen=True, slots=True)
class _Body:
    """The content of a record: at most one byte more than is allowed. `cut`: the archive ends before the record
    does."""

    address: str
    date: str
    final: str
    content_type: str
    title: str
    folders: tuple[str, ...]
    data: bytes
    cut: bool


def _bodies(file: BinaryIO, name: str, feeds: bool, max_bytes: int) -> Iterator[_Body]:
    for record in ArchiveIterator(file):
        if record.rec_type not in ("response", "resource") or not _succeeded(record):
            continue
        body = record.content_stream()
        head = body.read(_HEAD)
        if not (kind_of_body(head) == "feed" if feeds else _is_xml(record, head)):
            continue
        data = head + body.read(max(0, max_bytes + 1 - len(head)))
        if len(data) <= max_bytes:
            while record.raw_stream.read(_HEAD):
                pass
        yield _Body(
            address=without_credentials(one_line(record.rec_headers.get_header("WARC-Target-URI") or name)).strip("<>"),
            date=record.rec_headers.get_header("WARC-Date") or "",
            final=without_credentials(one_line(record.rec_headers.get_header(FINAL_URI) or "")),
            content_type=_content_type(record),
            title=next(_fields(record, TITLE), "")[:LONGEST_TITLE].strip(),
            folders=bounded_folders(_fields(record, FOLDER)),
            data=data,
            cut=len(data) <= max_bytes and record.raw_stream.limit > 0,
        )


def _fields(record: Any, name: str) -> Iterator[str]:
    """The values of a record's field, which may be repeated."""
    return (one_line(value) for key, value in record.rec_headers.headers if key.lower() == name.lower())


def _succeeded(record: Any) -> bool:
    return record.http_headers is None or record.http_headers.get_statuscode() == "200"


def _documents(body: _Body, name: str, feeds: EntryForm | None, max_bytes: int) -> Iterator[InputItem]:
    id = f"{body.address} {body.date}".strip()
    cause = ""
    time = 0
    try:
        time = parse_iso(body.date)
    except ValueError as error:
        cause = f"the record's date: {error}"
    if len(body.data) > max_bytes:
        cause = f"larger than {max_bytes} bytes"
    elif body.cut:
        cause = "the archive ends within the record"
    if cause:
        yield Reject(id, DEFAULT_STREAM, None, f"{name}: {id}: {cause}", body.data[:RAW_KEPT])
    elif feeds:
        origin = Origin(id, time, body.address, time, body.final, body.content_type, body.title, body.folders)
        yield from read_entries(body.data, origin, feeds)
    else:
        yield Document(id, body.data, DEFAULT_STREAM, time)


def _content_type(record: Any) -> str:
    headers = record.http_headers or record.rec_headers
    return str(headers.get_header("Content-Type") or "")


def _is_xml(record: Any, head: bytes) -> bool:
    kind = _content_type(record).partition(";")[0].strip().lower()
    return kind in ("application/xml", "text/xml") or kind.endswith("+xml") or head.lstrip().startswith(b"<?xml")


def fetch_time(path: Path) -> int:
    """When the content of a file was fetched, in microseconds: its name tells, else the first record of an archive or
    the sidecar, else the file's time; 0 if the file has gone."""
    named = read_stem(path.name.partition(".")[0])
    if named is not None:
        return named[0]
    with suppress(ValueError, OSError):  # whoever reads the file says what is wrong with it
        if kind_of_file(path.name, feeds=False) is FileKind.WARC and (first := first_date(path)) is not None:
            return first
        if (sidecar := sidecar_of(path)) is not None and sidecar.fetched is not None:
            return sidecar.fetched
    with suppress(OSError):
        return modified_us(path)
    return 0


def feed_address(path: Path) -> str:
    """The address of the feed that a file is a version of, from its sidecar; "" if it is not known."""
    with suppress(ValueError, OSError):
        if (sidecar := sidecar_of(path)) is not None:
            return sidecar.url
    return ""


def read_xml_file(path: Path, id: str, stream: str, time: TimeReader | None) -> Document | Reject:
    """The document in the file; a Reject if it is too large or its time cannot be told. Raises OSError if it cannot be
    read."""
    raw = b""
    try:
        raw = read_file(path)
        return Document(id, raw, stream, time(raw) if time else modified_us(path))
    except TooLargeError as error:
        return Reject(id, stream, None, f"{id}: the file is {error}", error.head)
    except ValueError as error:
        return Reject(id, stream, None, f"{id}: {error}", raw[:RAW_KEPT])
