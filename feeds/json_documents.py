"""JSON as documents: a mapping of JSON to XML, and of XML to JSON.

A member of an object becomes an element named after its key, an array repeats the element, and the root is `<json>`. An
array within an array, or at the root, has elements `<item>`. A key that is not an XML name goes into the attribute
`key` of an element `<_>`. Characters that XML cannot hold are escaped as by the XPath functions `json-to-xml` and
`xml-to-json`: as `\\uHHHH`, with `\\\\` for a backslash, marked by `escaped="true"` or `escaped-key="true"`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NoReturn

from lxml import etree

from common.errors import InvalidValue
from common.xml import xml_parser
from feeds.documents import is_text
from feeds.items import FORBIDDEN

JsonForm = Literal["plain", "typed"]

ROOT, ITEM, OTHER = "json", "item", "_"

DEEPEST = 200  # maximum depth of nesting below the root

_START = (
    "A-Z_a-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f\u2c00-\u2fef"
    "\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
_NAME = re.compile(f"[{_START}][{_START}.0-9\u00b7\u0300-\u036f\u203f\u2040-]*+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?", re.ASCII)
_UNSAFE = re.compile("[&<>\r]")
_UNSAFE_IN_ATTRIBUTE = re.compile('[&<>"\t\n\r]')
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}
_BACKSLASH = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|\\)")


class JsonNumber(str):
    """A number in its original spelling, of any size."""

    __slots__ = ()


class JsonMembers(list[tuple[str, Any]]):
    """The members of an object in their order. Keys may repeat."""


def _no_constant(name: str) -> NoReturn:
    raise InvalidValue(f"not JSON: {name} is not a number")


_DECODER = json.JSONDecoder(
    object_pairs_hook=JsonMembers, parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=_no_constant
)


def load_json(text: str) -> Any:
    """Parses JSON: objects are `JsonMembers`, numbers are `JsonNumber`. Raises InvalidValue."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise InvalidValue(f"not JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise InvalidValue(_TOO_DEEP) from None


_TOO_DEEP = f"JSON nested more than {DEEPEST} deep"


def json_to_xml(value: Any, *, typed: bool = False) -> str:
    r"""The document of a value from `load_json`. With `typed`, each element has a `type`: `map`, `array`, `string`,
    `number`, `boolean` or `null`. Raises InvalidValue if it is nested too deeply.

    >>> json_to_xml(load_json('{"tags": ["a", "b"], "n": 1.50, "to be": null, "e": []}'))
    '<json><tags>a</tags><tags>b</tags><n>1.50</n><_ key="to be"></_></json>'
    >>> json_to_xml(load_json(r'[[1], "\u0000"]'), typed=True)  # doctest: +ELLIPSIS
    '<json type="array"><item type="array"><item type="number">1</item></item><item type="string" escaped="true">...'
    """
    pieces: list[str] = []
    _write(pieces, ROOT, "", value, typed, 0)
    return "".join(pieces)


def _write(pieces: list[str], name: str, attributes: str, value: Any, typed: bool, depth: int) -> None:
    if depth > DEEPEST:
        raise InvalidValue(_TOO_DEEP)
    children: Iterable[tuple[str, str, Any]] = ()
    text = ""
    match value:
        case JsonMembers():
            kind, children = "map", _children(value)
        case list():
            kind, children = "array", ((ITEM, "", one) for one in value)
        case JsonNumber():
            kind, text = "number", value
        case str():
            kind, is_escaped, text = "string", *_held(value)
            attributes += ' escaped="true"' if is_escaped else ""
        case None:
            kind = "null"
        case _:
            kind, text = "boolean", "true" if value else "false"
    shown = f' type="{kind}"' if typed else ""
    pieces.append(f"<{name}{shown}{attributes}>{_UNSAFE.sub(_escape, text)}")
    for child, about, one in children:
        _write(pieces, child, about, one, typed, depth + 1)
    pieces.append(f"</{name}>")


def _children(members: JsonMembers) -> Iterator[tuple[str, str, Any]]:
    for key, value in members:
        name, attributes = key, ""
        if _NAME.fullmatch(key) is None:
            is_escaped, text = _held(key)
            name, attributes = OTHER, f' key="{_UNSAFE_IN_ATTRIBUTE.sub(_escape, text)}"'
            attributes += ' escaped-key="true"' if is_escaped else ""
        for one in value if isinstance(value, list) and not isinstance(value, JsonMembers) else (value,):
            yield name, attributes, one


def _held(text: str) -> tuple[bool, str]:
    """Whether a text must be escaped to fit into XML, and the (escaped) text."""
    if FORBIDDEN.search(text) is None:
        return False, text
    return True, FORBIDDEN.sub(lambda found: f"\\u{ord(found[0]):04X}", text.replace("\\", "\\\\"))


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES[found[0]]


# ---------------------------------------------------------------- XML to JSON


def xml_to_json(xml: str | bytes) -> str:
    r"""A document as JSON on one line: an object with the root's name and content. An element without attributes and
    child elements becomes its text, any other an object: attributes begin with `@`, repeated elements become arrays,
    and text beside elements or attributes is `#text`. Reverses the escapes and types of `json_to_xml`. Raises
    InvalidValue.

    >>> xml_to_json('<match query="q"><b><t>x</t><t>y</t></b><n type="number">1.50</n><_ key="to be"/></match>')
    '{"match": {"@query": "q", "b": {"t": ["x", "y"]}, "n": 1.50, "to be": ""}}'
    """
    try:
        root = etree.fromstring(xml.encode() if isinstance(xml, str) else xml, xml_parser())
    except etree.XMLSyntaxError as error:
        raise InvalidValue(f"not well-formed: {error.msg}") from None
    return f"{{{_string(_key(root))}: {_value(root)}}}"


def _value(element: etree._Element) -> str:
    attributes = {_name(element, str(name)): str(value) for name, value in element.attrib.items()}
    children = [child for child in element if isinstance(child.tag, str)]
    text = (element.text or "") + "".join(child.tail or "" for child in element)
    if attributes.get("escaped") == "true":
        del attributes["escaped"]
        text = _unescaped(text)
    if element.tag == OTHER and "key" in attributes:
        del attributes["key"]
        attributes.pop("escaped-key", None)
    match attributes.get("type"):
        case "number" if not children and _NUMBER.fullmatch(text):
            return text
        case "boolean" if not children and text in ("true", "false"):
            return text
        case "null" if not children and not text:
            return "null"
        case "array" if all(child.tag == ITEM for child in children):
            return f"[{', '.join(map(_value, children))}]"
        case "string" | "map":
            del attributes["type"]
            if not children and not attributes and element.get("type") == "map":
                return "{}"
    if not children and not attributes:
        return _string(text)
    found = {f"@{name}": [_string(value)] for name, value in attributes.items()}
    for child in children:
        found.setdefault(_key(child), []).append(_value(child))
    if text.strip():
        found["#text"] = [_string(text)]
    members = ((key, ", ".join(values), len(values) > 1) for key, values in found.items())
    shown = (f"{_string(key)}: {f'[{value}]' if repeats else value}" for key, value, repeats in members)
    return f"{{{', '.join(shown)}}}"


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=not is_text(text))


def _key(element: etree._Element) -> str:
    if element.tag == OTHER and (key := element.get("key")) is not None:
        return _unescaped(key) if element.get("escaped-key") == "true" else key
    name = etree.QName(element)
    return f"{element.prefix}:{name.localname}" if element.prefix else name.localname


def _name(element: etree._Element, name: str) -> str:
    if not name.startswith("{"):
        return name
    uri, _, local = name[1:].partition("}")
    prefix = next((prefix for prefix, known in element.nsmap.items() if known == uri and prefix), None)
    return f"{prefix or 'xml'}:{local}"


def _unescaped(text: str) -> str:
    return _BACKSLASH.sub(lambda found: chr(int(found[1], 16)) if found[1] else "\\", text)
