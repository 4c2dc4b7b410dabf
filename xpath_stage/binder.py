"""Exact matching of one tree pattern in one document: defines a block's meaning, and extends bindings after joins.

Stage 2 only has the nodes of value-join variables, but SELECT and residual predicates may name others, so the pattern
is matched again with those nodes fixed. Bindings are generated lazily: unused ones cost neither time nor memory. A node
is entered only if something below it binds, so no search fails twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import NamedTuple

from common.tools import ClearedCache
from xpath_stage.documents import ParsedDocument
from xpath_stage.filters import xpath_holds
from xscl.algebra.joins import Condition, PatternNode

Node = tuple[int, int]  # (number of the element, position of the attribute from 1, or 0 for the element itself)

Binding = tuple[tuple[str, Node], ...]  # pairs of a variable and its node

PatternPath = tuple[int, ...]  # positions of children on the way from the top of a pattern

Take = Callable[[int], object]
"""Called with the number of steps before they are taken. May raise to end the search."""

DOCUMENT: Node = (-1, 0)

HELD = 10  # steps charged for a binding that must be stored


def uncounted(steps: int) -> None: ...


def each_binding(
    pattern: PreparedNode, document: ParsedDocument, fixed: Mapping[PatternPath, Node], take: Take = uncounted
) -> Iterator[Binding]:
    """The distinct bindings of a pattern's variables by all matches in a document, each in the pattern's order. `fixed`
    maps nodes of the pattern, by path, to the document nodes that they must match. `take` is called with steps: one for
    visiting a node, HELD for storing a binding. Their number depends only on the pattern, the document and `fixed`."""
    return _Binder(document, fixed, take).below(pattern, (DOCUMENT,))


def each_below(
    pattern: PreparedNode, document: ParsedDocument, context: Node, take: Take = uncounted
) -> Iterator[Binding]:
    """The bindings of a pattern whose top is searched from a context node on."""
    return _Binder(document, {}, take).below(pattern, (context,))


class PreparedNode:
    """A prepared node of a pattern, with its path; also prepares those below."""

    __slots__ = ("attribute", "binding", "children", "conditions", "deep", "met_again", "path", "test", "var")

    def __init__(
        self, pattern: PatternNode, path: PatternPath = (), *, merged: bool = False, above_merges: bool = False
    ) -> None:
        """`above_merges`: images of the node above may share bindings; `merged`: those further up may."""
        self.path, self.var, self.test, self.conditions = path, pattern.var, pattern.test, pattern.conditions
        self.deep, self.attribute = pattern.axis == "//", pattern.test.kind == "attribute"
        self.met_again = merged  # whether bindings below one node may be requested repeatedly, by equivalent ways down
        binds = [any(node.var for node in child.walk()) for child in pattern.children]
        merges = self.var is None and sum(binds) > 1 and (bool(path) or self.deep)
        self.children = [
            PreparedNode(child, (*path, i), merged=merged or above_merges, above_merges=merges)
            for i, child in enumerate(pattern.children)
        ]
        self.binding = [child for child, bound in zip(self.children, binds, strict=True) if bound]


class _Binder:
    def __init__(self, document: ParsedDocument, fixed: Mapping[PatternPath, Node], take: Take) -> None:
        self._document, self._fixed, self._take = document, fixed, take
        self._possible: dict[tuple[PatternPath, Node], bool] = {}
        self._held: dict[tuple[PatternPath, Node], list[Binding]] = {}
        self._given: dict[PatternPath, Sequence[Node] | None] = {}

    # ------------------------------------------------------------ what binds

    def below(self, part: PreparedNode, contexts: Sequence[Node]) -> Iterator[Binding]:
        images = self._images(part, contexts)
        binding = part.binding
        if part.var is not None:
            if binding:
                for node in images:
                    yield from self._at(part, node)
            else:
                for node in images:
                    yield ((part.var, node),)
        elif not binding:
            if any(True for _ in images):
                yield ()
        elif len(binding) == 1:
            # The image itself does not matter, and many images may lead to one node.
            yield from self.below(binding[0], list(images))
        else:
            seen: set[Binding] = set()
            for node in images:
                for found in self._at(part, node):
                    if found not in seen:
                        self._take(HELD)
                        seen.add(found)
                        yield found

    def _at(self, part: PreparedNode, node: Node) -> Iterator[Binding]:
        own: Binding = ((part.var, node),) if part.var is not None else ()
        first, *others = part.binding
        pools: list[list[Binding]] | None = None
        for binding in self._all(first, node) if first.met_again else self.below(first, (node,)):
            if not others:
                self._take(1)
                yield own + binding
                continue
            if pools is None:
                pools = [self._all(other, node) for other in others]
            for rest in product(*pools):
                self._take(1)
                yield tuple(chain(own, binding, *rest))

    def _all(self, part: PreparedNode, context: Node) -> list[Binding]:
        key = part.path, context
        found = self._held.get(key)
        if found is None:
            found = []
            for binding in self.below(part, (context,)):
                self._take(HELD)
                found.append(binding)
            self._held[key] = found
        return found

    # ------------------------------------------------------------ whether anything does

    def _images(self, part: PreparedNode, contexts: Sequence[Node]) -> Iterator[Node]:
        met: set[Node] | None = set() if len(contexts) > 1 else None
        for context in contexts:
            for node in self._near(part, context):
                self._take(1)
                if met is not None:
                    if node in met:
                        continue
                    met.add(node)
                if self._is_possible(part, node):
                    yield node

    def _is_possible(self, part: PreparedNode, node: Node) -> bool:
        if not part.children and not part.conditions:
            return self._passes(part, node)
        key = part.path, node
        known = self._possible.get(key)
        if known is None:
            known = self._possible[key] = self._passes(part, node) and all(
                any(True for _ in self._images(child, (node,))) for child in part.children
            )
        return known

    def _passes(self, part: PreparedNode, node: Node) -> bool:
        element, place = node
        document = self._document
        name = document.attribute(element, place)[0] if place else str(document.elements[element].tag)
        if not part.test.accepts(name):
            return False
        for condition in part.conditions:
            if condition.literal is not None:
                if document.string_value(element, place) != condition.literal:
                    return False
            elif not xpath_holds(str(condition.xpath), document.elements[element], place):
                return False
        return True

    # ------------------------------------------------------------ where to look

    def _near(self, part: PreparedNode, context: Node) -> Iterable[Node]:
        path = part.path
        if path not in self._given:
            self._given[path] = self._possible_at(path)
        given = self._given[path]
        if given is None:
            return self._axis(part, context)
        return [node for node in given if self._on_axis(part, context, node)]

    def _possible_at(self, path: PatternPath) -> Sequence[Node] | None:
        """The candidates for a path if a node at or below it is fixed, which saves a search."""
        own = self._fixed.get(path)
        if own is not None:
            return (own,)
        for fixed, (element, _) in self._fixed.items():
            if fixed[: len(path)] == path:
                found = [element]
                while (parent := self._document.parent[found[-1]]) is not None:
                    found.append(parent)
                return [(number, 0) for number in found]
        return None

    def _on_axis(self, part: PreparedNode, context: Node, node: Node) -> bool:
        element, place = node
        if context[1] or part.attribute != bool(place):
            return False
        if part.deep:
            first = context[0] if place else context[0] + 1
            return context[0] < 0 or first <= element < self._document.end[context[0]]
        above = element if place else self._document.parent[element]
        return context[0] == (-1 if above is None else above)

    def _axis(self, part: PreparedNode, context: Node) -> Iterator[Node]:
        document = self._document
        element, place = context
        if place:
            return
        deep = part.deep
        last = len(document.elements) if element < 0 else document.end[element]
        if part.attribute:
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


MOST_SHAPES, MOST_PATTERNS = 10_000, 10_000
"""The caches of bindings by shape, and of patterns, are cleared at this many."""

MOST_CHECKED = 50  # maximum number of bindings, and of nodes to compare, of a cached shape


class _Guard(NamedTuple):
    """A node that satisfies conditions: its value equals the literals with some numbers, and each of `children` has
    such a node."""

    node: Node
    literals: tuple[int, ...]
    children: tuple[tuple[_Guard, ...], ...]

    def holds(self, document: ParsedDocument, literals: Sequence[str]) -> bool:
        return all(document.string_value(*self.node) == literals[number] for number in self.literals) and all(
            any(one.holds(document, literals) for one in some) for some in self.children
        )


class _Candidate(NamedTuple):
    """A binding that a document has if each of `checks` holds."""

    nodes: tuple[Node, ...]
    checks: tuple[_Guard, ...]


_OfShape = tuple[int, list[_Candidate]] | None


class SideBinders:
    """Binders of patterns. Documents of one shape have the same bindings, but for conditions on values: those of a
    shape are found once for all patterns that differ only in literals, and conditions are checked in each document."""

    def __init__(self) -> None:
        self._loose = ClearedCache[tuple[PatternNode, tuple[PatternPath, ...]], _Loose](MOST_PATTERNS)
        self._known = ClearedCache[tuple[_Loose, object, tuple[Node, ...]], _OfShape](MOST_SHAPES)

    def of(self, pattern: PatternNode, fixed: tuple[PatternPath, ...]) -> SideBinder:
        """Returns a new binder of a pattern, given the nodes at `fixed` paths."""
        literals: list[str] = []
        loose = None
        blank = _without_literals(pattern, literals)
        if blank is not None and (loose := self._loose.get((blank, fixed))) is None:
            loose = self._loose[blank, fixed] = _Loose(blank, fixed)
        return SideBinder(pattern, fixed, loose, literals, self._known)


class SideBinder:
    """The bindings of a pattern's variables, in the pattern's order, given the nodes at `fixed` paths. The steps taken
    depend on the document and these nodes alone."""

    def __init__(
        self,
        pattern: PatternNode,
        fixed: Sequence[PatternPath],
        loose: _Loose | None,
        literals: Sequence[str],
        known: ClearedCache[tuple[_Loose, object, tuple[Node, ...]], _OfShape],
    ) -> None:
        self._pattern, self._fixed, self._loose = PreparedNode(pattern), fixed, loose
        self._literals, self._known = literals, known

    def find(
        self, document: ParsedDocument, nodes: tuple[Node, ...], take: Take, *, has_some: bool = False
    ) -> list[tuple[Node, ...]]:
        """`nodes` are those at the fixed paths. Takes HELD steps for each binding, beside those of the search. With
        `has_some`, there is known to be a binding: an only candidate is one."""
        found: list[tuple[Node, ...]] = []
        if (known := self._of_shape(document, nodes)) is not None:
            take(known[0])
            if has_some and len(known[1]) == 1:
                return [known[1][0].nodes]
            for one in known[1]:
                if all(guard.holds(document, self._literals) for guard in one.checks):
                    found.append(one.nodes)
            return list(dict.fromkeys(found)) if len(found) > 1 else found
        for binding in each_binding(self._pattern, document, dict(zip(self._fixed, nodes, strict=True)), take):
            take(HELD)
            found.append(tuple([node for _, node in binding]))
        return found

    @property
    def family(self) -> object:
        """The same for binders that find the same in documents of a shape, by `is_of_shape`."""
        return self._loose or self

    def is_of_shape(self, document: ParsedDocument, nodes: tuple[Node, ...]) -> bool:
        """Whether all documents of the shape that have some binding have these, with the same steps, also for other
        binders of the family."""
        known = self._of_shape(document, nodes)
        return known is not None and (len(known[1]) == 1 or not any(one.checks for one in known[1]))

    def _of_shape(self, document: ParsedDocument, nodes: tuple[Node, ...]) -> _OfShape:
        """The candidates and the steps that they cost; None if they are too many."""
        if self._loose is None:
            return None
        key = self._loose, document.shape, nodes
        found = self._known.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            found = self._known[key] = self._loose.candidates(document, nodes)
        return found


_UNKNOWN: _OfShape = (0, [])


def _without_literals(pattern: PatternNode, literals: list[str]) -> PatternNode | None:
    """Replaces each literal by its number, and appends it to `literals`. None if there are other conditions or axes."""
    if pattern.axis not in ("/", "//") or any(condition.literal is None for condition in pattern.conditions):
        return None
    numbers = range(len(literals), len(literals) + len(pattern.conditions))
    literals += [str(condition.literal) for condition in pattern.conditions]
    children = [_without_literals(child, literals) for child in pattern.children]
    known = tuple([child for child in children if child is not None])
    if len(known) < len(children):
        return None
    return replace(pattern, conditions=tuple(Condition(str(number)) for number in numbers), children=known)


class _TooManyError(Exception): ...


class _Checked(NamedTuple):
    """What a node must satisfy: the numbers of literals, and branches that must have a node below it."""

    literals: tuple[int, ...]
    branches: tuple[PatternNode, ...]


class _Loose:
    """A pattern without its conditions on values, which are checked at the nodes of `_named` variables."""

    def __init__(self, pattern: PatternNode, fixed: Sequence[PatternPath]) -> None:
        self._variables, self._named = pattern.variables(), dict[str, _Checked]()
        places: dict[PatternPath, PatternPath] = {}

        def is_kept(node: PatternNode, path: PatternPath) -> bool:
            return bool(node.variables()) or any(one[: len(path)] == path for one in fixed)

        def without_conditions(node: PatternNode, path: PatternPath, new: PatternPath) -> PatternNode:
            places[path] = new
            children: list[PatternNode] = []
            branches: list[PatternNode] = []
            for place, child in enumerate(node.children):
                if any(one.conditions for one in child.walk()) and not is_kept(child, (*path, place)):
                    branches.append(child)
                else:
                    children.append(without_conditions(child, (*path, place), (*new, len(children))))
            var = node.var
            if node.conditions or branches:
                var = var or f"#{len(places)}"
                self._named[var] = _Checked(_numbers(node), tuple(branches))
            return replace(node, var=var, conditions=(), children=tuple(children))

        self._pattern = PreparedNode(without_conditions(pattern, (), ()))
        self._fixed = [places[path] for path in fixed]

    def candidates(self, document: ParsedDocument, nodes: tuple[Node, ...]) -> _OfShape:
        steps = guards = 0

        def take(number: int) -> None:
            nonlocal steps
            steps += number
            if steps > 100 * MOST_CHECKED:
                raise _TooManyError

        def guard(node: Node, checked: _Checked) -> _Guard:
            nonlocal guards
            guards += 1
            if guards > MOST_CHECKED:
                raise _TooManyError
            return _Guard(node, checked.literals, tuple(below(node, branch) for branch in checked.branches))

        def below(node: Node, branch: PatternNode) -> tuple[_Guard, ...]:
            alone = PreparedNode(replace(branch, var="#", conditions=(), children=()))
            checked = _Checked(_numbers(branch), branch.children)
            return tuple(guard(found, checked) for ((_, found),) in each_below(alone, document, node, take))

        found: list[_Candidate] = []
        try:
            for binding in each_binding(self._pattern, document, dict(zip(self._fixed, nodes, strict=True)), take):
                take(HELD)
                bound = dict(binding)
                checks = tuple(guard(bound[var], checked) for var, checked in self._named.items())
                found.append(_Candidate(tuple([bound[var] for var in self._variables]), checks))
        except _TooManyError:
            return None
        return steps + guards, found


def _numbers(node: PatternNode) -> tuple[int, ...]:
    return tuple(int(str(condition.literal)) for condition in node.conditions)
