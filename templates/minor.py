"""The minor of one side of a join graph (thesis 6.4.2): the value-join nodes and their least common ancestors.

K is the set of nodes of the minor. The definition of a variable is the chain of pattern nodes from the document root to
it, each with its filters and with the branches that have no node of K. Equal definitions over one stream are one
variable, whatever queries call it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.quick import quick
from xscl.algebra.normal import Term
from xscl.algebra.pattern import PatternNode, Test, texts_of, unnamed

_SELF = Test("element", "*", "*")


@quick
@dataclass(frozen=True, slots=True)
class MinorNode:
    """A node of K. `parent` is the index of its nearest proper ancestor in K, None at the top. `path` leads to it in
    the pattern of the side, child by child. A leaf on the self axis has the path of the node that it stands for."""

    parent: int | None
    definition: tuple[PatternNode, ...]
    path: tuple[int, ...]


@quick
@dataclass(frozen=True, slots=True)
class Minor:
    """The nodes of the minor in pre-order, and the node of each value-join term, as an index."""

    nodes: tuple[MinorNode, ...]
    node_of: dict[Term, int]


def minor(pattern: PatternNode, terms: Iterable[Term]) -> Minor:
    """The minor of `pattern` for the value-join `terms`.

    A term on an inner node of the minor, or with functions, gets a leaf on the self axis. So value joins are between
    leaves only. Without terms (a filter) the minor is the top node of the pattern, with all the rest as branches.
    """
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
    """The node of a minor that has no other: that of a variable."""
    path = _way_to(pattern, var)
    assert path is not None, "a term is on a variable of the pattern"
    definition, node = [], pattern
    for place in path:
        branches = node.children[:place] + node.children[place + 1 :]
        definition.append(_canonical(node, branches))
        node = node.children[place]
    return MinorNode(None, (*definition, _canonical(node, node.children)), path)


def definition_of(pattern: PatternNode, var: str) -> tuple[PatternNode, ...]:
    """The definition of a variable that is the only node of the minor."""
    return _only_node(pattern, var).definition


def _way_to(pattern: PatternNode, var: str | None) -> tuple[int, ...] | None:
    """The path to the node of a variable; None if it is not there."""
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
    """A node that holds terms, itself or below it. `children` are None for those that hold none, and behind them come
    the leaves that are made up."""

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
    """The node without variable names, with `branches` as children. These and its conditions are sorted and
    distinct."""
    conditions = node.conditions
    if len(conditions) > 1:
        conditions = tuple(sorted(set(conditions), key=str))
    if branches:
        branches = tuple([_canonical(branch, branch.children) if _is_rich(branch) else branch for branch in branches])
    if len(branches) > 1:
        by_text = dict(zip(texts_of(branches), branches, strict=True))
        branches = tuple([by_text[text] for text in sorted(by_text)])
    if conditions is node.conditions and branches == node.children:
        return unnamed(node)  # which many patterns may share
    # Written out, because `replace` takes several times as long.
    return PatternNode(node.axis, node.test, conditions, branches, None, node.functions)


def _is_rich(node: PatternNode) -> bool:
    """Whether its canonical form may be another node."""
    return node.var is not None or len(node.children) > 0 or len(node.conditions) > 1
