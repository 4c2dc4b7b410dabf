"""Holding stage 1 against exact matching: joining its witnesses over the minors of the registered patterns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from templates.catalog import Catalog, Placement
from templates.witness import Witnesses, node_id, plain_node
from xpath_stage.binder import bindings
from xpath_stage.evaluator import StreamDocument, XPathStage
from xscl.functions import derive
from xscl.normal import Conjunct
from xscl.pattern import PatternNode

Edge = tuple[int, int]
Row = tuple[int, int]


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


class Stage:
    """Stage 1 and the catalog that feeds it, with the conjunctive queries that stand."""

    def __init__(self, stage: XPathStage | None = None) -> None:
        self.catalog, self.stage = Catalog(), stage or XPathStage()
        self.groups: dict[int, list[Edge]] = {}
        self.standing: list[tuple[Conjunct, Placement]] = []

    def add(self, conjuncts: Iterable[Conjunct]) -> None:
        for conjunct in conjuncts:
            placement, change = self.catalog.add(conjunct, 1, True)
            self.stage.add(change)
            self.standing.append((conjunct, placement))

    def remove(self, index: int) -> None:
        _, placement = self.standing.pop(index)
        self.stage.remove(self.catalog.remove(placement, 1, True)[0])

    def evaluate(self, documents: Iterable[StreamDocument]) -> Witnessed:
        return Witnessed(self.stage.evaluate(documents), self.groups)

    def definition(self, variable: int) -> str:
        """A variable's definition, that of no other, whatever the ids."""
        step = self.catalog.steps[variable]
        above = f"{step.stream}:" if step.parent is None else self.definition(step.parent) + " "
        return above + str(step.node)

    def named(self, found: Witnessed) -> object:
        """The witnesses with variables by definition, to compare stages with different ids."""
        edges = {
            (docid, self.definition(one), self.definition(two)): rows
            for (docid, (one, two)), rows in found.edges.items()
        }
        return edges, found.values

    def check(self, documents: Sequence[StreamDocument]) -> int:
        """Compares all standing patterns' matches in the documents; how many there were."""
        found = self.evaluate(documents)
        count = 0
        for conjunct, placement in self.standing:
            for side in range(len(conjunct.sides())):
                for document in documents:
                    count += check_side(self.catalog, conjunct, placement, side, document, found)
        return count


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
    expected = {
        tuple(
            node_id(*bound[str(node.path)], node.definition[-1].functions if node.definition[-1].axis == "." else ())
            for node in minor.nodes
        )
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
