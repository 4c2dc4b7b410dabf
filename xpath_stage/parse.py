"""Bytes to an element tree, safely: nothing outside is read, and what could exhaust memory is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from itertools import compress

from lxml import etree

MAX_BYTES = 16 << 20
"""Largest document from outside: its tree takes up to 75 times as much memory."""

LARGE = 1 << 15
"""Bytes of a document whose elements are not kept."""

_STRING = etree.XPath("string()", smart_strings=False)


class DocumentError(ValueError):
    """A document that cannot be read: the message tells the place and the cause."""


class ParsedDocument:
    """A document as stage 1 sees it: its elements in document order, numbered from 0.

    A large document's elements are not kept until they are asked for: as Python objects they take longer to make and
    to throw away than to visit once more.
    """

    def __init__(self, root: etree._Element, *, large: bool = False) -> None:
        self.root = root
        kept = None if large else list(root.iter())
        self._elements = kept
        self.tags: tuple[str, ...] = tuple([element.tag for element in kept or root.iter()])
        """The name of each element, `{uri}local` or `local`."""
        self.counts: tuple[int, ...] = tuple(map(len, kept or root.iter()))
        """How many elements are children of each element."""

    @property
    def elements(self) -> list[etree._Element]:
        """The elements."""
        if self._elements is None:
            self._elements = list(self.root.iter())
        return self._elements

    def string_values(self, chosen: Sequence[int], *, leaves: bool) -> list[str]:
        """The string values of some elements, given by ascending numbers; `leaves` tells that none has children."""
        elements: Iterable[etree._Element]
        if self._elements is not None:
            elements = map(self._elements.__getitem__, chosen)
        else:
            flags = bytearray(len(self.tags))
            for number in chosen:
                flags[number] = 1
            elements = compress(self.root.iter(), flags)
        return [element.text or "" for element in elements] if leaves else list(map(text_of, elements))

    @cached_property
    def number(self) -> dict[etree._Element, int]:
        """Element -> its number."""
        return {element: i for i, element in enumerate(self.elements)}

    @cached_property
    def end(self) -> list[int]:
        """For each element, the number after its last descendant's."""
        ends = list(range(1, len(self.elements) + 1))
        for i in range(len(self.elements) - 1, 0, -1):
            parent = self.parent[i]
            assert parent is not None, "only the root element has no parent"
            ends[parent] = max(ends[parent], ends[i])
        return ends

    @cached_property
    def parent(self) -> list[int | None]:
        """For each element the number of its parent; None for the root element."""
        numbers = self.number
        return [None, *(numbers[element.getparent()] for element in self.elements[1:])]  # type: ignore[index]

    def attribute(self, element: int, place: int) -> tuple[str, str]:
        """Name and value of an element's attribute by its place, from 1."""
        name, value = self.elements[element].attrib.items()[place - 1]
        return str(name), str(value)

    def string_value(self, element: int, attribute: int = 0) -> str:
        """XPath's string value: an attribute's value, an element's whole text."""
        return self.attribute(element, attribute)[1] if attribute else text_of(self.elements[element])


def text_of(element: etree._Element) -> str:
    """The string value of an element."""
    if len(element) == 0:
        return element.text or ""
    return str(_STRING(element))


def parse_document(xml: bytes, *, trusted: bool = False) -> ParsedDocument:
    """Parses a document. Raises DocumentError.

    `trusted` lifts libxml2's limits (256 levels of elements, 10 MB a text node) for documents of our own making.
    """
    if not trusted and len(xml) > MAX_BYTES:
        raise DocumentError(f"larger than {MAX_BYTES >> 20} MiB")
    try:
        root = etree.fromstring(xml, xml_parser(trusted))
    except etree.XMLSyntaxError as error:
        line, column = error.position
        cause = (error.msg or "not well-formed").split(", line ")[0].strip()
        raise DocumentError(f"line {line}, column {column}: {cause}") from None
    except ValueError as error:
        raise DocumentError(str(error)) from None
    _refuse_external_entities(root)
    return ParsedDocument(root, large=len(xml) > LARGE)


@cache
def xml_parser(trusted: bool) -> etree.XMLParser:
    """The parser of all documents: it opens nothing, and drops comments and processing instructions."""
    return etree.XMLParser(
        resolve_entities="internal",  # type: ignore[arg-type]  # the stubs know only bool
        no_network=True,
        load_dtd=False,
        huge_tree=trusted,
        remove_comments=True,
        remove_pis=True,
        strip_cdata=True,
    )


def _refuse_external_entities(root: etree._Element) -> None:
    dtd = root.getroottree().docinfo.internalDTD
    if dtd is None:
        return
    for entity in dtd.iterentities():  # type: ignore[attr-defined]  # absent from the stubs
        if entity.system_url is not None:
            raise DocumentError(f"the DOCTYPE declares entity {entity.name!r} from outside ({entity.system_url!r})")
