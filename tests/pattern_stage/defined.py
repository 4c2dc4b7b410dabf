"""The events of definitions in documents, by brute force: every match of the block, and every choice of nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

from tests.oracle.match import Matcher, Node, Tree
from tests.oracle.values import apply, number, text_of
from xscl.algebra.values import Call, Expr, Number, String, VarPath
from xscl.syntax import DefinedAttribute, EventDefinition

Value = str | float | None

Defined = tuple[tuple[tuple[int, int], ...], tuple[Value, ...]]
"""An event: its nodes as (element, position of the attribute), and its values. The nodes are the root, those of other
variables, and those that are taken."""


def defined_events(
    definition: EventDefinition, xml: bytes | str, namespaces: Mapping[str, str] | None = None
) -> set[Defined]:
    """The events of a definition in a document."""
    tree = Tree(xml)
    used = list(dict.fromkeys(path.var for a in definition.attributes if (path := _path(a.operand)) is not None))
    matcher = Matcher(tree, namespaces or {}, frozenset(used))
    others = [var for var in used if var != definition.block.steps[-1].var]
    found: set[Defined] = set()
    for root, bound in matcher.embeddings(None, definition.block.steps):
        nodes = dict(bound)
        assert root is not None
        each = [
            matcher.nodes(nodes[path.var], path.steps)
            for a in definition.attributes
            if a.each and (path := _path(a.operand)) is not None
        ]
        for chosen in product(*each):
            taken = iter(chosen)
            values = tuple(_value(a, matcher, nodes, next(taken) if a.each else None) for a in definition.attributes)
            found.add((tuple(_named(tree, node) for node in (root, *(nodes[var] for var in others), *chosen)), values))
    return found


def _value(attribute: DefinedAttribute, matcher: Matcher, nodes: Mapping[str, Node], taken: Node | None) -> Value:
    text = matcher.tree.text(taken) if taken is not None else _text(attribute.operand, matcher, nodes)
    if not attribute.number or text is None:
        return text
    value = number(text)
    return value if math.isfinite(value) else None


def _text(operand: Expr, matcher: Matcher, nodes: Mapping[str, Node]) -> str | None:
    match operand:
        case String(value=value):
            return value
        case Number(text=text):
            return text_of(number(text))
        case VarPath(var=var, steps=steps):
            found = matcher.nodes(nodes[var], steps) if steps else [nodes[var]]
            return matcher.tree.text(found[0]) if found else None
        case Call(name=name, args=(arg, *more)):
            inner = _text(arg, matcher, nodes)
            texts = [text.value for text in more if isinstance(text, String)]
            return None if inner is None else text_of(apply(name, inner, *texts))
    raise TypeError(f"not an operand: {operand!r}")


def _path(operand: Expr) -> VarPath | None:
    while isinstance(operand, Call):
        operand = operand.args[0]
    return operand if isinstance(operand, VarPath) else None


def _named(tree: Tree, node: Node) -> tuple[int, int]:
    if node.attribute is None:
        return node.element, 0
    return node.element, 1 + list(map(str, tree.elements[node.element].attrib)).index(node.attribute)
