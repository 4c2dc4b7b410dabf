"""Exact matching of one tree pattern in one document: the meaning of a block, and bindings extended after the join.

Stage 2 knows the nodes of the value-join variables only; SELECT and residual predicates may name others. Here the
pattern is matched again in the one document concerned, with the known nodes held fixed.

Bindings are found one by one: what is asked for no more costs nothing, and a pattern that binds in very many ways takes
no room for them. A node is only entered if something below it binds, so no way is tried in vain twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, product

from xpath_stage.conditions import holds
from xpath_stage.parse import ParsedDocument
from xscl.pattern import PatternNode

Node = tuple[int, int]
"""(element, place of the attribute or 0)"""

Binding = tuple[tuple[str, Node], ...]
"""Pairs of a variable and its node."""

Take = Callable[[int], object]
"""Is told of steps before they are taken, and may raise."""

DOCUMENT: Node = (-1, 0)

HELD = 10
"""How many steps a binding that has to be held counts for."""


def untold(steps: int) -> None:
    """Nobody counts."""


def bindings(
    pattern: PatternNode, document: ParsedDocument, fixed: Mapping[tuple[int, ...], Node] | None = None
) -> set[Binding]:
    """The distinct bindings of the pattern's variables over all its matches in the document, sorted by variable.

    `fixed` holds pattern nodes, by their paths of child positions from the pattern's top, to given nodes.
    """
    return {tuple(sorted(binding)) for binding in each_binding(pattern, document, fixed)}


def each_binding(
    pattern: PatternNode,
    document: ParsedDocument,
    fixed: Mapping[tuple[int, ...], Node] | None = None,
    take: Take = untold,
) -> Iterator[Binding]:
    """The same bindings one by one, in the order of the pattern's variables. `take` is told of steps: a node of the
    document that is looked at is one, a binding that is held is HELD. How many there are in all depends on nothing but
    the pattern, the document and what is fixed."""
    return _Binder(document, fixed or {}, take).below(_Part(pattern), [DOCUMENT])


class _Part:
    """A node of the pattern, with its path."""

    def __init__(self, pattern: PatternNode, path: tuple[int, ...] = (), above: _Part | None = None) -> None:
        self.pattern, self.path, self._above = pattern, path, above

    @cached_property
    def children(self) -> list[_Part]:
        """Its children."""
        return [_Part(child, (*self.path, i), self) for i, child in enumerate(self.pattern.children)]

    @cached_property
    def merges(self) -> bool:
        """Whether several of its images are gone through that may bind the same."""
        return (
            self.pattern.var is None and len(self.binding) > 1 and (self._above is not None or self.pattern.axis != "/")
        )

    @cached_property
    def met_again(self) -> bool:
        """Whether the same may be asked for below one node again and again, on ways down that bind the same."""
        above = self._above
        if above is None or above._above is None:
            return False
        return above.merges or above._merges_above

    @cached_property
    def _merges_above(self) -> bool:
        above = self._above
        return above is not None and (above.merges or above._merges_above)

    @cached_property
    def binding(self) -> list[_Part]:
        """Its children that bind variables, or have some below them."""
        return [child for child in self.children if any(node.var for node in child.pattern.walk())]


class _Binder:
    def __init__(self, document: ParsedDocument, fixed: Mapping[tuple[int, ...], Node], take: Take) -> None:
        self._document, self._fixed, self._take = document, fixed, take
        self._possible: dict[tuple[tuple[int, ...], Node], bool] = {}
        self._held: dict[tuple[tuple[int, ...], Node], list[Binding]] = {}

    # ------------------------------------------------------------ what binds

    def below(self, part: _Part, contexts: Sequence[Node]) -> Iterator[Binding]:
        """The bindings of the pattern's subtree for all its images below any of these nodes."""
        images = self._images(part, contexts)
        if part.pattern.var:
            for node in images:
                yield from self._at(part, node)
        elif not part.binding:
            if any(True for _ in images):
                yield ()
        elif len(part.binding) == 1:
            # Only where it leads to counts, and it may lead to one node from many.
            yield from self.below(part.binding[0], list(images))
        else:
            seen: set[Binding] = set()
            for node in images:
                for binding in self._at(part, node):
                    if binding not in seen:
                        self._take(HELD)
                        seen.add(binding)
                        yield binding

    def _at(self, part: _Part, node: Node) -> Iterator[Binding]:
        """The bindings for one image of the pattern's top, which is possible."""
        own: Binding = ((part.pattern.var, node),) if part.pattern.var else ()
        if not part.binding:
            yield own
            return
        first, *others = part.binding
        pools: list[list[Binding]] | None = None
        for binding in self._all(first, node) if first.met_again else self.below(first, [node]):
            if pools is None:
                pools = [self._all(other, node) for other in others]
            for rest in product(*pools):
                self._take(1)
                yield tuple(chain(own, binding, *rest))

    def _all(self, part: _Part, context: Node) -> list[Binding]:
        """The bindings below a context, held."""
        key = part.path, context
        found = self._held.get(key)
        if found is None:
            found = []
            for binding in self.below(part, [context]):
                self._take(HELD)
                found.append(binding)
            self._held[key] = found
        return found

    # ------------------------------------------------------------ whether anything does

    def _images(self, part: _Part, contexts: Sequence[Node]) -> Iterator[Node]:
        """The images of the pattern's top below any of these nodes, each once."""
        met: set[Node] | None = set() if len(contexts) > 1 else None
        for context in contexts:
            for node in self._near(part.pattern, part.path, context):
                self._take(1)
                if met is not None:
                    if node in met:
                        continue
                    met.add(node)
                if self._is_possible(part, node):
                    yield node

    def _is_possible(self, part: _Part, node: Node) -> bool:
        """Whether the pattern's subtree has an image with its top there."""
        key = part.path, node
        known = self._possible.get(key)
        if known is None:
            known = self._passes(part.pattern, node) and all(
                any(True for _ in self._images(child, [node])) for child in part.children
            )
            self._possible[key] = known
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

    # ------------------------------------------------------------ where to look

    def _near(self, pattern: PatternNode, path: tuple[int, ...], context: Node) -> Iterable[Node]:
        own = self._fixed.get(path)
        if own is not None:
            return (own,) if self._on_axis(pattern, context, own) else ()
        # Where a node below this one is fixed there is no need to look at the rest of the document.
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
