"""The states of the shared automaton: what is known at a node from the labels on the way to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from xpath_stage.classes import NodeClass
from xpath_stage.masks import MaskIndex
from xpath_stage.steps import Above
from xscl.algebra.expressions import NodeKind

Label = str | NodeClass
"""What a state's node is told apart from its siblings by: its tag, or with filters its class."""


class Context:
    """How a step came to match a node: at which `depths` the steps above it may have matched."""

    __slots__ = ("depths",)

    def __init__(self, depths: dict[int, frozenset[int]]) -> None:
        self.depths = depths


DOCUMENT: dict[Above, Context] = {None: Context({})}

Way = tuple[int, Above, Context]
"""(depth of a node above, step that it matches, context): how a step came to be reached."""

Approach = tuple[int, Above, Context, MaskIndex[int]]
"""The same with the steps that may match below: what may lead to a match."""

Approaches = tuple[int, frozenset[Approach]]
"""What may lead to a match of a node, and all filters that matter then."""


class Outcome:
    """What holds at nodes: the steps that match there with their contexts; the number of the emission, what binds there
    and the values wanted, and whether there are any; whether attributes of the node, and of all nodes in it, have
    states."""

    __slots__ = ("binds", "contexts", "emission", "reads_attributes", "reads_attributes_within")

    def __init__(
        self,
        contexts: dict[Above, Context],
        emission: int,
        binds: bool,
        reads_attributes: bool,
        reads_attributes_within: bool,
    ) -> None:
        self.contexts, self.emission, self.binds = contexts, emission, binds
        self.reads_attributes, self.reads_attributes_within = reads_attributes, reads_attributes_within


class Transitions(Protocol):
    """Makes the states that others do not lead to yet."""

    def enter(self, above: State, label: Label) -> State: ...


class State(dict[Label, "State"]):
    """A state of the automaton: leads on from labels of children to their states.

    `leaf` and `inner` are what `Walk.elements` holds for its nodes, `emission` what `Walk.attributes` does. A `whole`
    state knows of all steps; the others do not of the selective ones, which parts find (see `xpath_stage.walks`).
    `above` is None for the states that walks begin with.
    """

    __slots__ = (
        "above", "apart", "approaches", "automaton", "binds", "by_label", "by_outcome", "contexts", "depth", "emission",
        "inner", "leaf", "part_of", "parts", "reads_attributes", "reads_attributes_within", "stream", "whole",
    )  # fmt: skip

    def __init__(
        self, automaton: Transitions, stream: str, above: State | None, outcome: Outcome, depth: int, *, whole: bool
    ) -> None:
        super().__init__()
        self.automaton, self.stream, self.above, self.depth, self.whole = automaton, stream, above, depth, whole
        self.contexts = outcome.contexts
        self.emission, self.binds = outcome.emission, outcome.binds
        self.leaf, self.inner = outcome.emission * 2, outcome.emission * 2 + 1
        self.reads_attributes_within: bool = outcome.reads_attributes_within or (
            above is not None and above.reads_attributes_within
        )
        self.reads_attributes = outcome.reads_attributes or self.reads_attributes_within
        self.approaches: dict[tuple[NodeKind, str], Approaches] = {}
        self.by_label: dict[tuple[NodeKind, str, int], State] = {}
        self.by_outcome: dict[Outcome, State] = {}
        self.apart: dict[str, Approaches] = {}
        self.parts: dict[tuple[str, int], tuple[State, ...]] = {}
        self.part_of: dict[Outcome, State] = {}

    def __missing__(self, label: Label) -> State:
        return self.automaton.enter(self, label)

    def path(self) -> Iterator[State]:
        """This state and those above it, down to the one that the walk began with."""
        state: State | None = self
        while state is not None:
            yield state
            state = state.above

    def forget(self) -> None:
        """Forgets all states below this one."""
        self.clear()
        for known in (self.by_label, self.by_outcome, self.parts, self.part_of):
            known.clear()
