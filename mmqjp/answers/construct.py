"""Constructs output documents (thesis, section 6.2): the default pair of subtrees, SELECT items, element
constructors."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from json.encoder import encode_basestring as json_text

from lxml import etree

from mmqjp.answers.answer import Body
from mmqjp.documents.record import Record
from mmqjp.queries.selection import Item, Selection, element_of
from xpath_stage.binder import Node
from xscl.algebra.expressions import ElementConstructor, Hole
from xscl.algebra.functions import derive
from xscl.algebra.normal import NormalQuery


@dataclass(slots=True)
class Value:
    """The node that a SELECT variable is bound to, with derived-value functions to apply to it."""

    record: Record
    node: Node
    functions: tuple[str, ...] = ()

    def text(self) -> str:
        value = self.record.tree.string_value(*self.node)
        for name in self.functions:
            value = derive(name, value)
        return value

    def is_element(self) -> bool:
        return not self.node[1] and not self.functions

    def markup(self) -> str:
        """Returns the element and its subtree as XML. It is serialized once."""
        record, number = self.record, self.node[0]
        if number == 0 and record.kind == "external" and not record.has_namespaces:
            return record.xml  # which was serialized in the same way
        found = record.fragments.get(number)
        if found is None:
            element = record.tree.elements[number]
            if record.has_namespaces:
                # In a tree of its own, so that namespaces are declared where they are used.
                etree.Element("match").append(element := self.copy())
            found = record.fragments[number] = etree.tostring(element, encoding="unicode", with_tail=False)
        return found

    def copy(self) -> etree._Element:
        """Returns a copy of the element and its subtree, without the text that follows it."""
        copied = deepcopy(self.record.tree.elements[self.node[0]])
        copied.tail = None
        return copied

    def json_id(self) -> int | str:
        """Returns the node's id as output lines have it."""
        element, place = self.node
        return f"{element}/@{self.record.tree.attribute(element, place)[0]}" if place else element

    def json(self) -> str:
        """Returns the node's id as JSON."""
        return json_text(str(self.json_id())) if self.node[1] else str(self.node[0])


def body(selection: Selection, t0: int, t1: int, values: Sequence[Value], holes: Sequence[Value | str]) -> Body:
    """Returns the output document.

    `values` has those of the terms of a selection. `holes` has the values of an element constructor, in order of
    appearance.
    """
    normal = selection.normal
    if normal.constructor is not None:
        root = _Constructor(normal, holes).build(normal.constructor)
        return Body("", etree.tostring(root, encoding="unicode"))
    if all(map(Value.is_element, values)):
        children = selection.children % tuple([value.markup() for value in values])
    else:
        rest = iter(values)
        children = "".join([item.constant or _child(item, next(rest), star=normal.star) for item in selection.items])
    end = f">{children}</match>" if children else "/>"
    return Body('<match query="', f'" t0="{t0}" t1="{t1}"{end}')


def _child(item: Item, value: Value, *, star: bool) -> str:
    """Returns a child of a default output.

    With `star`, it is the element itself, or a new element that holds an attribute under its name or a derived value
    under its key.
    """
    if value.is_element():
        return f"{item.before}{value.markup()}{item.after}"
    name = item.name
    if star and not value.functions:
        name = value.record.tree.attribute(*value.node)[0]
    return element_of(name, value.text())


class _Constructor:
    def __init__(self, query: NormalQuery, holes: Sequence[Value | str]) -> None:
        self._uris = dict(query.namespaces)
        self._holes = iter(holes)

    def build(self, constructor: ElementConstructor) -> etree._Element:
        prefix = constructor.name.rpartition(":")[0]
        nsmap = {prefix: self._uris[prefix]} if prefix and prefix != "xml" else None
        element = etree.Element(self._name(constructor.name), nsmap=nsmap)
        for name, parts in constructor.attributes:
            element.set(self._name(name), "".join(self._text(part) for part in parts))
        for child in constructor.children:
            if isinstance(child, ElementConstructor):
                element.append(self.build(child))
            elif isinstance(child, str):
                _append_text(element, child)
            else:
                value = next(self._holes)
                if isinstance(value, Value) and value.is_element():
                    element.append(value.copy())
                else:
                    _append_text(element, value if isinstance(value, str) else value.text())
        return element

    def _text(self, part: str | Hole) -> str:
        if isinstance(part, str):
            return part
        value = next(self._holes)
        return value if isinstance(value, str) else value.text()

    def _name(self, name: str) -> str:
        prefix, _, local = name.rpartition(":")
        if prefix == "xml":
            return f"{{http://www.w3.org/XML/1998/namespace}}{local}"
        return f"{{{self._uris[prefix]}}}{local}" if prefix else local


def _append_text(element: etree._Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text
