"""The weights of words: how strongly a shared word indicates that two texts tell the same story.

A weight is an integer from 1, for the most frequent words, to HEAVIEST, for words that a table does not have. A table
is part of the meaning of `similar`, so a store records its name and `version`, and all open stores of a process have
the same one. GENERAL comes with the package: `tests.support.weights` made it, and general-1.txt names its sources.

A file is MAGIC and little-endian 32-bit integers: the start of each of 2^16 buckets, their end, and the entries. A
word's `digest` begins with 16 bits for the bucket and 24 for the entry, which the weight follows in eight. Entries
ascend. Files are mapped, so processes share their pages, and nothing is read before the first word is looked up.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, cached_property, lru_cache
from hashlib import blake2b
from math import log
from mmap import ACCESS_READ, mmap
from pathlib import Path

from common.errors import InvalidValue

HEAVIEST = 120  # weight of words that a table does not have; at most 127, so that a weight has seven bits

DIGEST_BITS = 56

GENERAL = "general-1"
"""The table of the package: frequencies in general texts of 42 languages, twenty times 7.8 minus the Zipf frequency."""

MAGIC = b"weights1"

_NAME = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,99}")

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

    def __init__(self, name: str, data: mmap | bytes, path: Path | None = None) -> None:
        self.name, self._bytes, self.path = name, data, path
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
        number = digest(word)  # of 40 bits: one unknown word in two million has the weight of another
        bucket = _HEAD + (number >> _BUCKET_SHIFT)
        start, end = self._numbers[bucket] + _ENTRIES, self._numbers[bucket + 1] + _ENTRIES
        wanted = (number >> _REST_SHIFT & _REST) << 8
        at = bisect_left(self._numbers, wanted, start, end)
        if at < end and self._numbers[at] >> 8 == wanted >> 8:
            return self._numbers[at] & 0xFF
        return HEAVIEST


def is_weights_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def open_weights(path: Path) -> WordWeights:
    """Maps a file that is not changed while processes use it. Raises InvalidValue and OSError."""
    with path.open("rb") as file:
        data = mmap(file.fileno(), 0, access=ACCESS_READ) if path.stat().st_size else b""
    return WordWeights(path.stem, data, path.absolute())


def _integers(data: mmap | bytes) -> memoryview:
    if sys.byteorder == "little":
        return memoryview(data).cast("I")
    numbers = array("I", bytes(data))
    numbers.byteswap()
    return memoryview(numbers)


def write_weights(weights: Mapping[str, int]) -> bytes:
    """Returns the file of a table. Of words with the same digest, the lightest counts. Raises InvalidValue for weights
    outside 1 to HEAVIEST."""
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


class _Chosen:
    """The table in use in this process, if it is not GENERAL, and the number of its holders."""

    def __init__(self) -> None:
        self.table: WordWeights | None = None
        self.holders = 0


_CHOSEN = _Chosen()


def chosen_weights() -> WordWeights:
    """The table in use in this process."""
    return _CHOSEN.table or general_weights()


def hold_weights(table: WordWeights | None) -> Callable[[], None]:
    """Uses a table, or whichever is in use, until the result is called. Raises InvalidValue if another one is held."""
    chosen = chosen_weights()
    if table is not None and table is not chosen:
        if _CHOSEN.holders and table.version != chosen.version:
            raise InvalidValue(
                f"a store that is open in this process weighs words by {chosen.name}, not by {table.name}"
            )
        _CHOSEN.table = table
    _CHOSEN.holders += 1

    def release() -> None:
        _CHOSEN.holders -= 1
        if not _CHOSEN.holders:
            _CHOSEN.table = None

    return release


def weights_file() -> Path | None:
    """The file of the table in use in this process; None for GENERAL, which comes with the package."""
    table = chosen_weights()
    return None if table.name == GENERAL else table.path


def use_weights(path: Path | None) -> None:
    """Uses the table of a file, or GENERAL, in an executor. Raises InvalidValue and OSError."""
    _CHOSEN.table = None if path is None else _opened(path)


_opened = lru_cache(maxsize=4)(open_weights)  # by path, which includes the version


def learnt_weights(texts: Iterable[Collection[str]]) -> dict[str, int]:
    """Learns weights from the sets of words of documents: HEAVIEST for words of one document, which are left out, and
    less for others, by the logarithm of their document frequency. Raises InvalidValue if all weigh the same.

    >>> learnt_weights([{"the", "storm"}, {"the", "rain"}, {"the", "storm", "hits"}, {"a"}])
    {'storm': 60, 'the': 25}
    """
    documents = 0
    counts = Counter[str]()
    for words in texts:
        documents += 1
        counts.update(words)
    some = {word: count for word, count in counts.items() if count > 1}
    if not some:
        raise InvalidValue("no word is in two documents: weights are learnt from many")
    return {word: max(1, round(HEAVIEST * (1 - log(some[word]) / log(documents)))) for word in sorted(some)}
