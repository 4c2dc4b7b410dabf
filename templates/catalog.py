"""The catalog: ids of shared variables and templates, the rows of R_T that identical conjunctive queries share, and the
edges of event definitions.

Adding or removing a query takes time in its own size only. What it adds to stage 1 (steps, edges, nodes whose string
values are needed) and stage 2 (rows of R_T) is returned as a `Change`. `needs_of` computes this without changing the
catalog, which another thread may use meanwhile.

Of an event definition, K is the set of its variables, closed under least common ancestors. Each node of K has a leaf on
the self axis, whose chain of functions ends with OF_EVENTS; edges lead from the nearest ancestor in K to that leaf. So
the chain distinguishes an event's rows of R_bin and values from those of joins, and no join sees them. An attribute has
an edge of its own, from its variable's node to a leaf with its functions."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

from common.errors import OperationalError
from common.tools import ClearedCache, Few, NumberCounts, each, frozen, with_item, without_item
from templates import graph
from templates.witness import MANY_CHAIN, MOST_CHAINS
from xscl.algebra.events import ATTRIBUTE_END, EventPattern, Kind, Schema
from xscl.algebra.joins import Conjunct, PatternNode, Term, Test, node_texts
from xscl.algebra.values import OF_EVENTS, many_valued

_SELF = Test("element", "*", "*")

_Definition = tuple[PatternNode, ...]


@frozen
class PlacedNode:
    """A node of K: its edge, and the index of its nearest ancestor in K, -1 at the top, whose edge is (leaf, leaf)."""

    parent: int
    edge: StepEdge


@frozen
class PlacedAttribute:
    """An attribute of node `node` of K (-1: a constant), or of the first that `edge` leads to, by functions `chain`."""

    name: str
    kind: Kind
    node: int
    edge: StepEdge | None = None
    chain: int = 0
    constant: str = ""


@frozen
class EventPlacement:
    """A definition in the catalog. `key` has the indexes of the nodes that identify an event, the root first."""

    stream: str
    nodes: tuple[PlacedNode, ...]
    key: tuple[int, ...]
    attributes: tuple[PlacedAttribute, ...]
    variables: tuple[int, ...]
    edges: tuple[StepEdge, ...]
    values: tuple[int, ...]

    @property
    def schema(self) -> Schema:
        return tuple([(attribute.name, attribute.kind) for attribute in self.attributes])


def place_events(catalog: Catalog, pattern: EventPattern) -> tuple[EventPlacement, Change]:
    """Registers a definition. Returns its placement, and what stage 1 must add. Raises TooManyChains."""
    reduced = graph.minor(pattern.pattern, map(Term, pattern.variables))
    # A variable above others has a leaf of its own in the minor. Here every node has one.
    kept = [place for place, node in enumerate(reduced.nodes) if node.definition[-1].axis != "."]
    place_of = {index: place for place, index in enumerate(kept)}
    node_of = {var: place_of[_node(reduced, var)] for var in pattern.variables}
    own = [reduced.nodes[index].definition for index in kept]
    definitions = list(own)
    pairs: list[tuple[int, int]] = []

    def leaf(definition: _Definition, functions: tuple[str, ...]) -> int:
        definitions.append((*definition, PatternNode(".", _SELF, functions=(*functions, OF_EVENTS))))
        return len(definitions) - 1

    parents = []
    for index, definition in zip(kept, own, strict=True):
        parent = reduced.nodes[index].parent
        end = leaf(definition, ())
        parents.append(-1 if parent is None else place_of[parent])
        pairs.append((end if parent is None else place_of[parent], end))
    values: list[int] = []
    edge_of: list[int | None] = []
    for attribute in pattern.attributes:
        edge_of.append(None)
        if attribute.var is None:
            continue
        node = node_of[attribute.var]
        if attribute.path is None:
            values.append(leaf(own[node], attribute.functions))
        else:
            values.append(leaf((*own[node], *graph.definition_of(attribute.path, ATTRIBUTE_END)), attribute.functions))
            edge_of[-1] = len(pairs)
            pairs.append((node, values[-1]))
    variables, change = catalog.hold(pattern.stream, definitions, pairs, values)
    edges = [(variables[a], variables[b]) for a, b in pairs]
    attributes = tuple(
        [
            PlacedAttribute(
                attribute.name,
                attribute.kind,
                -1 if attribute.var is None else node_of[attribute.var],
                None if edge is None else edges[edge],
                catalog.chain((*attribute.functions, OF_EVENTS)),
                attribute.constant,
            )
            for attribute, edge in zip(pattern.attributes, edge_of, strict=True)
        ]
    )
    nodes = tuple([PlacedNode(parent, edge) for parent, edge in zip(parents, edges, strict=False)])
    key = tuple([node_of[var] for var in pattern.variables])
    valued = tuple([variables[value] for value in values])
    return EventPlacement(pattern.stream, nodes, key, attributes, variables, tuple(edges), valued), change


def _node(reduced: graph.Minor, var: str) -> int:
    """The index of a variable's node, not of its leaf."""
    index = reduced.node_of[Term(var)]
    node = reduced.nodes[index]
    if node.definition[-1].axis != ".":
        return index
    assert node.parent is not None, "a leaf has the node that it stands for above it"
    return node.parent


RowKey = tuple[int, tuple[int, ...]]
"""A row as stored: its template, and its variables in the order of the template's nodes."""


@frozen
class TemplateRow:
    """A row of R_T: the variables of a template's nodes, and the largest window of its subscribers, in microseconds.
    `ordered`: all are FOLLOWED BY, so the right document begins when the left one ends, or later."""

    id: int
    template: int
    variables: tuple[int, ...]
    window: int
    ordered: bool


@dataclass(slots=True, eq=False)
class SharedRow:
    """A row of R_T with the windows and operators of its subscribers, counted. `key` is that of identical conjunctive
    queries, empty if the row was restored and not yet looked up. `slot_at` has the template's node at each canonical
    position."""

    id: int
    template: int
    variables: tuple[int, ...]
    key: tuple[object, ...] = ()
    slot_at: tuple[int, ...] = ()
    subscribers: int = 0
    _unordered: int = 0
    _window: int = 0
    _windows: Counter[int] | None = None  # all windows, counted; None while all subscribers have had the same one
    _heap: list[int] = field(init=False)
    """The windows in the counter, negated. One without subscribers is removed when it gets to the top."""

    def subscribe(self, window: int, ordered: bool) -> None:
        self._unordered += not ordered
        self.subscribers += 1
        if self._windows is None:
            if self.subscribers == 1 or window == self._window:
                self._window = window
                return
            self._windows, self._heap = Counter({self._window: self.subscribers - 1}), [-self._window]
        if window not in self._windows:
            heapq.heappush(self._heap, -window)
        self._windows[window] += 1
        self._window = -self._heap[0]

    def unsubscribe(self, window: int, ordered: bool) -> bool:
        """Removes a subscriber. Returns whether any is left."""
        self._unordered -= not ordered
        self.subscribers -= 1
        if self._windows is not None:
            self._windows[window] -= 1
            while self._heap and not self._windows[-self._heap[0]]:
                del self._windows[-heapq.heappop(self._heap)]
            self._window = -self._heap[0] if self._heap else 0
        return self.subscribers > 0

    def row(self) -> TemplateRow:
        window = self._window if self.subscribers else 0
        return TemplateRow(self.id, self.template, self.variables, window, not self._unordered)


class FoundRow(NamedTuple):
    """The row of a conjunctive query, whether it is new, and the template's node for each node of the query."""

    row: SharedRow
    is_new: bool
    slots: tuple[int, ...]


class SharedRows:
    """Rows by id. A restored row gets its key when a row with the same variables is looked up."""

    def __init__(self) -> None:
        self._by_number: dict[int, SharedRow] = {}
        self._by_key: dict[tuple[object, ...], SharedRow] = {}
        self._restored: dict[tuple[int, ...], Few[SharedRow]] = {}  # mostly one
        self._next = 0

    def __getitem__(self, number: int) -> SharedRow:
        return self._by_number[number]

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def restore(self, template: int, variables: tuple[int, ...]) -> int:
        shared = self._new(template, variables)
        same = _in_order(variables)
        self._restored[same] = with_item(self._restored.get(same), shared)
        return shared.id

    def find(self, shape: graph.Shape, number: int, template: graph.Shape, variables: tuple[int, ...]) -> FoundRow:
        """Finds or creates a query's row. `template` (shape of `number`) may have its nodes in another order."""
        for restored in self._restored_of(number, variables):
            self._forget_restored(restored)
            self._index(restored, graph.canonical_row(template, restored.variables), range(len(variables)))
        canonical = graph.canonical_row(shape, variables)
        shared = self._by_key.get(canonical.key)
        is_new = shared is None
        if shared is None:
            slots = tuple(range(len(variables)))  # keeps the query's own order, as in Table 6.4(a)
            if shape != template:
                node_at = {place: node for node, place in enumerate(graph.canonical_shape(template).position)}
                slots = tuple(node_at[place] for place in graph.canonical_shape(shape).position)
            by_slot = [0] * len(slots)
            for node, slot in enumerate(slots):
                by_slot[slot] = variables[node]
            shared = self._new(number, tuple(by_slot))
            self._index(shared, canonical, slots)
        return FoundRow(shared, is_new, tuple(shared.slot_at[place] for place in canonical.position))

    def has(self, shape: graph.Shape, number: int, template: graph.Shape, variables: tuple[int, ...]) -> bool:
        key = graph.canonical_row(shape, variables).key
        same = self._restored_of(number, variables)
        return key in self._by_key or any(graph.canonical_row(template, row.variables).key == key for row in same)

    def remove(self, number: int) -> None:
        shared = self._by_number.pop(number)
        if shared.key:
            del self._by_key[shared.key]
        else:
            self._forget_restored(shared)

    def _restored_of(self, template: int, variables: tuple[int, ...]) -> list[SharedRow]:
        """Returns the rows that may be identical."""
        found = each(self._restored.get(_in_order(variables))) if self._restored else ()
        return [row for row in found if row.template == template]

    def _forget_restored(self, shared: SharedRow) -> None:
        same = _in_order(shared.variables)
        if (left := without_item(self._restored.pop(same), shared)) is not None:
            self._restored[same] = left

    def _new(self, template: int, variables: tuple[int, ...]) -> SharedRow:
        shared = self._by_number[self._next] = SharedRow(self._next, template, variables)
        self._next += 1
        return shared

    def _index(self, shared: SharedRow, canonical: graph.Canonical, slots: Sequence[int]) -> None:
        slot_at = [0] * len(slots)
        for node, slot in enumerate(slots):
            slot_at[canonical.position[node]] = slot
        shared.key, shared.slot_at = canonical.key, tuple(slot_at)
        self._by_key[shared.key] = shared


def _in_order(variables: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the same tuple if it is in order: there may be very many."""
    found = tuple(sorted(variables))
    return variables if found == variables else found


StepEdge = tuple[int, int]

Functions = tuple[str, ...]  # names of a chain of functions, in the order of application


_Key = tuple[str, int | None, str]  # the stream of a step, the step above it, and the text of its node


@frozen
class SharedStep:
    """A shared variable: a step of a definition. `parent` is the step above it, None for a step from the document.
    `node` has axis, test, conditions, functions, and required branches as children. `chain` numbers its functions."""

    id: int
    stream: str
    parent: int | None
    node: PatternNode
    chain: int = 0

    @property
    def key(self) -> _Key:
        return self.stream, self.parent, str(self.node)


@frozen
class Change:
    """What stages 1 and 2 must add or drop: steps, edges, variables whose values are needed; and rows of R_T."""

    steps: tuple[SharedStep, ...] = ()
    edges: tuple[StepEdge, ...] = ()
    values: tuple[int, ...] = ()
    rows: tuple[TemplateRow, ...] = ()


MAX_PLACED = 20_000  # maximum number of cached placements; past it the cache is cleared

T = TypeVar("T")


class TooManyChains(OperationalError, ValueError):
    """A store has run out of numbers for chains of functions."""


_NOTHING = Change()


@frozen
class Placement:
    """A conjunctive query's row and template; `slots[side][i]` is the template's node for node i of that minor."""

    row: int
    template: int
    minors: tuple[graph.Minor, ...]
    slots: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Uses:
    """Reference counts by rows. A row that needs one twice counts twice."""

    steps: NumberCounts = field(default_factory=NumberCounts)
    edges: Counter[StepEdge] = field(default_factory=Counter)
    values: NumberCounts = field(default_factory=NumberCounts)


@dataclass(slots=True)
class Catalog:
    """Shared variables, templates and rows, and the numbers of chains of functions. `known_steps` (SharedStep.key to
    id), `known_templates` and `known_chains` restore earlier ids. New steps are numbered from `next_step`."""

    known_steps: dict[_Key, int] = field(default_factory=dict)
    next_step: int = 0
    known_templates: Sequence[graph.Shape] = ()
    known_chains: Sequence[Functions] = ()
    steps: dict[int, SharedStep] = field(default_factory=dict, init=False)
    templates: list[graph.Shape] = field(default_factory=list, init=False)
    chains: dict[Functions, int] = field(default_factory=dict, init=False)
    _step_ids: dict[int, Few[int]] = field(default_factory=dict, init=False)
    """By the hash of a step's key: most keys have a long text that nothing else needs."""
    _uses: _Uses = field(default_factory=_Uses, init=False)
    _template_of: dict[tuple[object, ...], int] = field(default_factory=dict, init=False)
    rows: SharedRows = field(default_factory=SharedRows, init=False)
    # By identity: two equal but distinct queries have a placement each, with the same row.
    _placed: ClearedCache[int, tuple[Conjunct, Placement]] = field(
        default_factory=partial(ClearedCache, MAX_PLACED), init=False
    )

    def __post_init__(self) -> None:
        for shape in self.known_templates:
            self._template(shape)
        for functions in self.known_chains:
            self.chain(functions)

    def add(self, conjunct: Conjunct, window: int, ordered: bool) -> tuple[Placement, Change]:
        """Registers a conjunctive query with its subscriber's window, in microseconds; `ordered` if FOLLOWED BY.
        Registering the same object again costs a look-up. Raises TooManyChains."""
        placement, change = self._place(conjunct)
        row = self.subscribe(placement.row, window, ordered)
        return placement, Change(change.steps, change.edges, change.values, (row,))

    def subscribe(self, row: int, window: int, ordered: bool) -> TemplateRow:
        shared = self.rows[row]
        shared.subscribe(window, ordered)
        return shared.row()

    def chain(self, functions: Functions) -> int:
        """A chain's number, from 1; 0 if empty. Stable, because stored node ids contain it. Raises TooManyChains."""
        if not functions:
            return 0
        number = self.chains.get(functions)
        if number is None:
            number = len(self.chains) + 1
            if number > MOST_CHAINS:
                raise TooManyChains(f"more than {MOST_CHAINS:,} different chains of functions; begin a new state")
            number |= MANY_CHAIN if many_valued(functions) else 0
            self.chains[functions] = number
        return number

    def find_step(self, stream: str, definition: Iterable[PatternNode]) -> int | None:
        """The id of the last step of a definition, if all its steps are registered. Changes nothing."""
        last: int | None = None
        for text in node_texts(definition):
            last = self._step_id((stream, last, text))
            if last is None:
                return None
        return last

    def find_template(self, shape: graph.Shape) -> int | None:
        return self._template_of.get(graph.canonical_shape(shape).key)

    def has_row(self, shape: graph.Shape, variables: Sequence[int]) -> bool:
        number = self.find_template(shape)
        return number is not None and self.rows.has(shape, number, self.templates[number], tuple(variables))

    def place(self, conjunct: Conjunct) -> Placement:
        return self._place(conjunct)[0]

    def restore(
        self, steps: Iterable[tuple[str, SharedStep]], rows: Iterable[RowKey]
    ) -> tuple[dict[RowKey, int], Change]:
        """Restores rows of an earlier run, before anything is added. Returns their ids and their needs of stage 1.
        `steps` are their steps, each with the text of its node, parents before children. No row has a subscriber."""
        for definition, step in steps:
            self.steps[step.id] = step
            key = step.stream, step.parent, definition
            self._step_ids[hash(key)] = with_item(self._step_ids.get(hash(key)), step.id)
            self.known_steps.pop(key, None)
        numbers = {key: self.rows.restore(*key) for key in dict.fromkeys(rows)}
        uses = self._uses
        needs = [self._needs(*key) for key in numbers]
        _count(uses.steps, chain.from_iterable(variables for _, variables in numbers))
        _count(uses.edges, chain.from_iterable(edges for edges, _ in needs))
        values = _count(uses.values, chain.from_iterable(leaves for _, leaves in needs))
        # A row needs all steps above its variables. Ids increase from parents to children.
        for number in sorted(self.steps, reverse=True):
            parent = self.steps[number].parent
            if parent is not None:
                uses.steps[parent] += uses.steps[number]
        return numbers, Change(tuple(self.steps.values()), tuple(uses.edges), values)

    def _place(self, conjunct: Conjunct) -> tuple[Placement, Change]:
        known = self._placed.get(id(conjunct))
        if known is not None and known[1].row in self.rows:
            return known[1], _NOTHING
        for term in chain.from_iterable(conjunct.joins):
            self.chain(term.functions)  # fails, if it does, before anything is changed
        minors, shape = graph.reduced_graph(conjunct)
        fresh: dict[int, SharedStep] = {}
        ways: list[int] = []
        variables = [
            self._variable(side.stream, node.definition, fresh, ways)
            for side, reduced in zip(conjunct.sides(), minors, strict=True)
            for node in reduced.nodes
        ]
        template = self._template(shape)
        found = self.rows.find(shape, template, self.templates[template], tuple(variables))
        left = len(minors[0].nodes)
        by_side = (found.slots,) if len(minors) == 1 else (found.slots[:left], found.slots[left:])
        placement = Placement(found.row.id, template, minors, by_side)
        # The entry holds the conjunctive query, so that no other object can get its identity.
        self._placed[id(conjunct)] = conjunct, placement
        if not found.is_new:
            return placement, _NOTHING
        edges, leaves = self._needs(found.row.template, found.row.variables)
        return placement, self._acquire(fresh, ways, edges, leaves)

    def _acquire(
        self, fresh: dict[int, SharedStep], ways: list[int], edges: Iterable[StepEdge], values: Iterable[int]
    ) -> Change:
        """Counts needs, and returns those that no row had. `fresh` are the new steps of `ways`."""
        uses = self._uses
        _count(uses.steps, ways)
        return Change(tuple(fresh.values()), _count(uses.edges, edges), _count(uses.values, values))

    def remove(self, row: int, window: int, ordered: bool) -> tuple[Change, Change]:
        """Removes a subscriber of a row. Returns what must be dropped, and the changed row if others share it."""
        shared = self.rows[row]
        if shared.unsubscribe(window, ordered):
            return Change(), Change(rows=(shared.row(),))
        self.rows.remove(row)
        gone = self.release(shared.variables, *self._needs(shared.template, shared.variables))
        return Change(gone.steps, gone.edges, gone.values, (shared.row(),)), Change()

    def hold(
        self, stream: str, definitions: Iterable[_Definition], edges: Iterable[tuple[int, int]], values: Iterable[int]
    ) -> tuple[tuple[int, ...], Change]:
        """Registers needs beside rows of R_T: variables of these definitions, and edges between them and values of
        them, by index. Returns the variables, and what stage 1 must add. Raises TooManyChains."""
        definitions = list(definitions)
        for node in chain.from_iterable(definitions):
            self.chain(node.functions)  # fails, if it does, before anything is changed
        fresh: dict[int, SharedStep] = {}
        ways: list[int] = []
        found = tuple([self._variable(stream, definition, fresh, ways) for definition in definitions])
        pairs, valued = [(found[a], found[b]) for a, b in edges], [found[place] for place in values]
        return found, self._acquire(fresh, ways, pairs, valued)

    def release(self, variables: Iterable[int], edges: Sequence[StepEdge], values: Sequence[int]) -> Change:
        """Decrements the uses of variables, edges and values. Returns what must be dropped."""
        uses = self._uses
        steps = [self.steps[step] for step in _released(uses.steps, self._ways(variables))]
        for step in steps:
            del self.steps[step.id]
            if (left := without_item(self._step_ids.pop(hash(step.key)), step.id)) is not None:
                self._step_ids[hash(step.key)] = left
        return Change(tuple(steps), tuple(_released(uses.edges, edges)), tuple(_released(uses.values, values)))

    def held(self, variables: Iterable[int], edges: Iterable[StepEdge], values: Iterable[int]) -> Change:
        """All that `hold` registered, whether others need it or not, parents before children."""
        steps = tuple(self.steps[step] for step in dict.fromkeys(self._ways(variables)))
        return Change(steps, tuple(dict.fromkeys(edges)), tuple(dict.fromkeys(values)))

    def edges(self) -> Collection[StepEdge]:
        return self._uses.edges.keys()

    def variables_of(self, row: int) -> tuple[int, ...]:
        """In the order of its template's nodes."""
        return self.rows[row].variables

    def needs_of(self, rows: Iterable[int]) -> Change:
        """The rows, and all their needs of stage 1, parents before children."""
        shared = [self.rows[row] for row in dict.fromkeys(rows)]
        needs = [self._needs(row.template, row.variables) for row in shared]
        variables = chain.from_iterable(row.variables for row in shared)
        edges = chain.from_iterable(edges for edges, _ in needs)
        found = self.held(variables, edges, chain.from_iterable(leaves for _, leaves in needs))
        return Change(found.steps, found.edges, found.values, tuple(row.row() for row in shared))

    def derived(self) -> Change:
        """The needs of all rows for derived values only, parents before children."""
        of_chains = {step.id for step in self.steps.values() if step.chain}
        values = tuple(value for value in self._uses.values if value in of_chains)
        edges = tuple(edge for edge in self._uses.edges if not of_chains.isdisjoint(edge))
        return self.held({*values, *chain.from_iterable(edges)}, edges, values)

    def _needs(self, template: int, variables: Sequence[int]) -> tuple[list[StepEdge], list[int]]:
        """The edges and values that a row needs. May have duplicates."""
        edges, leaves = graph.bindings_of(self.templates[template])
        return [(variables[a], variables[b]) for a, b in edges], [variables[leaf] for leaf in leaves]

    def _ways(self, variables: Iterable[int]) -> list[int]:
        """The steps down to each variable, parents before children. May have duplicates."""
        steps: list[int] = []
        for variable in variables:
            above: list[int] = []
            step: int | None = variable
            while step is not None:
                above.append(step)
                step = self.steps[step].parent
            steps += reversed(above)
        return steps

    def _variable(self, stream: str, definition: _Definition, fresh: dict[int, SharedStep], ways: list[int]) -> int:
        """The id of a definition's last step. Appends all its steps to `ways`, and adds new ones to `fresh`."""
        last: int | None = None
        for node, text in zip(definition, node_texts(definition), strict=True):
            key = (stream, last, text)
            found = self._step_id(key)
            if found is None:
                found = self.known_steps.pop(key, None)
                if found is None:
                    found = self.next_step
                    self.next_step += 1
                self._step_ids[hash(key)] = with_item(self._step_ids.get(hash(key)), found)
                self.steps[found] = SharedStep(found, stream, last, node, self.chain(node.functions))
            if not self._uses.steps[found]:
                fresh[found] = self.steps[found]
            ways.append(found)
            last = found
        assert last is not None, "a definition has a step"
        return last

    def _step_id(self, key: _Key) -> int | None:
        return next((id for id in each(self._step_ids.get(hash(key))) if self.steps[id].key == key), None)

    def _template(self, shape: graph.Shape) -> int:
        key = graph.canonical_shape(shape).key
        number = self._template_of.get(key)
        if number is None:
            number = self._template_of[key] = len(self.templates)
            self.templates.append(shape)
        return number


def _count(uses: MutableMapping[T, int], more: Iterable[T]) -> tuple[T, ...]:
    """Increments counts. Returns the items not used before, each once."""
    fresh = []
    for use in more:
        if not (count := uses[use]):
            fresh.append(use)
        uses[use] = count + 1
    return tuple(fresh)


def _released(uses: MutableMapping[T, int], given_back: Sequence[T]) -> list[T]:
    for use in given_back:
        uses[use] -= 1
    gone = [use for use in dict.fromkeys(given_back) if not uses[use]]
    for use in gone:
        del uses[use]
    return gone


@dataclass(slots=True)
class Needs:
    """Patterns, templates and rows of conjunctive queries by key, with whether the catalog lacks them. A pattern is
    what stage 1 matches on one side: a stream and the definitions of its variables."""

    patterns: dict[object, bool] = field(default_factory=dict)
    templates: dict[object, bool] = field(default_factory=dict)
    rows: dict[object, bool] = field(default_factory=dict)


def needs_of(catalog: Catalog, conjuncts: Iterable[Conjunct]) -> Needs:
    needs = Needs()
    # Variables that the catalog lacks get negative numbers.
    fresh: dict[object, int] = {}

    def variable(stream: str, definition: tuple[PatternNode, ...]) -> int:
        found = catalog.find_step(stream, definition)
        return fresh.setdefault((stream, *node_texts(definition)), -1 - len(fresh)) if found is None else found

    for conjunct in conjuncts:
        minors, shape = graph.reduced_graph(conjunct)
        variables: list[int] = []
        for side, reduced in zip(conjunct.sides(), minors, strict=True):
            own = [variable(side.stream, node.definition) for node in reduced.nodes]
            needs.patterns[frozenset(own)] = min(own) < 0
            variables += own
        needs.templates[graph.canonical_shape(shape).key] = catalog.find_template(shape) is None
        needs.rows[graph.canonical_row(shape, variables).key] = not catalog.has_row(shape, variables)
    return needs
