"""The shared automaton: all registered steps of all streams, made deterministic lazily over (name, satisfied filters).

A state stands for the path of labels from the document to a node. It knows which steps (shared variables) the node
matches, and so which groups of edges bind there; a node costs a dictionary look-up, however many patterns are
registered. States are made on demand and thrown away past a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from templates.catalog import Change, Edge
from templates.witness import node_id
from xpath_stage.classes import Classes, NodeClass, Tests
from xpath_stage.columns import Columns
from xpath_stage.emissions import BoundGroup, Emissions, Walk
from xpath_stage.filters import FilterBank
from xpath_stage.groups import Groups
from xpath_stage.limits import Limits
from xpath_stage.masks import MaskIndex
from xpath_stage.names import Memo, Tags, Vocabulary
from xpath_stage.steps import Above, Below, StepIndex
from xscl.syntax import NodeKind

Label = str | NodeClass
"""What a state's node is told apart from its siblings by: its tag, or with filters its class."""


class Context:
    """How a step came to match a node: at which `depths` the steps above it may have matched."""

    __slots__ = ("depths",)

    def __init__(self, depths: dict[int, frozenset[int]]) -> None:
        self.depths = depths


_DOCUMENT: dict[Above, Context] = {None: Context({})}

Approach = tuple[int, Above, Context, MaskIndex[int]]
"""(depth of a node above, step that it matches, context, the steps that may match below): what may lead to a match."""

_Outline = tuple[NodeKind, str, int, int, frozenset[Approach]]
"""(kind, name, depth, satisfied filters that matter, approaches): what all of a state follows from but its path."""

_Reached = tuple[NodeKind, int, frozenset[tuple[int, int, Above, Context]]]
"""(kind, depth, (step, depth of a node above, step that it matches, context)): the steps that match at a node, and how
they came to."""


class Outcome:
    """What holds at nodes: the steps that match there with their contexts; the number of the emission, what binds there
    and the values wanted; whether attributes of the node, and of all nodes in it, have states."""

    __slots__ = ("contexts", "emission", "reads_attributes", "reads_attributes_within")

    def __init__(
        self, contexts: dict[Above, Context], emission: int, reads_attributes: bool, reads_attributes_within: bool
    ) -> None:
        self.contexts, self.emission = contexts, emission
        self.reads_attributes, self.reads_attributes_within = reads_attributes, reads_attributes_within


class State(dict[Label, "State"]):
    """A state of the automaton: leads on from labels of children to their states.

    `leaf` and `inner` are what `Walk.elements` holds for its nodes, `emission` what `Walk.attributes` does.
    """

    __slots__ = (
        "above", "approaches", "automaton", "by_label", "by_outcome", "contexts", "depth", "emission", "inner",
        "leaf", "reads_attributes", "reads_attributes_within", "stream",
    )  # fmt: skip

    def __init__(self, automaton: Automaton, stream: str, above: State | None, outcome: Outcome) -> None:
        super().__init__()
        self.automaton, self.stream, self.above = automaton, stream, above
        self.depth: int = -1 if above is None else above.depth + 1
        self.contexts = outcome.contexts
        self.emission = outcome.emission
        self.leaf, self.inner = outcome.emission * 2, outcome.emission * 2 + 1
        self.reads_attributes_within: bool = outcome.reads_attributes_within or (
            above is not None and above.reads_attributes_within
        )
        self.reads_attributes = outcome.reads_attributes or self.reads_attributes_within
        self.approaches: dict[tuple[NodeKind, str], tuple[int, frozenset[Approach]]] = {}
        self.by_label: dict[tuple[NodeKind, str, int], State] = {}
        self.by_outcome: dict[Outcome, State] = {}

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
        self.by_outcome.clear()


class Automaton:
    """Steps, edges and wanted values, and the states made of them so far."""

    def __init__(self, groups: Groups, limits: Limits) -> None:
        self._vocabulary = Vocabulary()
        self._filters = FilterBank(self._vocabulary)
        self._classes = Classes(self._filters, self._vocabulary, limits.classes)
        self._limits = limits
        self._steps = StepIndex()
        self._edges_to: dict[int, set[Edge]] = {}
        self._owners = Tags()
        self._wanted: set[int] = set()
        self._valued = Tags()
        self._groups = groups
        self.flushes = 0
        self.reset()

    # ------------------------------------------------------------ registration

    def add(self, change: Change) -> None:
        """Adds steps (parents before children), edges and wanted values."""
        for step in change.steps:
            self._steps.add(step, 0 if step.node.axis == "." else self._filters.require(step.node))
            if step.node.test.kind == "attribute":
                self._owners.add(self._steps.owner_test(step))
        for edge in change.edges:
            self._edges_to.setdefault(edge[1], set()).add(edge)
        self._wanted.update(change.values)
        for value in change.values:
            self._valued.add(self._steps.test_of(value))
        self.reset()

    def remove(self, change: Change) -> None:
        """Drops what `add` added."""
        for edge in change.edges:
            self._edges_to[edge[1]].discard(edge)
            if not self._edges_to[edge[1]]:
                del self._edges_to[edge[1]]
        for value in change.values:
            self._valued.remove(self._steps.test_of(value))
        self._wanted.difference_update(change.values)
        for step in change.steps:
            if step.node.test.kind == "attribute":
                self._owners.remove(self._steps.owner_test(step))
        for step in change.steps:
            self._steps.remove(step)
            if step.node.axis != ".":
                self._filters.release(step.node)
        self.reset()

    def reset(self) -> None:
        """Forgets all states, classes and emissions: for what is registered has changed."""
        self._forget_states()
        self._classes.forget()
        self._of_attributes: Memo[str, bool] = Memo(lambda tag: self.looks_at(tag).attributes, self._limits.classes)
        self._of_values: Memo[str, bool] = Memo(self._reads_value, self._limits.classes)
        self._interned: Memo[str, str] = Memo(str, self._limits.classes)
        self._below: Memo[tuple[str, NodeKind, str], Below] = Memo(
            lambda key: self._steps.below(*key), self._limits.classes
        )
        self._outcomes: dict[_Outline, Outcome] = {}
        self._by_reached: dict[_Reached, Outcome] = {}
        self._contexts: dict[tuple[int, frozenset[tuple[int, Above, Context]]], Context] = {}
        self.emissions = Emissions()

    def _forget_states(self) -> None:
        self._roots: dict[str, State] = {}
        self.states = 0

    # ------------------------------------------------------------ walks

    def columns(self) -> Columns:
        """Empty columns for documents that are to be walked."""
        owners = self._of_attributes if self._owners or self._filters.owners else None
        return Columns(owners, self._of_values, self._interned, keeps_trees=self._filters.reads_trees)

    def walk(self, streams: Iterable[str], columns: Columns) -> Walk:
        """What binds at each node of some documents, each of a stream."""
        self._bound_memory()
        attributes = self._classes.of_attributes(columns)
        labels: Sequence[Label] = self._classes.of_elements(columns, attributes) if self._filters else columns.tags
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
        tests = self._classes.tests_of(tag)
        return replace(tests, attributes=tests.attributes or tag in self._owners)

    def _reads_value(self, tag: str) -> bool:
        return tag in self._valued or bool(self._classes.tests_of(tag).literals)

    def bound_emissions(self) -> bool:
        """Starts the emissions anew if there are too many, and tells so: those of earlier walks mean nothing then."""
        if len(self.emissions) <= self._limits.emissions:
            return False
        self.flushes += 1
        self.reset()
        return True

    def _bound_memory(self) -> None:
        if self.states > self._limits.states or self._classes.made >= self._limits.classes:
            self.flushes += 1
            self._forget_states()
            self._forget_outcomes()
            self._classes.forget()

    def _forget_outcomes(self) -> None:
        self._outcomes.clear()
        self._by_reached.clear()
        self._contexts.clear()

    def _root(self, stream: str) -> State:
        """The state of a document of `stream`, above its root element."""
        state = self._roots.get(stream)
        if state is None:
            within = self._steps.leads_to_attributes((stream, "//", None))
            state = self._roots[stream] = State(self, stream, None, Outcome(_DOCUMENT, 0, False, within))
        return state

    def enter(self, above: State, label: Label) -> State:
        """The state of a child that `above` does not lead to yet."""
        if isinstance(label, NodeClass):
            kind, name, mask = label.kind, label.name, label.mask
        else:
            kind, name, mask = "element", self._vocabulary.canonical(label), 0
        known = above.approaches.get((kind, name))
        if known is None:
            known = above.approaches[kind, name] = self._approaches(above, kind, name)
        need, approaches = known
        found = above.by_label.get((kind, name, mask & need))
        if found is None:
            if self.states > self._limits.states:
                self._flush_below(above)
            outline = (kind, name, above.depth + 1, mask & need, approaches)
            outcome = self._outcomes.get(outline)
            if outcome is None:
                outcome = self._outcomes[outline] = self._outcome(above.stream, outline)
            # Most filters tell apart documents, and few what matches in them: what follows is the same then.
            found = above.by_outcome.get(outcome)
            if found is None:
                found = above.by_outcome[outcome] = State(self, above.stream, above, outcome)
            above.by_label[kind, name, mask & need] = found
        if self.states <= self._limits.states:
            self.states += 1
            above[label] = found
        return found

    def _flush_below(self, state: State) -> None:
        """Forgets all states but those on the way to `state`, in the middle of a document."""
        self.flushes += 1
        self._forget_states()
        self._forget_outcomes()
        for above in state.path():
            above.forget()
        self.states = state.depth + 1

    def _approaches(self, above: State, kind: NodeKind, name: str) -> tuple[int, frozenset[Approach]]:
        """What may lead to a match of a node of this name below `above`, and all filters that then matter."""
        need, found = 0, []
        for axis, by_parent in self._below[above.stream, kind, name]:
            for ancestor in (above,) if axis == "/" else above.path():
                for step in by_parent.keys() & ancestor.contexts.keys():
                    index = by_parent[step]
                    need |= index.need
                    found.append((ancestor.depth, step, ancestor.contexts[step], index))
        return need, frozenset(found)

    def _outcome(self, stream: str, outline: _Outline) -> Outcome:
        """What follows for a node."""
        kind, _, own_depth, mask, approaches = outline
        reached = frozenset(
            (step, depth, above, context)
            for depth, above, context, index in approaches
            for step in index.satisfied(mask)
        )
        key = kind, own_depth, reached
        outcome = self._by_reached.get(key)
        if outcome is None:
            outcome = self._by_reached[key] = self._follows(stream, key)
        return outcome

    def _follows(self, stream: str, found: _Reached) -> Outcome:
        """What follows for a node from the steps that match there."""
        kind, own_depth, reached = found
        places: dict[int, set[tuple[int, Above, Context]]] = {}
        for step, depth, above, context in reached:
            places.setdefault(step, set()).add((depth, above, context))
        contexts: dict[Above, Context] = {}
        for step, ways in places.items():
            contexts[step] = self._context(step, frozenset(ways))
            for derived in self._steps.on_self(step):
                contexts[derived] = self._context(derived, frozenset([(own_depth, step, contexts[step])]))
        within = any(self._steps.leads_to_attributes((stream, "//", step)) for step in places)
        reads = within or any(self._steps.leads_to_attributes((stream, "/", step)) for step in places)
        emission = self._emission(kind, own_depth, contexts)
        return Outcome(contexts, emission, reads and kind == "element", within and kind == "element")

    def _context(self, step: int, reached: frozenset[tuple[int, Above, Context]]) -> Context:
        """The context of a step below steps at these depths."""
        key = (step, reached)
        context = self._contexts.get(key)
        if context is None:
            depths: dict[int, set[int]] = {}
            for depth, above, of_above in reached:
                if above is not None:
                    depths.setdefault(above, set()).add(depth)
                for ancestor, places in of_above.depths.items():
                    depths.setdefault(ancestor, set()).update(places)
            frozen = {ancestor: frozenset(places) for ancestor, places in depths.items()}
            context = self._contexts[key] = Context(frozen)
        return context

    def _emission(self, kind: NodeKind, own_depth: int, contexts: dict[Above, Context]) -> int:
        bound: dict[tuple[int, int, int], set[Edge]] = {}
        values = set()
        for step, context in contexts.items():
            assert step is not None
            functions = self._steps[step].node.functions
            derived = node_id(0, 0, functions)
            if step in self._wanted:
                values.add(functions)
            for edge in self._edges_to.get(step, ()):
                if edge[0] == edge[1]:
                    bound.setdefault((own_depth, derived, derived), set()).add(edge)
                    continue
                for depth in context.depths.get(edge[0], ()):
                    bound.setdefault((depth, 0, derived), set()).add(edge)
        if kind == "attribute" and not (bound or values):
            return 0
        rows = sorted(BoundGroup(self._groups.number(frozenset(edges)), *place) for place, edges in bound.items())
        return self.emissions.number(own_depth, tuple(rows), tuple(sorted(values)))


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
