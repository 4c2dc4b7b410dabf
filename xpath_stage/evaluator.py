"""Stage 1 (thesis 6.3): evaluates all registered patterns in one walk over each document, into witness relations.

Walks become R_bin and R_doc as Arrow tables, without a Python object per row. Documents of one shape bind alike, so the
walk over one is valid for all: a shape is the tree of tags, in known outlines without childless elements that no query
mentions, the names of relevant attributes, and the query literals that values equal. What a walk over many documents
finds in one whose shape is met for the second time is cached, except for large documents and conditions in XPath; the
cache rests while shapes rarely come again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import call
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.arrays import Ints, expand_ranges
from common.tools import items_at
from templates.catalog import Change, StepEdge
from templates.witness import ELEMENT, R_BIN, R_DOC, R_DOCTS, R_GROUP, Witnesses
from xpath_stage.automaton import Automaton, Groups
from xpath_stage.documents import DEFAULT, Arriving, ElementColumns, Limits, Outlines, attributes_key, outline_key
from xpath_stage.emissions import StringValues, WitnessRows, string_values, witness_rows
from xpath_stage.filters import Failures

MAX_ELEMENTS = 500  # maximum number of elements of a cached document

MAX_SIZE = 1 << 15  # maximum size in bytes of a cached document

TRIAL, PAUSE = 256, 2048
"""At every TRIAL-th new shape, the cache rests for PAUSE documents if fewer than a fifth had one that was met. Earlier
pauses are shorter, each twice as long as the one before: the first documents of a stream always have new shapes."""


class ShapeFindings:
    """What a walk found in a document of one shape: `rows` (group, node1, node2), and the values that it needs, with
    the ids of their `nodes`. `size` is the number of elements in the columns, by which all of them are numbered."""

    __slots__ = ("nodes", "rows", "size", "stream", "values")

    def __init__(self, stream: str, size: int, rows: Ints, values: StringValues, nodes: Ints) -> None:
        self.stream, self.size, self.rows, self.values, self.nodes = stream, size, rows, values, nodes


def _findings_of(
    documents: Sequence[int], streams: Sequence[str], columns: ElementColumns, rows: WitnessRows, values: StringValues
) -> Iterator[ShapeFindings]:
    """The findings of some `documents` out of those that were walked together."""
    first = np.array(columns.first)
    nodes, of = values.nodes(columns)
    by_document, value_by_document = np.argsort(rows.document, kind="stable"), np.argsort(of, kind="stable")
    wanted = np.array(documents)
    starts, ends = (rows.document[by_document].searchsorted(wanted, side).tolist() for side in ("left", "right"))
    ordered = of[value_by_document]
    value_starts, value_ends = (ordered.searchsorted(first[wanted + more]).tolist() for more in (0, 1))
    elements, attributes = len(values.elements), len(values.elements) + len(values.attributes)
    for place, document in enumerate(documents):
        start, owned = columns.first[document], bisect_left(columns.owners, columns.first[document])
        at = by_document[starts[place] : ends[place]]
        own = np.stack((rows.group[at], rows.node1[at] - start, rows.node2[at] - start))
        those = np.sort(value_by_document[value_starts[place] : value_ends[place]])
        several = those.tolist()
        own_values = StringValues(
            [values.elements[k] - start for k in several if k < elements],
            [values.attributes[k - elements] - owned for k in several if elements <= k < attributes],
            [
                (element - start, None if attribute is None else attribute - owned, how)
                for element, attribute, how in (values.derived[k - attributes] for k in several if k >= attributes)
            ],
            values.failures,
        )
        size = columns.first[document + 1] - start
        yield ShapeFindings(streams[document], size, own, own_values, nodes[those] - start)


@dataclass
class _Tested:
    """What distinguishes documents of one tag tree: attributes, literals that values equal, and results `found`."""

    attributes: bool
    values: list[tuple[int, dict[str, int]]]
    found: dict[object, ShapeFindings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._texts = items_at([number for number, _ in self.values])
        self._look_ups = [literals.get for _, literals in self.values]

    def outcome(self, columns: ElementColumns) -> object:
        if columns.unread:
            columns.read_values([number for number, _ in self.values])
        outline, texts = columns.outline, self._texts(columns.texts)
        if outline is not None:
            return outline.attributes_key, *map(call, self._look_ups, texts)
        texts = [text or "" for text in texts]
        return attributes_key(columns.owners, columns.names), *map(call, self._look_ups, texts)


class ShapeCache:
    """Results by shape. Missing ones are to be put in under what `wanted` has. `limit` bounds their number."""

    def __init__(self, automaton: Automaton, limit: int) -> None:
        self._automaton, self._limit = automaton, limit
        self._shapes: dict[object, ShapeFindings | _Tested | None] = {}
        self._size = 0
        self._met: set[int] = set()
        self._last: ShapeFindings | None = None
        self._last_tags: list[str] = []
        self._last_counts: list[int] = []
        self._again = self._new = self._hits_before = self.resting = 0
        self._pause = PAUSE // 16
        self.wanted: tuple[int, dict[object, Any], object] | None = None
        """That of the last document, if it should be put in: a number, the dictionary and its key."""
        self.hits = self.misses = self.flushes = 0

    def forget(self) -> None:
        """Drops all shapes, after a change of registered patterns or emissions."""
        self._shapes.clear()
        self._met.clear()
        self._last = None
        self._size = 0

    def found(self, stream: str, columns: ElementColumns) -> ShapeFindings | None:
        """The result for the single document in the columns; None if it must be walked with others."""
        last, tags, counts, self.wanted = self._last, columns.tags, columns.counts, None
        # Often a document has the shape of the one before it. Comparing is faster than hashing a key.
        if last is not None and tags == self._last_tags and counts == self._last_counts and stream == last.stream:
            self.hits += 1
            return last
        outline = columns.outline
        tree = outline_key(tags, counts) if outline is None else outline.key
        key: object = (stream, tree)
        shape = self._shapes.get(key, self)
        if shape.__class__ is ShapeFindings:
            self.hits += 1
            self._last, self._last_tags, self._last_counts = shape, tags, counts
            return shape
        if shape is self:
            if len(tags) > MAX_ELEMENTS:
                return None
            shape = self._tested(tags)
            if isinstance(shape, _Tested) and not (shape.attributes or shape.values):
                self._missed(self._shapes, key)
                return None
            self._make_room()
            self._shapes[key] = shape
        if not isinstance(shape, _Tested):
            return None
        outcome = shape.outcome(columns)
        found = shape.found.get(outcome)
        if found is None:
            self._missed(shape.found, outcome)
            return None
        self.hits += 1
        return found

    def _missed(self, known: dict[object, Any], key: object) -> None:
        """Counts a miss. The second one of a shape is `wanted`."""
        self.misses += 1
        mark = hash((id(known), key))
        if mark in self._met:
            self._again += 1
            self.wanted = mark, known, key
            return
        if len(self._met) >= self._limit:
            self._met.clear()
        self._met.add(mark)
        self._new += 1
        if self._new == TRIAL:
            if self._again + self.hits - self._hits_before < TRIAL // 4:
                self._pause = self.resting = min(2 * self._pause, PAUSE)
            self._again, self._new, self._hits_before = 0, 0, self.hits

    def put(self, known: dict[object, Any], key: object, found: ShapeFindings) -> None:
        self._make_room()
        known[key] = found

    def _make_room(self) -> None:
        if self._size >= self._limit:
            self.forget()
            self.flushes += 1
        self._size += 1

    def _tested(self, tags: Sequence[str]) -> _Tested | None:
        """None if conditions in XPath or attribute values distinguish the documents."""
        attributes, values, looks_at = False, [], self._automaton.looks_at
        for i, tag in enumerate(tags):
            looked_at = looks_at[tag]
            if looked_at.elsewhere:
                return None
            attributes |= looked_at.attributes
            if looked_at.literals:
                values.append((i, looked_at.literals))
        return _Tested(attributes, values)


HELD_VALUES = 500
"""Maximum number of values held as Python strings. More exceed the processor caches and take 10 % longer."""


def _r_bin(docids: Ints, rows: WitnessRows) -> pa.Table:
    columns = docids[rows.document], rows.group.astype(np.int32), rows.node1, rows.node2
    return pa.table([pa.array(column) for column in columns], R_BIN)


def _r_doc(
    docids: Ints, nodes: Ints, texts: pa.Array | pa.ChunkedArray, streams: Sequence[str], stream: Ints
) -> pa.Table:
    """R_doc. `docids`, `nodes`, `texts` and `stream`, which indexes `streams`, are parallel."""
    if len(set(streams)) == 1:
        named = pa.repeat(streams[0], len(docids))
    else:
        named = pa.array(streams, pa.string()).take(pa.array(stream))
    return pa.table([pa.array(docids), pa.array(nodes), texts, named], R_DOC)


def strings(values: Sequence[str | None]) -> pa.Array:
    """An Arrow array of strings; None becomes ''."""
    array = pa.array(values, pa.string())
    if array.null_count == 0:
        return array
    # A null takes no bytes, so without the validity bitmap it is ''.
    _, offsets, data = array.buffers()
    return pa.StringArray.from_buffers(len(array), offsets, data or pa.py_buffer(b""))


def arrow_table(rows: NDArray[np.signedinteger[Any]], schema: pa.Schema) -> pa.Table:
    return pa.table([pa.array(np.ascontiguousarray(column)) for column in rows.T], schema)


def _numbered(numbers: Sequence[Sequence[int]], nodes: Ints, document: Ints) -> Ints:
    """Nodes of each `document`, by the elements' `numbers` there, which are ranges where none are left out."""
    if {*map(type, numbers)} == {range}:
        return nodes
    sizes = np.array([*map(len, numbers)])
    element, first = nodes & ELEMENT, sizes.cumsum() - sizes
    found: Ints = nodes - element + np.fromiter(chain.from_iterable(numbers), np.int64)[element + first[document]]
    return found


def _renumbered(nodes: Ints, left_out: Ints | None, first: Ints) -> Ints:
    """Nodes by the elements' numbers in their documents, the `first` elements of which are given."""
    return nodes - first if left_out is None else nodes - first + left_out[nodes & ELEMENT]


CHUNK = 1 << 15  # elements after which results are turned into columns

WALKED = 1 << 12  # elements that are walked together where shapes are to be cached, for the documents after them

_NOTHING = R_BIN.empty_table(), R_DOC.empty_table()
_NO_GROUPS = R_GROUP.empty_table()


class XPathStage:
    """The shared evaluator of patterns. `groups`: an earlier run's. XPath errors are raised, or put into `failures`."""

    def __init__(
        self,
        groups: Iterable[tuple[int, Iterable[StepEdge]]] = (),
        *,
        limits: Limits = DEFAULT,
        failures: Failures | None = None,
    ) -> None:
        self.failures = failures
        self.groups = Groups(groups)
        self._automaton = Automaton(self.groups, limits, failures)
        self._limits = limits
        self._kept: Collection[int] | None = None
        self._changes = 0
        self._shapes = ShapeCache(self._automaton, limits.shapes)
        self.outlines = Outlines(self._automaton.columns)

    def add(self, change: Change) -> None:
        self._change(change, self._automaton.add)

    def remove(self, change: Change) -> None:
        self._change(change, self._automaton.remove)

    def _change(self, change: Change, make: Callable[[Change], None]) -> None:
        if change.steps or change.edges or change.values:
            make(change)
            self._changes += 1
            self._shapes.forget()
            self.outlines.forget()

    def counters(self) -> dict[str, int]:
        """`states` of the automaton, `groups` of edges that bind together, `flushes` of states and of shapes, and
        documents with a cached shape or without (`shape_hits`, `shape_misses`)."""
        return {
            "states": self._automaton.states,
            "groups": len(self.groups),
            "flushes": self._automaton.flushes + self._shapes.flushes,
            "shape_hits": self._shapes.hits,
            "shape_misses": self._shapes.misses,
        }

    def finish_batch(self, *, committed: bool) -> None:
        """Ends a batch. If `committed`, `keep_groups` takes effect; else its new groups will be returned again."""
        self.groups.saved(committed)
        if committed and self._kept is not None:
            self.groups.keep(self._kept)
            self._automaton.reset()
            self._shapes.forget()
        self._kept = None

    def keep_groups(self, numbers: Collection[int]) -> None:
        """Drops all other groups at the end of the batch."""
        self._kept = numbers

    def evaluate(self, documents: Iterable[Arriving]) -> Witnesses:
        """The witness relations of a batch. `r_group` has the groups that are new since the last batch."""
        times: list[int] = []
        found = [_NOTHING]
        waiting, more = iter(documents), True
        while more:
            if self._automaton.bound_emissions():
                self._shapes.forget()
            chunk = _Chunk(self._automaton, self._shapes if self._limits.shapes else None, self.outlines)
            more = chunk.fill(waiting, times)
            found += chunk.tables()
        r_bin, r_doc = map(pa.concat_tables, zip(*found, strict=True))
        r_docts = arrow_table(np.fromiter(times, np.int64, len(times)).reshape(-1, len(R_DOCTS)), R_DOCTS)
        return Witnesses(r_bin, self.new_groups(), r_doc, r_docts)

    def close(self) -> None: ...

    def regrouped(self, r_bin: pa.Table, groups: Mapping[int, Collection[StepEdge]]) -> pa.Table:
        """Converts rows of R_bin with foreign groups, `groups`, to the groups of this stage."""
        keys = pc.unique(r_bin["grp"]).sort()
        own = [self.groups.numbers(groups[key]) for key in keys.to_pylist()]
        ends = np.cumsum([0, *map(len, own)])
        numbers = np.array([number for several in own for number in several], np.int32)
        at = pc.index_in(r_bin["grp"], keys).to_numpy().astype(np.int64)
        place, rows = expand_ranges(ends[at], ends[at + 1])
        grp = pa.array(numbers[place])
        return r_bin.take(pa.array(rows)).set_column(r_bin.schema.get_field_index("grp"), "grp", grp)

    def new_groups(self) -> pa.Table:
        """The groups created since the last call, as rows of R_GROUP."""
        groups = [(group, *edge) for group, edge in self.groups.take()]
        if not groups:
            return _NO_GROUPS
        return arrow_table(np.array(groups, np.int32).reshape(-1, len(R_GROUP)), R_GROUP)


class _Chunk:
    """Documents that are evaluated together: those with cached shapes, and those that are walked."""

    def __init__(self, automaton: Automaton, shapes: ShapeCache | None, outlines: Outlines) -> None:
        self._automaton, self._shapes, self._outlines = automaton, shapes, outlines
        # The documents themselves are not kept, because freeing so much memory at once takes long.
        self._docids: list[int] = []
        self._streams: list[str] = []
        self._columns, self._scratch = automaton.columns(), automaton.columns()
        self._known: list[int] = []
        self._numbers: list[Sequence[int]] = []  # of the elements of each document with a cached shape
        self._wanted: dict[int, tuple[int, dict[object, Any], object]] = {}  # documents whose shapes are to be cached
        self._founds: list[ShapeFindings] = []
        self._values: list[str | None] = []
        self._texts: list[pa.Array] = []  # the needed values of documents with cached shapes, up to those in `_values`

    def fill(self, documents: Iterator[Arriving], times: list[int]) -> bool:
        """Consumes documents up to the chunk size, and appends docid, t0, t1 to `times`. True if there may be more."""
        shapes, outlines, columns, scratch = self._shapes, self._outlines, self._columns, self._scratch
        known, founds, values, numbers, size = self._known, self._founds, self._values, self._numbers, 0
        for docid, stream, t0, t1, tree in documents:
            times += docid, t0, t1
            small = tree.size <= MAX_SIZE
            is_held, found = small and outlines.hold(stream, tree, scratch), None
            if shapes is not None and small:
                if shapes.resting:
                    shapes.resting -= 1
                else:
                    if not is_held:
                        scratch.hold(tree)
                    is_held, found = True, shapes.found(stream, scratch)
            if found is not None:
                known.append(docid)
                founds.append(found)
                numbers.append(scratch.numbers)
                values += found.values.read(scratch)
                if len(values) > HELD_VALUES:
                    self._texts.append(strings(values))
                    values.clear()
                size += found.size
                if size > CHUNK:
                    return True
                continue
            if is_held:
                columns.add_held(scratch)
                if shapes is not None and not shapes.resting and shapes.wanted is not None:
                    self._wanted.setdefault(shapes.wanted[0], (len(self._docids), *shapes.wanted[1:]))
            else:
                columns.add(tree)
            self._docids.append(docid)
            self._streams.append(stream)
            if columns.first[-1] > (WALKED if self._wanted else CHUNK):
                return True
        return False

    def tables(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Tables of R_BIN and R_DOC."""
        if self._known:
            yield self._known_tables()
        if self._docids:
            emissions, columns = self._automaton.emissions, self._columns
            walk, first = self._automaton.walk(self._streams, columns), np.array(columns.first, np.int64)
            rows, values = witness_rows(emissions, walk, first), string_values(emissions, walk)
            if self._wanted and self._shapes is not None:
                documents, *cached = zip(*self._wanted.values(), strict=True)
                found = _findings_of(documents, self._streams, columns, rows, values)
                for known, key, one in zip(*cached, found, strict=True):
                    self._shapes.put(known, key, one)
            left_out, start = columns.left_out_before(), first[rows.document]
            node1, node2 = _renumbered(rows.node1, left_out, start), _renumbered(rows.node2, left_out, start)
            rows = WitnessRows(rows.document, rows.group, node1, node2)
            nodes, elements = values.nodes(columns)
            place = np.searchsorted(first, elements, side="right") - 1
            docids, texts = np.array(self._docids, np.int64), strings(values.read(columns))
            nodes = _renumbered(nodes, left_out, first[place])
            yield _r_bin(docids, rows), _r_doc(docids[place], nodes, texts, self._streams, place)

    def _known_tables(self) -> tuple[pa.Table, pa.Table]:
        founds, docids = self._founds, np.array(self._known, np.int64)
        places = np.arange(len(founds))
        place = places.repeat([found.rows.shape[1] for found in founds])
        group, *both = np.concatenate([found.rows for found in founds], axis=1)
        node1, node2 = (_numbered(self._numbers, nodes, place) for nodes in both)
        r_bin = _r_bin(docids, WitnessRows(place, group, node1, node2))
        place = places.repeat([len(found.nodes) for found in founds])
        nodes = _numbered(self._numbers, np.concatenate([found.nodes for found in founds]), place)
        texts = pa.chunked_array([*self._texts, strings(self._values)])
        return r_bin, _r_doc(docids[place], nodes, texts, [found.stream for found in founds], place)
