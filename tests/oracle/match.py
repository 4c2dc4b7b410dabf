"""The oracle's matching: numbered trees, and all embeddings of a pattern (docs/semantics.md, sections 2 to 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, product, starmap

from lxml import etree

from tests.oracle.times import Moment
from tests.oracle.values import STRING_TESTS, Literal, Several, Typed, apply, compare, number, several, text_of
from xscl.algebra.values import And, Axis, Call, Compare, Expr, NameTest, Not, Number, Or, Rel, Step, String

Bindings = tuple[tuple[str, "Node"], ...]
Embedding = tuple["Node | None", Bindings]
FilterValue = list["Node"] | Typed | bool | Several


@dataclass(frozen=True, slots=True)
class Node:
    """An element, by its number in document order (the root is 0), or one of its attributes, by its Clark name as
    well."""

    element: int
    attribute: str | None = None

    def label(self) -> int | str:
        """The node as an output line shows it: `3`, `"3/@k"`, `"3/@{uri}k"`."""
        return self.element if self.attribute is None else f"{self.element}/@{self.attribute}"


class Tree:
    """A parsed document. Nodes are found by axis and read by string value."""

    def __init__(self, xml: bytes | str) -> None:
        # Text is decoded already: the parser is told so, whatever an encoding declaration inside says.
        parser = etree.XMLParser(
            encoding="utf-8" if isinstance(xml, str) else None,
            resolve_entities="internal",  # type: ignore[arg-type]  # the stubs are older
            no_network=True,
            load_dtd=False,
            huge_tree=False,
            remove_comments=True,
            remove_pis=True,
            strip_cdata=True,
        )
        root = etree.fromstring(xml.encode() if isinstance(xml, str) else xml, parser)
        self.elements = [element for element in root.iter() if isinstance(element.tag, str)]
        self._numbers = {element: number for number, element in enumerate(self.elements)}
        self._texts: dict[Node, str] = {}

    def text(self, node: Node) -> str:
        if node not in self._texts:
            element = self.elements[node.element]
            self._texts[node] = (
                "".join(map(str, element.itertext())) if node.attribute is None else str(element.attrib[node.attribute])
            )
        return self._texts[node]

    def name(self, node: Node) -> str:
        """The Clark name: `{uri}local`, or `local` in no namespace."""
        return str(self.elements[node.element].tag) if node.attribute is None else node.attribute

    def reach(self, start: Node | None, axis: Axis, kind: str) -> list[Node]:
        """The elements or attributes one step from `start`, in document order. A `start` of None is the document, above
        its root."""
        if start is not None and start.attribute is not None:
            return []
        if kind == "element":
            if start is None:
                return [Node(number) for number in range(len(self.elements) if axis == "//" else 1)]
            element = self.elements[start.element]
            below = element.iterdescendants() if axis == "//" else element.iterchildren()
            return [Node(self._numbers[found]) for found in below if found in self._numbers]
        owners = [start] if start is not None else []
        if axis == "//":
            owners += self.reach(start, "//", "element")
        return [Node(o.element, str(name)) for o in owners for name in self.elements[o.element].attrib]


def accepts(test: NameTest, name: str, namespaces: Mapping[str, str]) -> bool:
    uri, local = etree.QName(name).namespace or "", etree.QName(name).localname
    if test.local not in ("*", local):
        return False
    if test.prefix is None:
        return test.local == "*" or not uri
    return test.prefix == "*" or namespaces[test.prefix] == uri


@dataclass(frozen=True, slots=True)
class Matcher:
    """Matches paths and filters in one document. It binds only the variables in `keep`; for the others it only checks
    that a node exists."""

    tree: Tree
    namespaces: Mapping[str, str]
    keep: frozenset[str] = frozenset()

    def embeddings(self, start: Node | None, steps: Iterable[Step]) -> list[Embedding]:
        """Each distinct (node of the last step, bindings) over all homomorphisms of a path below `start`."""
        found: list[Embedding] = [(start, ())]
        for step in steps:
            found = list(
                dict.fromkeys(
                    (node, bound + more) for context, bound in found for node, more in self._step(context, step)
                )
            )
        return found

    def nodes(self, start: Node, steps: Iterable[Step]) -> list[Node]:
        """The nodes that a path selects, in document order."""
        found = {node for node, _ in self.embeddings(start, steps) if node is not None}
        return sorted(found, key=self._rank)

    def _rank(self, node: Node) -> tuple[int, int]:
        if node.attribute is None:
            return node.element, 0
        return node.element, 1 + list(self.tree.elements[node.element].attrib).index(node.attribute)

    def _step(self, context: Node | None, step: Step) -> Iterable[tuple[Node, Bindings]]:
        for node in self.tree.reach(context, step.axis, step.test.kind):
            if accepts(step.test, self.tree.name(node), self.namespaces):
                own = ((step.var, node),) if step.var in self.keep and step.var is not None else ()
                for parts in product(*(self._filter(node, expr) for expr in step.filters)):
                    yield node, tuple(chain(own, *parts))

    def _filter(self, node: Node, expr: Expr) -> list[Bindings]:
        """The distinct bindings with which a filter holds; `[()]` if it holds and binds nothing."""
        match expr:
            case Rel():
                return list(dict.fromkeys(bound for _, bound in self.embeddings(node, expr.steps)))
            case And():
                arms = product(*(self._filter(node, arm) for arm in expr.args))
                return list(dict.fromkeys(tuple(chain(*arm)) for arm in arms))
            case _:
                return [()] if self.holds(node, expr) else []

    def holds(self, node: Node, expr: Expr) -> bool:
        """A boolean filter without bindings, by XPath 1.0: a condition, or a path that finds a node."""
        return bool(self._value(node, expr))

    def _value(self, node: Node, expr: Expr) -> FilterValue:
        match expr:
            case Rel():
                return self.nodes(node, expr.steps)
            case String():
                return Literal(expr.value)
            case Number():
                return number(expr.text)
            case And():
                return all(self.holds(node, arm) for arm in expr.args)
            case Or():
                return any(self.holds(node, arm) for arm in expr.args)
            case Not():
                return not self.holds(node, expr.arg)
            case Compare():
                lefts, rights = self._atoms(self._value(node, expr.left)), self._atoms(self._value(node, expr.right))
                return any(compare(expr.op, left, right) for left in lefts for right in rights)
            case Call():
                return self._call(node, expr)
        raise TypeError(f"not part of a filter: {expr!r}")

    def _call(self, node: Node, call: Call) -> FilterValue:
        values = [self._value(node, arg) for arg in call.args] or [[node]]  # no argument: the context node
        if call.name == "count":
            assert isinstance(values[0], list)
            return float(len(values[0]))
        if call.name == "concat":
            return "".join(map(self._string, values))
        if call.name in STRING_TESTS:
            return any(starmap(STRING_TESTS[call.name], product(*map(self._texts, values))))
        value, *more = values
        if call.name in ("extract", "tokens"):
            return Several(several(call, self._string(value)))
        if isinstance(value, Several):
            return Several([text_of(apply(call.name, one, *map(self._string, more))) for one in value.texts])
        given = value if isinstance(value, float | Moment) else self._string(value)
        return apply(call.name, given, *map(self._string, more))

    def _atoms(self, value: FilterValue) -> list[Typed]:
        """The values that a comparison tries: the string value of each node, or the one string, number or time."""
        if isinstance(value, Several):
            return [*value.texts]
        return [self.tree.text(node) for node in value] if isinstance(value, list) else [value]

    def _texts(self, value: FilterValue) -> list[str]:
        return value.texts if isinstance(value, Several) else [self._string(value)]

    def _string(self, value: FilterValue) -> str:
        """XPath's string(): of a node set, the string value of its first node."""
        assert not isinstance(value, Several)
        if isinstance(value, list):
            return self.tree.text(value[0]) if value else ""
        return text_of(value)
