"""The rows of R_T as sets of edges between path classes, and the postings in which they are looked up: all that the
`signature` plan stores of documents.

A path is the chain of variables from the top of a side of a row down to a leaf; an edge is the pair of paths of a value
join. Witnesses whose groups bind the same paths are of one class. The rows of several joins that a set of kinds
satisfies are looked up once per distinct set. A posting is a value, the node that has it, and the path to the node,
built from the witnesses of a batch by following edges from the top of each path. Runs group postings by value and path
class, in memory here or on disk (`runs`). Values are numbers in memory, digests on disk."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import blake2b
from itertools import count, islice
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.arrays import (
    FEW,
    Ints,
    Mask,
    bisect_ranges,
    dictionary_encode,
    distinct,
    equal_ranges,
    expand_ranges,
    group_starts,
)
from common.tools import ClearedCache, Few, Memo, each, with_item, without_item
from templates.catalog import StepEdge, TemplateRow
from templates.graph import Shape
from templates.witness import Witnesses

VariablePath = tuple[int, ...]

MOST_JOINS = 16  # maximum number of joins of a row; XSCL enforces it


@dataclass(frozen=True, slots=True)
class JoinRow:
    """A row of a template with joins. `edges` has the edge of each join, in template order."""

    row: TemplateRow
    shape: Shape
    edges: tuple[int, ...]


class RowIndex:
    """The rows of R_T. A row with joins has a place, an index into `joins` and arrays. `windows` in microseconds."""

    def __init__(self) -> None:
        self.version = 0  # changes whenever the rows change
        self.joins: list[JoinRow | None] = []
        self.ids: NDArray[np.int64] = np.zeros(1024, np.int64)
        self.windows: NDArray[np.int64] = np.zeros(1024, np.int64)
        self.ordered: NDArray[np.bool_] = np.zeros(1024, np.bool_)
        self.unordered = 0  # number of rows with joins that are not FOLLOWED BY
        self.filters: dict[int, dict[int, TemplateRow]] = defaultdict(dict)
        """Rows of templates without a join, by variable and id."""
        self.paths: dict[VariablePath, int] = {}  # the numbers of the paths of all edges, from 1
        self.prefixes: Counter[VariablePath] = Counter()
        """Counts of the proper prefixes, of at least two variables, of all paths."""
        self._path_uses: Counter[VariablePath] = Counter()
        self._numbered = self.edge_count = 0
        self.edge_table: NDArray[np.int64] = np.full((1024, MOST_JOINS), -1)
        """Shape (places, MOST_JOINS): the edges of rows of several joins, padded with -1; else -1."""
        self._edges: dict[tuple[VariablePath, VariablePath], int] = {}
        self._free_edges: list[int] = []
        self._edge_paths: dict[int, tuple[VariablePath, VariablePath]] = {}
        self._rights: dict[int, dict[int, int]] = {}
        self._lefts: dict[int, dict[int, int]] = {}
        self._using: dict[int, Few[int]] = {}  # the places of the rows with each edge, mostly of one
        self._found_by: dict[int, Few[int]] = {}
        self._finder: dict[int, int] = {}
        self._place: dict[int, int] = {}
        self._filtered: dict[int, int] = {}
        self._free: list[int] = []

    # ------------------------------------------------------------ registration

    def put(self, shape: Shape, row: TemplateRow) -> None:
        """Adds a row, replacing the one with its id."""
        self.drop(row.id)
        if not shape.joins:
            self._filtered[row.id] = row.variables[0]
            self.filters[row.variables[0]][row.id] = row
            return
        place = self._free.pop() if self._free else self._new_place()
        edges = tuple(self._edge(_path(shape, row, left), _path(shape, row, right)) for left, right in shape.joins)
        self.joins[place] = JoinRow(row, shape, edges)
        self.ids[place], self.windows[place], self.ordered[place] = row.id, row.window, row.ordered
        self._place[row.id] = place
        self.unordered += not row.ordered
        self.edge_table[place] = -1
        if len(edges) > 1:
            self.edge_table[place, : len(edges)] = edges
        for edge in set(edges):
            self._using[edge] = with_item(self._using[edge], place)
        # A row is indexed by the edge with the fewest rows.
        finder = min(set(edges), key=lambda edge: (len(each(self._found_by[edge])), edge))
        self._found_by[finder] = with_item(self._found_by[finder], place)
        self._finder[place] = finder

    def drop(self, row_id: int) -> None:
        """Removes a row; unknown ids are ignored."""
        self.version += 1
        if (variable := self._filtered.pop(row_id, None)) is not None:
            del self.filters[variable][row_id]
        if (place := self._place.pop(row_id, None)) is None:
            return
        gone = self.joins[place]
        assert gone is not None, "a place that is taken has a row"
        self.joins[place] = None
        self.unordered -= not gone.row.ordered
        self.edge_table[place] = -1
        self._free.append(place)
        finder = self._finder.pop(place)
        self._found_by[finder] = without_item(self._found_by[finder], place)
        for edge in set(gone.edges):
            self._using[edge] = without_item(self._using[edge], place)
            if self._using[edge] is None:
                self._drop_edge(edge)

    def _new_place(self) -> int:
        place = len(self.joins)
        self.joins.append(None)
        if place == len(self.windows):
            for name in ("ids", "windows", "ordered", "edge_table"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.full_like(column, -1)]))
        return place

    def _edge(self, left: VariablePath, right: VariablePath) -> int:
        edge = self._edges.get((left, right))
        if edge is None:
            edge = self._free_edges.pop() if self._free_edges else self.edge_count
            self.edge_count = max(self.edge_count, edge + 1)
            self._edges[left, right] = edge
            self._edge_paths[edge] = left, right
            self._using[edge] = self._found_by[edge] = None
            for path in (left, right):
                if path not in self.paths:
                    self._numbered += 1
                    self.paths[path] = self._numbered
                    self.prefixes.update(path[:end] for end in range(2, len(path)))
                self._path_uses[path] += 1
            one, other = self.paths[left], self.paths[right]
            self._rights.setdefault(one, {})[other] = self._lefts.setdefault(other, {})[one] = edge
        return edge

    def _drop_edge(self, edge: int) -> None:
        left, right = self._edge_paths.pop(edge)
        del self._edges[left, right], self._using[edge], self._found_by[edge]
        self._free_edges.append(edge)
        one, other = self.paths[left], self.paths[right]
        del self._rights[one][other], self._lefts[other][one]
        for path in (left, right):
            self._path_uses[path] -= 1
            if not self._path_uses[path]:
                del self._path_uses[path]
                number = self.paths.pop(path)
                self._rights.pop(number, None)
                self._lefts.pop(number, None)
                self.prefixes.subtract(path[:end] for end in range(2, len(path)))
                self.prefixes = +self.prefixes

    # ------------------------------------------------------------ look-up

    def partners(self, path: int, *, left: bool) -> dict[int, int]:
        """The paths joined with a path on the left or right, and the edge for each."""
        return (self._rights if left else self._lefts).get(path, {})

    def using(self, edge: int) -> Collection[int]:
        """The places of the rows with an edge."""
        return each(self._using[edge])

    def at(self, place: int) -> JoinRow:
        row = self.joins[place]
        assert row is not None, "a place that is asked for has a row"
        return row

    def covered_by(self, edges: Collection[int]) -> list[int]:
        """The sorted places of the rows whose edges are all among `edges`, in time linear in the rows of these."""
        return sorted(
            place
            for edge in edges
            for place in each(self._found_by[edge])
            if (row := self.joins[place]) is not None and all(other in edges for other in row.edges)
        )


def path_to(shape: Shape, leaf: int) -> list[int]:
    """The nodes from the top down to a leaf."""
    path = []
    node: int | None = leaf
    while node is not None:
        path.append(node)
        node = shape.parents[node]
    return path[::-1]


def _path(shape: Shape, row: TemplateRow, leaf: int) -> VariablePath:
    return tuple([row.variables[node] for node in path_to(shape, leaf)])


CLASS_BITS = 24  # bits of the number of a set of paths; two, or one and a value, are packed into one int64


@dataclass(frozen=True, slots=True)
class PathClass:
    """The paths that witnesses of a stream bind: one edge a group, from the top; `same`: a node and itself bind it."""

    groups: tuple[int, ...]
    same: bool
    stream: str


@dataclass(frozen=True, slots=True)
class EdgeClass:
    """A path class by the edges of its groups; group numbers are valid only within one process."""

    groups: tuple[frozenset[StepEdge], ...]
    same: bool
    stream: str


DROPPED = 0  # the class of postings on disk whose own class was dropped; no row uses it

_NO_CLASS = PathClass((), False, "")

_OWN_NUMBERS = count(-1, -1)  # numbers of groups that stage 1 does not number


@dataclass(frozen=True, slots=True)
class KindMeaning:
    """The meaning to the rows of a pair of sets of paths, left and right. `edges` lead from one set to the other. Of
    the rows with some of them, `window` is the largest, in microseconds; `ordered`: all are FOLLOWED BY; `several`:
    some have several joins; `single` are the indices of those with one join."""

    edges: tuple[int, ...]
    window: int
    ordered: bool
    several: bool
    single: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _AskedPaths:
    stream: str
    paths: frozenset[int]


PairKind = tuple[int, int]  # the kind of a pair of postings: the numbers of their sets of used paths, left and right

Streams = frozenset[tuple[str, str]]

MOST_SETS = 100_000  # maximum number of sets whose rows are cached


@dataclass(frozen=True, slots=True, eq=False)
class SatisfiedRows:
    """Rows that a set of kinds satisfies: `places`, and by row and join in `choices` the kinds that satisfy it."""

    places: Ints
    choices: list[list[list[PairKind]]]


class PathClasses:
    """Numbers path classes and caches their meaning to the rows as of the last `renew`."""

    def __init__(self, rows: RowIndex) -> None:
        self._rows = rows
        self._groups: dict[int, frozenset[StepEdge]] = {}
        self._by_edges: dict[frozenset[StepEdge], int] = {}
        self._all: list[PathClass] = [_NO_CLASS]
        self._numbers: dict[PathClass, int] = {}
        self._forget()

    def learn(self, groups: Iterable[tuple[int, Iterable[StepEdge]]]) -> None:
        """Adds groups of edges by number. A known number always has the same edges."""
        self._groups.update((number, frozenset(edges)) for number, edges in groups)

    def __len__(self) -> int:
        """The number of known groups."""
        return len(self._groups)

    def only(self, used: Ints, kept: Iterable[int], edges: Collection[StepEdge]) -> tuple[PathClasses, Ints]:
        """A copy with fewer classes and groups, and for each old class the new number, -1 if dropped. It has the
        classes in `used`, in order, their groups, and those in `kept`; without groups that have none of `edges`."""
        live = {group for group, members in self._groups.items() if any(edge in edges for edge in members)}
        fewer, new = PathClasses(self._rows), np.full(len(self._all), -1)
        for number in used.tolist():
            if number != DROPPED and live.issuperset(self._all[number].groups):
                new[number] = fewer.number(self._all[number])
        needed = {group for path_class in fewer._all for group in path_class.groups}.union(live.intersection(kept))
        fewer.learn((group, self._groups[group]) for group in sorted(needed))
        return fewer, new

    def numbers(self, classes: Iterable[EdgeClass]) -> Ints:
        """The numbers of classes. Groups that no batch has named get new numbers."""
        if not self._by_edges:
            self._by_edges.update((edges, number) for number, edges in self._groups.items())
        found = []
        for one in classes:
            groups = []
            for edges in one.groups:
                if (number := self._by_edges.get(edges)) is None:
                    number = self._by_edges[edges] = next(_OWN_NUMBERS)
                    self._groups[number] = edges
                groups.append(number)
            found.append(self.number(PathClass(tuple(groups), one.same, one.stream)))
        return np.array(found, np.int64)

    def edges_of(self, number: int) -> EdgeClass:
        found = self._all[number]
        return EdgeClass(tuple(self._groups[group] for group in found.groups), found.same, found.stream)

    def number(self, path_class: PathClass) -> int:
        number = self._numbers.get(path_class)
        if number is None:
            number = self._numbers[path_class] = len(self._all)
            self._all.append(path_class)
        return number

    def filters(self, group: int) -> list[int]:
        """The ids of the rows without a join that a group satisfies if a node and itself bind it."""
        variables = sorted({a for a, b in self._groups[group] if a == b})
        return [row for variable in variables for row in self._rows.filters.get(variable, ())]

    def asked(self, classes: Ints, *, left: bool) -> Ints:
        """For each class, the number of the set of its paths that rows use on one side; 0 if none."""
        known = self._asked_of[left]
        if len(known) < len(self._all):
            known = self._asked_of[left] = np.append(known, np.full(len(self._all) - len(known), -1))
        found = known[classes]
        if (unknown := found < 0).any():
            for number in distinct(classes[unknown]).tolist():
                known[number] = self._ask(self._all[number], left)
            found = known[classes]
        return found

    def _ask(self, path_class: PathClass, left: bool) -> int:
        bound = self.bound[path_class.groups, path_class.same]
        paths = frozenset(path for path in bound if self._rows.partners(path, left=left))
        if not paths:
            return 0
        asked = _AskedPaths(path_class.stream, paths)
        number = self._asked_number.setdefault(asked, len(self._asked))
        if number == len(self._asked):
            assert number < 1 << CLASS_BITS, "more sets of paths than a number has room for"
            self._asked.append(asked)
        return number

    def pair(self, left: int, right: int, streams: Streams) -> KindMeaning | None:
        """The meaning of two sets of paths; None if no edge joins them or `streams` lacks their streams."""
        one, other = self._asked[left], self._asked[right]
        return self._pairs[left, right] if (one.stream, other.stream) in streams else None

    def within(self, kinds: frozenset[PairKind], streams: Streams) -> SatisfiedRows:
        """The rows of several joins that a set of kinds satisfies, for these pairs of streams, whatever the times."""
        found = self._within.get((streams, kinds))
        if found is None:
            having: dict[int, list[PairKind]] = {}
            for kind in sorted(kinds):
                pair = self.pair(*kind, streams)
                for edge in pair.edges if pair else ():
                    having.setdefault(edge, []).append(kind)
            places = [place for place in self._rows.covered_by(having) if len(self._rows.at(place).edges) > 1]
            choices = [[having[edge] for edge in self._rows.at(place).edges] for place in places]
            found = self._within[streams, kinds] = SatisfiedRows(np.array(places, np.int64), choices)
        return found

    def _pair(self, asked: tuple[int, int]) -> KindMeaning | None:
        left, right = (self._asked[number].paths for number in asked)
        few, many, from_left = (left, right, True) if len(left) <= len(right) else (right, left, False)
        edges: list[int] = []
        for path in few:
            partners = self._rows.partners(path, left=from_left)
            edges += [partners[other] for other in partners.keys() & many]
        if not edges:
            return None
        pairs = [self._edges[edge] for edge in sorted(edges)]
        return KindMeaning(
            tuple(edge for pair in pairs for edge in pair.edges),
            max(pair.window for pair in pairs),
            all(pair.ordered for pair in pairs),
            any(pair.several for pair in pairs),
            tuple(place for pair in pairs for place in pair.single),
        )

    def _edge(self, edge: int) -> KindMeaning:
        rows, places = self._rows, sorted(self._rows.using(edge))
        single = tuple(place for place in places if len(rows.at(place).edges) == 1)
        window, ordered = int(rows.windows[places].max()), bool(rows.ordered[places].all())
        return KindMeaning((edge,), window, ordered, len(single) < len(places), single)

    def _binding(self, key: tuple[tuple[int, ...], bool]) -> frozenset[int]:
        """The whole paths of rows that groups bind, by number."""
        (groups, same), paths = key, self._rows.paths
        if len(groups) == 1:
            edges = self._groups[groups[0]]
            chains: Iterable[VariablePath] = [*edges, *((a,) for a, b in edges if same and a == b)]
        else:
            chains = self._longer(groups)
        return frozenset(paths[chain] for chain in chains if chain in paths)

    def _opening(self, groups: tuple[int, ...]) -> frozenset[VariablePath]:
        """The proper prefixes of paths of rows that groups bind."""
        chains = self._groups[groups[0]] if len(groups) == 1 else self._longer(groups)
        return frozenset(chain for chain in chains if chain in self._rows.prefixes)

    def _longer(self, groups: tuple[int, ...]) -> Iterable[VariablePath]:
        below: dict[int, list[int]] = {}
        for above, variable in self._groups[groups[-1]]:
            below.setdefault(above, []).append(variable)
        return [(*chain, variable) for chain in self.open[groups[:-1]] for variable in below.get(chain[-1], ())]

    def renew(self) -> None:
        """Updates the cache after changes of the rows."""
        if self._version != self._rows.version:
            self._forget()

    def _forget(self) -> None:
        self._version = self._rows.version
        self.open, self.bound = Memo(self._opening), Memo(self._binding)
        self._pairs, self._edges = Memo(self._pair), Memo(self._edge)
        self._within = ClearedCache[tuple[Streams, frozenset[PairKind]], SatisfiedRows](MOST_SETS)
        self._asked = [_AskedPaths("", frozenset())]
        self._asked_number: dict[_AskedPaths, int] = {}
        self._asked_of: list[Ints] = [np.zeros(1, np.int64), np.zeros(1, np.int64)]


Digests = NDArray[np.uint64]
"""Digests of values, shape (values, 2): high and low half. Equal digests are taken for equal values."""


class ValueDictionary:
    """Numbers string values from 0."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._digests: Digests = np.zeros((0, 2), np.uint64)
        self.version = 0  # changes when values are renumbered

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, texts: Iterable[str]) -> Ints:
        numbers = self._numbers
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)

    def digests(self, numbers: Ints) -> Digests:
        known = len(self._digests)
        if known < len(self._numbers):
            self._digests = np.concatenate([self._digests, digests(islice(self._numbers, known, None))])
        return self._digests[numbers]

    def keep(self, used: Ints) -> Ints:
        """Drops all values but those in `used`, in order; returns the new number of each old one."""
        stays = np.zeros(len(self._numbers), np.bool_)
        stays[used] = True
        self.version += 1
        texts = [text for text, number in self._numbers.items() if stays[number]]
        self._numbers = {text: number for number, text in enumerate(texts)}
        self._digests = self._digests[stays[: len(self._digests)]]
        new: Ints = np.cumsum(stays) - 1
        return new


def digests(texts: Iterable[str]) -> Digests:
    """The digests of texts, the same in every process and on every machine."""
    joined = b"".join([blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts])
    return np.frombuffer(joined, "<u8").reshape(-1, 2)


class AskedValues:
    """The numbers of the values that a batch looks up, ascending, possibly repeated."""

    def __init__(self, numbers: Ints, values: ValueDictionary) -> None:
        self.numbers, self._values = numbers, values

    @cached_property
    def by_digest(self) -> tuple[Ints, Digests]:
        """The indices of the values in digest order, and the digests in this order."""
        found = self._values.digests(self.numbers)
        order = np.lexsort((found[:, 1], found[:, 0]))
        return order, found[order]


class TimeSpan(NamedTuple):
    """The starts of the first and the last document, and the latest end, in microseconds."""

    first: int
    last: int
    end: int

    def is_within(self, window: int, other: TimeSpan) -> bool:
        """Whether documents of both may be within the window, in microseconds."""
        return other.last >= self.first - window and other.first <= self.end + window


CODE_BITS = 31  # bits of a path class number packed with a value number into one int64


@dataclass(frozen=True)
class PostingRun:
    """Postings in memory, immutable, in groups of one value and one path class. By group, sorted by both: `value` and
    `path_class`; `start` has the offset of each group and the total. By posting, sorted by time within a group: `time`,
    the start of the document in microseconds; `node`, the end of the path; `inner`, the nodes between it and the top,
    shape (postings, longest), zero-padded; `instance`, an index. By instance: `top`, the start of the path, and
    `document`, an index. By document: `docid`, `t0` and `t1` in microseconds."""

    value: Ints
    path_class: Ints
    start: Ints
    time: Ints
    node: Ints
    inner: Ints
    instance: Ints
    top: Ints
    document: Ints
    docid: Ints
    t0: Ints
    t1: Ints

    low: ClassVar[None] = None  # evicted postings are absent

    def __len__(self) -> int:
        return len(self.node)

    def groups_of(self, asked: AskedValues) -> tuple[Ints, Ints]:
        """The range of groups with each value: starts and ends, as long as `asked.numbers`."""
        return equal_ranges(asked.numbers, self.value)

    def path_classes(self, groups: Ints) -> Ints:
        return self.path_class[groups]

    def ends(self, at: Ints) -> Ints:
        """The ends of the documents of some postings."""
        return self.t1[self.documents[at]]

    def docids(self, at: Ints) -> Ints:
        return self.docid[self.documents[at]]

    def nodes(self, at: Ints, depth: int | None = None) -> Ints:
        """The nodes of some postings `depth` below the top of the path, from 0, or by default at its end."""
        if depth is None:
            return self.node[at]
        nodes: Ints = self.inner[at, depth - 1] if depth else self.top[self.instance[at]]
        return nodes

    def of_instances(self, instance: Ints, time: Ints, group: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """The postings of each instance in each range of groups of one value. `instance`, `time` (start of its
        document), `group` and `end` are parallel; so are the results: postings, their groups, their ranges' indices."""
        order, starts = self.by_instance
        first, last = starts[instance], starts[instance + 1]
        # Postings with one value are next to each other.
        first = bisect_ranges(order, first, last, self.start[group])
        at, place = expand_ranges(first, bisect_ranges(order, first, last, self.start[end]))
        postings = order[at]
        return postings, self.group[postings], place

    def codes(self) -> Ints:
        """The value and class of each posting, packed into one number."""
        codes: Ints = (self.value << CODE_BITS | self.path_class).repeat(np.diff(self.start))
        return codes

    @cached_property
    def group(self) -> Ints:
        return np.arange(len(self.value)).repeat(np.diff(self.start))

    @cached_property
    def by_instance(self) -> tuple[Ints, Ints]:
        """The indices of postings sorted by instance and index; and the offset of each instance, and the total."""
        order = np.argsort(self.instance, kind="stable")
        counts = np.bincount(self.instance, minlength=len(self.top))
        return order, np.append(0, np.cumsum(counts))

    @cached_property
    def documents(self) -> Ints:
        return self.document[self.instance]

    @cached_property
    def span(self) -> TimeSpan:
        """The span of all documents, with postings or without."""
        return TimeSpan(int(self.t0.min()), int(self.t0.max()), int(self.t1.max()))

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in COLUMNS)


COLUMNS = tuple(column.name for column in fields(PostingRun))
_NONE = np.zeros(0, np.int64)

NOTHING = PostingRun(**dict.fromkeys(COLUMNS, _NONE) | {"start": np.zeros(1, np.int64), "inner": _NONE.reshape(0, 0)})

OF_POSTINGS = ("time", "node", "inner", "instance")


def grouped(code: Ints, **columns: Ints) -> PostingRun:
    """A run from columns sorted by `code`; within a group in any order."""
    start = group_starts(code)
    value, path_class = code[start] >> CODE_BITS, code[start] & (1 << CODE_BITS) - 1
    time = columns["time"]
    early = (time[1:] < time[:-1]) & (code[1:] == code[:-1])
    if early.any():
        group = np.zeros(len(code), np.int64)
        group[start] = 1
        group = group.cumsum() - 1
        again = np.zeros(len(start), np.bool_)
        again[group[1:][early]] = True
        places = np.flatnonzero(again[group])
        order = np.arange(len(time))
        order[places] = places[np.lexsort((time[places], code[places]))]
        columns |= {name: columns[name][order] for name in OF_POSTINGS}
    return PostingRun(value, path_class, np.append(start, len(code)), **columns)


def merge_postings(one: PostingRun, other: PostingRun) -> PostingRun:
    code = np.append(one.codes(), other.codes())
    order = np.argsort(code, kind="stable")  # linear time: both are sorted
    inner = np.zeros((len(code), max(one.inner.shape[1], other.inner.shape[1])), np.int64)
    inner[: len(one.inner), : one.inner.shape[1]] = one.inner
    inner[len(one.inner) :, : other.inner.shape[1]] = other.inner
    instance = np.append(one.instance, other.instance + len(one.top))
    return grouped(
        code[order],
        time=np.append(one.time, other.time)[order],
        node=np.append(one.node, other.node)[order],
        inner=inner[order],
        instance=instance[order],
        document=np.append(one.document, other.document + len(one.docid)),
        **{name: np.append(getattr(one, name), getattr(other, name)) for name in ("top", "docid", "t0", "t1")},
    )


def drop_documents_before(run: PostingRun, time: int) -> PostingRun:
    """The run without documents that begin before a time in microseconds."""
    stays = run.t0 >= time
    if stays.all():
        return run
    instances = stays[run.document]
    return only_postings(run, instances[run.instance], instances, stays)


def reclassed(run: PostingRun, numbers: Ints) -> PostingRun:
    """The run with classes renumbered by `numbers[old]`, without those that become -1. The order stays."""
    path_class = numbers[run.path_class]
    kept = path_class >= 0
    run = replace(run, path_class=path_class)
    if kept.all():
        return run
    instances, documents = np.zeros(len(run.top), np.bool_), np.zeros(len(run.docid), np.bool_)
    instances[run.instance[kept[run.group]]] = True
    documents[run.document[instances]] = True
    return only_postings(run, kept[run.group], instances, documents)


def only_postings(run: PostingRun, kept: Mask, instances: Mask, documents: Mask) -> PostingRun:
    """The `kept` postings of a run, with the instances and documents that they refer to."""
    counts = np.bincount(run.group[kept], minlength=len(run.value))
    some = counts > 0
    return PostingRun(
        value=run.value[some],
        path_class=run.path_class[some],
        start=np.append(0, np.cumsum(counts[some])),
        time=run.time[kept],
        node=run.node[kept],
        inner=run.inner[kept],
        instance=(np.cumsum(instances) - 1)[run.instance[kept]],
        top=run.top[instances],
        document=(np.cumsum(documents) - 1)[run.document[instances]],
        docid=run.docid[documents],
        t0=run.t0[documents],
        t1=run.t1[documents],
    )


def renumbered(run: PostingRun, numbers: Ints) -> PostingRun:
    """The run with values renumbered by `numbers[old]`, which must preserve order."""
    return replace(run, value=numbers[run.value])


ChainKind = tuple[tuple[int, ...], bool]
"""The groups of the edges of a chain, from the top; and whether its only edge leads from a node to itself."""


def postings(batch: Witnesses, classes: PathClasses, values: ValueDictionary) -> PostingRun:
    """The postings of the documents of a batch; `values` numbers their values."""
    return _Builder(batch, classes).run(values)


@dataclass(frozen=True)
class _Chains:
    """Chains of witnesses: `kind` indexes `_Builder._kinds`, `top` and `end` are keys, `inner` node ids between."""

    kind: Ints
    top: Ints
    end: Ints
    inner: tuple[Ints, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    def at(self, places: Ints) -> _Chains:
        return _Chains(self.kind[places], self.top[places], self.end[places], tuple(i[places] for i in self.inner))


class _Builder:
    """Builds postings. A node key combines the index of its document in R_docTS and its id."""

    def __init__(self, batch: Witnesses, classes: PathClasses) -> None:
        self._batch, self._classes = batch, classes
        columns = (batch.r_bin["node1"], batch.r_bin["node2"], batch.r_doc["node"])
        node = np.concatenate([column.to_numpy() for column in columns])
        greatest = int(node.max(initial=0))
        self._nodes: Ints = np.arange(min(greatest + 1, len(node)))
        if greatest >= len(node):
            node, self._nodes = dictionary_encode(node)
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
        docids = self._batch.r_docts["docid"].combine_chunks()
        if (np.diff(docids) == 1).all():  # as those of a batch
            found: Ints = table["docid"].to_numpy() - docids.to_numpy()[:1]
        else:
            found = pc.index_in(table["docid"], docids).to_numpy().astype(np.int64)
        return found

    def run(self, values: ValueDictionary) -> PostingRun:
        chains = self._whole()
        at, place = expand_ranges(*equal_ranges(chains.end, self._valued))  # most ends have at most one value
        row, chains = self._value_rows[at], chains.at(place)
        instance, tops = dictionary_encode(chains.top)
        document = tops // self._radix
        docid, t0, t1 = (self._batch.r_docts[name].to_numpy() for name in ("docid", "t0", "t1"))
        code = self._numbered(row, values) << CODE_BITS | self._path_classes(chains.kind, row)
        order = code.argsort(kind="stable")
        instance, inner = instance[order], [nodes[order] for nodes in chains.inner]
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
        kind, distinct = dictionary_encode(self._group * 2 + (self._above == self._below))
        self._kinds = [((code >> 1,), bool(code & 1)) for code in distinct.tolist()]
        level = _Chains(kind, self._above, self._below)
        found = [self._that(level, self._classes.bound.__getitem__)]
        order = None
        while len(level := self._that(level, lambda kind: self._classes.open[kind[0]])):
            if order is None:
                order = np.argsort(self._above, kind="stable")
            level = self._longer(level, order)
            found.append(self._that(level, self._classes.bound.__getitem__))
        longest = max(len(chains.inner) for chains in found)
        padded = [
            (*chains.inner, *(np.zeros(len(chains), np.int64) for _ in range(longest - len(chains.inner))))
            for chains in found
        ]
        inner = tuple(np.concatenate(columns) for columns in zip(*padded, strict=True))
        kind, top, end = (np.concatenate([getattr(c, name) for c in found]) for name in ("kind", "top", "end"))
        return _Chains(kind, top, end, inner)

    def _that(self, chains: _Chains, test: Callable[[ChainKind], Collection[object]]) -> _Chains:
        kind, distinct = dictionary_encode(chains.kind)
        passes = np.array([bool(test(self._kinds[number])) for number in distinct.tolist()], np.bool_)
        return chains.at(np.flatnonzero(passes[kind]))

    def _longer(self, chains: _Chains, order: Ints) -> _Chains:
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

    def _path_classes(self, kind: Ints, row: Ints) -> Ints:
        stream, names = self._streams()
        code, distinct = dictionary_encode(kind << 32 | stream[row])
        numbers = []
        for pair in distinct.tolist():
            groups, same = self._kinds[pair >> 32]
            numbers.append(self._classes.number(PathClass(groups, same, names[pair & 0xFFFFFFFF])))
        return np.array(numbers, np.int64)[code]

    def _streams(self) -> tuple[Ints, Sequence[str]]:
        streams = self._batch.r_doc["stream"]
        if len(self._batch.r_docts) == 1:
            return np.zeros(len(streams), np.int64), streams[:1].to_pylist()
        found = streams.combine_chunks().dictionary_encode()
        return found.indices.to_numpy().astype(np.int64), found.dictionary.to_pylist()

    def _numbered(self, row: Ints, values: ValueDictionary) -> Ints:
        texts = self._batch.r_doc["strval"]
        if len(texts) <= FEW:
            known = texts.to_pylist()
            return values.numbers([known[place] for place in row.tolist()])
        found = texts.combine_chunks().dictionary_encode()
        code, distinct = dictionary_encode(found.indices.to_numpy().astype(np.int64)[row])
        return values.numbers(found.dictionary.take(pa.array(distinct)).to_pylist())[code]
