"""The states of the shared automaton: what is known at a node from the labels on the path to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from xpath_stage.classes import NodeClass
from xpath_stage.masks import MaskIndex
from xpath_stage.steps import Above
from xscl.algebra.expressions import NodeKind

Label = str | NodeClass
"""The label of a node in the automaton: its tag, or its class if there are filters."""


class Context:
    """How a step matches a node: the `depths` at which each step above it may have matched."""

    __slots__ = ("depths",)

    def __init__(self, depths: dict[int, frozenset[int]]) -> None:
        self.depths = depths


DOCUMENT: dict[Above, Context] = {None: Context({})}

Way = tuple[int, Above, Context]
"""(depth of a node above, step that it matches, context): a way in which a step is reached."""

Approach = tuple[int, Above, Context, MaskIndex[int]]
"""A way, with the steps that may match below it."""

Approaches = tuple[int, frozenset[Approach]]
"""The mask of the filters that matter for a node, and its approaches."""


class Outcome:
    """What holds at nodes: the steps that match there, with their contexts; the number of the emission; whether
    anything `binds` or any value is needed; and whether attributes of the node, or of all nodes in it, have states."""

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
    """Makes missing transitions. The automaton does."""

    def enter(self, above: State, label: Label) -> State: ...


class State(dict[Label, "State"]):
    """A state of the automaton: maps the labels of children to their states.

    `leaf` and `inner` are the entries of its nodes in `Walk.elements`, `emission` is that in `Walk.attributes`. A
    `whole` state knows of all steps. Others do not know of selective steps, which parts find (see `xpath_stage.walks`).
    `above` is None for the states in which walks begin.
    """

    __slots__ = (
        "above", "approaches", "automaton", "binds", "by_label", "by_outcome", "contexts", "depth", "emission",
        "inner", "leaf", "part_of", "parts", "reads_attributes", "reads_attributes_within", "selective_approaches",
        "stream", "whole",
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
        self.selective_approaches: dict[str, Approaches] = {}
        self.parts: dict[tuple[str, int], tuple[State, ...]] = {}
        self.part_of: dict[Outcome, State] = {}

    def __missing__(self, label: Label) -> State:
        return self.automaton.enter(self, label)

    def path(self) -> Iterator[State]:
        """This state and those above it, up to the one in which the walk began."""
        state: State | None = self
        while state is not None:
            yield state
            state = state.above

    def forget(self) -> None:
        """Drops all states below this one."""
        self.clear()
        for known in (self.by_label, self.by_outcome, self.parts, self.part_of):
            known.clear()
