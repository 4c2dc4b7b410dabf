"""Archives of fetched feeds: one protocol, with a drop directory and WARC files as implementations.

A WARC archive has a response record per version, and a revisit record if a feed is unchanged.
"""

from __future__ import annotations

import io
import os
from base64 import b32encode
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from common.dates import iso_utc
from common.files import drafts, sync_directory, write_whole
from feeds.files import FEED_SUFFIX, SIDECAR_SUFFIX, WARC_SUFFIX
from feeds.readers import FINAL_URI, FOLDER, TITLE, Sidecar, drop_stem, read_stem, sidecar_json


@dataclass(frozen=True, slots=True)
class Capture:
    """A fetched feed: facts about the fetch, its name in archives, and the answer's headers and decoded body."""

    about: Sidecar
    source: str
    headers: Sequence[tuple[str, str]]
    body: bytes = field(repr=False)

    @property
    def stem(self) -> str:
        return drop_stem(self.fetched, self.about.sha256)

    @property
    def fetched(self) -> int:
        assert self.about.fetched is not None, "whoever fetches knows when"
        return self.about.fetched


class Archive:
    """Stores each version of a feed once. What `keep` has written survives a kill once the store has committed `mark`.
    After a kill before that, an archive either finds the version again (`newest`) or truncates it when it is opened."""

    @property
    def mark(self) -> str | None:
        """The archive's durable position, for the store to commit with the feed's state; None if it needs none."""
        return None

    def newest(self, source: str) -> str | None:
        """The hash of the last stored version of a feed; None if the store has to know it."""
        return None

    def keep(self, capture: Capture) -> None:
        """Writes a version. After a kill, readers see all of it or nothing."""
        raise NotImplementedError

    def met_again(self, capture: Capture, since: int) -> None:
        """Notes that a feed is unchanged since its last version, stored at `since` (microseconds)."""

    def finish(self) -> None:
        """Makes all stored versions readable, since they are committed."""

    def close(self) -> None:
        """Closes what is open."""


class DropArchive(Archive):
    """An archive with one file per version. It needs no mark: the directory is its own index."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for folder in directory.iterdir():
            for draft in drafts(folder):
                if read_stem(draft.name.split(".")[1]):  # of a fetch that was killed
                    draft.unlink()

    def newest(self, source: str) -> str | None:
        try:
            names = list((self._directory / source).iterdir())
        except FileNotFoundError:
            return None
        versions = [read_stem(path.stem) for path in names if path.suffix == FEED_SUFFIX]
        return max(filter(None, versions), default=(0, None))[1]

    def keep(self, capture: Capture) -> None:
        directory = self._directory / capture.source
        if not directory.is_dir():
            directory.mkdir(self._directory.stat().st_mode & 0o777)
            sync_directory(self._directory)
        # In this order: a feed is never there without what is known of it.
        write_whole(directory / f"{capture.stem}{SIDECAR_SUFFIX}", sidecar_json(capture.about))
        write_whole(directory / f"{capture.stem}{FEED_SUFFIX}", capture.body)


def remove_read(directory: Path, read: Container[str], before: int) -> None:
    """Removes versions among `read` (names below the directory) that were fetched before a time in microseconds, with
    their sidecars. The newest version of each feed stays."""
    for source in directory.iterdir() if directory.is_dir() else ():
        paths = source.glob(f"*{FEED_SUFFIX}") if source.is_dir() else ()
        versions = sorted((*stem, path) for path in paths if (stem := read_stem(path.stem)) is not None)
        for fetched, _, path in versions[:-1]:
            if fetched < before and f"{source.name}/{path.name}" in read:
                # In this order: a sidecar that nobody needs would stay for ever.
                path.with_suffix(SIDECAR_SUFFIX).unlink(missing_ok=True)
                path.unlink(missing_ok=True)


FILE_BYTES = 1024 * 1024 * 1024  # size at which the next file is started
FILE_AGE = 3600 * 1_000_000  # age of a file's first record, in microseconds, at which the next file is started
_OPEN = ".open"  # Suffix of a growing file. Readers skip it, and read the file once it is complete.
_PHRASES = {status.value: f" {status.phrase}" for status in HTTPStatus}
_OF_THE_TRANSFER = frozenset({"content-encoding", "content-length", "transfer-encoding", "connection"})


class WarcArchive(Archive):
    """An archive of WARC files, each named by the time of its first record, with each record compressed separately.

    `mark` is the last file's name and its committed size. Bytes behind it are truncated when the archive is opened, and
    fetched again. `announce` commits a mark before its file is created, so that no other file is ever touched. A file
    gets its final name when the next one starts or the archive is finished.
    """

    def __init__(
        self, directory: Path, mark: str, announce: Callable[[str], None], file_bytes: int = FILE_BYTES
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._announce, self._file_bytes = directory, announce, file_bytes
        self._file: BinaryIO | None = None
        self._name, _, offset = mark.rpartition(" ")
        if self._name and (path := self._growing()).is_file():
            os.truncate(path, min(int(offset), path.stat().st_size))
            self._file = path.open("ab")

    @property
    def mark(self) -> str | None:
        return None if self._file is None else f"{self._name} {self._file.tell()}"

    def keep(self, capture: Capture) -> None:
        self._write(capture, "response", {})

    def met_again(self, capture: Capture, since: int) -> None:
        refers = {
            "WARC-Profile": "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest",
            "WARC-Refers-To-Target-URI": capture.about.url,
            "WARC-Refers-To-Date": iso_utc(since),
        }
        self._write(capture, "revisit", refers)

    def finish(self) -> None:
        if self._file is not None:
            empty = not self._file.tell()
            self._file.close()
            self._file = None
            if empty:  # all that it had was not committed
                self._growing().unlink()
            else:
                self._growing().rename(self._directory / self._name)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _growing(self) -> Path:
        return self._directory / f"{self._name}{_OPEN}"

    def _write(self, capture: Capture, kind: str, fields: dict[str, str]) -> None:
        file, about = self._room(capture), capture.about
        writer = WARCWriter(file, gzip=True, warc_version="1.1")
        kept = [(name, value) for name, value in capture.headers if name.lower() not in _OF_THE_TRANSFER]
        body = capture.body if kind == "response" else b""
        record = writer.create_warc_record(
            about.url,
            kind,
            payload=io.BytesIO(body),
            length=len(body),
            http_headers=StatusAndHeaders(f"{about.status}{_PHRASES.get(about.status, '')}", kept, protocol="HTTP/1.1"),
            warc_headers_dict={
                "WARC-Date": iso_utc(capture.fetched),
                FINAL_URI: about.final_url,
                "WARC-Payload-Digest": f"sha256:{b32encode(bytes.fromhex(about.sha256)).decode()}",
                **fields,
            },
        )
        titles = [(TITLE, about.title)] if about.title else []
        for name, value in [*titles, *((FOLDER, folder) for folder in about.folders)]:
            record.rec_headers.add_header(name, value)
        writer.write_record(record)
        file.flush()
        os.fsync(file.fileno())

    def _room(self, capture: Capture) -> BinaryIO:
        """The file to append to. Everything written before is committed."""
        begun = read_stem(self._name.removesuffix(WARC_SUFFIX))
        is_old = begun is not None and capture.fetched - begun[0] >= FILE_AGE
        if self._file is not None and (is_old or self._file.tell() >= self._file_bytes):
            self.finish()
        if self._file is None:
            self._name = f"{capture.stem}{WARC_SUFFIX}"
            self._announce(f"{self._name} 0")
            self._file = self._growing().open("ab")
        return self._file
