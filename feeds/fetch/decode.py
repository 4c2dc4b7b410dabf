"""Decodes bodies with a bound on the result: a small body may decompress to a very large one."""

from __future__ import annotations

import zlib

import brotli
import zstandard

from common.errors import InputError

MOST_MEMBERS = 1_000
"""The most gzip members or zstd frames in a body. Each costs a copy of some of what follows, and a million empty ones
fit into a body."""

ACCEPT_ENCODING = "gzip, deflate, br, zstd"

_ZLIB_STEP = 64 * 1024
"""Bytes that zlib gets at once: it copies what is behind the end of a member."""
_ZSTD_STEP = 256
"""Bytes that the zstd decompressor gets at once. At most 8 MiB come out."""
_ZSTD_WINDOW = 8 * 1024 * 1024
"""The largest window that RFC 9659 lets a server use."""


class DecodeError(InputError, ValueError):
    """The bytes are not in the coding, or end too early. The message is the cause."""


def decode(data: bytes, codings: str, limit: int) -> bytes:
    """The body without the codings that the header Content-Encoding names: all of it, or at least its first `limit` + 1
    bytes, and never much more.

    Raises DecodeError if it cannot be decoded or a coding is not known.
    """
    for coding in reversed([name.strip().lower() for name in codings.split(",")]):
        if coding in ("", "identity"):
            continue
        try:
            data = _DECODERS[coding](data, limit + 1)
        except KeyError:
            raise DecodeError(f"the content coding {coding!r:.40} is not known") from None
        except (zlib.error, brotli.error, zstandard.ZstdError, EOFError) as error:
            raise DecodeError(f"the body is not {coding}: {str(error) or 'it ends too early'}") from None
    return data


def _gzip(data: bytes, size: int) -> bytes:
    """Any number of gzip members in a row. What follows and is no member is padding."""
    out, members, place = bytearray(), 0, 0
    while place < len(data) and len(out) < size:
        if members and not data.startswith(b"\x1f\x8b", place):
            break
        members = _one_more(members)
        part, place = _inflate(data, place, size - len(out), 31)
        out += part
    return bytes(out)


def _one_more(members: int) -> int:
    if members == MOST_MEMBERS:
        raise DecodeError(f"the body has more than {MOST_MEMBERS:,} compressed parts")
    return members + 1


def _deflate(data: bytes, size: int) -> bytes:
    """With zlib's wrapping, as the standard asks, or without, as some servers send it."""
    wrapped = len(data) > 1 and data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return _inflate(data, 0, size, 15 if wrapped else -15)[0]


def _inflate(data: bytes, place: int, size: int, window: int) -> tuple[bytes, int]:
    """At most `size` decompressed bytes from `place` on, and where the compressed ones end."""
    decoder = zlib.decompressobj(window)
    out = bytearray()
    while not decoder.eof and len(out) < size:
        if place >= len(data):
            raise EOFError
        out += decoder.decompress(data[place : place + _ZLIB_STEP], size - len(out))
        place = min(place + _ZLIB_STEP, len(data))
    return bytes(out), place - len(decoder.unused_data)


def _brotli(data: bytes, size: int) -> bytes:
    decoder = brotli.Decompressor()
    out = bytes(decoder.process(data, output_buffer_limit=size))
    while len(out) < size and not decoder.is_finished():
        more = decoder.process(b"", output_buffer_limit=size - len(out))
        if not more:
            raise EOFError
        out += more
    return out


def _zstd(data: bytes, size: int) -> bytes:
    """Any number of frames. Few bytes go in at a time, because that alone bounds what comes out. The library's reader
    has a bound, but does not tell an end from a cut."""
    out, rest, frames = b"", data, 0
    while rest and len(out) < size:
        frames = _one_more(frames)
        decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
        parts, made, place = [], len(out), 0
        while not decoder.eof and made < size:
            if place >= len(rest):
                raise EOFError
            parts.append(decoder.decompress(rest[place : place + _ZSTD_STEP]))
            made += len(parts[-1])
            place = min(place + _ZSTD_STEP, len(rest))
        out += b"".join(parts)
        rest = rest[place - len(decoder.unused_data) :]
    return out


_DECODERS = {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate, "br": _brotli, "zstd": _zstd}
