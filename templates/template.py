"""Query templates (thesis 6.4.1): the shape of the minor of a join graph, and its canonical labelling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from common.quick import quick
from common.unneeded import hidden
from templates.minor import Minor
from xscl.algebra.normal import Term


@quick
@dataclass(frozen=True, slots=True)
class Shape:
    """A reduced join graph with numbered nodes: the left side first, each side in pre-order.

    `parents` has the parent of each node, None at the top of a side. `left` is the number of nodes of the left side.
    `joins` are the value joins, as pairs (left leaf, right leaf).
    """

    left: int
    parents: tuple[int | None, ...]
    joins: tuple[tuple[int, int], ...]

    def edges(self) -> list[tuple[int, int]]:
        """All edges: structural ones (parent, child), then value joins."""
        structural = [(parent, child) for child, parent in enumerate(self.parents) if parent is not None]
        return [*structural, *self.joins]

    def binary_rows(self) -> list[tuple[int, int]]:
        """The rows of R_bin that bind the nodes: (parent, child), or (x, x) for a side of a single node."""
        left, right = range(self.left), range(self.left, len(self.parents))
        rows = [(parent, child) for child, parent in enumerate(self.parents) if parent is not None]
        rows += [(side[0], side[0]) for side in (left, right) if len(side) == 1]
        return sorted(rows, key=lambda row: row[1])


@lru_cache(maxsize=65536)
def bindings_of(shape: Shape) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """What a row of a template needs of stage 1: the rows of R_bin that bind its nodes, and the leaves whose values are
    joined, one for each end of a join."""
    return tuple(shape.binary_rows()), tuple(leaf for join in shape.joins for leaf in join)


def shape_of(left: Minor, right: Minor | None, joins: Sequence[tuple[Term, Term]]) -> Shape:
    """The shape of the join graph of a conjunctive query. Its nodes are those of the minors, in their order."""
    count = len(left.nodes)
    parents = [node.parent for node in left.nodes]
    if right is None:
        return Shape(count, tuple(parents), ())
    parents += [None if node.parent is None else node.parent + count for node in right.nodes]
    edges = {(left.node_of[a], right.node_of[b] + count) for a, b in joins}
    return Shape(count, tuple(parents), tuple(sorted(edges)))


@quick
@dataclass(frozen=True, slots=True)
class Canonical:
    """A canonical form: `key` is equal for isomorphic graphs, and `position[i]` is the position of node i in the
    canonical order."""

    key: tuple[object, ...]
    position: tuple[int, ...]


@lru_cache(maxsize=65536)
def canonical_shape(shape: Shape) -> Canonical:
    """The canonical form of a shape. Isomorphic join graphs have one key; an isomorphism keeps the sides."""
    return canonical_row(shape, (0,) * len(shape.parents))


def canonical_row(shape: Shape, variables: Sequence[int]) -> Canonical:
    """The canonical form of a shape with variables. Identical conjunctive queries have one key."""
    if shape.parents == (None, None):  # one node on each side, as most have: there is no other order
        return Canonical((1, _JOINED if shape.joins else (), *variables), _JOINED)
    colours = [(node >= shape.left, parent is None, variables[node]) for node, parent in enumerate(shape.parents)]
    ranks = {colour: rank for rank, colour in enumerate(sorted(set(colours)))}
    order, position, numbered = _canonical_order(shape, tuple([ranks[colour] for colour in colours]))
    # The order is that of the colours: of each side, first the nodes below its top, and then its top.
    return Canonical((shape.left, numbered, *[variables[node] for node in order]), position)


_JOINED = 0, 1
"""The positions of two nodes, and the edge between them."""


@lru_cache(maxsize=65536)
def _canonical_order(shape: Shape, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The canonical order of the nodes of a shape, whose colours have these ranks; the position of each node in it; and
    the edges between positions, one after another."""
    edges = shape.edges()
    order = range(len(ranks)) if len(set(ranks)) == len(ranks) else _permuted(len(ranks), edges, ranks)
    order = sorted(order, key=lambda node: ranks[node])
    position = [0] * len(order)
    for place, node in enumerate(order):
        position[node] = place
    numbered = sorted(tuple(sorted((position[a], position[b]))) for a, b in edges)
    return tuple(order), tuple(position), tuple(chain.from_iterable(numbered))


def _permuted(size: int, edges: list[tuple[int, int]], ranks: Sequence[int]) -> Sequence[int]:
    """The nodes of a graph in a canonical order among those of one colour."""
    with hidden("matplotlib"):  # which igraph imports to draw
        import igraph  # it takes longer than all other imports of a Spark worker, which does not need it

    graph = igraph.Graph(n=size, edges=edges, vertex_attrs={"node": range(size)})
    # The direction of the permutation depends on the version of igraph, so igraph applies it.
    nodes: list[int] = graph.permute_vertices(graph.canonical_permutation(color=ranks)).vs["node"]
    return nodes
