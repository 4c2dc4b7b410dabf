"""Readers of each kind of input file: drops of a crawl, JSON lines, WARC archives, XML; with resumable offsets.

A drop is `SOURCE/<fetched-at>-<sha256>.xml` with a sidecar `.json` about the fetch; both are renamed into place, the
sidecar first, and names sort by fetch time. Visits without a new version are recorded in `visits/<at>-<sha256>.visits`.
A fingerprint identifies a JSON lines file whatever its name: its inode (only a hint, since inodes are reused), a digest
of its beginning, and a checksum of the bytes read last. Files that cannot be read now (OSError) are distinguished from
files with bad content (Reject).
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast, get_args
from zlib import crc32

from warcio.archiveiterator import ArchiveIterator

from common.dates import EPOCH, MICROSECOND, iso_utc
from common.errors import InvalidValue, OperationalError
from feeds import files
from feeds.documents import (
    DEFAULT_STREAM,
    Document,
    Now,
    Reject,
    TimeReader,
    TimeValue,
    VisitOutcome,
    parse_iso,
    refuse_own_stream,
    unix_time_refusal,
)
from feeds.feed import EntryForm, is_json_feed, read_entries
from feeds.history import InputItem, NotedVisit
from feeds.items import LONGEST_TITLE, Origin, bounded_folders, one_line, without_credentials
from feeds.json_documents import json_to_xml, load_json
from feeds.rules import AS_USUAL, ReadingRules

_STEM = re.compile(r"(\d{8}T\d{6})(\d{6})?Z-([0-9a-f]{12,64})")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Metadata of a fetch: `url` is the feed's subscribed address, which stays when the feed moves, or its name in the
    crawl; `final_url` is the address that answered, and `address` the one to fetch from now on, after permanent
    redirects; `fetched` is in microseconds. `title`, `folders` and `reading` are the user's. "", () and None mean
    unknown. `page`: it is an older page of the feed (see `Origin`)."""

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
    address: str = ""
    page: bool = False
    reading: ReadingRules = AS_USUAL


def drop_stem(fetched: int, sha256: str) -> str:
    """The name, without suffix, of a version fetched at a time (microseconds) with a hash (hexadecimal).

    >>> drop_stem(1778068800000001, "5bac81b4bd80")
    '20260506T120000000001Z-5bac81b4bd80'
    """
    return f"{EPOCH + fetched * MICROSECOND:%Y%m%dT%H%M%S%f}Z-{sha256}"


def read_stem(stem: str) -> tuple[int, str] | None:
    """The inverse of `drop_stem`; None for other names. Older crawls have times in whole seconds."""
    match = _STEM.fullmatch(stem)
    if match is None:
        return None
    try:
        moment = datetime.strptime(f"{match[1]}{match[2] or '000000'}", "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC)
    except ValueError:
        return None
    return (moment - EPOCH) // MICROSECOND, match[3]


def sidecar_json(sidecar: Sidecar) -> bytes:
    notes = asdict(sidecar)
    fetched = notes.pop("fetched")
    notes["fetched_at"] = None if fetched is None else iso_utc(fetched)
    if not sidecar.page:
        del notes["page"]
    del notes["reading"]
    if reading := sidecar.reading.to_table():
        notes["reading"] = reading
    return json.dumps(notes, ensure_ascii=False, indent=1).encode("utf-8", "replace") + b"\n"


def read_sidecar(path: Path) -> Sidecar | None:
    """Parses a sidecar; None if the file looks like a JSON Feed. Raises InvalidValue and OSError."""
    try:
        notes = json.loads(files.read_file(path))
    except RecursionError:
        raise InvalidValue("JSON nested too deeply") from None
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    if is_json_feed(notes) or (isinstance(notes, dict) and "items" in notes):
        return None
    if not isinstance(notes, dict):
        raise InvalidValue("a sidecar is a JSON object")
    fetched, status, folders = notes.get("fetched_at"), notes.get("status"), notes.get("folders")
    paths = folders if isinstance(folders, list) else []
    return Sidecar(
        url=without_credentials(next(filter(None, (_text(notes, key) for key in ("url", "feed_url", "source"))), "")),
        fetched=parse_iso(fetched) if isinstance(fetched, str) else None,
        final_url=without_credentials(_text(notes, "final_url")),
        address=without_credentials(_text(notes, "address")),
        status=status if isinstance(status, int) else 200,
        page=notes.get("page") is True,
        title=_text(notes, "title")[:LONGEST_TITLE].strip(),
        folders=bounded_folders(one_line(one) for one in paths if isinstance(one, str)),
        reading=ReadingRules.from_table(notes.get("reading")),
        **{key: _text(notes, key) for key in ("etag", "last_modified", "content_type", "sha256")},
    )


def sidecar_of(path: Path) -> Sidecar:
    """The sidecar of a feed's file; an empty one if there is none. Raises InvalidValue or OSError if unreadable."""
    beside = sidecar_path(path)
    return (None if beside is None else read_sidecar(beside)) or Sidecar()


def sidecar_path(path: Path) -> Path | None:
    """The path of a feed file's sidecar; None if there is none. Raises OSError if that cannot be determined."""
    beside = path.with_suffix(files.SIDECAR_SUFFIX)
    try:
        return beside if beside != path and beside.is_file() else None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # no file can have such a name
            return None
        raise


def _text(notes: dict[str, Any], key: str) -> str:
    value = notes.get(key)
    return one_line(value) if isinstance(value, str) else ""


def read_feed_file(path: Path, name: str, form: EntryForm) -> Iterator[InputItem]:
    """The items of a feed file; none if the file is another feed's sidecar. Raises OSError if it or its sidecar cannot
    be read: without the sidecar it would be taken for another feed."""
    try:
        if is_sidecar(path):
            return
        data, modified = files.read_file(path), files.modified_us(path)
    except files.TooLargeError as error:
        yield Reject(name, DEFAULT_STREAM, None, f"{name}: the feed is {error}", error.head)
        return
    sidecar = Sidecar()
    try:
        sidecar = sidecar_of(path)
    except ValueError as error:
        reason = f"{name}: its sidecar {path.with_suffix(files.SIDECAR_SUFFIX).name} cannot be used: {error}"
        yield Reject(name, DEFAULT_STREAM, modified, reason, b"")
    fetched = sidecar.fetched
    if fetched is None and (named := read_stem(path.stem)):
        fetched = named[0]
    answer = sidecar.final_url, sidecar.content_type
    about = *answer, sidecar.title, sidecar.folders, sidecar.address, sidecar.page, sidecar.reading
    origin = Origin(name, modified, sidecar.url, fetched, *about)
    yield from read_entries(data, origin, form)


def is_sidecar(path: Path) -> bool:
    """Decides by the file's name (its feed may not be there yet), or by its content: if a feed is beside it, or it has
    both the address and the time of a fetch. Raises OSError."""
    if path.suffix.lower() != files.SIDECAR_SUFFIX:
        return False
    if read_stem(path.stem) is not None:
        return True
    has_feed = any(path.with_suffix(suffix).is_file() for suffix in files.FEED_SUFFIXES - {files.SIDECAR_SUFFIX})
    try:
        notes = read_sidecar(path)
    except ValueError:
        return has_feed
    return notes is not None and (has_feed or (notes.url != "" and notes.fetched is not None))


LONGEST_ERROR = 500  # maximum characters of the error of a failed visit
VISITS = "visits"  # the subdirectory of a drop directory with the files of visits


def visits_text(visits: Iterable[NotedVisit]) -> bytes:
    """Visits as JSON, one per line. `read_visits` is the inverse."""
    times = {"time", "since"}
    notes = (
        {key: iso_utc(value) if key in times else value for key, value in asdict(visit).items() if value}
        for visit in visits
    )
    return "".join(f"{json.dumps(note, ensure_ascii=False)}\n" for note in notes).encode("utf-8", "replace")


def read_visits(data: bytes, name: str) -> Iterator[NotedVisit | Reject]:
    """The visits in a file or record of this name, and a Reject for each invalid line."""
    for number, line in enumerate(data.splitlines(), 1):
        try:
            notes = _object(line)
            feed, outcome, since = without_credentials(_text(notes, "feed")), notes.get("outcome"), notes.get("since")
            if not feed or outcome not in get_args(VisitOutcome):
                raise ValueError("a visit has a feed and an outcome")
            at = parse_iso(str(notes.get("time"))), None if since is None else parse_iso(str(since))
            status, error = notes.get("status"), _text(notes, "error")[:LONGEST_ERROR]
            about = status if isinstance(status, int) else 0, error, without_credentials(_text(notes, "address"))
            yield NotedVisit(feed, at[0], cast(VisitOutcome, outcome), at[1], *about)
        except (ValueError, RecursionError) as error:
            cause = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            where = f"{name}: line {number}"
            yield Reject(where, DEFAULT_STREAM, None, f"{where}: {files.printable(cause)}", line[: files.RAW_KEPT])


def read_visits_file(path: Path, name: str) -> Iterator[NotedVisit | Reject]:
    """The visits noted in a file. Raises OSError."""
    try:
        data = files.read_file(path)
    except files.TooLargeError as error:
        yield Reject(name, DEFAULT_STREAM, None, f"{name}: the file is {error}", error.head)
        return
    yield from read_visits(data, name)


HEAD = 4096  # maximum number of bytes from the file's beginning in the digest
LAST = 64  # maximum number of bytes before the position in the checksum


class Fingerprint(NamedTuple):
    """The digest covers the first `head` bytes, the checksum the `last` bytes before the position."""

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
    """The inverse of `Fingerprinter`'s text; None for ""."""
    if not text:
        return None
    inode, head, digest, last, checksum = text.split()
    return Fingerprint(int(inode), int(head), digest, int(last), int(checksum))


def with_inode(text: str, path: Path) -> str:
    """Replaces the inode in a fingerprint by that of a file with the same content, such as a copy."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return text
    return " ".join([str(inode), *text.split()[1:]])


def digest_of(head: bytes) -> str:
    return blake2b(head, digest_size=12).hexdigest()


def has_fingerprint(file: BinaryIO, offset: Offset) -> bool:
    """Whether a file has the content read up to an offset or, without a fingerprint, is long enough."""
    if os.fstat(file.fileno()).st_size < offset.position:
        return False
    found = parse_fingerprint(offset.fingerprint)
    if found is None or offset.position == 0:
        return True
    file.seek(0)
    return found.fits(file.read(found.head), file, offset.position)


class Fingerprinter:
    """Computes the fingerprints of a file that is read line by line from a position."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._inode = os.fstat(file.fileno()).st_ino
        file.seek(0)
        self._head = file.read(min(start, HEAD))
        self._begin()

    def _begin(self) -> None:
        self._prefix = f"{self._inode} {len(self._head)} {digest_of(self._head)}"

    def after(self, line: bytes | None) -> str:
        """The fingerprint after the next line; None for a line that is not in memory."""
        if line is None:
            return f"{self._prefix} 0 0"
        if len(self._head) < HEAD:
            self._head += line[: HEAD - len(self._head)]
            self._begin()
        last = line[-LAST:]
        return f"{self._prefix} {len(last)} {crc32(last)}"


class ReplacedError(OperationalError, OSError):
    """The file was replaced after it was found. The next poll handles the new one."""


def is_unreadable(error: BaseException) -> bool:
    """Whether the system refuses to read (permissions, disk errors, a missing file), rather than a library that rejects
    the content: some of those errors are OSErrors without an errno."""
    return isinstance(error, OSError) and (error.errno is not None or isinstance(error, ReplacedError))


def read_error_text(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def or_reject(items: Iterable[InputItem], name: str) -> Iterator[InputItem]:
    """The items of a file, and a Reject if reading fails: for readers that do not retry."""
    try:
        yield from items
    except OSError as error:
        if not is_unreadable(error):
            raise
        yield Reject(name, DEFAULT_STREAM, None, f"{name}: {read_error_text(error)}", b"")


_BLOCK = 1024 * 1024


ReadLine = Callable[[bytes, str, Now], "Document | Reject"]
"""Reads a line of a JSON lines file, as `read_line` does."""


def read_jsonl(path: Path, now: Now, read: ReadLine | None = None) -> Iterator[Document | Reject]:
    """The documents of a `.jsonl` or `.jsonl.gz` file in order, skipping blank lines. Raises OSError."""
    read = read or read_line
    name = files.printable(str(path))
    number = 0
    with path.open("rb") as raw, gzip.open(raw) if files.is_compressed(path.name) else nullcontext(raw) as file:
        try:
            for number, line in enumerate(_lines(cast(BinaryIO, file)), 1):
                where = f"{name}:{number}"
                if isinstance(line, files.TooLargeError):
                    yield _too_long(line, where)
                elif line.strip():
                    yield read(line, where, now)
        except (OSError, EOFError, zlib.error) as error:
            if is_unreadable(error):
                raise
            where = f"{name}:{number + 1}"
            yield Reject(where, DEFAULT_STREAM, None, f"{where}: the file cannot be read further: {error}", b"")


def follow_jsonl(
    path: Path, start: Offset, now: Now, stop: Offset | None = None, read: ReadLine | None = None
) -> Iterator[tuple[Document | Reject | None, Offset]]:
    """The documents of a growing `.jsonl` file from an offset on, each with the offset at the end of its line.

    A blank line yields None. An unterminated last line is left for later, unless it is a complete object. Only lines
    that begin before `stop` are read. Raises ReplacedError if the fingerprint at `start` or `stop` differs.
    """
    name, begin, read = files.printable(str(path)), start.position, read or read_line
    with path.open("rb") as file:
        if stop is not None and not has_fingerprint(file, stop):
            raise ReplacedError(f"{name} was replaced")
        for line, end in _whole_lines(file, start, read):
            if stop is not None and begin >= stop.position:
                return
            where = f"{name}: byte {begin}"
            if isinstance(line, files.TooLargeError):
                yield _too_long(line, where), end
            else:
                yield read(line, where, now) if line.strip() else None, end
            begin = end.position


def line_ends(path: Path, start: Offset, most: int, most_bytes: int, read: ReadLine | None = None) -> list[Offset]:
    """The ends of the next lines that `follow_jsonl` would read: at most `most`, fewer once they reach `most_bytes` or
    cannot be read. Raises like `follow_jsonl` if even the first cannot be read."""
    ends: list[Offset] = []
    with path.open("rb") as file:
        try:
            for _, end in _whole_lines(file, start, read or read_line):
                ends.append(end)
                if len(ends) >= most or end.position - start.position >= most_bytes:
                    break
        except OSError:
            if not ends:
                raise
    return ends


def _whole_lines(file: BinaryIO, start: Offset, read: ReadLine) -> Iterator[tuple[bytes | files.TooLargeError, Offset]]:
    """The lines after an offset, which the file must match, with their ends; also an unterminated last one if
    complete."""
    if not has_fingerprint(file, start):
        raise ReplacedError(f"{files.printable(file.name)} was replaced")
    fingerprinter, end = Fingerprinter(file, start.position), start.position
    file.seek(end)
    for line in _lines(file):
        if isinstance(line, files.TooLargeError):
            end = file.tell()
            yield line, Offset(start.source, start.file, end, fingerprinter.after(None))
        elif line.endswith(b"\n") or (
            line.rstrip().endswith((b"}", b"]")) and isinstance(read(line, "the last line", lambda: 0), Document)
        ):
            end += len(line)
            yield line, Offset(start.source, start.file, end, fingerprinter.after(line))
        else:
            return


def _too_long(line: files.TooLargeError, where: str) -> Reject:
    return Reject(where, DEFAULT_STREAM, None, f"{where}: the line is {line}", line.head)


def _lines(file: BinaryIO) -> Iterator[bytes | files.TooLargeError]:
    while line := file.readline(files.MAX_BYTES + 1):
        if len(line) <= files.MAX_BYTES or line.endswith(b"\n"):
            yield line
            continue
        yield files.TooLargeError(line)
        while line and not line.endswith(b"\n"):
            line = file.readline(_BLOCK)


def read_line(line: bytes, where: str, now: Now) -> Document | Reject:
    """The document of a line. `where` names the line in words, and is the id of a reject without one."""
    found: dict[str, Any] = {}
    try:
        found = _object(line)
        if "json" in found:
            if "xml" in found:
                raise ValueError('a document has either "xml" or "json"')
            found["xml"] = _xml_of_json(line, found)
        missing = [key for key in ("id", "xml") if key not in found]
        if missing:
            raise ValueError(f'the key "{missing[0]}" is missing')
        if not isinstance(found["xml"], str):
            raise ValueError('"xml" is not a string')
        refuse_own_stream(found.get("stream"))
        if (refusal := unix_time_refusal(time := found.get("time"))) is not None:
            raise ValueError(refusal)
        return Document(found["id"], found["xml"], found.get("stream", DEFAULT_STREAM), time, now=now)
    except (ValueError, RecursionError) as error:
        cause = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        id, stream = found.get("id"), found.get("stream")
        id = files.printable(id) if isinstance(id, str) and id else where
        stream = files.printable(stream) if isinstance(stream, str) and stream else DEFAULT_STREAM
        return Reject(id, stream, None, f"{where}: {files.printable(cause)}", line[: files.RAW_KEPT])


def json_line_reader(*, typed: bool, time: TimeReader | None) -> ReadLine:
    """Returns a reader of lines that are JSON documents themselves, with their places as ids."""

    def read(line: bytes, where: str, now: Now) -> Document | Reject:
        try:
            document = read_json(line, where, DEFAULT_STREAM, None, now, typed=typed)
            at = None if time is None else time(document.xml_bytes())
            return document if at is None else Document(where, document.xml, DEFAULT_STREAM, at)
        except ValueError as error:
            cause = f"{where}: {files.printable(str(error))}"
            return Reject(where, DEFAULT_STREAM, None, cause, line[: files.RAW_KEPT])

    return read


def _xml_of_json(line: bytes, found: dict[str, Any]) -> str:
    """The document in the key "json". Parses the line again to preserve spellings of numbers and repeated keys."""
    if not isinstance(typed := found.get("types", False), bool):
        raise ValueError('"types" is neither true nor false')
    members = [value for key, value in load_json(line.decode("utf-8-sig")) if key == "json"]
    return json_to_xml(members[-1], typed=typed)


def read_json(text: bytes, id: str, stream: str, time: TimeValue | None, now: Now, *, typed: bool = False) -> Document:
    """The document of a JSON value. Raises InvalidValue."""
    try:
        value = load_json(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidValue(f"not UTF-8: {error.reason} at byte {error.start}") from None
    return Document(id, json_to_xml(value, typed=typed), stream, time, now=now)


def _object(line: bytes) -> dict[str, Any]:
    try:
        # Python refuses integers of more than 4,300 digits; times have fewer, and the rest is parsed again.
        found = json.loads(line.decode("utf-8-sig"), parse_int=lambda digits: int(digits[:100]))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(found, dict):
        raise ValueError('not a JSON object such as {"id": "d1", "stream": "S", "time": "2026-05-04", "xml": "<a/>"}')
    return found


ALL_READ = -1  # the position of a file that was read to its end and is not read again


@dataclass(frozen=True, slots=True)
class Offset:
    """The position in a file of a source: a byte of a JSON lines file, else a number of items, or ALL_READ.
    `fingerprint` identifies the JSON lines file; "" if unknown."""

    source: str
    file: str
    position: int
    fingerprint: str = ""


Positions = Mapping[tuple[str, str], Offset]  # offsets by source and file name


FINAL_URI, ADDRESS = "WARC-Final-URI", "WARC-Feed-Address"
"""Our own fields: the address that answered, and the one to fetch from now on. A record's target is the subscribed
address."""

TITLE, FOLDER, READING = "WARC-Feed-Title", "WARC-Feed-Folder", "WARC-Feed-Reading"
"""Our own fields: the feed's title, and each of its folders, in the reader's list; its rules for reading, in JSON."""

PAGE = "WARC-Feed-Page"  # our own field, which marks an older page of a feed

VISITS_URI = "metadata://mmqjp/visits"  # the target of our own metadata records, which hold visits

_HEAD = 64 * 1024


def read_warc(path: Path, feeds: EntryForm | None) -> Iterator[InputItem]:
    """The items of the archive in order, skipping other records (requests, pages, pictures, failures). Without `feeds`
    each XML body is a document, with the address and the record's date as id, in stream S. With it, the entries of
    feeds are read, and visits without a new version; the record's date is the time of the fetch. Raises OSError."""
    name = files.printable(str(path))
    with path.open("rb") as file:
        bodies = _bodies(file, name, feeds is not None)
        while True:
            # warcio does not validate its input: damage shows as any kind of exception.
            try:
                body = next(bodies, None)
            except Exception as error:
                if is_unreadable(error):
                    raise
                yield Reject(name, DEFAULT_STREAM, None, f"{name}: the archive cannot be read further: {error}", b"")
                return
            if body is None:
                return
            if isinstance(body, NotedVisit | Reject):
                yield body
                continue
            origin, data, cause = body
            if cause:
                reason = f"{name}: {origin.name}: {cause}"
                yield Reject(origin.name, DEFAULT_STREAM, None, reason, data[: files.RAW_KEPT])
            elif feeds:
                yield from read_entries(data, origin, feeds)
            else:
                yield Document(origin.name, data, DEFAULT_STREAM, origin.modified)


def _bodies(file: BinaryIO, name: str, feeds: bool) -> Iterator[tuple[Origin, bytes, str] | NotedVisit | Reject]:
    """The origin, the content (cut one byte above the limit) and the error, "" if none, of each record. With `feeds`,
    also the recorded visits."""
    for record in ArchiveIterator(file):
        if feeds and record.rec_type in ("revisit", "metadata"):
            yield from _noted_visits(record, name)
        if record.rec_type not in ("response", "resource"):
            continue
        if record.http_headers is not None and record.http_headers.get_statuscode() != "200":
            continue
        body = record.content_stream()
        head = body.read(_HEAD)
        kind = _content_type(record).partition(";")[0].strip().lower()
        is_xml = kind in ("application/xml", "text/xml") or kind.endswith("+xml") or head.lstrip().startswith(b"<?xml")
        if not (files.kind_of_body(head) == "feed" if feeds else is_xml):
            continue
        data = head + body.read(max(0, files.MAX_BYTES + 1 - len(head)))
        if len(data) <= files.MAX_BYTES:
            while record.raw_stream.read(_HEAD):
                pass
        address = _address(record, name)
        date, time, cause = record.rec_headers.get_header("WARC-Date") or "", 0, ""
        try:
            time = parse_iso(date)
        except ValueError as error:
            cause = f"the record's date: {error}"
        if len(data) > files.MAX_BYTES:
            cause = f"larger than {files.MAX_BYTES} bytes"
        elif record.raw_stream.limit > 0:
            cause = "the archive ends within the record"
        final = without_credentials(one_line(record.rec_headers.get_header(FINAL_URI) or ""))
        title = next(_fields(record, TITLE), "")[:LONGEST_TITLE].strip()
        about = final, _content_type(record), title, bounded_folders(_fields(record, FOLDER)), _feed_address(record)
        is_page = record.rec_headers.get_header(PAGE) is not None
        reading = ReadingRules.from_json(record.rec_headers.get_header(READING) or "")
        yield Origin(f"{address} {date}".strip(), time, address, time, *about, is_page, reading), data, cause


def _noted_visits(record: Any, name: str) -> Iterator[NotedVisit | Reject]:
    header = record.rec_headers.get_header
    if record.rec_type == "metadata":
        if header("WARC-Target-URI") == VISITS_URI:
            yield from read_visits(record.content_stream().read(files.MAX_BYTES), f"{name}: {header('WARC-Date')}")
    elif record.http_headers is None or record.http_headers.get_statuscode() in ("200", "304"):
        # Another crawler may refer to a version that it did not store.
        since = header("WARC-Refers-To-Date") if header(FINAL_URI) else None
        with suppress(ValueError):
            times = parse_iso(header("WARC-Date") or ""), parse_iso(since) if since else None
            yield NotedVisit(_address(record, name), times[0], "complete", times[1], address=_feed_address(record))


def _feed_address(record: Any) -> str:
    return without_credentials(one_line(record.rec_headers.get_header(ADDRESS) or ""))


def _address(record: Any, name: str) -> str:
    return without_credentials(one_line(record.rec_headers.get_header("WARC-Target-URI") or name)).strip("<>")


def _fields(record: Any, name: str) -> Iterator[str]:
    return (one_line(value) for key, value in record.rec_headers.headers if key.lower() == name.lower())


def _content_type(record: Any) -> str:
    headers = record.http_headers or record.rec_headers
    return str(headers.get_header("Content-Type") or "")


def fetch_time(path: Path) -> int:
    """When a file's content was fetched, in microseconds: by its name, else the first record of an archive or the
    sidecar, else the file's time; 0 if the file is gone."""
    named = read_stem(path.name.partition(".")[0])
    if named is not None:
        return named[0]
    with suppress(ValueError, OSError):  # the reader of the file reports the error
        if files.kind_of_file(path.name, feeds=False) is files.FileKind.WARC:
            with path.open("rb") as file, suppress(Exception):  # damage shows as any kind of exception
                record = next(iter(ArchiveIterator(file)))
                return parse_iso(record.rec_headers.get_header("WARC-Date") or "")
        if (fetched := sidecar_of(path).fetched) is not None:
            return fetched
    with suppress(OSError):
        return files.modified_us(path)
    return 0


def feed_address(path: Path) -> str:
    """The address of a file's feed, from its sidecar; "" if unknown."""
    with suppress(ValueError, OSError):
        return sidecar_of(path).url
    return ""


def read_xml_file(path: Path, id: str, stream: str, time: TimeReader | None) -> Document | Reject:
    """The file's document; a Reject if it is too large or has no time. Raises OSError."""
    raw = b""
    try:
        raw = files.read_file(path)
        return Document(id, raw, stream, time(raw) if time else files.modified_us(path))
    except files.TooLargeError as error:
        return Reject(id, stream, None, f"{id}: the file is {error}", error.head)
    except ValueError as error:
        return Reject(id, stream, None, f"{id}: {error}", raw[: files.RAW_KEPT])
