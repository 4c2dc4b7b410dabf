"""Join graphs of conjunctive queries: their minors, canonical templates, and CQ_T as Datalog and SQL (thesis 6.4).

The minor of a side (6.4.2) has the value-join nodes and their least common ancestors, the set K. A variable's
definition is the chain of pattern nodes from the root to it, with filters and branches without a node of K; equal
definitions over one stream are one variable. A template (6.4.1) is the shape of a minor in canonical labelling;
`templates` enumerates those of a number of joins (Table 6.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from common.tools import frozen, hidden
from xscl.algebra.joins import Conjunct, PatternNode, Term, Test, node_texts, unnamed

_SELF = Test("element", "*", "*")


@frozen
class MinorNode:
    """A node of K. `parent` is the index of its nearest proper ancestor in K, None at the top. `path` leads to it in
    the side's pattern, child by child. A leaf on the self axis has the path of the node that it stands for."""

    parent: int | None
    definition: tuple[PatternNode, ...]
    path: tuple[int, ...]


@frozen
class Minor:
    """The minor's nodes in pre-order, and the index of each value-join term's node."""

    nodes: tuple[MinorNode, ...]
    node_of: dict[Term, int]


def minor(pattern: PatternNode, terms: Iterable[Term]) -> Minor:
    """The minor of `pattern` for the value-join `terms`. A term on an inner node, or with functions, gets a leaf on the
    self axis, so that value joins are between leaves only. Without terms (a filter) the minor is the pattern's top
    node, with all the rest as branches."""
    terms = list(terms)
    by_var: dict[str | None, list[Term]] = {}
    for term in dict.fromkeys(terms):
        by_var.setdefault(term.var, []).append(term)
    if not by_var:
        return Minor((MinorNode(None, (_canonical(pattern, pattern.children),), ()),), {})
    if len(by_var) == 1 and not any(term.functions for term in terms):
        (var,) = by_var
        return Minor((_only_node(pattern, var),), dict.fromkeys(by_var[var], 0))
    builder = _MinorBuilder(by_var)
    tree = builder.mark(pattern, ())
    assert tree is not None, "a term is on a variable of the pattern"
    builder.collect(tree, None, ())
    return Minor(tuple(builder.nodes), builder.node_of)


def _only_node(pattern: PatternNode, var: str | None) -> MinorNode:
    path = _way_to(pattern, var)
    assert path is not None, "a term is on a variable of the pattern"
    definition, node = [], pattern
    for place in path:
        branches = node.children[:place] + node.children[place + 1 :]
        definition.append(_canonical(node, branches))
        node = node.children[place]
    return MinorNode(None, (*definition, _canonical(node, node.children)), path)


def definition_of(pattern: PatternNode, var: str) -> tuple[PatternNode, ...]:
    return _only_node(pattern, var).definition


def _way_to(pattern: PatternNode, var: str | None) -> tuple[int, ...] | None:
    if pattern.var == var:
        return ()
    for place, child in enumerate(pattern.children):
        if child.children:
            below = _way_to(child, var)
            if below is not None:
                return (place, *below)
        elif child.var == var:
            return (place,)
    return None


@dataclass(eq=False, slots=True)
class _MarkedNode:
    """A node with terms at or below it. `children` are None for those without, followed by the artificial leaves."""

    node: PatternNode
    path: tuple[int, ...]
    children: list[_MarkedNode | None]
    leaves: list[Term]
    kept: bool


class _MinorBuilder:
    def __init__(self, by_var: Mapping[str | None, list[Term]]) -> None:
        self._by_var = by_var
        self.nodes: list[MinorNode] = []
        self.node_of: dict[Term, int] = {}

    def mark(self, node: PatternNode, path: tuple[int, ...]) -> _MarkedNode | None:
        children = [
            self.mark(child, (*path, i)) if child.children or child.var in self._by_var else None
            for i, child in enumerate(node.children)
        ]
        terms = self._by_var.get(node.var, []) if node.var else []
        below = len(children) - children.count(None)
        if not terms and not below:
            return None
        if terms and (below or any(term.functions for term in terms)):
            made = ((PatternNode(".", _SELF, functions=term.functions), term) for term in terms)
            children += [_MarkedNode(leaf, path, [], [term], True) for leaf, term in made]
            terms, below = [], below + len(terms)
        return _MarkedNode(node, path, children, terms, bool(terms) or below >= 2)

    def collect(self, tree: _MarkedNode, parent: int | None, above: tuple[PatternNode, ...]) -> None:
        pairs = zip(tree.node.children, tree.children, strict=False)
        branches = tuple([node for node, child in pairs if child is None])
        definition = (*above, _canonical(tree.node, branches))
        if tree.kept:
            index = len(self.nodes)
            self.nodes.append(MinorNode(parent, definition, tree.path))
            self.node_of.update(dict.fromkeys(tree.leaves, index))
            parent = index
        for child in tree.children:
            if child is not None:
                self.collect(child, parent, definition)


def _canonical(node: PatternNode, branches: tuple[PatternNode, ...]) -> PatternNode:
    """The node without variable names; its conditions and children (`branches`) sorted and distinct."""
    conditions = node.conditions
    if len(conditions) > 1:
        conditions = tuple(sorted(set(conditions), key=str))
    if branches:
        branches = tuple([_canonical(branch, branch.children) if _is_rich(branch) else branch for branch in branches])
    if len(branches) > 1:
        by_text = dict(zip(node_texts(branches), branches, strict=True))
        branches = tuple([by_text[text] for text in sorted(by_text)])
    if conditions is node.conditions and branches == node.children:
        return unnamed(node)  # which many patterns may share
    # Written out, because `replace` takes several times as long.
    return PatternNode(node.axis, node.test, conditions, branches, None, node.functions)


def _is_rich(node: PatternNode) -> bool:
    return node.var is not None or len(node.children) > 0 or len(node.conditions) > 1


@frozen
class Shape:
    """A reduced join graph with numbered nodes: the left side first, each side in pre-order. `parents` has each node's
    parent, None at the top of a side. `left` is the number of left nodes. `joins` are pairs (left leaf, right leaf)."""

    left: int
    parents: tuple[int | None, ...]
    joins: tuple[tuple[int, int], ...]

    def edges(self) -> list[tuple[int, int]]:
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
    """A template row's needs of stage 1: the rows of R_bin that bind its nodes, and both leaves of each join."""
    return tuple(shape.binary_rows()), tuple(leaf for join in shape.joins for leaf in join)


def reduced_graph(conjunct: Conjunct) -> tuple[tuple[Minor, ...], Shape]:
    """The minors of a conjunctive query's sides, and the shape of its join graph, whose nodes are theirs, in order."""
    joins = conjunct.joins
    minors = tuple([minor(side.pattern, [join[i] for join in joins]) for i, side in enumerate(conjunct.sides())])
    count = len(minors[0].nodes)
    parents = [node.parent for node in minors[0].nodes]
    if conjunct.right is None:
        return minors, Shape(count, tuple(parents), ())
    left, right = minors
    parents += [None if node.parent is None else node.parent + count for node in right.nodes]
    edges = {(left.node_of[a], right.node_of[b] + count) for a, b in joins}
    return minors, Shape(count, tuple(parents), tuple(sorted(edges)))


@frozen
class Canonical:
    """`key` is equal for isomorphic graphs, and `position[i]` is the canonical position of node i."""

    key: tuple[object, ...]
    position: tuple[int, ...]


@lru_cache(maxsize=65536)
def canonical_shape(shape: Shape) -> Canonical:
    """Isomorphic join graphs have the same key; an isomorphism keeps the sides."""
    return canonical_row(shape, (0,) * len(shape.parents))


def canonical_row(shape: Shape, variables: Sequence[int]) -> Canonical:
    """The canonical form of a shape with variables. Identical conjunctive queries have the same key."""
    if shape.parents == (None, None):  # one node on each side, as most have: there is no other order
        return Canonical((1, _JOINED if shape.joins else (), *variables), _JOINED)
    colours = [(node >= shape.left, parent is None, variables[node]) for node, parent in enumerate(shape.parents)]
    ranks = {colour: rank for rank, colour in enumerate(sorted(set(colours)))}
    order, position, numbered = _canonical_order(shape, tuple([ranks[colour] for colour in colours]))
    # The order is that of the colours: of each side, first the nodes below its top, and then its top.
    return Canonical((shape.left, numbered, *[variables[node] for node in order]), position)


_JOINED = 0, 1  # the positions of two nodes, and the edge between them


@lru_cache(maxsize=65536)
def _canonical_order(shape: Shape, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The canonical order of nodes with colour `ranks`; each node's position; and the edges between positions."""
    edges = shape.edges()
    order = range(len(ranks)) if len(set(ranks)) == len(ranks) else _permuted(len(ranks), edges, ranks)
    order = sorted(order, key=lambda node: ranks[node])
    position = [0] * len(order)
    for place, node in enumerate(order):
        position[node] = place
    numbered = sorted(tuple(sorted((position[a], position[b]))) for a, b in edges)
    return tuple(order), tuple(position), tuple(chain.from_iterable(numbered))


def _permuted(size: int, edges: list[tuple[int, int]], ranks: Sequence[int]) -> Sequence[int]:
    """Nodes in a canonical order among those of one colour."""
    with hidden("matplotlib"):  # which igraph imports to draw
        import igraph  # it takes longer than all other imports of a Spark worker, which does not need it

    graph = igraph.Graph(n=size, edges=edges, vertex_attrs={"node": range(size)})
    # The direction of the permutation depends on the version of igraph, so igraph applies it.
    nodes: list[int] = graph.permute_vertices(graph.canonical_permutation(color=ranks)).vs["node"]
    return nodes


R_DOC = ("docid", "node", "strval")
R_BIN = ("docid", "var1", "var2", "node1", "node2")
R_VJ = ("docid1", "node1", "docid2", "node2")
"""The witness relations' attributes. The W relations hold a batch, and so have docid too. R_vj is the join of R_doc and
R_docW on strval, which all templates share."""

R_LR = ("docid1", "var1", "var2", "node1", "node2", "docid2", "var3", "var4", "node3", "node4")
"""Attributes of R_LR, which all templates share (thesis 6.5). It joins R_L and R_R on strval; R_L joins R_doc and R_bin
on node = node2, and R_R does so for the batch."""


@dataclass(frozen=True, slots=True)
class RelationAtom:
    """A relation with a variable for each attribute. Equal variables join."""

    relation: str
    attributes: tuple[str, ...]
    args: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.relation}({', '.join(self.args)})"


@dataclass(frozen=True, slots=True)
class ConjunctiveQuery:
    """`head :- body`. The SQL joins the atoms of the body in order."""

    head: RelationAtom
    body: tuple[RelationAtom, ...]

    def datalog(self) -> str:
        return f"{self.head} :-\n  " + ",\n  ".join(map(str, self.body))

    def sql(self, tables: Mapping[str, str], select: str | None = None, conditions: tuple[str, ...] = ()) -> str:
        """The query in SQL. `tables` maps relations to tables, by default of the same name. `select` replaces the head.
        It and the `conditions` have variables of the body in braces."""
        place: dict[str, str] = {}
        lines, where = [], []
        for i, atom in enumerate(self.body):
            equal = []
            for attribute, arg in zip(atom.attributes, atom.args, strict=True):
                column = f"a{i}.{attribute}"
                if arg in place:
                    equal.append(f"{place[arg]} = {column}")
                place.setdefault(arg, column)
            table = f"{tables.get(atom.relation, atom.relation)} a{i}"
            if i == 0:
                lines.append(f"FROM {table}")
                where += equal
            else:
                lines.append(f"JOIN {table} ON {' AND '.join(equal) or 'TRUE'}")
        columns = zip(self.head.args, self.head.attributes, strict=True)
        head = (select or ", ".join(f"{{{arg}}} AS {name}" for arg, name in columns)).format_map(place)
        where += [condition.format_map(place) for condition in conditions]
        if where:
            lines.append(f"WHERE {' AND '.join(where)}")
        return "\n".join([f"SELECT {head}", *lines])


def conjunctive_query(shape: Shape, template: str) -> ConjunctiveQuery:
    """CQ_T of the thesis: R_T, for each value join a copy of R_doc and of R_docW joined on strval, and for each
    structural edge a copy of R_bin or R_binW. A filter's template reads the batch only."""
    if not shape.joins:
        body = [_binary(shape, 0, "R_binW", "docid1")]
    else:
        body = []
        bound: set[int] = set()
        for i, (left, right) in enumerate(shape.joins, 1):
            for leaf, docid, suffix in ((left, "docid1", ""), (right, "docid2", "W")):
                body.append(RelationAtom(f"R_doc{suffix}", R_DOC, (docid, f"node{leaf + 1}", f"strval{i}")))
                body += _path(shape, leaf, f"R_bin{suffix}", docid, bound)
    return ConjunctiveQuery(_head(shape, template), (*body, _rows(shape, template)))


def executable_query(shape: Shape, template: str, views: bool = False) -> ConjunctiveQuery:
    """CQ_T in the order of execution: R_vj instead of R_doc and R_docW, and R_T as soon as a left edge is bound. An
    optimizer without statistics chooses orders that are slower by orders of magnitude. With `views` (thesis 6.5) it has
    R_LR, with both edges of leaves, for each value join; an edge between inner nodes still needs R_bin or R_binW."""
    if not shape.joins:
        return conjunctive_query(shape, template)
    body: list[RelationAtom] = []
    bound: set[int] = set()
    for i, (left, right) in enumerate(shape.joins):
        rows = [] if i else [_rows(shape, template)]
        # R_LR has the edges of leaves.
        ways = [(shape.parents[leaf] if views else leaf) for leaf in (left, right)]
        above = _path(shape, ways[0], "R_bin", "docid1", bound), _path(shape, ways[1], "R_binW", "docid2", bound)
        if views:
            edges = _binary(shape, left, "R_bin", "docid1"), _binary(shape, right, "R_binW", "docid2")
            body += RelationAtom("R_LR", R_LR, edges[0].args + edges[1].args), *rows, *above[0], *above[1]
        else:
            joined = RelationAtom("R_vj", R_VJ, ("docid1", f"node{left + 1}", "docid2", f"node{right + 1}"))
            body += joined, *above[0], *rows, *above[1]
    return ConjunctiveQuery(_head(shape, template), tuple(body))


def _path(shape: Shape, place: int | None, relation: str, docid: str, bound: set[int]) -> list[RelationAtom]:
    """Atoms that bind a node and its ancestors, except for nodes already bound."""
    atoms = []
    while place is not None and place not in bound:
        bound.add(place)
        # The rows of its children bind the top of a side; its self row binds a side of one node.
        if shape.parents[place] is not None or place not in shape.parents:
            atoms.append(_binary(shape, place, relation, docid))
        place = shape.parents[place]
    return atoms


def _binary(shape: Shape, node: int, relation: str, docid: str) -> RelationAtom:
    """The atom of R_bin for a node and its parent, or for the self row of a side with a single node."""
    parent = shape.parents[node]
    above = node if parent is None else parent
    args = docid, f"var{above + 1}", f"var{node + 1}", f"node{above + 1}", f"node{node + 1}"
    return RelationAtom(relation, R_BIN, args)


def _rows(shape: Shape, template: str) -> RelationAtom:
    columns = ("qid", *(f"var{i + 1}" for i in range(len(shape.parents))), "wl")
    return RelationAtom(f"R_{template}", columns, columns)


def _head(shape: Shape, template: str) -> RelationAtom:
    nodes = tuple(f"node{i + 1}" for i in range(len(shape.parents)))
    columns = ("qid", "docid1", *(("docid2",) if shape.joins else ()), *nodes, "wl")
    return RelationAtom(f"R_out{template}", columns, columns)
