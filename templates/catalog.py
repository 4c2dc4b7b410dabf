"""The catalog: hands out the shared ids of variables and templates, and keeps the rows of R_T that queries share.

Adding or removing a conjunctive query takes time in its own size only. What a query adds to stage 1 (steps, edges,
nodes whose string values are wanted) and to stage 2 (rows of R_T) comes back as a `Change`, to be applied by them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from templates.minor import Minor, minor
from templates.template import Shape, canonical_row, canonical_shape, shape_of
from templates.witness import node_id
from xscl.normal import Conjunct
from xscl.pattern import PatternNode

INFINITE = 2**63 - 1
"""The window `INF` as it stands in `wl`, in microseconds."""

Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """A shared variable: one step of a definition. `parent` is the step above it, None for a step from the document;
    `node` carries axis, test, conditions, functions, and as children the branches that must be there."""

    id: int
    stream: str
    parent: int | None
    node: PatternNode

    @property
    def key(self) -> tuple[str, int | None, str]:
        return self.stream, self.parent, str(self.node)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of R_T: the variables of a template's nodes and the largest window of its subscribers.

    `ordered` tells that all of them are FOLLOWED BY.
    """

    id: int
    template: int
    variables: tuple[int, ...]
    window: int
    ordered: bool


@dataclass(frozen=True, slots=True)
class Change:
    """What stages 1 and 2 have to add or drop."""

    steps: tuple[Step, ...] = ()
    edges: tuple[Edge, ...] = ()
    values: tuple[int, ...] = ()
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a conjunctive query stands: its row, and for each side the minor's nodes with their slots in the template.

    `slots[side][i]` is the place, in the template's numbering, of node i of that side's minor.
    """

    row: int
    template: int
    minors: tuple[Minor, ...]
    slots: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]
    edges: tuple[Edge, ...]
    values: tuple[int, ...]


@dataclass(slots=True)
class _Placed:
    """A conjunctive query that was added, so often, and where it stands."""

    conjunct: Conjunct
    placement: Placement
    count: int = 0


class _SharedRow:
    """A row of R_T with what its subscribers need: their windows and operators, counted."""

    def __init__(self, row_id: int, template: int, variables: tuple[int, ...], slot_at: tuple[int, ...]) -> None:
        self.id, self.template, self.variables, self.slot_at = row_id, template, variables, slot_at
        self._windows: Counter[int] = Counter()
        # The windows that are keys of the counter, negated: one whose last subscriber goes stays till it is on top.
        self._heap: list[int] = []
        self._unordered = 0
        self._subscribers = 0

    def subscribe(self, window: int, ordered: bool) -> None:
        if window not in self._windows:
            heapq.heappush(self._heap, -window)
        self._windows[window] += 1
        self._unordered += not ordered
        self._subscribers += 1

    def unsubscribe(self, window: int, ordered: bool) -> bool:
        """Takes one subscriber away; whether any is left."""
        self._windows[window] -= 1
        self._unordered -= not ordered
        self._subscribers -= 1
        while self._heap and not self._windows[-self._heap[0]]:
            del self._windows[-heapq.heappop(self._heap)]
        return self._subscribers > 0

    def row(self) -> Row:
        return Row(self.id, self.template, self.variables, -self._heap[0] if self._heap else 0, not self._unordered)


@dataclass(slots=True)
class Catalog:
    """Shared variables, templates and rows. `known_steps` (Step.key -> id) and `known_templates` restore the ids of an
    earlier run; new steps are numbered from `next_step`."""

    known_steps: dict[tuple[str, int | None, str], int] = field(default_factory=dict)
    next_step: int = 0
    known_templates: Sequence[Shape] = ()
    steps: dict[int, Step] = field(default_factory=dict, init=False)
    templates: list[Shape] = field(default_factory=list, init=False)
    _step_ids: dict[tuple[str, int | None, str], int] = field(default_factory=dict, init=False)
    _uses: Counter[int | Edge | tuple[str, int]] = field(default_factory=Counter, init=False)
    _template_of: dict[tuple[object, ...], int] = field(default_factory=dict, init=False)
    _rows: dict[tuple[object, ...], _SharedRow] = field(default_factory=dict, init=False)
    _row_keys: dict[int, tuple[object, ...]] = field(default_factory=dict, init=False)
    _next_row: int = field(default=0, init=False)
    # By identity: two that are equal but not the same have places of their own, with the same row.
    _placed: dict[int, _Placed] = field(default_factory=dict, init=False)
    _by_placement: dict[int, _Placed] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for shape in self.known_templates:
            self._template(shape)

    def add(self, conjunct: Conjunct, window: int, ordered: bool) -> tuple[Placement, Change]:
        """Registers a conjunctive query with its subscriber's window (microseconds) and whether it is FOLLOWED BY.

        The same object registered again costs a look-up.
        """
        change = Change()
        placed = self._placed.get(id(conjunct))
        if placed is None:
            placement, change = self._place(conjunct)
            placed = self._placed[id(conjunct)] = self._by_placement[id(placement)] = _Placed(conjunct, placement)
        placed.count += 1
        shared = self._rows[self._row_keys[placed.placement.row]]
        shared.subscribe(window, ordered)
        return placed.placement, replace(change, rows=(shared.row(),))

    def _place(self, conjunct: Conjunct) -> tuple[Placement, Change]:
        """Finds a conjunctive query its place; what is new with it, but for its row."""
        terms = [[join[side] for join in conjunct.joins] for side in (0, 1)]
        for term in (*terms[0], *terms[1]):
            node_id(0, 0, term.functions)  # gives the chain of functions its number, or refuses it
        minors = tuple(minor(side.pattern, terms[i]) for i, side in enumerate(conjunct.sides()))
        shape = shape_of(minors[0], minors[1] if len(minors) > 1 else None, conjunct.joins)
        used: list[int] = []
        fresh: list[Step] = []
        variables: list[int] = []
        for side, reduced in zip(conjunct.sides(), minors, strict=True):
            for node in reduced.nodes:
                chain = self._chain(side.stream, node.definition, fresh)
                used += chain
                variables.append(chain[-1])
        edges = tuple((variables[parent], variables[child]) for parent, child in shape.binary_rows())
        leaves = tuple(variables[leaf] for join in shape.joins for leaf in join)
        shared, slots = self._row(shape, tuple(variables))
        offset, by_side = 0, []
        for reduced in minors:
            by_side.append(slots[offset : offset + len(reduced.nodes)])
            offset += len(reduced.nodes)
        placement = Placement(shared.id, shared.template, minors, tuple(by_side), tuple(used), edges, leaves)
        change = Change(
            tuple(fresh),
            tuple(edge for edge in dict.fromkeys(edges) if not self._uses[edge]),
            tuple(leaf for leaf in dict.fromkeys(leaves) if not self._uses["value", leaf]),
        )
        self._uses.update(_uses(placement))
        return placement, change

    def remove(self, placement: Placement, window: int, ordered: bool) -> tuple[Change, Change]:
        """Takes a conjunctive query away: what has to be dropped, and the row as it now is if others share it."""
        key = self._row_keys[placement.row]
        shared = self._rows[key]
        is_shared = shared.unsubscribe(window, ordered)
        placed = self._by_placement[id(placement)]
        placed.count -= 1
        if placed.count:
            return Change(), Change(rows=(shared.row(),))
        del self._by_placement[id(placement)], self._placed[id(placed.conjunct)]
        gone = self._displace(placement)
        if is_shared:
            return gone, Change(rows=(shared.row(),))
        del self._rows[key], self._row_keys[placement.row]
        return replace(gone, rows=(shared.row(),)), Change()

    def _displace(self, placement: Placement) -> Change:
        """Gives back what a placement uses: what nothing uses any more."""
        uses = _uses(placement)
        self._uses.subtract(uses)
        gone = [use for use in dict.fromkeys(uses) if not self._uses[use]]
        steps = []
        for use in gone:
            del self._uses[use]
            if isinstance(use, int):
                step = self.steps.pop(use)
                del self._step_ids[step.key]
                steps.append(step)
        edges = tuple(use for use in gone if isinstance(use, tuple) and isinstance(use[0], int))
        values = tuple(use[1] for use in gone if isinstance(use, tuple) and use[0] == "value")
        return Change(tuple(steps), edges, values)

    def row(self, row: int) -> Row:
        """A shared row as its subscribers make it now."""
        return self._rows[self._row_keys[row]].row()

    def variables_of(self, row: int) -> tuple[int, ...]:
        """The variables of a shared row, in the order of its template's nodes."""
        return self._rows[self._row_keys[row]].variables

    def _chain(self, stream: str, definition: tuple[PatternNode, ...], fresh: list[Step]) -> list[int]:
        """The ids of a definition's steps, the variable's own last; new ones are appended to `fresh`."""
        ids: list[int] = []
        for node in definition:
            key = (stream, ids[-1] if ids else None, str(node))
            found = self._step_ids.get(key)
            if found is None:
                found = self.known_steps.pop(key, None)
                if found is None:
                    found = self.next_step
                    self.next_step += 1
                self._step_ids[key] = found
                self.steps[found] = Step(found, stream, key[1], node)
            if not self._uses[found] and all(step.id != found for step in fresh):
                fresh.append(self.steps[found])
            ids.append(found)
        return ids

    def _row(self, shape: Shape, variables: tuple[int, ...]) -> tuple[_SharedRow, tuple[int, ...]]:
        """The shared row of a conjunctive query, and the slot of each of its nodes there."""
        canonical = canonical_row(shape, variables)
        shared = self._rows.get(canonical.key)
        if shared is None:
            template = self._template(shape)
            own = canonical_shape(self.templates[template]).position
            node_at = {place: node for node, place in enumerate(own)}
            slots = tuple(node_at[place] for place in canonical_shape(shape).position)
            if shape == self.templates[template]:
                slots = tuple(range(len(slots)))  # keeps the query's own order, as in Table 6.4(a)
            by_slot, slot_at = [0] * len(slots), [0] * len(slots)
            for node, slot in enumerate(slots):
                by_slot[slot] = variables[node]
                slot_at[canonical.position[node]] = slot
            shared = _SharedRow(self._next_row, template, tuple(by_slot), tuple(slot_at))
            self._next_row += 1
            self._rows[canonical.key] = shared
            self._row_keys[shared.id] = canonical.key
        return shared, tuple(shared.slot_at[place] for place in canonical.position)

    def _template(self, shape: Shape) -> int:
        key = canonical_shape(shape).key
        number = self._template_of.get(key)
        if number is None:
            number = self._template_of[key] = len(self.templates)
            self.templates.append(shape)
        return number


def _uses(placement: Placement) -> list[int | Edge | tuple[str, int]]:
    return [*placement.steps, *placement.edges, *(("value", leaf) for leaf in placement.values)]
