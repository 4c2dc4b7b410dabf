"""Tree patterns: what a query block looks for in a document, with names resolved and filters lowered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import is_

from common.quick import quick
from common.remembered import Remembered
from xscl.algebra.expressions import NodeKind

EXTENSION_PREFIX = "mmqjp"
"""The prefix of our own functions in a condition's XPath text: those that XPath 1.0 lacks, such as `lower-case`, and
`compare-times`; and `number`, `string` and `compare` (of numbers), which libxml2 gets wrong: it reads 1e3 as a number,
and writes 1e+12."""


@quick
@dataclass(frozen=True, slots=True, order=True)
class Test:
    """A name test. `uri` is the namespace, "" for none and "*" for any; `local` is "*" for any name."""

    kind: NodeKind
    uri: str
    local: str

    def accepts(self, name: str) -> bool:
        """Whether a node of this kind passes that is named `local` or `{uri}local`."""
        uri, local = name[1:].rsplit("}", 1) if name.startswith("{") else ("", name)
        return self.uri in ("*", uri) and self.local in ("*", local)

    def __str__(self) -> str:
        name = self.local if self.uri == "" or self.uri == self.local == "*" else f"{{{self.uri}}}{self.local}"
        return f"@{name}" if self.kind == "attribute" else name


@quick
@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """A condition on a node: its string value is `literal`, or the XPath 1.0 expression `xpath` is true for it."""

    literal: str | None = None
    xpath: str | None = None

    def __str__(self) -> str:
        return f". = {quoted(self.literal)}" if self.literal is not None else str(self.xpath)


@quick
@dataclass(frozen=True, slots=True)
class PatternNode:
    """A node of a tree pattern, to which `axis` leads from its parent. On the self axis, ".", it may have `functions`
    that are applied to the string value, the innermost first."""

    axis: str
    test: Test
    conditions: tuple[Condition, ...] = ()
    children: tuple[PatternNode, ...] = ()
    var: str | None = None
    functions: tuple[str, ...] = ()
    _text: str | None = field(default=None, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return _shown(self) if self.children else _shown_leaf(self)

    def variables(self) -> list[str]:
        """The variables of this node and of all below it, in pre-order."""
        found = [self.var] if self.var else []
        for child in self.children:
            if child.children:
                found += child.variables()
            elif child.var:
                found.append(child.var)
        return found

    def walk(self) -> Iterator[PatternNode]:
        """This node and all below it, in pre-order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def __str__(self) -> str:
        if self._text is None:  # asked for again and again, of nodes that many patterns share
            functions = "".join([f"[{name}]" for name in self.functions])
            head = f".{functions}" if self.axis == "." else f"{self.axis}{self.test}"
            arrow = f"->{self.var}" if self.var else ""
            conditions = "".join([f"[{condition}]" for condition in self.conditions])
            children = "".join([f"[.{text}]" for text in texts_of(self.children)])
            object.__setattr__(self, "_text", head + arrow + conditions + children)
        return self._text  # type: ignore[return-value]  # it has just been set


def _shown(node: PatternNode) -> str:
    """What `repr` says of a dataclass: stores have digests of it."""
    return (
        f"PatternNode(axis={node.axis!r}, test={node.test!r}, conditions={node.conditions!r}, "
        f"children={node.children!r}, var={node.var!r}, functions={node.functions!r})"
    )


_shown_leaf = Remembered(_shown)  # many patterns share them


def texts_of(nodes: Iterable[PatternNode]) -> list[str]:
    """The texts of nodes, as `str` gives them: quickly, if they have been asked for before."""
    return [node._text or str(node) for node in nodes]


def transform(node: PatternNode, change: Callable[[PatternNode], PatternNode]) -> PatternNode:
    """The pattern with `change` applied to every node, children first. What it leaves as it is stays the same
    object."""
    if node.children:
        node = _with_children(node, tuple([transform(child, change) for child in node.children]))
    return change(node)


def naming(node: PatternNode, variables: Collection[str]) -> PatternNode:
    """The pattern without the names of other variables than these."""
    if not node.children:
        return node if node.var in variables else unnamed(node)
    children = tuple(
        [
            child if child.var in variables and not child.children else naming(child, variables)
            for child in node.children
        ]
    )
    if node.var is None or node.var in variables:
        return _with_children(node, children)
    return PatternNode(node.axis, node.test, node.conditions, children, None, node.functions)


def unnamed(node: PatternNode) -> PatternNode:
    """The node without the name of its own variable."""
    if node.var is None:
        return node
    return _unnamed(node) if node.children else _unnamed_leaf(node)


def _with_children(node: PatternNode, children: tuple[PatternNode, ...]) -> PatternNode:
    if len(children) == len(node.children) and all(map(is_, children, node.children)):
        return node
    # Written out, because `replace` takes several times as long.
    return PatternNode(node.axis, node.test, node.conditions, children, node.var, node.functions)


def _unnamed(node: PatternNode) -> PatternNode:
    return PatternNode(node.axis, node.test, node.conditions, node.children, None, node.functions)


_unnamed_leaf = Remembered(_unnamed)


def attach(pattern: PatternNode, var: str, branch: PatternNode) -> PatternNode:
    """The pattern, in which the node bound to `var` has one more child."""
    children = pattern.children
    if children:
        children = tuple(
            [attach(child, var, branch) if child.children or child.var == var else child for child in children]
        )
    return _with_children(pattern, (*children, branch) if pattern.var == var else children)


def renamed(pattern: PatternNode, names: Mapping[str, str]) -> PatternNode:
    """The pattern, in which each variable has the name that `names` gives it."""
    children = tuple([renamed(child, names) for child in pattern.children])
    var = pattern.var and names[pattern.var]
    if var == pattern.var:
        return _with_children(pattern, children)
    return PatternNode(pattern.axis, pattern.test, pattern.conditions, children, var, pattern.functions)


def quoted(text: str) -> str:
    """An XPath 1.0 expression whose value is `text`: a literal, or concat() if the text has both kinds of quotes."""
    if '"' not in text:
        return f'"{text}"'
    if "'" not in text:
        return f"'{text}'"
    parts = [f'"{part}"' for part in text.split('"')]
    return "concat(" + ", '\"', ".join(parts) + ")"
