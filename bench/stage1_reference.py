"""Exact matching as the reference for stage 1: joining the witnesses over a pattern's minor gives its matches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from templates.catalog import Catalog, Placement
from templates.witness import Witnesses, node_id, plain_node
from xpath_stage.binder import bindings
from xpath_stage.documents import StreamDocument
from xscl.algebra.joins import Conjunct
from xscl.algebra.trees import PatternNode
from xscl.algebra.values import derive

Edge = tuple[int, int]
Row = tuple[int, int]
Rows = tuple[Counter[tuple[object, ...]], Counter[tuple[object, ...]]]


class Witnessed:
    """A batch's witnesses as sets: W by edge and document, string values by document and node."""

    def __init__(self, batch: Witnesses, groups: dict[int, list[Edge]]) -> None:
        for group, var1, var2 in zip(*batch.r_group.to_pydict().values(), strict=True):
            groups.setdefault(group, []).append((var1, var2))
        self.edges: dict[tuple[int, Edge], set[Row]] = {}
        for docid, group, node1, node2 in zip(*batch.r_bin.to_pydict().values(), strict=True):
            for edge in groups[group]:
                rows = self.edges.setdefault((docid, edge), set())
                assert (node1, node2) not in rows, "a witness is given once"
                rows.add((node1, node2))
        self.values: dict[tuple[int, int], str] = {}
        for docid, node, value, _ in zip(*batch.r_doc.to_pydict().values(), strict=True):
            assert (docid, node) not in self.values, "a value is given once"
            self.values[docid, node] = value


def rows_of(batch: Witnesses, groups: dict[int, frozenset[Edge]]) -> Rows:
    """The rows of R_bin, with edges for a group's number, and of R_doc; the batch's new groups are put in `groups`."""
    edges: dict[int, set[Edge]] = {}
    for group, var1, var2 in zip(*batch.r_group.to_pydict().values(), strict=True):
        edges.setdefault(group, set()).add((var1, var2))
    groups.update((group, frozenset(pairs)) for group, pairs in edges.items())
    r_bin = zip(*batch.r_bin.to_pydict().values(), strict=True)
    return (
        Counter((docid, groups[group], node1, node2) for docid, group, node1, node2 in r_bin),
        Counter(zip(*batch.r_doc.to_pydict().values(), strict=True)),
    )


def check_side(
    catalog: Catalog, conjunct: Conjunct, placement: Placement, side: int, document: StreamDocument, found: Witnessed
) -> int:
    """One pattern in one document: the join of the witnesses is the projection of the matches on the minor."""
    minor, stream = placement.minors[side], conjunct.sides()[side].stream
    if stream != document.stream:
        return 0
    row = catalog.variables_of(placement.row)
    variables = [row[slot] for slot in placement.slots[side]]
    parents = [node.parent for node in minor.nodes]
    marked = mark(conjunct.sides()[side].pattern, (), {node.path for node in minor.nodes})
    functions = [node.definition[-1].functions for node in minor.nodes]
    chains = [catalog.chains[names] if names else 0 for names in functions]
    expected = {
        tuple(node_id(*bound[str(node.path)], chain) for node, chain in zip(minor.nodes, chains, strict=True))
        for bound in map(dict, bindings(marked, document.tree))
    }
    assert joined(found, document.docid, parents, variables) == expected
    for nodes in expected:
        for leaf in minor.node_of.values():
            text = document.tree.string_value(*plain_node(nodes[leaf]))
            for name in functions[leaf]:
                text = derive(name, text)
            assert found.values[document.docid, nodes[leaf]] == text
    return len(expected)


def mark(pattern: PatternNode, path: tuple[int, ...], paths: set[tuple[int, ...]]) -> PatternNode:
    """The pattern with variables at the nodes of these paths, and no others."""
    children = tuple(mark(child, (*path, i), paths) for i, child in enumerate(pattern.children))
    return replace(pattern, var=str(path) if path in paths else None, children=children)


def joined(found: Witnessed, docid: int, parents: list[int | None], variables: list[int]) -> set[tuple[int, ...]]:
    """The join of the witnesses over a minor's edges, as a tuple of nodes for each result."""
    if len(variables) == 1:
        rows = found.edges.get((docid, (variables[0], variables[0])), set())
        assert all(node1 == node2 for node1, node2 in rows)
        return {(node1,) for node1, _ in rows}
    found_so_far: set[tuple[int, ...]] = set()
    for node, parent in enumerate(parents):
        if parent is not None:
            rows = found.edges.get((docid, (variables[parent], variables[node])), set())
            # Nodes stand in pre-order, so the first edge leads from the top to its first child.
            above = {(top,) for top, _ in rows} if node == 1 else found_so_far
            found_so_far = {(*nodes, low) for nodes in above for top, low in rows if nodes[parent] == top}
    return found_so_far
