"""Places the definition of an event in the catalog: the edges that bind its variables, and its values.

K is the set of a definition's variables, closed under least common ancestors. Each node of K has a leaf on the self
axis, whose chain of functions ends with OF_EVENTS; edges lead from the nearest ancestor in K to that leaf. So the chain
distinguishes an event's rows of R_bin and values from those of joins, and no join sees them. An attribute has an edge
of its own, from its variable's node to a leaf with its functions.
"""

from __future__ import annotations

from common.tools import frozen
from templates.catalog import Catalog, Change, StepEdge
from templates.graph import Minor, definition_of, minor
from xscl.algebra.events import ATTRIBUTE_END, EventPattern, Kind, Schema
from xscl.algebra.joins import Term
from xscl.algebra.trees import PatternNode, Test
from xscl.algebra.values import OF_EVENTS

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
    reduced = minor(pattern.pattern, map(Term, pattern.variables))
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
            values.append(leaf((*own[node], *definition_of(attribute.path, ATTRIBUTE_END)), attribute.functions))
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


def _node(reduced: Minor, var: str) -> int:
    """The index of a variable's node, not of its leaf."""
    index = reduced.node_of[Term(var)]
    node = reduced.nodes[index]
    if node.definition[-1].axis != ".":
        return index
    assert node.parent is not None, "a leaf has the node that it stands for above it"
    return node.parent
