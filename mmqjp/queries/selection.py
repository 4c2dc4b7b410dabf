"""Selections: what a normal form SELECTs, as templates to fill in for each answer."""

from __future__ import annotations

from json.encoder import encode_basestring as json_text
from typing import NamedTuple

from lxml import etree

from xscl.algebra.normal import NormalQuery, SelectEntry, Term


class Item(NamedTuple):
    """A child of a default output: the name of its element, and what stands around its value if that is an element.
    `constant` is all of it, unless its value is that of a term."""

    name: str
    before: str
    after: str
    constant: str | None


class Selection:
    """What a normal form SELECTs.

    `terms` are the values of SELECT entries that are no constants. `nodes` and `node_list` are formats for their nodes
    as JSON: the object that output lines have, and a list. `items` are the children of a default output, and `children`
    is the format of all of them if all values are elements.
    """

    __slots__ = ("children", "items", "node_list", "nodes", "normal", "terms")

    def __init__(self, normal: NormalQuery) -> None:
        self.normal = normal
        chosen = [(entry.key, entry.value) for entry in normal.entries if isinstance(entry.value, Term)]
        self.terms = tuple(term for _, term in chosen)
        self.nodes = f"{{{', '.join(f'{_literally(json_text(key))}: %s' for key, _ in chosen)}}}"
        self.node_list = f"[{', '.join(['%s'] * len(chosen))}]"
        self.items = tuple(_item(entry, star=normal.star) for entry in normal.entries)
        self.children = "".join(map(_format_of, self.items))


def element_of(name: str, text: str) -> str:
    """Returns an element with a text as XML."""
    element = etree.Element(name)
    element.text = text
    return etree.tostring(element, encoding="unicode")


def _item(entry: SelectEntry, *, star: bool) -> Item:
    name = entry.key.replace("'", "_")
    before, after = ("", "") if star else (f"<{name}>", f"</{name}>")
    return Item(name, before, after, element_of(name, entry.value) if isinstance(entry.value, str) else None)


def _format_of(item: Item) -> str:
    if item.constant is not None:
        return _literally(item.constant)
    return f"{_literally(item.before)}%s{_literally(item.after)}"


def _literally(text: str) -> str:
    """Returns what gives a text as part of a format."""
    return text.replace("%", "%%")
