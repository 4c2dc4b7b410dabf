"""A safe parser for untrusted XML, and a linear-time reader of the prolog before the root element.

A DOCTYPE may add default attributes and external entities. libxml2 exposes a DTD only as a copy, which takes more than
quadratic time to build, so the prolog is read here before any parser runs.
"""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from lxml import etree

_SPACE = rb"[ \t\r\n]"
_LITERAL = rb"""(?:"[^"]*+"|'[^']*+')"""

# These never backtrack: their quantifiers are possessive, and where a lazy one fails the search is over. A possessive
# group has an empty alternative: before 3.11.5, Python loses its place when one fails.
_MISC = re.compile(rb"(?:%b++|<\?.*?\?>|<!--.*?-->|)*+" % _SPACE, re.DOTALL)
_DOCTYPE = re.compile(
    rb"""<!DOCTYPE%(s)b++[^ \t\r\n\[>"'<&]++%(s)b*+
    (?>(?:SYSTEM%(s)b++%(l)b|PUBLIC%(s)b++%(l)b%(s)b++%(l)b)%(s)b*+|)([\[>])"""
    % {b"s": _SPACE, b"l": _LITERAL},
    re.VERBOSE,
)
_PART = re.compile(
    rb"""%(s)b++|<\?.*?\?>|<!--.*?-->
    |<!(?P<kind>ENTITY|ATTLIST|ELEMENT|NOTATION)(?P<body>(?:[^"'<>]++|%(l)b|)*+)>
    |%%(?P<reference>[^; \t\r\n<>]++);
    |(?P<end>\]%(s)b*+>)"""
    % {b"s": _SPACE.replace(b" ", b"\\ "), b"l": _LITERAL},
    re.DOTALL | re.VERBOSE,
)
_ENTITY = re.compile(
    rb"%(s)b++(?>(?P<parameter>%%)%(s)b++|)(?P<name>[^ \t\r\n]++)%(s)b++(?>(?P<outside>SYSTEM|PUBLIC)|)(?P<rest>.*)"
    % {b"s": _SPACE},
    re.DOTALL,
)
_DECLARED = re.compile(rb"encoding%(s)b*+=%(s)b*+[\"']([^\"'<>]*+)" % {b"s": _SPACE})
_QUOTED = re.compile(_LITERAL)
_QUOTES = re.compile(rb"[\"']")

_WIDE = (
    (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"<\0\0\0", "utf-32-le"), (b"\0\0\0<", "utf-32-be"), (b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"),
)  # fmt: skip
_OF_ASCII = frozenset(
    {"ascii", "utf-8", "euc_jp", "euc_kr", "gb2312", "koi8-r", "koi8-u", "mac-roman", "tis-620"}
    | {f"iso8859-{number}" for number in range(1, 17)}
    | {f"cp{number}" for number in range(1250, 1259)}
)
"""Python's names of encodings in which every byte below 128 is the ASCII character."""

_SHOWN = 100  # maximum number of characters of a name or an address in a message


class Prolog(NamedTuple):
    """The prolog of a document. If it was not `understood` up to the root, a parser may still find a DOCTYPE.
    `entities` and `defaults` (of attributes) say whether the DOCTYPE declares any. `refused` says why the document must
    not be read, "" if it may be."""

    understood: bool = False
    entities: bool = False
    refused: str = ""
    defaults: bool = False


def read_prolog(xml: bytes) -> Prolog:
    """Reads the prolog of a document. Ill-formed XML is left to the parser.

    A DOCTYPE is refused if it declares external entities or default attributes, or refers to parameter entities, which
    could do either; also in an encoding in which such declarations cannot be found.

    >>> read_prolog(b"<!DOCTYPE r [<!ATTLIST r a CDATA 'x'>]><r/>").refused
    "the DOCTYPE gives an attribute of 'r' a default, which is not read: write the attribute where it is meant"
    """
    encoding = wide_encoding(xml)
    if encoding is not None:
        if "<!DOCTYPE".encode(encoding) not in xml:
            return _UNKNOWN
        xml = xml.decode(encoding, "replace").encode()
    start = 0
    while xml.startswith(codecs.BOM_UTF8, start):  # libxml2 skips a second one in wide encodings
        start += len(codecs.BOM_UTF8)
    misc = _MISC.match(xml, start)
    assert misc is not None, "it matches the empty string"
    found = _DOCTYPE.match(xml, misc.end())
    unknown = "" if encoding else _not_of_ascii(xml, start, misc.end())
    if found is None:
        return _UNKNOWN if unknown or xml.startswith(b"<!", misc.end()) else _UNDERSTOOD
    if found[1] == b">":
        return _UNDERSTOOD
    if unknown:
        return Prolog(refused=f"the DOCTYPE's declarations are in the encoding {unknown!r}, in which they are not read")
    return _subset(xml, found.end())


def wide_encoding(xml: bytes) -> str | None:
    """The encoding with two or four bytes a character, detected from the first bytes; None for others."""
    start = xml[:2]
    if start.isascii() and 0 not in start:
        return None
    return next((encoding for mark, encoding in _WIDE if xml.startswith(mark)), None)


_UNKNOWN, _UNDERSTOOD = Prolog(), Prolog(understood=True)


def _not_of_ascii(xml: bytes, start: int, end: int) -> str:
    if not xml.startswith(b"<?xml", start):
        return ""
    for name in _DECLARED.findall(xml, start, xml.find(b"?>", start, end)):
        text = _shown(name)
        try:
            known = codecs.lookup(text).name in _OF_ASCII
        except (LookupError, ValueError):
            known = False
        if not known:
            return text
    return ""


def _subset(xml: bytes, place: int) -> Prolog:
    entities, defaults, refused = False, False, ""
    while (part := _PART.match(xml, place)) is not None:
        place, kind = part.end(), part["kind"]
        if kind == b"ATTLIST":
            if not defaults and _QUOTES.search(part["body"]):  # nothing but a default is in quotes
                defaults, name = True, _shown(part["body"].split(None, 1)[0])
                cause = f"the DOCTYPE gives an attribute of {name!r} a default, which is not read"
                refused = refused or f"{cause}: write the attribute where it is meant"
        elif kind == b"ENTITY":
            entities, entity = True, _ENTITY.match(part["body"])
            if entity is not None and entity["outside"] is not None:
                address = ([b"", *_QUOTED.findall(entity["rest"])])[-1]
                cause = f"the DOCTYPE declares entity {_shown(entity['name'])!r} from outside"
                refused = refused or f"{cause} ({_shown(address[1:-1])!r})"
        elif part["reference"] is not None:
            name = _shown(part["reference"])
            refused = refused or f"the DOCTYPE refers to the parameter entity {name!r}: such are not read"
        elif part["end"] is not None:
            return Prolog(True, entities, refused, defaults)
    return Prolog(False, entities, refused, defaults)


def _shown(text: bytes) -> str:
    return text[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]


def xml_parser(
    *,
    elements_only: bool = False,
    entities: bool = True,
    trusted: bool = False,
    recover: bool = False,
    target: object = None,
) -> etree.XMLParser:
    """A parser that opens no files or connections and loads no DTD.

    `elements_only` drops comments and processing instructions. Without `entities`, entity references stay unexpanded.
    `trusted` lifts libxml2's limits (256 levels, 10 MB a text node). `recover` reads ill-formed XML as far as possible.
    With `target`, events go there and no tree is built.
    """
    return etree.XMLParser(
        resolve_entities="internal" if entities else False,  # type: ignore[arg-type]  # the stubs know only bool
        no_network=True,
        load_dtd=False,
        huge_tree=trusted,
        remove_comments=elements_only,
        remove_pis=elements_only,
        strip_cdata=True,
        recover=recover,
        target=target,  # type: ignore[arg-type]  # the stubs know only targets that hear of no namespaces
    )
