"""The shared automaton of all registered steps of all streams, determinised lazily over names and filters.

A state stands for the path of labels from the document to a node; it has the steps (shared variables) that match there,
and so the groups of edges that bind. A node costs one dictionary look-up, however many patterns are registered. States
are created on demand, and dropped past a limit. Value filters leave a different set of patterns in nearly every
document, so selective steps get separate walks: steps with the same value filters form a part, whose states recur.

Groups of edges that bind together have permanent numbers. Edges with different value filters, or registered at
different times, are in different groups (until the later ones are half as many), or each document or query would create
groups. SHARE bounds the rest, past which each edge is its own group."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, count, groupby
from operator import attrgetter
from typing import cast

from common.tools import Memo, NumberSet, decrease
from templates.catalog import Change, SharedStep, StepEdge
from templates.witness import node_id
from xpath_stage.documents import ElementColumns, Limits, Tags, Vocabulary, owner_test, split_name
from xpath_stage.emissions import BoundGroup, Emissions, Walk
from xpath_stage.filters import Bits, Failures, FilterBank, MaskIndex, NodeClass, NodeClasses, Tests
from xscl.algebra.joins import Test
from xscl.algebra.values import NodeKind, reads_tree

Above = int | None  # a step, or None for the document

StepKey = tuple[str, str, Above]  # (stream, axis, step above)

_Below = dict[Above, MaskIndex[int] | int]  # steps by the step above them; mostly one, without required filters

StepsBelow = list[tuple[str, _Below]]  # by axis


class StepIndex:
    """Steps by id; those on the self axis are found with their parents. `selective` ones have value filters."""

    def __init__(self) -> None:
        self._steps: dict[int, SharedStep] = {}
        self._below: dict[bool, dict[tuple[str, str, Test], _Below]] = {False: {}, True: {}}
        self.on_self: defaultdict[int, set[int]] = defaultdict(set)  # steps on the self axis, by their parents
        self.to_attributes: Counter[StepKey] = Counter()
        self.selective = NumberSet()

    def __getitem__(self, step_id: int) -> SharedStep:
        return self._steps[step_id]

    def __iter__(self) -> Iterator[SharedStep]:
        """The steps in the order in which they were added."""
        return iter(self._steps.values())

    def add(self, step: SharedStep, required: Bits, selective: NumberSet) -> None:
        """Adds a step below a present parent. Nodes need the filters `required`; `selective` are all value filters."""
        self._steps[step.id] = step
        if step.node.axis == ".":
            self.on_self[_parent(step)].add(step.id)
            return
        is_selective = step.node.test.kind == "element" and not selective.isdisjoint(required)
        if is_selective:
            self.selective.add(step.id)
        by_parent = self._below[is_selective].setdefault((step.stream, step.node.axis, step.node.test), {})
        known = by_parent.get(step.parent)
        if known is None and not required:
            by_parent[step.parent] = step.id
        else:
            index = by_parent[step.parent] = index_of(known)
            index.add(step.id, required)
        if step.node.test.kind == "attribute":
            self.to_attributes[step.stream, step.node.axis, step.parent] += 1

    def remove(self, step: SharedStep) -> None:
        del self._steps[step.id]
        if step.node.axis == ".":
            self.on_self[_parent(step)].discard(step.id)
            return
        key = (step.stream, step.node.axis, step.node.test)
        below = self._below[step.id in self.selective]
        self.selective.discard(step.id)
        by_parent = below[key]
        index = by_parent[step.parent] = index_of(by_parent[step.parent])
        index.remove(step.id)
        if not index:
            del by_parent[step.parent]
        if not by_parent:
            del below[key]
        if step.node.test.kind == "attribute":
            decrease(self.to_attributes, (step.stream, step.node.axis, step.parent))

    def below(self, stream: str, kind: NodeKind, name: str, *, selective: bool) -> StepsBelow:
        """Steps that a node of this kind and canonical name may match: the selective ones or the others."""
        uri, local = split_name(name)
        tests = [Test(kind, one, other) for one in (uri, "*") for other in (local, "*")]
        found = ((axis, self._below[selective].get((stream, axis, test))) for axis in ("/", "//") for test in tests)
        return [(axis, by_parent) for axis, by_parent in found if by_parent]

    def test_of(self, step_id: int) -> Test:
        step = self._steps[step_id]
        while step.node.axis == ".":
            step = self._steps[_parent(step)]
        return step.node.test

    def owner_test(self, step: SharedStep) -> Test | None:
        parent = None if step.parent is None else self._steps[step.parent].node.test
        return owner_test(parent, step.node.axis)


def index_of(steps: MaskIndex[int] | int | None) -> MaskIndex[int]:
    if isinstance(steps, MaskIndex):
        return steps
    index: MaskIndex[int] = MaskIndex()
    if steps is not None:
        index.add(steps, ())
    return index


def _parent(step: SharedStep) -> int:
    assert step.parent is not None, "a step on the self axis has a parent"
    return step.parent


Label = str | NodeClass  # a node's label in the automaton: its tag, or its class if there are filters


@dataclass(slots=True, eq=False)
class Context:
    """How a step matches a node: the `depths` at which each step above it may have matched."""

    depths: dict[int, frozenset[int]]


DOCUMENT: dict[Above, Context] = {None: Context({})}

Way = tuple[int, Above, Context]  # (depth of a node above, step that it matches, context): a way to reach a step

Approach = tuple[int, Above, Context, MaskIndex[int]]  # a way, with the steps that may match below it

Approaches = tuple[int, frozenset[Approach]]  # the mask of a node's relevant filters, and its approaches


@dataclass(slots=True, eq=False)
class StateOutcome:
    """What holds at nodes: the matching steps with their contexts; the number of the emission; whether anything `binds`
    or any value is needed; and whether attributes of the node, or of all nodes in it, have states."""

    contexts: dict[Above, Context]
    emission: int
    binds: bool
    reads_attributes: bool
    reads_attributes_within: bool


class State(dict[Label, "State"]):
    """A state of the automaton: maps labels of children to states. `leaf` and `inner` are its nodes' entries in
    `Walk.elements`, `emission` that in `Walk.attributes`. A `whole` state has all steps, others lack selective ones,
    which parts find. `above` is None where walks begin."""

    __slots__ = (
        "above", "approaches", "automaton", "binds", "by_label", "by_outcome", "contexts", "depth", "emission",
        "inner", "leaf", "part_of", "parts", "reads_attributes", "reads_attributes_within", "selective_approaches",
        "stream", "whole",
    )  # fmt: skip

    def __init__(
        self, automaton: Automaton, stream: str, above: State | None, outcome: StateOutcome, depth: int, *, whole: bool
    ) -> None:
        super().__init__()
        self.automaton, self.stream, self.above, self.depth, self.whole = automaton, stream, above, depth, whole
        self.contexts = outcome.contexts
        self.emission, self.binds = outcome.emission, outcome.binds
        self.leaf, self.inner = outcome.emission * 2, outcome.emission * 2 + 1
        within = above is not None and above.reads_attributes_within
        self.reads_attributes_within: bool = outcome.reads_attributes_within or within
        self.reads_attributes = outcome.reads_attributes or self.reads_attributes_within
        self.approaches: dict[tuple[NodeKind, str], Approaches] = {}
        self.by_label: dict[tuple[NodeKind, str, int], State] = {}
        self.by_outcome: dict[StateOutcome, State] = {}
        self.selective_approaches: dict[str, Approaches] = {}
        self.parts: dict[tuple[str, int] | NodeClass, PartStates] = {}
        self.part_of: dict[StateOutcome, State] = {}

    def __missing__(self, label: Label) -> State:
        return self.automaton.enter(self, label)

    def path(self) -> Iterator[State]:
        """This state and those above it, up to the start of the walk."""
        state: State | None = self
        while state is not None:
            yield state
            state = state.above

    def forget(self) -> None:
        self.clear()
        for known in (self.by_label, self.by_outcome, self.parts, self.part_of):
            known.clear()


PartStates = tuple[tuple[State, ...], frozenset[Above]]  # states that begin at a node, and the steps that match there

_SELECTIVE = attrgetter("selective")


def walk_over(
    root: State, documents: int, forest: Iterable[tuple[Label, int]], found: list[int], states: list[State] | None
) -> None:
    """Walks over documents of a forest of (label, child count). Extends `found` (see `Walk.elements`) and `states`."""
    waiting: list[tuple[State, int]] = []
    state, left = root, 1
    for label, children in forest:
        below = state[label]
        if states is not None:
            states.append(below)
        left -= 1
        if children:
            found.append(below.inner)
            if left:
                waiting.append((state, left))
            state, left = below, children
        else:
            found.append(below.leaf)
            if not left:
                if waiting:
                    state, left = waiting.pop()
                else:
                    documents -= 1
                    if not documents:
                        return
                    state, left = root, 1


class PartWalks:
    """Walks for the selective steps, over columns that were walked without them."""

    def __init__(
        self, automaton: Automaton, columns: ElementColumns, labels: Sequence[Label], attributes: Sequence[NodeClass]
    ) -> None:
        # Selective steps have filters, and then labels are classes.
        self._automaton, self._columns = automaton, columns
        self._labels, self._attributes = cast(Sequence[NodeClass], labels), attributes
        self._elements: list[tuple[int, int]] = []
        self._of_attributes: list[tuple[int, int]] = []
        self._matched: list[tuple[int, frozenset[Above]]] = []

    def walk(self, elements: list[int], states: list[State]) -> Walk:
        """Adds the parts' findings to `elements` and `states`, the result of the walk without them; modifies both."""
        first, past = self._columns.first, 0
        for number in compress(count(), map(_SELECTIVE, self._labels)):
            above = states[number].above
            if number < past or above is None:
                continue
            label = self._labels[number]
            parts, steps = above.parts.get(label) or self._automaton.parts(above, label)
            if parts and not self._begin(number, parts, steps):
                place = bisect_right(first, number)
                begin = first[place - 1]
                past = first[place] if place < len(first) else len(states)  # a held document's end is not noted
                self._walk_whole(begin, past, elements, states)
        owners = zip(map(states.__getitem__, self._columns.owners), self._attributes, strict=True)
        found = [state[node].emission if state.reads_attributes else 0 for state, node in owners]
        columns = self._columns
        return Walk(elements, found, columns.owners, columns.places, self._elements, self._of_attributes)

    def _begin(self, number: int, parts: tuple[State, ...], steps: frozenset[Above]) -> bool:
        """False if a part's step also matches an enclosing node: nodes in both would be found twice."""
        matched = self._matched
        while matched and matched[-1][0] <= number:
            matched.pop()
        if any(not steps.isdisjoint(around) for _, around in matched):
            return False
        end = number
        for part in parts:
            end = self._walk_part(part, number)
        matched.append((end, steps))
        return True

    def _walk_part(self, part: State, number: int) -> int:
        """Walks over an element's subtree. Returns the number after its last element."""
        labels, counts = self._labels, self._columns.counts
        waiting: list[tuple[State, int]] = []
        state, left, below = part, 0, part
        while True:
            if below.binds:
                self._elements.append((number, below.emission))
            if below.reads_attributes:
                for attribute in self._attributes_of(number, number + 1):
                    if emission := below[self._attributes[attribute]].emission:
                        self._of_attributes.append((attribute, emission))
            children = counts[number]
            number += 1
            if children:
                if left:
                    waiting.append((state, left))
                state, left = below, children
            elif not left:
                if not waiting:
                    return number
                state, left = waiting.pop()
            below = state[labels[number]]
            left -= 1

    def _attributes_of(self, begin: int, end: int) -> range:
        owners = self._columns.owners
        return range(bisect_left(owners, begin), bisect_left(owners, end))

    def _walk_whole(self, begin: int, end: int, elements: list[int], states: list[State]) -> None:
        found: list[int] = []
        met: list[State] = []
        forest = zip(self._labels[begin:end], self._columns.counts[begin:end], strict=True)
        walk_over(self._automaton.root(states[begin].stream, whole=True), 1, forest, found, met)
        elements[begin:end], states[begin:end] = found, met
        self._elements = [more for more in self._elements if more[0] < begin]
        attributes = self._attributes_of(begin, end)
        self._of_attributes = [more for more in self._of_attributes if more[0] < attributes.start]
        self._matched.clear()


SHARE = 32  # maximum average number of groups per edge, beside its own

CROWDED = 10_000  # tolerated rows of possibly unneeded groups

_Filters = tuple[int, ...]  # the value filters that a node and its ancestors must pass for an edge to bind there


@dataclass(slots=True, eq=False)
class _Family:
    """Edges with the same value filters: their number (`size`), their runs, and the rows of groups of them."""

    filters: _Filters
    size: int = 0
    rows: int = 0
    runs: list[_Run] = field(default_factory=list)

    def take(self, run: _Run) -> None:
        """Adds the newest run. Runs are merged so that each is at least twice as large as the next."""
        self.size += run.size
        self.runs = [old for old in self.runs if old.size]
        while self.runs and self.runs[-1].size < 2 * run.size:
            younger, run = run, self.runs.pop()
            run.size += younger.size
            younger.merged = run
        self.runs.append(run)


@dataclass(slots=True, eq=False)
class _Run:
    family: _Family
    size: int
    merged: _Run | None = None

    def whole(self) -> _Run:
        run = self
        while run.merged is not None:
            run = run.merged
        return run


class Groups:
    def __init__(self, known: Iterable[tuple[int, Iterable[StepEdge]]] = ()) -> None:
        self._numbers: dict[frozenset[StepEdge], int] = {}
        self._edges: dict[int, frozenset[StepEdge]] = {}
        self._next = self._rows = 0
        for number, members in known:  # a store may have two groups with the same edges
            edges = frozenset(members)
            self._numbers[edges] = number
            self._edges[number] = edges
            self._next = max(self._next, number + 1)
            self._rows += len(edges)
        self._needed = self._rows
        self._seeds = [edges for edges in self._numbers if len(edges) > 1]
        self._removed = self._refused = False
        self._families: dict[_Filters, _Family] = {}
        self._run_of: dict[StepEdge, _Run] = {}
        self._pending: dict[StepEdge, _Filters] = {}
        self._fresh: list[tuple[int, StepEdge]] = []
        self._taken: list[tuple[int, StepEdge]] = []

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def crowded(self) -> bool:
        """Whether there may be many unneeded groups, or some that leave no room for others."""
        return self._rows > 2 * self._needed + CROWDED or (self._removed and self._refused)

    # ------------------------------------------------------------ registration

    def add(self, edge: StepEdge, filters: _Filters) -> None:
        self._pending[edge] = filters

    def remove(self, edges: Iterable[StepEdge]) -> None:
        for edge in edges:
            self._removed = True
            if self._pending.pop(edge, None) is None:
                run = self._run_of.pop(edge).whole()
                run.size -= 1
                run.family.size -= 1
                if not run.family.size:
                    del self._families[run.family.filters]

    def _settle(self) -> None:
        seeds, self._seeds = self._seeds, []
        # Edges that were in one group in an earlier run are in one group again, so that its number stays in use.
        for seed in sorted(seeds, key=len, reverse=True):
            self._sort_in([edge for edge in seed if edge in self._pending])
        self._sort_in(list(self._pending))
        if seeds:
            self._count()

    def _sort_in(self, edges: Sequence[StepEdge]) -> None:
        by_filters: dict[_Filters, list[StepEdge]] = {}
        for edge in edges:
            by_filters.setdefault(self._pending.pop(edge), []).append(edge)
        for filters, members in by_filters.items():
            family = self._families.setdefault(filters, _Family(filters))
            run = _Run(family, len(members))
            self._run_of.update(dict.fromkeys(members, run))
            family.take(run)

    def _count(self) -> None:
        self._rows = sum(map(len, self._numbers))
        for family in self._families.values():
            family.rows = 0
        for edges in self._numbers:
            run = self._run_of.get(next(iter(edges)))
            if run is not None and len(edges) > 1:
                run.whole().family.rows += len(edges)

    # ------------------------------------------------------------ numbers

    def numbers(self, edges: Collection[StepEdge]) -> list[int]:
        """The numbers of the groups that together have these edges, which bind together."""
        if self._pending:
            self._settle()
        if len(edges) == 1:
            return [self.number(frozenset(edges))]
        parts: dict[_Family | None, list[StepEdge]] = {}
        for edge in edges:
            run = self._run_of.get(edge)
            parts.setdefault(None if run is None else run.whole().family, []).append(edge)
        # The order of new numbers must not depend on the order of a set.
        return [number for part in sorted(parts.items(), key=_first) for number in self._numbered(*part)]

    def _numbered(self, family: _Family | None, edges: list[StepEdge]) -> Iterator[int]:
        known = self._numbers.get(frozenset(edges))
        if known is not None:
            yield known
            return
        runs: dict[_Run | None, list[StepEdge]] = {}
        for edge in edges:
            runs.setdefault(self._run_of[edge].whole() if family else None, []).append(edge)
        for _, part in sorted(runs.items(), key=_first):
            key = frozenset(part)
            if len(part) > 1 and key not in self._numbers:
                if family is None or family.rows + len(part) > SHARE * family.size:
                    self._refused = True
                    yield from (self.number(frozenset((edge,))) for edge in sorted(part))
                    continue
                family.rows += len(part)
            yield self.number(key)

    def number(self, edges: frozenset[StepEdge]) -> int:
        number = self._numbers.get(edges)
        if number is None:
            number = self._numbers[edges] = self._next
            self._edges[number] = edges
            self._next += 1
            self._rows += len(edges)
            self._fresh += [(number, edge) for edge in sorted(edges)]
        return number

    def edges_of(self, numbers: Iterable[int]) -> dict[int, frozenset[StepEdge]]:
        return {number: self._edges[number] for number in numbers}

    # ------------------------------------------------------------ batches

    def take(self) -> list[tuple[int, StepEdge]]:
        """The pairs (group, edge) of groups created since the last call."""
        taken, self._fresh = self._fresh, []
        self._taken += taken
        return taken

    def saved(self, saved: bool) -> None:
        """Called with whether the groups of the last `take` were stored; if not, they are new again."""
        if not saved:
            self._fresh = self._taken + self._fresh
        self._taken = []

    def keep(self, numbers: Collection[int]) -> None:
        """Drops all groups but these and unstored ones. Numbers are never reused."""
        kept = {*numbers, *(number for number, _ in self._fresh)}
        self._numbers = {edges: number for edges, number in self._numbers.items() if number in kept}
        self._edges = {number: edges for edges, number in self._numbers.items()}
        self._count()
        self._needed = self._rows
        self._removed = self._refused = False


def _first(part: tuple[object, list[StepEdge]]) -> StepEdge:
    return min(part[1])


MOST_PARTS = 8  # maximum number of parts that begin at one node; past it all steps are one part

_Outline = tuple[NodeKind, str, int, int, frozenset[Approach]]
"""(kind, name, depth, relevant satisfied filters, approaches): determines a state, except for its path."""

_Reached = tuple[NodeKind, int, frozenset[tuple[int, Way]]]
"""(kind, depth, (step, way)): the steps that match at a node, and how."""


class Automaton:
    def __init__(self, groups: Groups, limits: Limits, failures: Failures | None) -> None:
        self._vocabulary = Vocabulary()
        self._failures = failures
        self._filters = FilterBank(self._vocabulary, failures)
        self._classes = NodeClasses(self._filters, self._vocabulary, limits.classes)
        self._limits = limits
        self._steps = StepIndex()
        self._edges_to: dict[int, tuple[StepEdge, ...]] = {}
        self._owners = Tags()
        self._wanted = NumberSet()
        self._valued = Tags()
        self._concatenated: set[int] = set()  # variables whose values are read from trees
        self._groups = groups
        self._selects: dict[Above, Bits] = {}
        self.flushes = 0
        self.reset()

    # ------------------------------------------------------------ registration

    def add(self, change: Change) -> None:
        """Registers steps (parents before children), edges, and variables whose values are needed."""
        for step in change.steps:
            required = () if step.node.axis == "." else self._filters.require(step.node)
            above, own = self._selects.get(step.parent, ()), self._filters.selective_of(required)
            if own or above:
                self._selects[step.id] = tuple(sorted({*above, *own})) if own else above
            self._steps.add(step, required, self._filters.selective)
            if step.node.test.kind == "attribute":
                self._owners.add(self._steps.owner_test(step))
        for edge in change.edges:
            self._edges_to[edge[1]] = (*self._edges_to.get(edge[1], ()), edge)  # mostly the only one
            self._groups.add(edge, self._selects.get(edge[1], ()))
        for value in change.values:
            self._wanted.add(value)
            if reads_tree(self._steps[value].node.functions):
                self._concatenated.add(value)
            else:
                self._valued.add(self._steps.test_of(value))
        if self._is_used:  # very many patterns may be added one after the other
            self.reset()

    def remove(self, change: Change) -> None:
        self._groups.remove(change.edges)
        for edge in change.edges:
            left = self._edges_to[edge[1]] = tuple(other for other in self._edges_to[edge[1]] if other != edge)
            if not left:
                del self._edges_to[edge[1]]
        for value in change.values:
            self._wanted.discard(value)
            if value in self._concatenated:
                self._concatenated.remove(value)
            else:
                self._valued.remove(self._steps.test_of(value))
        for step in change.steps:
            if step.node.test.kind == "attribute":
                self._owners.remove(self._steps.owner_test(step))
        for step in change.steps:
            self._steps.remove(step)
            self._selects.pop(step.id, None)
            if step.node.axis != ".":
                self._filters.release(step.node)
        self.reset()

    def registered(self) -> Change:
        """All that is registered, parents before children."""
        edges = tuple(edge for edges in self._edges_to.values() for edge in edges)
        return Change(tuple(self._steps), edges, tuple(self._wanted))

    def reset(self) -> None:
        """Drops all states, classes and emissions after a change of registration."""
        self._forget()
        self._classes.forget()
        self._of_attributes: Memo[str, bool] = Memo(lambda tag: self.looks_at[tag].attributes, self._limits.classes)
        self._of_values: Memo[str, bool] = Memo(
            lambda tag: tag in self._valued or bool(self._classes.tests_of(tag).literals), self._limits.classes
        )
        self._interned: Memo[str, str] = Memo(str, self._limits.classes)
        self._mentioned: Memo[str, bool] = Memo(self._vocabulary.mentions, self._limits.classes)
        self._below: Memo[tuple[str, NodeKind, str, bool], StepsBelow] = Memo(
            lambda key: self._steps.below(*key[:3], selective=key[3]), self._limits.classes
        )
        self.looks_at: Memo[str, Tests] = Memo(self._looks_at, self._limits.classes)
        """By tag: the tests that distinguish documents in which it is an element's."""
        self.emissions = Emissions(self._failures)
        self._is_used = False

    def _forget(self) -> None:
        """Drops all states."""
        self._roots: dict[tuple[str, bool], State] = {}
        self.states = 0
        self._outcomes, self._by_reached = Memo(self._outcome), Memo(self._follows)
        self._contexts = Memo(self._context)
        self._index_of: Memo[MaskIndex[int] | int, MaskIndex[int]] = Memo(index_of)

    # ------------------------------------------------------------ walks

    def columns(self) -> ElementColumns:
        self._is_used = True
        owners = self._of_attributes if self._owners or self._filters.owners else None
        trees = self._filters.reads_trees or bool(self._concatenated)
        return ElementColumns(owners, self._of_values, self._interned, self._mentioned, trees=trees)

    def walk(self, streams: Iterable[str], columns: ElementColumns) -> Walk:
        if self.states > self._limits.states or self._classes.made >= self._limits.classes:
            self.flushes += 1
            self._forget()
            self._classes.forget()
        attributes = self._classes.of_attributes(columns)
        labels: Sequence[Label] = self._classes.of_elements(columns, attributes) if self._filters else columns.tags
        elements: list[int] = []
        states: list[State] | None = [] if attributes or self._steps.selective else None
        forest = zip(labels, columns.counts, strict=True)
        for stream, documents in groupby(streams):
            walk_over(self.root(stream), sum(1 for _ in documents), forest, elements, states)
        if states is None:
            return Walk(elements, (), (), ())
        if self._steps.selective:
            return PartWalks(self, columns, labels, attributes).walk(elements, states)
        owners = zip(map(states.__getitem__, columns.owners), attributes, strict=True)
        found = [state[node].emission if state.reads_attributes else 0 for state, node in owners]
        return Walk(elements, found, columns.owners, columns.places)

    def _looks_at(self, tag: str) -> Tests:
        self._is_used = True
        tests = self._classes.tests_of(tag)
        return tests._replace(attributes=tests.attributes or tag in self._owners)

    def bound_emissions(self) -> bool:
        """Drops all emissions if there are too many. True if it did: emissions of earlier walks are then invalid."""
        if len(self.emissions) <= self._limits.emissions:
            return False
        self.flushes += 1
        self.reset()
        return True

    def root(self, stream: str, *, whole: bool = False) -> State:
        """The state of a stream's document, above its root element. A `whole` one has all steps."""
        self._is_used = True
        state = self._roots.get((stream, whole))
        if state is None:
            within = (stream, "//", None) in self._steps.to_attributes
            state = State(self, stream, None, StateOutcome(DOCUMENT, 0, False, False, within), -1, whole=whole)
            self._roots[stream, whole] = state
        return state

    def enter(self, above: State, label: Label) -> State:
        """Creates the missing transition from `above` with a label."""
        if isinstance(label, NodeClass):
            kind, name, mask = label.kind, label.name, label.mask
        else:
            kind, name, mask = "element", self._vocabulary.canonical(label), 0
        known = above.approaches.get((kind, name))
        if known is None:
            sorts = (False, True) if above.whole else (False,)
            known = above.approaches[kind, name] = self._approaches(above, kind, name, sorts)
        need, approaches = known
        found = above.by_label.get((kind, name, mask & need))
        if found is None:
            if self.states > self._limits.states:
                # In the middle of a document, whose path stays.
                self.flushes += 1
                self._forget()
                for state in above.path():
                    state.forget()
                self.states = above.depth + 1
            outline = (kind, name, above.depth + 1, mask & need, approaches)
            outcome = self._outcomes[outline]
            # Most filters distinguish documents, but few of them what matches: then the outcome is the same.
            found = above.by_outcome.get(outcome)
            if found is None:
                found = State(self, above.stream, above, outcome, above.depth + 1, whole=above.whole)
                above.by_outcome[outcome] = found
            above.by_label[kind, name, mask & need] = found
        if self.states <= self._limits.states:
            self.states += 1
            above[label] = found
        return found

    def parts(self, above: State, node: NodeClass) -> PartStates:
        """The states of the parts that begin at an element below `above`: one for each set of value filters of the
        selective steps that match there, or one for all past MOST_PARTS."""
        known = above.selective_approaches.get(node.name)
        if known is None:
            known = above.selective_approaches[node.name] = self._approaches(above, "element", node.name, (True,))
        need, approaches = known
        key = node.name, node.mask & need
        found = above.parts.get(key)
        is_new = found is None
        if found is None:
            parts = self._parts(above, node.mask, approaches) if approaches else ()
            found = parts, frozenset(step for part in parts for step in part.contexts)
        if self.states <= self._limits.states:
            self.states += 1 + len(found[0]) * is_new
            above.parts[key] = above.parts[node] = found
        return found

    def _parts(self, above: State, mask: int, approaches: frozenset[Approach]) -> tuple[State, ...]:
        reached: dict[Bits, set[tuple[int, Way]]] = {}
        for depth, matched, context, index in approaches:
            for step, required in index.satisfied_with(mask):
                same = reached.setdefault(self._filters.selective_of(required), set())
                same.add((step, (depth, matched, context)))
        together = (
            [steps for _, steps in sorted(reached.items(), key=lambda part: sorted(part[0]))]
            if len(reached) <= MOST_PARTS
            else [set().union(*reached.values())]
        )
        found = []
        for steps in together:
            outcome = self._by_reached["element", above.depth + 1, frozenset(steps)]
            state = above.part_of.get(outcome)
            if state is None:
                state = State(self, above.stream, None, outcome, above.depth + 1, whole=True)
                above.part_of[outcome] = state
            found.append(state)
        return tuple(found)

    def _approaches(self, above: State, kind: NodeKind, name: str, sorts: tuple[bool, ...]) -> Approaches:
        need, found = 0, []
        for selective in sorts:
            for axis, by_parent in self._below[above.stream, kind, name, selective]:
                for ancestor in (above,) if axis == "/" else above.path():
                    for step in by_parent.keys() & ancestor.contexts.keys():
                        index = self._index_of[by_parent[step]]
                        need |= index.need
                        found.append((ancestor.depth, step, ancestor.contexts[step], index))
        return need, frozenset(found)

    def _outcome(self, outline: _Outline) -> StateOutcome:
        kind, _, own_depth, mask, approaches = outline
        reached = {
            (step, (depth, above, context))
            for depth, above, context, index in approaches
            for step in index.satisfied(mask)
        }
        return self._by_reached[kind, own_depth, frozenset(reached)]

    def _follows(self, found: _Reached) -> StateOutcome:
        kind, own_depth, reached = found
        places: dict[int, set[Way]] = {}
        for step, way in reached:
            places.setdefault(step, set()).add(way)
        contexts: dict[Above, Context] = {}
        for step, ways in places.items():
            contexts[step] = self._contexts[step, frozenset(ways)]
            for derived in self._steps.on_self.get(step, ()):
                contexts[derived] = self._contexts[derived, frozenset([(own_depth, step, contexts[step])])]
        within = any((self._steps[step].stream, "//", step) in self._steps.to_attributes for step in places)
        reads = within or any((self._steps[step].stream, "/", step) in self._steps.to_attributes for step in places)
        emission, binds = self._emission(kind, own_depth, contexts)
        return StateOutcome(contexts, emission, binds, reads and kind == "element", within and kind == "element")

    def _context(self, key: tuple[int, frozenset[Way]]) -> Context:
        depths: dict[int, set[int]] = {}
        for depth, above, of_above in key[1]:
            if above is not None:
                depths.setdefault(above, set()).add(depth)
            for ancestor, places in of_above.depths.items():
                depths.setdefault(ancestor, set()).update(places)
        return Context({ancestor: frozenset(places) for ancestor, places in depths.items()})

    def _emission(self, kind: NodeKind, own_depth: int, contexts: dict[Above, Context]) -> tuple[int, bool]:
        bound: dict[tuple[int, int, int], set[StepEdge]] = {}
        values = set()
        for step, context in contexts.items():
            assert step is not None
            chain, functions = self._steps[step].chain, self._steps[step].node.functions
            derived = node_id(0, 0, chain)
            if step in self._wanted:
                values.add((chain, functions))
            for edge in self._edges_to.get(step, ()):
                if edge[0] == edge[1]:
                    bound.setdefault((own_depth, derived, derived), set()).add(edge)
                    continue
                for depth in context.depths.get(edge[0], ()):
                    bound.setdefault((depth, 0, derived), set()).add(edge)
        binds = bool(bound or values)
        if kind == "attribute" and not binds:
            return 0, False
        rows = sorted(
            BoundGroup(number, *place)
            for place, edges in sorted(bound.items())
            for number in self._groups.numbers(edges)
        )
        return self.emissions.number(own_depth, tuple(rows), tuple(sorted(values))), binds
