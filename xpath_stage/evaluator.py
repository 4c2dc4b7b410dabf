"""Stage 1 (thesis 6.3): evaluates all registered patterns in one walk over each document, into witness relations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from templates.catalog import Change, Edge
from templates.witness import R_BIN, R_DOC, R_DOCTS, R_GROUP, Witnesses
from xpath_stage.automaton import Automaton
from xpath_stage.columns import Columns
from xpath_stage.emissions import ranges, witness_rows
from xpath_stage.groups import Groups
from xpath_stage.limits import DEFAULT, Limits
from xpath_stage.outlines import Outlines
from xpath_stage.parse import Arriving
from xpath_stage.relations import HELD_VALUES, Documents, ShapedDocuments, arrow_table, walked_tables
from xpath_stage.shapes import MAX_SIZE, ShapeCache, ShapeFindings
from xpath_stage.string_values import string_values

CHUNK = 1 << 15
"""The number of elements after which results are turned into columns."""

_NOTHING = R_BIN.empty_table(), R_DOC.empty_table()
_NO_GROUPS = R_GROUP.empty_table()


class XPathStage:
    """The shared XPath evaluator. `add` and `remove` change the registered patterns; `evaluate` matches documents.

    `groups` are the groups of an earlier run.
    """

    def __init__(self, groups: Iterable[tuple[int, frozenset[Edge]]] = (), *, limits: Limits = DEFAULT) -> None:
        self._groups = Groups(groups)
        self._automaton = Automaton(self._groups, limits)
        self._limits = limits
        self._kept: Collection[int] | None = None
        self._shapes = ShapeCache(self._automaton, self._walk, limits.shapes)
        self._outlines = Outlines()

    def add(self, change: Change) -> None:
        if change.steps or change.edges or change.values:
            self._automaton.add(change)
            self._shapes.forget()
            self._outlines.forget()

    def remove(self, change: Change) -> None:
        if change.steps or change.edges or change.values:
            self._automaton.remove(change)
            self._shapes.forget()
            self._outlines.forget()

    def counters(self) -> dict[str, int]:
        """`states` of the automaton, `groups` of edges that bind together, `flushes` of states and of shapes, and
        documents with a cached shape or without (`shape_hits`, `shape_misses`)."""
        return {
            "states": self._automaton.states,
            "groups": len(self._groups),
            "flushes": self._automaton.flushes + self._shapes.flushes,
            "shape_hits": self._shapes.hits,
            "shape_misses": self._shapes.misses,
        }

    def finish_batch(self, *, committed: bool) -> None:
        """Ends a batch. If it was not `committed`, the groups that `evaluate` returned will be returned again. If it
        was, `keep_groups` takes effect."""
        self._groups.saved(committed)
        if committed and self._kept is not None:
            self._groups.keep(self._kept)
            self._automaton.reset()
            self._shapes.forget()
        self._kept = None

    @property
    def crowded(self) -> bool:
        """Whether there may be many groups that nothing needs any more."""
        return self._groups.crowded

    def keep_groups(self, numbers: Collection[int]) -> None:
        """Drops all groups but those with these numbers, at the end of the batch."""
        self._kept = numbers

    def evaluate(self, documents: Iterable[Arriving]) -> Witnesses:
        """The witness relations of a batch. `r_group` has the groups that are new since the last batch."""
        times: list[int] = []
        found = [_NOTHING]
        waiting, more = iter(documents), True
        while more:
            if self._automaton.bound_emissions():
                self._shapes.forget()
            chunk = _Chunk(self._automaton, self._shapes if self._limits.shapes else None, self._outlines)
            more = chunk.fill(waiting, times)
            found += chunk.tables()
        r_bin, r_doc = map(pa.concat_tables, zip(*found, strict=True))
        r_docts = arrow_table(np.fromiter(times, np.int64, len(times)).reshape(-1, len(R_DOCTS)), R_DOCTS)
        return Witnesses(r_bin, self.new_groups(), r_doc, r_docts)

    def close(self) -> None:
        """Releases what is held outside this process, which is nothing here."""

    def group(self, edge: Edge) -> int:
        """The number of the group of a single edge. It is made if there is none."""
        return self._groups.number(frozenset((edge,)))

    def edges_of(self, groups: Iterable[int]) -> dict[int, frozenset[Edge]]:
        """The edges of groups, by their numbers."""
        return self._groups.edges_of(groups)

    def regrouped(self, r_bin: pa.Table, groups: Mapping[int, Collection[Edge]]) -> pa.Table:
        """Rows of R_bin with foreign groups, `groups`, converted to the groups of this stage."""
        keys = pc.unique(r_bin["grp"]).sort()
        own = [self._groups.numbers(groups[key]) for key in keys.to_pylist()]
        counts = np.array([len(numbers) for numbers in own], np.int64)
        numbers = np.array([number for several in own for number in several], np.int32)
        at = pc.index_in(r_bin["grp"], keys).to_numpy().astype(np.int64)
        rows = np.repeat(np.arange(len(at)), counts[at])
        grp = numbers[ranges((np.cumsum(counts) - counts)[at], counts[at])]
        return r_bin.take(pa.array(rows)).set_column(r_bin.schema.get_field_index("grp"), "grp", pa.array(grp))

    def new_groups(self) -> pa.Table:
        """The groups that are new since the last call, as rows of R_GROUP."""
        groups = [(group, *edge) for group, edge in self._groups.take()]
        if not groups:
            return _NO_GROUPS
        return arrow_table(np.array(groups, np.int32).reshape(-1, len(R_GROUP)), R_GROUP)

    def _walk(self, stream: str, columns: Columns) -> ShapeFindings:
        walk, emissions, size = self._automaton.walk([stream], columns), self._automaton.emissions, len(columns.tags)
        values = string_values(emissions, walk)
        rows = witness_rows(emissions, walk, np.array([0, size]))
        return ShapeFindings(stream, size, rows, values, values.nodes(columns)[0])


class _Chunk:
    """Some documents of a batch: those of known shapes, and those that must be walked."""

    def __init__(self, automaton: Automaton, shapes: ShapeCache | None, outlines: Outlines) -> None:
        self._automaton, self._shapes, self._outlines = automaton, shapes, outlines
        self._known = ShapedDocuments()
        # The documents themselves are not kept, because freeing so much memory at once takes long.
        self._docids: list[int] = []
        self._streams: list[str] = []
        self._columns = automaton.columns()
        self._scratch = automaton.columns()

    def fill(self, documents: Iterator[Arriving], times: list[int]) -> bool:
        """Takes documents until there are enough, and appends docid, t0, t1 to `times`. True if there may be more."""
        shapes, known, columns, scratch = self._shapes, self._known, self._columns, self._scratch
        outlines = self._outlines
        docids, founds, values = known.docids, known.founds, known.values
        size = 0
        for docid, stream, t0, t1, tree in documents:
            times += docid, t0, t1
            if shapes is None or tree.size > MAX_SIZE or shapes.resting:
                columns.add(tree)
                if shapes is not None and shapes.resting:
                    shapes.resting -= 1
            else:
                if not outlines.hold(stream, tree, scratch):
                    scratch.hold(tree)
                found = shapes.found(stream, scratch)
                if found is not None:
                    docids.append(docid)
                    founds.append(found)
                    take = found.take
                    values += take(scratch.texts) if take and not scratch.unread else found.values.read(scratch)
                    if len(values) > HELD_VALUES:
                        known.put_away()
                    size += found.size
                    if size > CHUNK:
                        return True
                    continue
                columns.add_held(scratch)
            self._docids.append(docid)
            self._streams.append(stream)
            if columns.first[-1] > CHUNK:
                return True
        return False

    def tables(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The tables of R_bin and R_doc."""
        emissions = self._automaton.emissions
        if self._known:
            yield self._known.tables()
        if self._docids:
            walk = self._automaton.walk(self._streams, self._columns)
            yield walked_tables(emissions, Documents(self._docids, self._streams), self._columns, walk)
