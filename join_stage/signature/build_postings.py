"""Makes postings from the witnesses of a batch: follows edges from the top of each path to the node with its value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from join_stage.arrays import FEW, Ints, dictionary_encode, equal_ranges, expand_ranges
from join_stage.signature.path_classes import PathClass, PathClasses
from join_stage.signature.postings import CODE_BITS, PostingRun, grouped
from join_stage.signature.values import Values
from templates.witness import Witnesses

ChainKind = tuple[tuple[int, ...], bool]
"""The groups of the edges of a chain, from the top; and whether its only edge leads from a node to itself."""


def postings(batch: Witnesses, classes: PathClasses, values: Values) -> PostingRun:
    """The postings of the documents of a batch, with their values numbered by `values`."""
    return _Builder(batch, classes).run(values)


@dataclass(frozen=True)
class _Chains:
    """Chains of witnesses. All arrays have an entry for each chain: `kind` is an index into `_Builder._kinds`, `top`
    and `end` are the node keys of the two ends (see `_Builder`), and `inner` the ids of the nodes between them."""

    kind: Ints
    top: Ints
    end: Ints
    inner: tuple[Ints, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    def at(self, places: Ints) -> _Chains:
        return _Chains(self.kind[places], self.top[places], self.end[places], tuple(i[places] for i in self.inner))


class _Builder:
    """Makes postings. The key of a node is one number for its document, by index in R_docTS, and its id."""

    def __init__(self, batch: Witnesses, classes: PathClasses) -> None:
        self._batch, self._classes = batch, classes
        columns = (batch.r_bin["node1"], batch.r_bin["node2"], batch.r_doc["node"])
        node, self._nodes = dictionary_encode(np.concatenate([column.to_numpy() for column in columns]))
        self._radix = max(len(self._nodes), 1)
        in_bin, in_doc = (self._documents(table) * self._radix for table in (batch.r_bin, batch.r_doc))
        count = len(in_bin)
        self._above, self._below = in_bin + node[:count], in_bin + node[count : 2 * count]
        self._group = batch.r_bin["grp"].to_numpy().astype(np.int64)
        valued = in_doc + node[2 * count :]
        self._value_rows = valued.argsort(kind="stable")
        self._valued = valued[self._value_rows]
        self._kinds: list[ChainKind] = []

    def _documents(self, table: pa.Table) -> Ints:
        """The index in R_docTS of the document of each row."""
        docids = self._batch.r_docts["docid"]
        if len(docids) == 1:
            return np.zeros(len(table), np.int64)
        found: Ints = pc.index_in(table["docid"], docids.combine_chunks()).to_numpy().astype(np.int64)
        return found

    def run(self, values: Values) -> PostingRun:
        chains = self._whole()
        row, place = self._rows_of_values(chains.end)
        chains = chains.at(place)
        instance, tops = dictionary_encode(chains.top)
        document = tops // self._radix
        docid, t0, t1 = (self._batch.r_docts[name].to_numpy() for name in ("docid", "t0", "t1"))
        code = self._numbered(row, values) << CODE_BITS | self._path_classes(chains.kind, row)
        order = code.argsort(kind="stable")
        inner = [nodes[order] for nodes in chains.inner]
        instance = instance[order]
        return grouped(
            code[order],
            time=t0[document[instance]],
            node=self._nodes[chains.end[order] % self._radix],
            inner=np.stack(inner, axis=1) if inner else np.zeros((len(row), 0), np.int64),
            instance=instance,
            top=self._nodes[tops % self._radix],
            document=document,
            docid=docid,
            t0=t0,
            t1=t1,
        )

    def _whole(self) -> _Chains:
        """The chains that bind whole paths, found level by level: each level is one edge longer."""
        kind, distinct = dictionary_encode(self._group * 2 + (self._above == self._below))
        self._kinds = [((code >> 1,), bool(code & 1)) for code in distinct.tolist()]
        level = _Chains(kind, self._above, self._below)
        found = [self._that(level, self._classes.binds)]
        order = None
        while len(level := self._that(level, lambda groups, _: self._classes.opens(groups))):
            if order is None:
                order = np.argsort(self._above, kind="stable")
            level = self._longer(level, order)
            found.append(self._that(level, self._classes.binds))
        longest = max(len(chains.inner) for chains in found)
        padded = [
            (*chains.inner, *(np.zeros(len(chains), np.int64) for _ in range(longest - len(chains.inner))))
            for chains in found
        ]
        inner = tuple(np.concatenate(columns) for columns in zip(*padded, strict=True))
        kind, top, end = (np.concatenate([getattr(c, name) for c in found]) for name in ("kind", "top", "end"))
        return _Chains(kind, top, end, inner)

    def _that(self, chains: _Chains, test: Callable[[tuple[int, ...], bool], bool]) -> _Chains:
        """The chains whose kind passes a test, which is called once for each distinct kind."""
        kind, distinct = dictionary_encode(chains.kind)
        passes = np.array([test(*self._kinds[number]) for number in distinct.tolist()], np.bool_)
        return chains.at(np.flatnonzero(passes[kind]))

    def _longer(self, chains: _Chains, order: Ints) -> _Chains:
        """The chains with one more edge. `order` sorts the edges by their upper nodes."""
        at, place = expand_ranges(*equal_ranges(chains.end, self._above[order]))
        edge = order[at]
        kind, distinct = dictionary_encode(chains.kind[place] << 32 | self._group[edge])
        first = len(self._kinds)
        for code in distinct.tolist():
            groups, _ = self._kinds[code >> 32]
            self._kinds.append(((*groups, code & 0xFFFFFFFF), False))
        longer = chains.at(place)
        between = self._nodes[longer.end % self._radix]
        return _Chains(kind + first, longer.top, self._below[edge], (*longer.inner, between))

    def _rows_of_values(self, ends: Ints) -> tuple[Ints, Ints]:
        """The indices of the rows of R_doc with the values of the ends, and for each the index of its end. Most ends
        have one value or none; some have many."""
        first, last = equal_ranges(ends, self._valued)
        at, place = expand_ranges(first, last)
        return self._value_rows[at], place

    def _path_classes(self, kind: Ints, row: Ints) -> Ints:
        """The path class of each chain, from its kind and the stream of its row of R_doc."""
        stream, names = self._streams()
        code, distinct = dictionary_encode(kind << 32 | stream[row])
        numbers = []
        for pair in distinct.tolist():
            groups, same = self._kinds[pair >> 32]
            numbers.append(self._classes.number(PathClass(groups, same, names[pair & 0xFFFFFFFF])))
        return np.array(numbers, np.int64)[code]

    def _streams(self) -> tuple[Ints, Sequence[str]]:
        """The index of the stream of each row of R_doc, and the streams."""
        streams = self._batch.r_doc["stream"]
        if len(self._batch.r_docts) == 1:
            return np.zeros(len(streams), np.int64), streams[:1].to_pylist()
        found = streams.combine_chunks().dictionary_encode()
        return found.indices.to_numpy().astype(np.int64), found.dictionary.to_pylist()

    def _numbered(self, row: Ints, values: Values) -> Ints:
        """The number of the value of each row of R_doc."""
        texts = self._batch.r_doc["strval"]
        if len(texts) <= FEW:
            known = texts.to_pylist()
            return values.numbers([known[place] for place in row.tolist()])
        found = texts.combine_chunks().dictionary_encode()
        code, distinct = dictionary_encode(found.indices.to_numpy().astype(np.int64)[row])
        return values.numbers(found.dictionary.take(pa.array(distinct)).to_pylist())[code]


def groups_of(table: pa.Table) -> list[tuple[int, list[tuple[int, int]]]]:
    """The groups in a table of R_GROUP: number and edges."""
    rows = sorted(zip(*(table[name].to_pylist() for name in ("grp", "var1", "var2")), strict=True))
    return [(number, [edge[1:] for edge in edges]) for number, edges in groupby(rows, itemgetter(0))]
