"""Writes fetched feeds into WARC files: a response record per version, and a revisit record if nothing has changed."""

from __future__ import annotations

import io
import os
from base64 import b32encode
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from feeds.dates import iso_utc
from feeds.drop_directory import drop_stem, read_stem
from feeds.fetch.archive import Capture
from feeds.kinds import WARC_SUFFIX
from feeds.warc import FINAL_URI, FOLDER, TITLE

FILE_BYTES = 1024 * 1024 * 1024
"""A file of this size is followed by the next."""

FILE_AGE = 3600 * 1_000_000
"""So is a file whose first record was fetched this long ago, microseconds."""

_OPEN = ".open"
"""The end of a file's name while it grows. Readers pass over it, and read the file once, when it is whole."""
_OF_THE_TRANSFER = frozenset({"content-encoding", "content-length", "transfer-encoding", "connection"})


class WarcArchive:
    """An archive of WARC files, each named by the time of its first record. Each record is compressed on its own.

    `mark` is the last file's name and the number of its bytes that are committed. What is behind them when the archive
    is opened is cut off, and will be fetched again. `announce` commits a mark before its file is begun, so that no
    other file is ever touched. A file gets its final name when the next one follows, or the archive is finished. It
    grows by appending, so it is not written as `common.whole_file` writes files.
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
        if self._file is None:
            return None
        return f"{self._name} {self._file.tell()}"

    def newest(self, source: str) -> str | None:
        """None: the store knows it, because the archive holds only what is committed."""
        return None

    def keep(self, capture: Capture) -> None:
        self._write(capture, "response", {})

    def met_again(self, capture: Capture, since: int) -> None:
        refers = {
            "WARC-Profile": "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest",
            "WARC-Refers-To-Target-URI": capture.url,
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
        file = self._room(capture)
        writer = WARCWriter(file, gzip=True, warc_version="1.1")
        kept = [(name, value) for name, value in capture.headers if name.lower() not in _OF_THE_TRANSFER]
        body = capture.body if kind == "response" else b""
        record = writer.create_warc_record(
            capture.url,
            kind,
            payload=io.BytesIO(body),
            length=len(body),
            http_headers=StatusAndHeaders(_status_line(capture.status), kept, protocol="HTTP/1.1"),
            warc_headers_dict={
                "WARC-Date": iso_utc(capture.fetched),
                FINAL_URI: capture.final_url,
                "WARC-Payload-Digest": f"sha256:{b32encode(bytes.fromhex(capture.sha256)).decode()}",
                **fields,
            },
        )
        titles = [(TITLE, capture.title)] if capture.title else []
        for name, value in [*titles, *((FOLDER, folder) for folder in capture.folders)]:
            record.rec_headers.add_header(name, value)
        writer.write_record(record)
        file.flush()
        os.fsync(file.fileno())

    def _room(self, capture: Capture) -> BinaryIO:
        """The file to append to. All that was written before is committed."""
        if self._file is not None and (self._file.tell() >= self._file_bytes or self._is_old(capture.fetched)):
            self.finish()
        if self._file is None:
            self._name = f"{drop_stem(capture.fetched, capture.sha256)}{WARC_SUFFIX}"
            self._announce(f"{self._name} 0")
            self._file = self._growing().open("ab")
        return self._file

    def _is_old(self, now: int) -> bool:
        begun = read_stem(self._name.removesuffix(WARC_SUFFIX))
        return begun is not None and now - begun[0] >= FILE_AGE


def _status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
