"""The oracle's output documents: elements built from values."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

from lxml import etree

from tests.oracle.bindings import Value
from xscl.algebra.values import ElementConstructor, Hole, VarPath


def hole_key(hole: Hole) -> str:
    """The key of a hole in `nodes`: the variable, else the text inside the braces. A constant has a key too, but no
    node."""
    operand = hole.operand
    return operand.var if isinstance(operand, VarPath) and not operand.steps else hole.text


def holes_of(constructor: ElementConstructor) -> Iterator[Hole]:
    """The holes of a constructor, first in its attributes, then in its content."""
    for _, parts in constructor.attributes:
        yield from (part for part in parts if isinstance(part, Hole))
    for child in constructor.children:
        if isinstance(child, Hole):
            yield child
        elif isinstance(child, ElementConstructor):
            yield from holes_of(child)


def as_element(value: Value) -> etree._Element:
    """A copy of an element; for an attribute, an element of its name with its text."""
    assert value.document is not None and value.node is not None
    tree, node = value.document.tree, value.node
    if node.attribute is not None:
        element = etree.Element(node.attribute)
        element.text = tree.text(node)
        return element
    element = copy.deepcopy(tree.elements[node.element])
    element.tail = None
    return element


def append(parent: etree._Element, value: Value) -> None:
    """Appends a copy of an element, or the text of anything else."""
    if value.derived is None and value.node is not None and value.node.attribute is None:
        parent.append(as_element(value))
    else:
        _append_text(parent, value.text)


def _append_text(parent: etree._Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def construct(
    constructor: ElementConstructor, values: Mapping[str, Value], namespaces: Mapping[str, str]
) -> etree._Element:
    """The element of a constructor. `values` fills its holes, by key."""
    element = etree.Element(_clark(constructor.name, namespaces))
    for name, parts in constructor.attributes:
        texts = (part if isinstance(part, str) else values[hole_key(part)].text for part in parts)
        element.set(_clark(name, namespaces), "".join(texts))
    for child in constructor.children:
        if isinstance(child, str):
            _append_text(element, child)
        elif isinstance(child, Hole):
            append(element, values[hole_key(child)])
        else:
            element.append(construct(child, values, namespaces))
    return element


def _clark(name: str, namespaces: Mapping[str, str]) -> str:
    prefix, colon, local = name.rpartition(":")
    return f"{{{namespaces[prefix]}}}{local}" if colon else local
