"""A query block as an indented outline: a row for each path, variable and filter, as the query writes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from xscl import to_xscl
from xscl.algebra.expressions import And, Compare, Expr, Rel, Step, String
from xscl.syntax import Block


@dataclass(frozen=True, slots=True)
class Row:
    """A line of an outline: a path or, if it `is_condition`, a filter. `joins` says whether a value join uses it."""

    depth: int
    text: str
    var: str | None = None
    is_condition: bool = False
    joins: bool = False

    def __str__(self) -> str:
        return self.text if self.var is None else f"{self.text} as {self.var}"


@dataclass(eq=False, slots=True)
class Node:
    """A node of an outline that is being made."""

    text: str
    var: str | None = None
    is_condition: bool = False
    children: list[Node] = field(default_factory=list)


class Outline:
    """The outline of a block. Paths on its variables can be added."""

    def __init__(self, block: Block) -> None:
        self.stream = block.stream
        self.root, self._last = _chain(block.steps, is_root=True)

    def at(self, var: str | None, steps: tuple[Step, ...]) -> Node:
        """Returns the node of a path on a variable, or on the block's root (None). Adds it if it is not there."""
        start = self._last if var is None else next(node for node in _walk(self.root) if node.var == var)
        if not steps:
            return start
        first, last = _chain(steps)
        known = next((child for child in start.children if _is_same(child, first)), None)
        if known is not None and first is last:
            return known
        start.children.append(first)
        return last

    def variables(self) -> Iterator[str]:
        """Yields its variables."""
        return (node.var for node in _walk(self.root) if node.var is not None)

    def rows(self, joined: Collection[int], *, only_joined: bool = False) -> Iterator[tuple[Node, Row]]:
        """Yields the rows with their nodes. `joined` has the identities of nodes that value joins use; `only_joined`
        leaves out all but these and what they are in."""

        def below(node: Node, depth: int) -> Iterator[tuple[Node, Row]]:
            yield node, Row(depth, node.text, node.var, node.is_condition, id(node) in joined)
            for child in node.children:
                if not only_joined or any(id(one) in joined for one in _walk(child)):
                    yield from below(child, depth + 1)

        yield from below(self.root, 0)


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _walk(child)


def _is_same(one: Node, other: Node) -> bool:
    """Whether a node stands for a plain path that another one stands for."""
    return one.text == other.text and not (one.is_condition or one.children or other.children)


def _chain(steps: tuple[Step, ...], *, is_root: bool = False) -> tuple[Node, Node]:
    """The nodes of a path: its first and its last one. Steps without variables and filters share a node."""
    nodes: list[Node] = []
    text = ""
    for place, step in enumerate(steps):
        first = not nodes and not text
        text += f"{_axis(step, first=first and not is_root)}{to_xscl(step.test)}"
        if step.var is None and not step.filters and place + 1 < len(steps):
            continue
        node = Node(text, step.var)
        for condition in step.filters:
            node.children += _filters(condition)
        if nodes:
            nodes[-1].children.append(node)
        nodes.append(node)
        text = ""
    return nodes[0], nodes[-1]


def _axis(step: Step, *, first: bool) -> str:
    """How a step is reached. From its parent's row, a child needs no slash."""
    return "" if first and step.axis == "/" else step.axis


def _filters(condition: Expr) -> Iterator[Node]:
    """The nodes of a filter: paths, which may bind variables, and conditions."""
    if isinstance(condition, And):
        for arm in condition.args:
            yield from _filters(arm)
        return
    path, literal = _path_of(condition)
    if path is None or not path.steps:
        yield Node(to_xscl(condition), is_condition=True)
        return
    first, last = _chain(path.steps)
    if literal is not None:
        last.text += f" = {to_xscl(literal)}"
    yield first


def _path_of(condition: Expr) -> tuple[Rel | None, String | None]:
    """A filter as a path and the text that its end has, if it says no more than that."""
    match condition:
        case Rel():
            return condition, None
        case Compare(op="=", left=Rel() as path, right=String() as literal):
            return path, literal
        case Compare(op="=", left=String() as literal, right=Rel() as path):
            return path, literal
    return None, None
