"""Tree patterns: what a query block matches in a document, with names resolved and filters lowered.

Stores hold patterns as JSON: a node is `[axis, kind, uri, name, conditions, children, functions]`, a condition `["=",
literal]` or `["?", xpath]`; shared patterns have no variables. System names of hidden streams, block roots and path
ends begin with #, as no other name does; they are stored, so their spelling cannot change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from json.encoder import encode_basestring as _quoted
from operator import is_
from typing import Any, get_args

from common.errors import InvalidValue
from common.tools import Remembered, frozen, quick
from xscl.algebra.values import NodeKind, chained

EXTENSION_PREFIX = "mmqjp"
"""The prefix of our own functions in a condition's XPath: those that XPath 1.0 lacks, such as `lower-case` and
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
        """Whether a node of this kind named `local` or `{uri}local` passes."""
        uri, local = name[1:].rsplit("}", 1) if name.startswith("{") else ("", name)
        return self.uri in ("*", uri) and self.local in ("*", local)

    def __str__(self) -> str:
        name = self.local if self.uri == "" or self.uri == self.local == "*" else f"{{{self.uri}}}{self.local}"
        return f"@{name}" if self.kind == "attribute" else name


@quick
@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """A condition on a node: its string value is `literal`, or the XPath 1.0 expression `xpath` is true."""

    literal: str | None = None
    xpath: str | None = None

    def __str__(self) -> str:
        return f". = {xpath_literal(self.literal)}" if self.literal is not None else str(self.xpath)


@frozen
class PatternNode:
    """A node on `axis` from its parent. On the self axis, ".", it may have `functions`, innermost first."""

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
        """The variables of this subtree, in pre-order."""
        found = [self.var] if self.var else []
        for child in self.children:
            if child.children:
                found += child.variables()
            elif child.var:
                found.append(child.var)
        return found

    def walk(self) -> Iterator[PatternNode]:
        yield self
        for child in self.children:
            yield from child.walk()

    def __str__(self) -> str:
        if self._text is None:  # asked for again and again, of nodes that many patterns share
            functions = "".join([f"[{name}]" for name in self.functions])
            head = f".{functions}" if self.axis == "." else f"{self.axis}{self.test}"
            arrow = f"->{self.var}" if self.var else ""
            conditions = "".join([f"[{condition}]" for condition in self.conditions])
            children = "".join([f"[.{text}]" for text in node_texts(self.children)])
            object.__setattr__(self, "_text", head + arrow + conditions + children)
        return self._text  # type: ignore[return-value]  # it has just been set


def _shown(node: PatternNode) -> str:
    """The `repr` of a dataclass: stores have digests of it."""
    return (
        f"PatternNode(axis={node.axis!r}, test={node.test!r}, conditions={node.conditions!r}, "
        f"children={node.children!r}, var={node.var!r}, functions={node.functions!r})"
    )


_shown_leaf = Remembered(_shown)  # many patterns share them


def node_texts(nodes: Iterable[PatternNode]) -> list[str]:
    """The nodes' `str`, cached."""
    return [node._text or str(node) for node in nodes]


def transform(node: PatternNode, change: Callable[[PatternNode], PatternNode]) -> PatternNode:
    """Applies `change` to every node, children first. An unchanged node stays the same object."""
    if node.children:
        node = _with_children(node, tuple([transform(child, change) for child in node.children]))
    return change(node)


def naming(node: PatternNode, variables: Collection[str]) -> PatternNode:
    """The pattern without the names of other variables than these."""
    if not node.children:
        return node if node.var in variables else unnamed(node)
    # A leaf with a name that stays needs no call.
    children = [one if one.var in variables and not one.children else naming(one, variables) for one in node.children]
    if node.var is None or node.var in variables:
        return _with_children(node, tuple(children))
    return _renamed(node, tuple(children), None)


def unnamed(node: PatternNode) -> PatternNode:
    if node.var is None:
        return node
    return _renamed(node, node.children, None) if node.children else _unnamed_leaf(node)


def _renamed(node: PatternNode, children: tuple[PatternNode, ...], var: str | None) -> PatternNode:
    # Written out, because `replace` takes several times as long.
    return PatternNode(node.axis, node.test, node.conditions, children, var, node.functions)


_unnamed_leaf = Remembered[PatternNode, PatternNode](lambda node: _renamed(node, (), None))


def _with_children(node: PatternNode, children: tuple[PatternNode, ...]) -> PatternNode:
    if len(children) == len(node.children) and all(map(is_, children, node.children)):
        return node
    return _renamed(node, children, node.var)


def attach_branch(pattern: PatternNode, var: str, branch: PatternNode) -> PatternNode:
    """Adds a child to the node bound to `var`."""
    children = pattern.children
    if children:
        children = tuple(
            [attach_branch(child, var, branch) if child.children or child.var == var else child for child in children]
        )
    return _with_children(pattern, (*children, branch) if pattern.var == var else children)


def rename_variables(pattern: PatternNode, names: Mapping[str, str]) -> PatternNode:
    children = tuple([rename_variables(child, names) for child in pattern.children])
    var = pattern.var and names[pattern.var]
    if var == pattern.var:
        return _with_children(pattern, children)
    return _renamed(pattern, children, var)


def xpath_literal(text: str) -> str:
    """An XPath 1.0 expression for `text`: a literal, or concat() if it has both kinds of quotes."""
    if '"' not in text:
        return f'"{text}"'
    if "'" not in text:
        return f"'{text}'"
    parts = [f'"{part}"' for part in text.split('"')]
    return "concat(" + ", '\"', ".join(parts) + ")"


_AXES = ("/", "//", ".")

shared_test = lru_cache(maxsize=10_000)(Test)
"""A cached Test: very many patterns have the same ones, and those that are the same object are compared fast."""


def pattern_to_json(node: PatternNode) -> str:
    """Without variables."""
    return _json(node) if node.children else _leaf_json(node)


def pattern_from_json(text: str) -> PatternNode:
    """The inverse of `pattern_to_json`. Raises InvalidValue for any other text."""
    try:
        return _node(json.loads(text))
    except (TypeError, RecursionError) as error:
        raise InvalidValue(f"{text[:80]!r} is no tree pattern") from error


def _json(node: PatternNode) -> str:
    test = ",".join(map(_quoted, (node.axis, node.test.kind, node.test.uri, node.test.local)))
    conditions = ",".join(
        [
            f'["?",{_quoted(one.xpath or "")}]' if one.literal is None else f'["=",{_quoted(one.literal)}]'
            for one in node.conditions
        ]
    )
    children = ",".join(map(pattern_to_json, node.children))
    functions = ",".join(map(_quoted, node.functions))
    return f"[{test},[{conditions}],[{children}],[{functions}]]"


_leaf_json = Remembered(_json)  # very many patterns share their leaves


def _node(plain: Any) -> PatternNode:
    axis, kind, uri, local, conditions, children, functions = plain
    try:
        known = all(map(chained, functions))
    except KeyError:
        known = False
    known = known and axis in _AXES and kind in get_args(NodeKind)
    if not known or not isinstance(uri, str) or not isinstance(local, str):
        raise InvalidValue(f"{str(plain)[:80]!r} is no tree pattern")
    for one in conditions:
        sort, text = one
        if not isinstance(text, str) or sort not in ("=", "?"):
            raise InvalidValue(f"{str(one)[:80]!r} is no condition")
    found = tuple([Condition(literal=text) if sort == "=" else Condition(xpath=text) for sort, text in conditions])
    inside = found, tuple(map(_node, children))
    return PatternNode(axis, shared_test(kind, uri, local), *inside, functions=tuple(functions))


_MARK = "#"


def hidden_stream(definition: str) -> str:
    """The name of an inner join's hidden stream, shared by joins with the same definition.

    >>> hidden_stream("a join")
    '#f6a765cd4b30211473c21765'
    """
    return _MARK + hashlib.sha256(definition.encode()).hexdigest()[:24]


def is_hidden(stream: str) -> bool:
    """Whether a stream is hidden, by its name."""
    return stream.startswith(_MARK)


def short_name(stream: str) -> str:
    """A stream's name for people: six digits of a hidden stream's digest.

    >>> short_name("#f6a765cd4b30211473c21765"), short_name("news")
    ('#f6a765', 'news')
    """
    return stream[:7] if is_hidden(stream) else stream


def block_root(block: int) -> str:
    """The variable of a block's root that the query leaves unnamed. Blocks are numbered from 0."""
    return f"{_MARK}b{block}"


def path_end(number: int) -> str:
    """The variable at the end of a path on a variable. A query's paths are numbered from 1."""
    return f"{_MARK}p{number}"


def is_system_variable(variable: str) -> bool:
    """Whether the query does not name this variable."""
    return variable.startswith(_MARK)
