"""Documents for `mmqjp bench cluster`: four joined values each, and the outputs that they must give.

All values follow from the number of a document. A value of a document that is kept is that of about twenty documents.
A document of a measured batch has all values of one that is kept, or none. So it has an output for each query or none,
and a few by chance.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

LEAVES, ALIKE = 4, 20
START, SECOND = 1_700_000_000_000_000, 1_000_000
CHUNK = 25_000
"""The number of kept documents that are made at a time."""

PADDING = "what it says besides, which nobody asks for, takes about as many characters as a short item of a feed. " * 3

SETS = [leaves for count in range(2, LEAVES + 1) for leaves in combinations(range(LEAVES), count)]
"""The leaves that each query joins."""


def name_of(leaves: tuple[int, ...]) -> str:
    """The name of a query."""
    return "q" + "".join(map(str, leaves)) + "x"


def script() -> str:
    """The queries: for each set of at least two leaves, that all of them are equal."""
    queries = []
    for leaves in SETS:
        one, other = ("".join(f"[./leaf{leaf}->{side}{leaf}]" for leaf in leaves) for side in "ab")
        equal = " AND ".join(f"a{leaf} = b{leaf}" for leaf in leaves)
        queries.append(f"FROM S//item{one} FOLLOWED BY {{{equal}, INF}} S//item{other} PUBLISH {name_of(leaves)}")
    return ";\n".join(queries)


def kept(count: int, first: int, end: int) -> Ints:
    """The values of documents from `first` to `end`, of `count` that are kept, of shape (documents, LEAVES). `first` is
    a multiple of CHUNK."""
    chunks = [np.zeros((0, LEAVES), np.int64)]
    for start in range(first, end, CHUNK):
        rng = np.random.default_rng((count, start))
        chunks.append(rng.integers(0, max(count // ALIKE, 1), (min(CHUNK, end - start), LEAVES)))
    return np.concatenate(chunks)


def measured(count: int, number: int, size: int, share: float) -> Ints:
    """The values of the documents of a measured batch. A `share` of them have those of documents that are kept."""
    rng = np.random.default_rng((count, 1, number))
    fresh = count + np.arange(size * LEAVES).reshape(size, LEAVES) + number * size * LEAVES
    chunk = rng.integers(0, -(-count // CHUNK), 1)[0] * CHUNK
    originals = kept(count, int(chunk), min(int(chunk) + CHUNK, count))
    chosen = originals[rng.integers(0, len(originals), size)]
    again = rng.random(size) < share
    return np.where(again[:, None], chosen, fresh)


def xml_of(values: list[int]) -> str:
    """A document with these values."""
    leaves = "".join(f"<leaf{leaf}>leaf {leaf} says {value}</leaf{leaf}>" for leaf, value in enumerate(values))
    return f"<item>{leaves}<text>{PADDING}</text></item>"


def write_drop(path: Path, first: int, values: Ints) -> None:
    """Writes documents as a file that appears whole. They are numbered from `first` on, a second apart."""
    lines = (
        json.dumps({"id": f"d{first + n}", "time": START + (first + n) * SECOND, "xml": xml_of(row)}) + "\n"
        for n, row in enumerate(values.tolist())
    )
    draft = path.with_suffix(".draft")
    draft.write_text("".join(lines), "utf-8")
    draft.rename(path)


Row = tuple[str, str, str]
"""A query, and the earlier and the later document."""


def expected(count: int, batches: list[Ints]) -> set[Row]:
    """The outputs of measured batches, from the values alone. Their documents are numbered from `count` on."""
    later = np.concatenate(batches)
    shared: dict[tuple[int, int], int] = defaultdict(int)
    for leaf in range(LEAVES):
        wanted = set(later[:, leaf].tolist())
        having: dict[int, list[int]] = defaultdict(list)
        for number, value in _values(count, later, leaf):
            if value not in wanted:
                continue
            if number >= count:
                for other in having[value]:
                    shared[other, number] |= 1 << leaf
            having[value].append(number)
    masks = [(name_of(leaves), sum(1 << leaf for leaf in leaves)) for leaves in SETS]
    return {
        (name, f"d{one}", f"d{other}")
        for (one, other), found in shared.items()
        for name, mask in masks
        if found & mask == mask
    }


def _values(count: int, later: Ints, leaf: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, CHUNK):
        column = kept(count, start, min(start + CHUNK, count))[:, leaf]
        yield from enumerate(column.tolist(), start)
    yield from enumerate(later[:, leaf].tolist(), count)


def rows_in(lines: Path) -> Iterator[Row]:
    """The outputs in a file of output lines."""
    with lines.open("rb") as file:
        for line in file:
            told = json.loads(line)
            yield told["query"], *told["documents"]
