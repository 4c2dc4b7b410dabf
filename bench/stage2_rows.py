"""Compares the results of joins for the benchmarks of stage 2: as multisets of rows, and query by query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.stage2_queries import Pairs, Registered
from xscl.algebra.joins import Term

CHUNK = 1 << 20

_SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
_Words = npt.NDArray[np.uint64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowsDigest:
    """The number of rows, and two sums of independent 64-bit hashes of them: equal for equal multisets, and almost
    never for others."""

    rows: int
    sums: tuple[int, int]


def rows_digest(result: pa.Table) -> RowsDigest:
    """The digest of the rows of a join. It does not depend on their order."""
    sums = [0, 0]
    for batch in result.to_batches(max_chunksize=CHUNK):
        for i, seed in enumerate(_SEEDS):
            sums[i] = (sums[i] + _sum(_row_hashes(batch, np.uint64(seed)))) % 2**64
    return RowsDigest(result.num_rows, (sums[0], sums[1]))


def of_columns(columns: Sequence[_Ints]) -> RowsDigest:
    """The digest of a relation of integers, given as columns."""
    sums = []
    for seed in _SEEDS:
        hashed = np.full(len(columns[0]), seed, np.uint64)
        for column in columns:
            hashed = _mixed(hashed ^ column.view(np.uint64))
        sums.append(_sum(hashed))
    return RowsDigest(len(columns[0]), (sums[0], sums[1]))


def _sum(words: _Words) -> int:
    return int(np.add.reduce(words, dtype=np.uint64))


def _row_hashes(batch: pa.RecordBatch, seed: np.uint64) -> _Words:
    hashed = np.full(batch.num_rows, seed, np.uint64)
    for name in ("qid", "docid1", "docid2"):
        column = pc.fill_null(batch.column(name), -1)
        hashed = _mixed(hashed ^ column.to_numpy(zero_copy_only=False).view(np.uint64))
    nodes = batch.column("nodes")
    lengths = pc.list_value_length(nodes).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = nodes.flatten().to_numpy(zero_copy_only=False).view(np.uint64)
    begins = np.cumsum(lengths) - lengths
    places = (np.arange(len(flat)) - np.repeat(begins, lengths)).astype(np.uint64)
    of_nodes = _mixed(_mixed(flat ^ seed) + places)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(of_nodes, dtype=np.uint64)])
    return _mixed(hashed ^ (sums[begins + lengths] - sums[begins]))


def _mixed(words: _Words) -> _Words:
    """A bijection of 64-bit words that spreads every bit (the finalizer of splitmix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def of_queries(result: pa.Table, registered: Registered, sample: Iterable[Pairs]) -> dict[Pairs, RowsDigest]:
    """The results of each query of a sample, expanded from the shared rows: its documents and the nodes of its leaves,
    pair by pair, as a digest."""
    expanded: dict[Pairs, RowsDigest] = {}
    for pairs in dict.fromkeys(sample):
        placement = registered.placements[pairs]
        slots = [
            placement.slots[side][placement.minors[side].node_of[Term(f"{name}{i}")]]
            for i in range(1, len(pairs) + 1)
            for side, name in enumerate("vw")
        ]
        found = result.filter(pc.equal(result["qid"], placement.row))
        nodes = pc.list_flatten(found["nodes"]).to_numpy().reshape(found.num_rows, -1 if found.num_rows else len(slots))
        documents = [found[name].to_numpy() for name in ("docid1", "docid2")]
        of_leaves = [np.ascontiguousarray(nodes[:, slot]) for slot in (slots if found.num_rows else range(len(slots)))]
        expanded[pairs] = of_columns([*documents, *of_leaves])
    return expanded


def expanded_count(result: pa.Table, registered: Registered) -> int:
    """How many (pair, query) tuples the rows stand for."""
    subscribers = registered.subscribers
    counts = np.zeros(max(subscribers) + 1, np.int64)
    counts[list(subscribers)] = list(subscribers.values())
    return sum(int(counts[b.column("qid").to_numpy()].sum()) for b in result.to_batches(max_chunksize=CHUNK))


def check_equal(digests: Mapping[str, RowsDigest]) -> None:
    """Raises AssertionError unless all ways gave the same rows."""
    for name, found in digests.items():
        first = next(iter(digests))
        assert found == digests[first], f"{name} gave other rows than {first}"


def check_sample(expanded: Mapping[Pairs, RowsDigest], sequential: Mapping[Pairs, RowsDigest]) -> None:
    """Raises AssertionError unless each query of the sample gets what it gets alone."""
    assert expanded.keys() == sequential.keys()
    for pairs, alone in sequential.items():
        assert expanded[pairs] == alone, f"the query {pairs} gets other rows than it does alone"
