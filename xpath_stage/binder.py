"""Exact matching of one tree pattern in one document: the meaning of a block, and bindings extended after the join.

Stage 2 knows the nodes of the value-join variables only; SELECT and residual predicates may name others. Here the
pattern is matched again in the one document concerned, with the known nodes held fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from xpath_stage.conditions import holds
from xpath_stage.parse import ParsedDocument
from xscl.pattern import PatternNode

Node = tuple[int, int]
"""(element, place of the attribute or 0)"""

Binding = tuple[tuple[str, Node], ...]
"""Sorted pairs of a variable and its node."""

DOCUMENT: Node = (-1, 0)


def bindings(
    pattern: PatternNode, document: ParsedDocument, fixed: Mapping[tuple[int, ...], Node] | None = None
) -> set[Binding]:
    """The distinct bindings of the pattern's variables over all its matches in the document.

    `fixed` holds pattern nodes, by their paths of child positions from the pattern's top, to given nodes.
    """
    return _Binder(document, fixed or {}).below(pattern, (), DOCUMENT)


class _Binder:
    def __init__(self, document: ParsedDocument, fixed: Mapping[tuple[int, ...], Node]) -> None:
        self._document = document
        self._fixed = fixed
        self._memo: dict[tuple[tuple[int, ...], Node], set[Binding]] = {}

    def below(self, pattern: PatternNode, path: tuple[int, ...], context: Node) -> set[Binding]:
        """The bindings of the pattern's subtree for all its images below `context`."""
        found: set[Binding] = set()
        alone = not any(node.var for node in pattern.walk())
        for node in self._candidates(pattern, path, context):
            found |= self._at(pattern, path, node)
            if found and alone:
                break
        return found

    def _at(self, pattern: PatternNode, path: tuple[int, ...], node: Node) -> set[Binding]:
        key = (path, node)
        known = self._memo.get(key)
        if known is None:
            known = self._memo[key] = set()
            if self._passes(pattern, node):
                parts = [[((pattern.var, node),)] if pattern.var else [()]]
                for i, child in enumerate(pattern.children):
                    below = self.below(child, (*path, i), node)
                    if not below:
                        return known
                    parts.append(list(below))  # type: ignore[arg-type]
                known |= {tuple(sorted(sum(choice, ()))) for choice in product(*parts)}
        return known

    def _passes(self, pattern: PatternNode, node: Node) -> bool:
        element, place = node
        document = self._document
        name = document.attribute(element, place)[0] if place else str(document.elements[element].tag)
        if not pattern.test.accepts(name):
            return False
        for condition in pattern.conditions:
            if condition.literal is not None:
                if document.string_value(element, place) != condition.literal:
                    return False
            elif not holds(str(condition.xpath), document.elements[element], place):
                return False
        return True

    def _candidates(self, pattern: PatternNode, path: tuple[int, ...], context: Node) -> Iterable[Node]:
        own = self._fixed.get(path)
        if own is not None:
            return (own,) if self._on_axis(pattern, context, own) else ()
        # Where a node at or below this one is fixed there is no need to look at the rest of the document.
        possible: Iterable[Node] | None
        if path in self._fixed:
            possible = [self._fixed[path]]
        else:
            below = (node for fixed, node in self._fixed.items() if fixed[: len(path)] == path)
            possible = next(map(self._above, below), None)
        if possible is not None:
            return (node for node in possible if self._on_axis(pattern, context, node))
        return self._axis(pattern, context)

    def _above(self, node: Node) -> Iterator[Node]:
        """The elements that the node lies in, itself included if it is one."""
        number: int | None = node[0]
        while number is not None:
            yield number, 0
            number = self._document.parent[number]

    def _on_axis(self, pattern: PatternNode, context: Node, node: Node) -> bool:
        element, place = node
        if context[1] or (pattern.test.kind == "attribute") != bool(place):
            return False
        if pattern.axis == "//":
            first = context[0] if place else context[0] + 1
            return context[0] < 0 or first <= element < self._document.end[context[0]]
        above = element if place else self._document.parent[element]
        return context[0] == (-1 if above is None else above)

    def _axis(self, pattern: PatternNode, context: Node) -> Iterator[Node]:
        document = self._document
        element, place = context
        if place:
            return
        deep = pattern.axis == "//"
        last = len(document.elements) if element < 0 else document.end[element]
        if pattern.test.kind == "attribute":
            owners = range(max(element, 0), last) if deep else range(element, element + (element >= 0))
            for owner in owners:
                for i in range(len(document.elements[owner].attrib)):
                    yield owner, i + 1
        elif deep:
            for number in range(element + 1, last):
                yield number, 0
        elif element < 0:
            yield 0, 0
        else:
            for child in document.elements[element]:
                yield document.number[child], 0
