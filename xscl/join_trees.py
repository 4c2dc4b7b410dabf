"""Join trees: the blocks of a query, and the joins over them, with what is needed to lower their predicates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from common.quick import quick
from xscl.algebra.expressions import Expr
from xscl.algebra.normal import JoinOp, Term
from xscl.algebra.pattern import PatternNode


@quick
@dataclass(frozen=True, slots=True)
class Leaf:
    """A block as an input of joins: its number, from 0, and its stream."""

    block: int
    stream: str


@quick
@dataclass(frozen=True, slots=True)
class Node:
    """A join of two inputs. `scope` has the names that its predicate can use, and `patterns` those of all blocks so
    far."""

    op: JoinOp
    window: int | None
    pred: Expr
    scope: Scope
    patterns: tuple[PatternNode, ...]
    left: Tree
    right: Tree


Tree = Leaf | Node
"""An input of a join."""

Scope = Mapping[str, Term | str]
"""What each visible name stands for. A str is a constant's text."""


def tree_blocks(tree: Tree) -> Iterator[int]:
    """Yields the numbers of the blocks of a join tree."""
    if isinstance(tree, Leaf):
        yield tree.block
    else:
        yield from tree_blocks(tree.left)
        yield from tree_blocks(tree.right)
