"""Documents for `mmqjp bench state`: four leaves each whose values are Zipf distributed, and the rows that they make.

All values follow from the number of a document, so any of them can be made again. The documents of a measured batch
repeat values that as many documents have, however many are kept: so batches have about as many pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.stage2_queries import Pairs, Registered, Schema, register
from bench.stage2_rows import RowsDigest, of_columns

Ints = npt.NDArray[np.int64]

LEAVES = 4
SCHEMA = Schema(tuple((f"leaf{i}",) for i in range(LEAVES)))
CHUNK = 25_000
"""The number of documents that are made at a time."""

SHARED = 20
"""At most about so many documents have a value that a measured batch repeats."""

MANY, REPEATED = 2, 1_000
"""A document of which a batch repeats values has at least MANY that are as rare. REPEATED documents, and as many ranks
of each leaf, are repeated, whatever the number of documents that are kept."""

QUERIES: list[Pairs] = [
    tuple((leaf, leaf) for leaf in leaves)
    for count in range(1, LEAVES + 1)
    for leaves in combinations(range(LEAVES), count)
]
"""A query for each set of leaves: the values of all of them are equal."""


def registered() -> Registered:
    return register(SCHEMA, QUERIES, ("S", "S"))


def kept(count: int, first: int, end: int) -> Ints:
    """The ranks of the values of documents from `first` to `end`, of `count` that are kept: a row for each document.
    `first` is a multiple of CHUNK."""
    chunks = [np.zeros((0, LEAVES), np.int64)]
    for start in range(first, end, CHUNK):
        rng = np.random.default_rng((count, start))
        chunks.append(_zipf(rng.random((min(CHUNK, end - start), LEAVES)), count))
    return np.concatenate(chunks)


def measured(count: int, number: int, size: int) -> Ints:
    """The ranks of the values of the documents of a measured batch.

    A fifth of the documents repeat two or more values of one of REPEATED documents that are kept. Of all other values,
    a quarter are of REPEATED ranks, and the rest are new.
    """
    rng = np.random.default_rng((count, 1, number))
    commonest = count / (SHARED * np.log(count))
    ranks = (commonest * SHARED ** (rng.integers(0, REPEATED, (size, LEAVES)) / REPEATED)).astype(np.int64)
    fresh = 2 * count + np.arange(size * LEAVES).reshape(size, LEAVES) + number * size * LEAVES
    ranks = np.where(rng.random((size, LEAVES)) < 0.25, ranks, fresh)
    originals = kept(count, 0, min(CHUNK, count))
    rare = originals >= commonest
    chosen = np.flatnonzero(rare.sum(axis=1) >= MANY)[:REPEATED]
    of = chosen[rng.integers(0, len(chosen), size)]
    again = rare[of] & (rng.random(size) < 0.2)[:, None]
    return np.where(again, originals[of], ranks)


def _zipf(uniform: npt.NDArray[np.float64], count: int) -> Ints:
    """Ranks from 1 to `count`: rank r is drawn with a probability of about 1 / (r ln count)."""
    return (count**uniform).astype(np.int64)


def strings(ranks: Ints) -> list[pa.Array]:
    """The values, leaf by leaf."""
    return [
        pc.binary_join_element_wise(f"what leaf {leaf} says, number", pa.array(ranks[:, leaf]).cast(pa.string()), " ")
        for leaf in range(LEAVES)
    ]


def expected(work: Registered, count: int, batches: int, size: int) -> list[RowsDigest]:
    """The rows (row of R_T, earlier document, later document) that each measured batch must find, from the values
    alone."""
    pairs: dict[tuple[int, int], int] = {}
    later = np.concatenate([measured(count, number, size) for number in range(batches)])
    for leaf in range(LEAVES):
        column = np.concatenate(
            [
                *(kept(count, start, min(start + CHUNK, count))[:, leaf] for start in range(0, count, CHUNK)),
                later[:, leaf],
            ]
        )
        wanted = np.zeros(int(column.max()) + 1, np.bool_)
        wanted[later[:, leaf]] = True
        docids = np.flatnonzero(wanted[column])
        order = docids[np.argsort(column[docids], kind="stable")]
        for group in np.split(order, np.flatnonzero(np.diff(column[order])) + 1):
            new = group[group >= count].tolist()
            for document in new:
                for other in group[group < document].tolist():
                    pairs[other, document] = pairs.get((other, document), 0) | 1 << leaf
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(batches)]
    masks = [(work.placements[query].row, sum(1 << leaf for leaf, _ in query)) for query in QUERIES]
    for (one, other), mask in pairs.items():
        found = [(row, one, other) for row, needed in masks if mask & needed == needed]
        rows[(other - count) // size] += found
    return [of_columns(list(np.array(of, np.int64).reshape(-1, 3).T.copy())) for of in rows]


def chunks(count: int) -> Iterator[tuple[int, int]]:
    """The documents that are kept, in parts: first and end."""
    for start in range(0, count, CHUNK):
        yield start, min(start + CHUNK, count)
