"""Variables that follow from the joined nodes of a match without matching the pattern again.

A joined node satisfies all that the pattern says about it and the nodes above it. So where only steps to children and
attributes lead from a variable down to it, the variable is bound to its ancestor at that distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from templates.witness import plain_node
from xpath_stage.binder import Node, Path
from xpath_stage.parse import ParsedDocument
from xscl.algebra.pattern import PatternNode


@dataclass(frozen=True, slots=True)
class DerivedVariable:
    """A variable that is bound `levels` above the node at `slot` of the template."""

    var: str
    slot: int
    levels: int

    def node(self, tree: ParsedDocument, nodes: Sequence[int]) -> Node:
        """Returns the node in a document, given the nodes of a match in the template's numbering."""
        element, place = plain_node(nodes[self.slot])
        if not self.levels:
            return element, place
        parent, above = tree.parent, self.levels
        if place:
            above -= 1  # the element that has the attribute
        for _ in range(above):
            up = parent[element]
            assert up is not None, "a match has all nodes above a joined node that the pattern asks for"
            element = up
        return element, 0


def derived_variables(pattern: PatternNode, slots: Mapping[Path, int]) -> list[DerivedVariable] | None:
    """Returns how each variable of a pattern follows from joined nodes; None if one of them does not.

    `slots` maps the paths of joined nodes in the pattern to their slots in the template.
    """
    found = []
    for var, path in _variables(pattern, ()):
        below = _nearest(_at(pattern, path), path, slots)
        if below is None:
            return None
        found.append(DerivedVariable(var, *below))
    return found


def _nearest(node: PatternNode, path: Path, slots: Mapping[Path, int]) -> tuple[int, int] | None:
    """Returns the slot of a joined node below a node of the pattern, or at it, and the number of steps to it, all to
    children or attributes; None if there is none."""
    if path in slots:
        return slots[path], 0
    for i, child in enumerate(node.children):
        if child.axis == "/":
            below = _nearest(child, (*path, i), slots)
            if below is not None:
                return below[0], below[1] + 1
    return None


def _at(pattern: PatternNode, path: Path) -> PatternNode:
    for i in path:
        pattern = pattern.children[i]
    return pattern


def _variables(pattern: PatternNode, path: Path) -> list[tuple[str, Path]]:
    own = [(pattern.var, path)] if pattern.var else []
    return own + [found for i, child in enumerate(pattern.children) for found in _variables(child, (*path, i))]
