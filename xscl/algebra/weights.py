"""The weights of words: how much a word that two texts share says about whether they tell the same story.

A weight is an integer from 1, for the most frequent words, to HEAVIEST, for words that a table does not have. A table
is part of the meaning of `similar`, so a store records its name and `version`. GENERAL comes with the package:
`tests.support.weights` made it, and general-1.txt names its sources.

A file is MAGIC and little-endian 32-bit integers: the start of each of 2^16 buckets, their end, and the entries. A
word's `digest` begins with 16 bits for the bucket and 24 for the entry, which the weight follows in eight. Entries
ascend. Files are mapped, so processes share their pages, and nothing is read before the first word is looked up.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache, cached_property, lru_cache
from hashlib import blake2b
from mmap import ACCESS_READ, mmap
from pathlib import Path

from common.errors import InvalidValue

HEAVIEST = 120  # weight of words that a table does not have; at most 127, so that a weight has seven bits

DIGEST_BITS = 56

GENERAL = "general-1"
"""The table of the package: frequencies in general texts of 42 languages, twenty times 7.8 minus the Zipf frequency."""

MAGIC = b"weights1"

_BUCKETS = 1 << 16
_HEAD = len(MAGIC) // 4  # integers before the starts of buckets
_ENTRIES = _HEAD + _BUCKETS + 1  # integers before the entries

_BUCKET_SHIFT, _REST_SHIFT = DIGEST_BITS - 16, DIGEST_BITS - 40
_REST = (1 << 24) - 1

_MOST_REMEMBERED = 65_536


def digest(word: str) -> int:
    """DIGEST_BITS bits of a hash of a word."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BITS // 8).digest(), "big")


class WordWeights:
    """A table of weights: the bytes of a file that `write_weights` wrote. Raises InvalidValue for others."""

    def __init__(self, name: str, data: mmap | bytes) -> None:
        self.name, self._bytes = name, data
        size = len(data) // 4
        if data[: len(MAGIC)] != MAGIC or len(data) % 4 or size < _ENTRIES:
            raise InvalidValue(f"{name} is not a table of weights")
        self._numbers = _integers(data)
        if self._numbers[_HEAD] or self._numbers[_ENTRIES - 1] != size - _ENTRIES:
            raise InvalidValue(f"the table of weights {name} is cut off or damaged")
        self.weight: Callable[[str], int] = lru_cache(_MOST_REMEMBERED)(self._found)
        """The weight of one of the words that `xscl.algebra.near.words` finds."""

    def __len__(self) -> int:
        return len(self._numbers) - _ENTRIES

    @cached_property
    def version(self) -> str:
        """A digest of the table: two with the same version give the same weights."""
        return blake2b(self._bytes, digest_size=8).hexdigest()

    def _found(self, word: str) -> int:
        number = digest(word)  # of 40 bits: one unknown word in two million has the weight of another one
        bucket = _HEAD + (number >> _BUCKET_SHIFT)
        start, end = self._numbers[bucket] + _ENTRIES, self._numbers[bucket + 1] + _ENTRIES
        wanted = (number >> _REST_SHIFT & _REST) << 8
        at = bisect_left(self._numbers, wanted, start, end)
        if at < end and self._numbers[at] >> 8 == wanted >> 8:
            return self._numbers[at] & 0xFF
        return HEAVIEST


def open_weights(path: Path) -> WordWeights:
    """Maps a file that is not changed while processes use it. Raises InvalidValue and OSError."""
    with path.open("rb") as file:
        data = mmap(file.fileno(), 0, access=ACCESS_READ) if path.stat().st_size else b""
    return WordWeights(path.stem, data)


def _integers(data: mmap | bytes) -> memoryview:
    if sys.byteorder == "little":
        return memoryview(data).cast("I")
    numbers = array("I", bytes(data))
    numbers.byteswap()
    return memoryview(numbers)


def write_weights(weights: Mapping[str, int]) -> bytes:
    """The file of a table. Of words with the same digest the lightest one counts. Raises InvalidValue for weights that
    are not from 1 to HEAVIEST."""
    if any(not 1 <= weight <= HEAVIEST for weight in weights.values()):
        raise InvalidValue(f"a weight is not from 1 to {HEAVIEST}")
    lightest: dict[int, int] = {}
    for word, weight in weights.items():
        number = digest(word) >> _REST_SHIFT
        lightest[number] = min(weight, lightest.get(number, weight))
    starts = array("I", bytes(4 * (_BUCKETS + 1)))
    for number in lightest:
        starts[(number >> 24) + 1] += 1
    for bucket in range(_BUCKETS):
        starts[bucket + 1] += starts[bucket]
    entries = array("I", ((number & _REST) << 8 | lightest[number] for number in sorted(lightest)))
    if sys.byteorder != "little":
        starts.byteswap()
        entries.byteswap()
    return MAGIC + starts.tobytes() + entries.tobytes()


@cache
def general_weights() -> WordWeights:
    """The table of the package, GENERAL.

    >>> [general_weights().weight(word) for word in ("the", "said", "earthquake", "京都", "tyrannosaurus")]
    [1, 36, 73, 57, 120]
    """
    return open_weights(Path(__file__).with_name(f"{GENERAL}.weights"))
