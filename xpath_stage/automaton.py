"""The shared automaton: all registered steps of all streams, made deterministic lazily over (name, satisfied filters).

A state stands for the path of labels from the document to a node. It knows which steps (shared variables) the node
matches, and so which groups of edges bind there; a node costs a dictionary look-up, however many patterns are
registered. States are made on demand and thrown away past a limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby

from templates.catalog import Change, Edge, Step
from templates.witness import node_id
from xpath_stage import filters
from xpath_stage.columns import Columns
from xpath_stage.emissions import MAX_EMISSIONS, BoundGroup, Emissions, Walk
from xpath_stage.filters import FilterBank, NodeClass, Tests
from xpath_stage.masks import MaskIndex
from xpath_stage.names import Memo, Tags, Vocabulary, decrease, split_name
from xscl.pattern import Test

MAX_STATES = 100_000

Label = str | NodeClass
"""What a state's node is told apart from its siblings by: its tag, or with filters its class."""


class State(dict[Label, "State"]):
    """A state of the automaton: leads on from labels of children to their states.

    `steps` match at the node, `emission` is the number of what binds there and of the values wanted of it (`leaf` and
    `inner` are the same as in `Walk.elements`), and `reads_attributes` tells whether its attributes have states.
    """

    __slots__ = (
        "above", "automaton", "by_label", "depth", "emission", "inner", "leaf", "needs", "reads_attributes", "steps",
        "stream",
    )  # fmt: skip

    def __init__(self, automaton: Automaton, stream: str, above: State | None, steps: frozenset[int]) -> None:
        super().__init__()
        self.automaton, self.stream, self.above, self.steps = automaton, stream, above, steps
        self.depth: int = -1 if above is None else above.depth + 1
        self.needs: dict[tuple[str, str], int] = {}
        self.by_label: dict[tuple[str, str, int], State] = {}
        self.emission = self.leaf = self.inner = 0
        self.reads_attributes = False

    def __missing__(self, label: Label) -> State:
        return self.automaton.enter(self, label)

    def path(self) -> Iterator[State]:
        """This state and those above it, down to the document's own."""
        state: State | None = self
        while state is not None:
            yield state
            state = state.above

    def forget(self) -> None:
        """Forgets all states below this one."""
        self.clear()
        self.by_label.clear()


_Key = tuple[str, int | None, str]
"""(stream, step above or None, axis)"""

_Name = tuple[str, str, str]
"""(kind, namespace, local name), each of the latter two possibly `*`"""


class Automaton:
    """Steps, edges and wanted values, and the states made of them so far."""

    def __init__(self, max_states: int) -> None:
        self._vocabulary = Vocabulary()
        self._filters = FilterBank(self._vocabulary)
        self._max_states = max_states
        self._steps: dict[int, Step] = {}
        self._below: dict[_Key, dict[_Name, MaskIndex[int]]] = {}
        self._self_steps: dict[int, set[int]] = {}
        self._edges_to: dict[int, set[Edge]] = {}
        self._attribute_keys: Counter[_Key] = Counter()
        self._owners = Tags()
        self._wanted: set[int] = set()
        self._valued = Tags()
        self._groups: dict[frozenset[Edge], int] = {}
        self._roots: dict[str, State] = {}
        self._new_groups: list[tuple[int, Edge]] = []
        self._unsaved_groups: list[tuple[int, Edge]] = []
        self.flushes = 0
        self.reset()

    # ------------------------------------------------------------ registration

    def add(self, change: Change) -> None:
        """Adds steps (parents before children), edges and wanted values."""
        for step in change.steps:
            self._steps[step.id] = step
            if step.node.axis == ".":
                assert step.parent is not None
                self._self_steps.setdefault(step.parent, set()).add(step.id)
                continue
            key, required = _key(step), self._filters.require(step.node)
            self._below.setdefault(key, {}).setdefault(_name(step.node.test), MaskIndex()).add(step.id, required)
            if step.node.test.kind == "attribute":
                self._attribute_keys[key] += 1
                self._owners.add(self._owner_test(step))
        for edge in change.edges:
            self._edges_to.setdefault(edge[1], set()).add(edge)
        self._wanted.update(change.values)
        for value in change.values:
            self._valued.add(self._test_of(value))
        self.reset()

    def remove(self, change: Change) -> None:
        """Drops what `add` added."""
        for edge in change.edges:
            self._edges_to[edge[1]].discard(edge)
            if not self._edges_to[edge[1]]:
                del self._edges_to[edge[1]]
        for step in change.steps:
            if step.node.axis == ".":
                assert step.parent is not None
                self._self_steps[step.parent].discard(step.id)
                continue
            key, by_name = _key(step), self._below[_key(step)]
            index = by_name[_name(step.node.test)]
            index.remove(step.id)
            if not index:
                del by_name[_name(step.node.test)]
            if not by_name:
                del self._below[key]
            if step.node.test.kind == "attribute":
                decrease(self._attribute_keys, key)
                self._owners.remove(self._owner_test(step))
            self._filters.release(step.node)
        for value in change.values:
            self._valued.remove(self._test_of(value))
        self._wanted.difference_update(change.values)
        for step in change.steps:
            del self._steps[step.id]
        self.reset()

    def _test_of(self, step_id: int) -> Test:
        """What nodes that a step matches pass."""
        step = self._steps[step_id]
        while step.node.axis == ".":
            assert step.parent is not None
            step = self._steps[step.parent]
        return step.node.test

    def _owner_test(self, step: Step) -> Test | None:
        """What the owner of an attribute step must pass; None: any element."""
        parent = None if step.parent is None else self._steps.get(step.parent)
        return parent.node.test if parent is not None and step.node.axis == "/" else None

    def reset(self) -> None:
        """Forgets all states, classes and emissions: for what is registered has changed."""
        self._filters.forget()
        self._roots.clear()
        self.states = 0
        self._of_attributes: Memo[str, bool] = Memo(lambda tag: self.looks_at(tag).attributes, filters.MAX_CLASSES)
        self._of_values: Memo[str, bool] = Memo(self._reads_value, filters.MAX_CLASSES)
        self.emissions = Emissions()

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

    # ------------------------------------------------------------ walks

    def columns(self) -> Columns:
        """Empty columns for documents that are to be walked."""
        owners = self._of_attributes if self._owners or self._filters.owners else None
        return Columns(owners, self._of_values, keeps_trees=self._filters.reads_trees)

    def walk(self, streams: Iterable[str], columns: Columns) -> Walk:
        """What binds at each node of some documents, each of a stream."""
        self._bound_memory()
        attributes = self._filters.attribute_classes(columns)
        labels: Sequence[Label] = self._filters.classes(columns, attributes) if self._filters else columns.tags
        elements: list[int] = []
        states: list[State] | None = [] if attributes else None
        forest = zip(labels, columns.counts, strict=True)
        for stream, documents in groupby(streams):
            _walk(self._root(stream), sum(1 for _ in documents), forest, elements, states)
        if states is None:
            return Walk(elements, (), (), ())
        owners = zip(map(states.__getitem__, columns.owners), attributes, strict=True)
        found = [state[node].emission if state.reads_attributes else 0 for state, node in owners]
        return Walk(elements, found, columns.owners, columns.places)

    def looks_at(self, tag: str) -> Tests:
        """What is looked at in elements with this tag, beside their children."""
        tests = self._filters.tests_of(tag)
        return replace(tests, attributes=tests.attributes or tag in self._owners)

    def _reads_value(self, tag: str) -> bool:
        return tag in self._valued or bool(self._filters.tests_of(tag).literals)

    def bound_emissions(self) -> bool:
        """Starts the emissions anew if there are too many, and tells so: those of earlier walks mean nothing then."""
        if len(self.emissions) <= MAX_EMISSIONS:
            return False
        self.flushes += 1
        self.reset()
        return True

    def _bound_memory(self) -> None:
        if self.states > self._max_states or self._filters.made >= filters.MAX_CLASSES:
            self.flushes += 1
            self.states = 0
            self._roots.clear()
            self._filters.forget()

    def _root(self, stream: str) -> State:
        """The state of a document of `stream`, above its root element."""
        state = self._roots.get(stream)
        if state is None:
            state = self._roots[stream] = State(self, stream, None, frozenset())
        return state

    def enter(self, above: State, label: Label) -> State:
        """The state of a child that `above` does not lead to yet."""
        if isinstance(label, NodeClass):
            kind, name, mask = label.kind, label.name, label.mask
        else:
            kind, name, mask = "element", self._vocabulary.canonical(label), 0
        need = above.needs.get((kind, name))
        if need is None:
            need = 0
            for index in self._indexes(above, kind, name):
                need |= index.need
            above.needs[kind, name] = need
        key = (kind, name, mask & need)
        found = above.by_label.get(key)
        if found is None:
            if self.states > self._max_states:
                self._flush_below(above)
            found = above.by_label[key] = self._expand(above, kind, name, mask)
        self.states += 1
        above[label] = found
        return found

    def _flush_below(self, state: State) -> None:
        """Forgets all states but those on the way to `state`, in the middle of a document."""
        self.flushes += 1
        self._roots.clear()
        for above in state.path():
            above.forget()
        self.states = state.depth + 1

    def _indexes(self, above: State, kind: str, name: str) -> Iterator[MaskIndex[int]]:
        """The steps that a node of this name below `above` may match, by what leads to them."""
        uri, local = split_name(name)
        names = ((kind, uri, local), (kind, uri, "*"), (kind, "*", local), (kind, "*", "*"))
        for ancestor in above.path():
            parents: Iterable[int | None] = ancestor.steps if ancestor.above is not None else (None,)
            for parent in parents:
                for axis in ("/", "//") if ancestor is above else ("//",):
                    by_name = self._below.get((above.stream, parent, axis))
                    if by_name:
                        for test in names:
                            index = by_name.get(test)
                            if index is not None:
                                yield index

    def _expand(self, above: State, kind: str, name: str, mask: int) -> State:
        matched: set[int] = set()
        for index in self._indexes(above, kind, name):
            matched.update(index.satisfied(mask))
        for step in list(matched):
            matched |= self._self_steps.get(step, set())
        state = State(self, above.stream, above, frozenset(matched))
        path = list(state.path())[::-1][1:]
        bound: dict[tuple[int, int, int], set[Edge]] = {}
        for step in matched:
            derived = node_id(0, 0, self._steps[step].node.functions)
            for edge in self._edges_to.get(step, ()):
                if edge[0] == edge[1]:
                    bound.setdefault((state.depth, derived, derived), set()).add(edge)
                    continue
                for depth in self._depths(edge, path):
                    bound.setdefault((depth, 0, derived), set()).add(edge)
        rows = [BoundGroup(self._group(frozenset(edges)), *place) for place, edges in bound.items()]
        values = {self._steps[step].node.functions for step in matched & self._wanted}
        if rows or values or kind == "element":
            state.emission = self.emissions.number(state.depth, tuple(sorted(rows)), tuple(sorted(values)))
        state.leaf, state.inner = state.emission * 2, state.emission * 2 + 1
        state.reads_attributes = kind == "element" and self._leads_to_attributes(state)
        return state

    def _leads_to_attributes(self, state: State) -> bool:
        keys = self._attribute_keys
        if not keys:
            return False
        below = ((state.stream, step, "/") for step in state.steps)
        inside = (
            (state.stream, step, "//")
            for ancestor in state.path()
            for step in (ancestor.steps if ancestor.above is not None else (None,))
        )
        return any(key in keys for key in chain(below, inside))

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


def _walk(
    root: State, documents: int, forest: Iterator[tuple[Label, int]], found: list[int], states: list[State] | None
) -> None:
    """Walks over the next documents of a forest of (label, number of children): appends to `found`, and to `states`."""
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


def _key(step: Step) -> _Key:
    return step.stream, step.parent, step.node.axis


def _name(test: Test) -> _Name:
    return test.kind, test.uri, test.local
