"""The shared automaton of all registered steps of all streams. It is determinised lazily, over name and filters.

A state stands for the path of labels from the document to a node. It knows the steps (shared variables) that the node
matches, and so the groups of edges that bind there. A node costs one dictionary look-up, however many patterns are
registered. States are made on demand, and dropped past a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from templates.catalog import Change, Edge, SharedStep
from templates.witness import node_id
from xpath_stage.classes import Classes, NodeClass, Tests
from xpath_stage.columns import Columns
from xpath_stage.emissions import BoundGroup, Emissions, Walk
from xpath_stage.filters import FilterBank
from xpath_stage.groups import Groups
from xpath_stage.limits import Limits
from xpath_stage.masks import Bits
from xpath_stage.names import Memo, Tags, Vocabulary
from xpath_stage.states import DOCUMENT, Approach, Approaches, Context, Label, Outcome, State, Way
from xpath_stage.steps import Above, StepIndex, StepsBelow
from xpath_stage.walks import PartWalks, walk_over
from xscl.algebra.expressions import NodeKind

MOST_PARTS = 8
"""The largest number of parts that begin at one node. If there were more, all steps are one part."""

_Outline = tuple[NodeKind, str, int, int, frozenset[Approach]]
"""(kind, name, depth, relevant satisfied filters, approaches): they determine a state, except for its path."""

_Reached = tuple[NodeKind, int, frozenset[tuple[int, Way]]]
"""(kind, depth, (step, way)): the steps that match at a node, and the ways in which they do."""


class Automaton:
    """The registered steps, edges and values, and the states made so far."""

    def __init__(self, groups: Groups, limits: Limits) -> None:
        self._vocabulary = Vocabulary()
        self._filters = FilterBank(self._vocabulary)
        self._classes = Classes(self._filters, self._vocabulary, limits.classes)
        self._limits = limits
        self._steps = StepIndex()
        self._edges_to: dict[int, tuple[Edge, ...]] = {}
        self._owners = Tags()
        self._wanted: set[int] = set()
        self._valued = Tags()
        self._groups = groups
        self._selects: dict[int, Bits] = {}
        self.flushes = 0
        self.reset()

    # ------------------------------------------------------------ registration

    def add(self, change: Change) -> None:
        """Registers steps (parents before children), edges, and variables whose values are needed."""
        for step in change.steps:
            required = () if step.node.axis == "." else self._filters.require(step.node)
            self._note_filters(step, required)
            self._steps.add(step, required, self._filters.selective)
            if step.node.test.kind == "attribute":
                self._owners.add(self._steps.owner_test(step))
        for edge in change.edges:
            self._edges_to[edge[1]] = (*self._edges_to.get(edge[1], ()), edge)  # mostly the only one
            self._groups.add(edge, self._selects.get(edge[1], ()))
        self._wanted.update(change.values)
        for value in change.values:
            self._valued.add(self._steps.test_of(value))
        if self._is_used:  # very many patterns may be added one after the other
            self.reset()

    def remove(self, change: Change) -> None:
        """Unregisters what `add` registered."""
        self._groups.remove(change.edges)
        for edge in change.edges:
            left = self._edges_to[edge[1]] = tuple(other for other in self._edges_to[edge[1]] if other != edge)
            if not left:
                del self._edges_to[edge[1]]
        for value in change.values:
            self._valued.remove(self._steps.test_of(value))
        self._wanted.difference_update(change.values)
        for step in change.steps:
            if step.node.test.kind == "attribute":
                self._owners.remove(self._steps.owner_test(step))
        for step in change.steps:
            self._steps.remove(step)
            self._selects.pop(step.id, None)
            if step.node.axis != ".":
                self._filters.release(step.node)
        self.reset()

    def _note_filters(self, step: SharedStep, required: Bits) -> None:
        """Notes the value filters on which a match of a step, or of a step above it, depends."""
        above = () if step.parent is None else self._selects.get(step.parent, ())
        own = self._filters.selective.intersection(required)
        if own or above:
            self._selects[step.id] = tuple(sorted({*above, *own})) if own else above

    def reset(self) -> None:
        """Drops all states, classes and emissions, because what is registered has changed."""
        self._forget_states()
        self._classes.forget()
        self._of_attributes: Memo[str, bool] = Memo(lambda tag: self.looks_at(tag).attributes, self._limits.classes)
        self._of_values: Memo[str, bool] = Memo(self._reads_value, self._limits.classes)
        self._interned: Memo[str, str] = Memo(str, self._limits.classes)
        self._below: Memo[tuple[str, NodeKind, str, bool], StepsBelow] = Memo(
            lambda key: self._steps.below(*key[:3], selective=key[3]), self._limits.classes
        )
        self._outcomes: dict[_Outline, Outcome] = {}
        self._by_reached: dict[_Reached, Outcome] = {}
        self._contexts: dict[tuple[int, frozenset[Way]], Context] = {}
        self.emissions = Emissions()
        self._is_used = False

    def _forget_states(self) -> None:
        self._roots: dict[tuple[str, bool], State] = {}
        self.states = 0

    # ------------------------------------------------------------ walks

    def columns(self) -> Columns:
        """Empty columns for documents to walk."""
        self._is_used = True
        owners = self._of_attributes if self._owners or self._filters.owners else None
        return Columns(owners, self._of_values, self._interned, keeps_trees=self._filters.reads_trees)

    def walk(self, streams: Iterable[str], columns: Columns) -> Walk:
        """Walks the documents in `columns`, whose streams are `streams`: what binds at each node."""
        self._bound_memory()
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

    def looks_at(self, tag: str) -> Tests:
        """What is tested at elements with this tag, beside their children."""
        self._is_used = True
        tests = self._classes.tests_of(tag)
        return replace(tests, attributes=tests.attributes or tag in self._owners)

    def _reads_value(self, tag: str) -> bool:
        return tag in self._valued or bool(self._classes.tests_of(tag).literals)

    def bound_emissions(self) -> bool:
        """Drops all emissions if there are too many. True if it did: the emissions of earlier walks are invalid
        then."""
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

    def root(self, stream: str, *, whole: bool = False) -> State:
        """The state of a document of a stream, above its root element. A `whole` one knows of all steps."""
        self._is_used = True
        state = self._roots.get((stream, whole))
        if state is None:
            within = self._steps.leads_to_attributes((stream, "//", None))
            state = State(self, stream, None, Outcome(DOCUMENT, 0, False, False, within), -1, whole=whole)
            self._roots[stream, whole] = state
        return state

    def enter(self, above: State, label: Label) -> State:
        """The state of a child with a label to which `above` has no transition yet."""
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
                self._flush_below(above)
            outline = (kind, name, above.depth + 1, mask & need, approaches)
            outcome = self._outcomes.get(outline)
            if outcome is None:
                outcome = self._outcomes[outline] = self._outcome(above.stream, outline)
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

    def parts(self, above: State, node: NodeClass) -> tuple[State, ...]:
        """The states of the parts that begin at an element below `above`: one for each set of value filters of the
        selective steps that match there, or one for all if there are more than MOST_PARTS."""
        known = above.selective_approaches.get(node.name)
        if known is None:
            known = above.selective_approaches[node.name] = self._approaches(above, "element", node.name, (True,))
        need, approaches = known
        if not approaches:
            return ()
        key = node.name, node.mask & need
        found = above.parts.get(key)
        if found is None:
            found = self._parts(above, node.mask, approaches)
            if self.states <= self._limits.states:
                self.states += 1 + len(found)
                above.parts[key] = found
        return found

    def _parts(self, above: State, mask: int, approaches: frozenset[Approach]) -> tuple[State, ...]:
        reached: dict[frozenset[int], set[tuple[int, Way]]] = {}
        for depth, matched, context, index in approaches:
            for step, required in index.satisfied_with(mask):
                same = reached.setdefault(frozenset(self._filters.selective.intersection(required)), set())
                same.add((step, (depth, matched, context)))
        together = (
            [steps for _, steps in sorted(reached.items(), key=lambda part: sorted(part[0]))]
            if len(reached) <= MOST_PARTS
            else [set().union(*reached.values())]
        )
        found = []
        for steps in together:
            outcome = self._of_reached(above.stream, ("element", above.depth + 1, frozenset(steps)))
            state = above.part_of.get(outcome)
            if state is None:
                state = State(self, above.stream, None, outcome, above.depth + 1, whole=True)
                above.part_of[outcome] = state
            found.append(state)
        return tuple(found)

    def _flush_below(self, state: State) -> None:
        """Drops all states except those on the path to `state`, in the middle of a document."""
        self.flushes += 1
        self._forget_states()
        self._forget_outcomes()
        for above in state.path():
            above.forget()
        self.states = state.depth + 1

    def _approaches(self, above: State, kind: NodeKind, name: str, sorts: tuple[bool, ...]) -> Approaches:
        """The approaches of nodes of this kind and name below `above`, by steps of these sorts (selective or not)."""
        need, found = 0, []
        for selective in sorts:
            for axis, by_parent in self._below[above.stream, kind, name, selective]:
                for ancestor in (above,) if axis == "/" else above.path():
                    for step in by_parent.keys() & ancestor.contexts.keys():
                        index = by_parent[step]
                        need |= index.need
                        found.append((ancestor.depth, step, ancestor.contexts[step], index))
        return need, frozenset(found)

    def _outcome(self, stream: str, outline: _Outline) -> Outcome:
        """The outcome for nodes with this outline."""
        kind, _, own_depth, mask, approaches = outline
        reached = {
            (step, (depth, above, context))
            for depth, above, context, index in approaches
            for step in index.satisfied(mask)
        }
        return self._of_reached(stream, (kind, own_depth, frozenset(reached)))

    def _of_reached(self, stream: str, reached: _Reached) -> Outcome:
        outcome = self._by_reached.get(reached)
        if outcome is None:
            outcome = self._by_reached[reached] = self._follows(stream, reached)
        return outcome

    def _follows(self, stream: str, found: _Reached) -> Outcome:
        """The outcome for nodes at which these steps match."""
        kind, own_depth, reached = found
        places: dict[int, set[Way]] = {}
        for step, way in reached:
            places.setdefault(step, set()).add(way)
        contexts: dict[Above, Context] = {}
        for step, ways in places.items():
            contexts[step] = self._context(step, frozenset(ways))
            for derived in self._steps.on_self(step):
                contexts[derived] = self._context(derived, frozenset([(own_depth, step, contexts[step])]))
        within = any(self._steps.leads_to_attributes((stream, "//", step)) for step in places)
        reads = within or any(self._steps.leads_to_attributes((stream, "/", step)) for step in places)
        emission, binds = self._emission(kind, own_depth, contexts)
        return Outcome(contexts, emission, binds, reads and kind == "element", within and kind == "element")

    def _context(self, step: int, reached: frozenset[Way]) -> Context:
        """The context of a step that was reached in these ways."""
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

    def _emission(self, kind: NodeKind, own_depth: int, contexts: dict[Above, Context]) -> tuple[int, bool]:
        """The number of the emission, and whether anything binds or any value is needed."""
        bound: dict[tuple[int, int, int], set[Edge]] = {}
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
