"""The shared automaton: all registered steps of all streams, made deterministic lazily over (name, satisfied filters).

A state stands for the path of labels from the document to a node. It knows which steps (shared variables) the node
matches, and which groups of edges bind there, with the depth of the ancestor that each binds; so a node costs a
dictionary look-up, however many patterns are registered. States are made on demand and thrown away past a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from templates.catalog import Change, Edge, Step
from xpath_stage.filters import FilterBank
from xpath_stage.masks import MaskIndex
from xscl.pattern import Test

MAX_STATES = 100_000


@dataclass(frozen=True, slots=True)
class BoundGroup:
    """A group of edges that bind at a node: `depth` is that of the ancestor node1 (elements from 0);
    `functions1` and `functions2` derive the values of the two nodes, () for the nodes themselves."""

    group: int
    depth: int
    functions1: tuple[str, ...]
    functions2: tuple[str, ...]


class State:
    """A state of the automaton. `steps` match at the node; `rows` bind there; `values` are wanted of it."""

    __slots__ = ("above", "by_label", "depth", "needs", "rows", "steps", "values")

    def __init__(self, above: State | None, steps: frozenset[int]) -> None:
        self.above, self.steps = above, steps
        self.depth: int = -1 if above is None else above.depth + 1
        self.needs: dict[tuple[str, str], int] = {}
        self.by_label: dict[tuple[str, str, int], State] = {}
        self.rows: tuple[BoundGroup, ...] = ()
        self.values: tuple[tuple[str, ...], ...] = ()

    def path(self) -> Iterator[State]:
        """This state and those above it, down to the document's own."""
        state: State | None = self
        while state is not None:
            yield state
            state = state.above


class Automaton:
    """Steps, edges and wanted values, and the states made of them so far."""

    def __init__(self, filters: FilterBank, max_states: int) -> None:
        self._filters = filters
        self._max_states = max_states
        self._steps: dict[int, Step] = {}
        self._below: dict[tuple[str, int | None, str], dict[Test, MaskIndex[int]]] = {}
        self._self_steps: dict[int, set[int]] = {}
        self._edges_to: dict[int, set[Edge]] = {}
        self._wanted: set[int] = set()
        self._groups: dict[frozenset[Edge], int] = {}
        self._roots: dict[str, State] = {}
        self._new_groups: list[tuple[int, Edge]] = []
        self._unsaved_groups: list[tuple[int, Edge]] = []
        self.has_attributes = False
        self.states = 0
        self.flushes = 0

    # ------------------------------------------------------------ registration

    def add(self, change: Change) -> None:
        """Adds steps (parents before children), edges and wanted values."""
        for step in change.steps:
            self._steps[step.id] = step
            if step.node.axis == ".":
                assert step.parent is not None
                self._self_steps.setdefault(step.parent, set()).add(step.id)
                continue
            key = (step.stream, step.parent, step.node.axis)
            required = self._filters.require(step.node)
            self._below.setdefault(key, {}).setdefault(step.node.test, MaskIndex()).add(step.id, required)
            self.has_attributes |= step.node.test.kind == "attribute"
        for edge in change.edges:
            self._edges_to.setdefault(edge[1], set()).add(edge)
        self._wanted.update(change.values)
        self.reset()

    def remove(self, change: Change) -> None:
        """Drops what `add` added."""
        for edge in change.edges:
            self._edges_to[edge[1]].discard(edge)
            if not self._edges_to[edge[1]]:
                del self._edges_to[edge[1]]
        for step in change.steps:
            del self._steps[step.id]
            if step.node.axis == ".":
                assert step.parent is not None
                self._self_steps[step.parent].discard(step.id)
                continue
            self._below[step.stream, step.parent, step.node.axis][step.node.test].remove(step.id)
            self._filters.release(step.node)
        self._wanted.difference_update(change.values)
        self.reset()

    def reset(self) -> None:
        """Forgets all states."""
        self._roots.clear()
        self.states = 0

    def restore_groups(self, groups: Iterable[tuple[int, frozenset[Edge]]]) -> None:
        """Takes over the groups' numbers from an earlier run."""
        self._groups = {edges: number for number, edges in groups}

    def take_groups(self) -> list[tuple[int, Edge]]:
        """(group, edge) of the groups made since the last call."""
        taken, self._new_groups = self._new_groups, []
        self._unsaved_groups += taken
        return taken

    def groups_saved(self, saved: bool) -> None:
        """Tells whether the groups taken since the last call are stored for good; if not they are new again."""
        if not saved:
            self._new_groups = self._unsaved_groups + self._new_groups
        self._unsaved_groups = []

    # ------------------------------------------------------------ states

    def root(self, stream: str) -> State:
        """The state of a document of `stream`, above its root element."""
        if self.states > self._max_states:
            self.reset()
            self.flushes += 1
        state = self._roots.get(stream)
        if state is None:
            state = self._roots[stream] = State(None, frozenset())
        return state

    def enter(self, stream: str, state: State, kind: str, name: str, mask: int) -> State:
        """The state of a child element, or of an attribute, with the filters in `mask`."""
        need = state.needs.get((kind, name))
        if need is None:
            need = 0
            for index in self._indexes(stream, state, kind, name):
                need |= index.need
            state.needs[kind, name] = need
        label = (kind, name, mask & need)
        found = state.by_label.get(label)
        if found is None:
            found = state.by_label[label] = self._expand(stream, state, kind, name, mask)
        return found

    def _indexes(self, stream: str, state: State, kind: str, name: str) -> Iterator[MaskIndex[int]]:
        """The steps that a node of this name below `state` may match, by what leads to them."""
        for ancestor in state.path():
            parents: Iterable[int | None] = ancestor.steps if ancestor.above is not None else (None,)
            for parent in parents:
                for axis in ("/", "//") if ancestor is state else ("//",):
                    for test, index in self._below.get((stream, parent, axis), {}).items():
                        if test.kind == kind and test.accepts(name):
                            yield index

    def _expand(self, stream: str, above: State, kind: str, name: str, mask: int) -> State:
        matched: set[int] = set()
        for index in self._indexes(stream, above, kind, name):
            matched.update(index.satisfied(mask))
        for step in list(matched):
            matched |= self._self_steps.get(step, set())
        state = State(above, frozenset(matched))
        self.states += 1
        path = list(state.path())[::-1][1:]
        bound: dict[tuple[int, tuple[str, ...], tuple[str, ...]], set[Edge]] = {}
        for step in matched:
            functions = self._steps[step].node.functions
            for edge in self._edges_to.get(step, ()):
                if edge[0] == edge[1]:
                    bound.setdefault((state.depth, functions, functions), set()).add(edge)
                    continue
                for depth in self._depths(edge, path):
                    bound.setdefault((depth, (), functions), set()).add(edge)
        state.rows = tuple(
            BoundGroup(self._group(frozenset(edges)), depth, functions1, functions2)
            for (depth, functions1, functions2), edges in bound.items()
        )
        state.values = tuple({self._steps[step].node.functions for step in matched & self._wanted})
        return state

    def _depths(self, edge: Edge, path: list[State]) -> set[int]:
        """The depths at which the edge's ancestor binds in some chain of steps that ends in its child at path's end."""
        ancestor, child = edge
        reached, found = {(child, len(path) - 1)}, set()
        while reached:
            above: set[tuple[int, int]] = set()
            for step, depth in reached:
                parent, axis = self._steps[step].parent, self._steps[step].node.axis
                if parent is None:
                    continue
                places = (depth,) if axis == "." else (depth - 1,) if axis == "/" else range(depth)
                for place in places:
                    if place >= 0 and parent in path[place].steps:
                        if parent == ancestor:
                            found.add(place)
                        else:
                            above.add((parent, place))
            reached = above
        return found

    def _group(self, edges: frozenset[Edge]) -> int:
        number = self._groups.get(edges)
        if number is None:
            number = self._groups[edges] = len(self._groups)
            self._new_groups += [(number, edge) for edge in edges]
        return number
