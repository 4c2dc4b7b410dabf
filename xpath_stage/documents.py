"""Parses documents safely into columns over their elements: one pass reads all that stage 1 needs.

Nothing outside a document is read, and what could exhaust memory is refused. Small documents are parsed several at a
time as children of one root element, with the results of `parse_document`, else each alone. Documents with the same
tags in the same order share an outline, by which their texts and attributes are read without a tree, but for childless
elements that no query mentions. That needs the `text` that the parser would write, in which each `<` begins a tag and
attributes are in double quotes. A document that is written so but for quotes and CDATA sections, with the tags of an
earlier one, is not even parsed. All tags that no query mentions are one name."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import chain, count, islice
from operator import itemgetter
from secrets import token_hex
from typing import NamedTuple

import numpy as np
from lxml import etree

from common.arrays import Ints
from common.errors import InputError
from common.tools import ClearedCache, ItemsAt, decrease, items_at, lazy
from common.xml import Prolog, read_prolog, wide_encoding, xml_parser
from xscl.algebra.joins import Test

MOST_TAGS = 128  # maximum number of tags, starts and ends, of a document with an outline

RUN = 4
"""Documents with the same outline before it is built: building takes as long as reading 100."""

MOST_OUTLINES, MOST_STREAMS = 1_000, 1_000  # maximum numbers of cached outlines and streams

LOOKED_AT = 64  # number of documents whose outlines are looked up before those without one are parsed

TRIAL, PAUSE = 128, 2_048
"""After TRIAL documents of a stream with new outlines, the trees of its next PAUSE documents are read if fewer than
twice as many had a known one since the last time: looking for one takes two thirds of the time of reading a tree."""

_QUOTED = re.compile("""(="[^"]*")|='([^'"\1]*)'""")

_PLAIN = bytes(byte for byte in range(256) if byte not in b"<>&\xef" and (byte >= 32 or byte in b"\t\n"))
_READ = _PLAIN + b"<>&"
_TO_DELIMITERS = bytes.maketrans(b"<>", b"\1\2")
_ALTERNATING = {False: b"<>" * MOST_TAGS, True: b"\1\2" * MOST_TAGS}  # by whether a document was read
_CONTINUING = frozenset(bytes([byte]) for byte in range(0x80, 0xC0))  # bytes of UTF-8 that begin no character
_SECTION = b"<![CDATA["

TagSkeleton = tuple[str, ...]
"""The tags of a document, without the values of attributes; then those of namespaces, because names depend on them."""


class DocumentOutline:
    """Shared by documents with the same tags in the same order: each element's name, number of children and names of
    attributes. `starts` and `ends` have the places of each element's tags; `length` is the number of the documents'
    pieces. Raises ValueError if a name begins with xmlns."""

    def __init__(self, skeleton: TagSkeleton, elements: Sequence[etree._Element]) -> None:
        self.tags = [element.tag for element in elements]
        self.counts = list(map(len, elements))
        self.attributes = [list(map(str, element.attrib)) for element in elements]
        self.starts, self.ends = list[int](), list[int]()
        tags, opened = skeleton[0].split("\1"), list[int]()
        self.length = 2 * len(tags) + 1
        for place, tag in enumerate(tags):
            if tag.startswith("/"):
                self.ends[opened.pop()] = place
                continue
            if not tag.endswith("/"):
                opened.append(len(self.starts))
            self.starts.append(place)
            self.ends.append(place)
        values = len(skeleton) - 1 + sum(map(len, self.attributes))
        if values != skeleton[0].count('"') or "&" in "".join(skeleton[1:]):  # some are compared as they read
            raise ValueError("an attribute looks like a namespace, or a namespace is not written as it reads")
        self.is_normalised = " xml:" in skeleton[0]  # values of some attributes are not read as they are written
        both = enumerate(zip(self.starts, self.ends, strict=True))
        # An empty element is written as one tag.
        texts = [2 * start + 2 for number, (start, end) in both if end > start and not self.counts[number]]
        self._texts = items_at(texts)

    def has_texts(self, pieces: Sequence[str]) -> bool:
        """Whether those childless elements have a text that are written as two tags."""
        return "" not in self._texts(pieces)

    def text_of(self, number: int, text: str) -> str:
        """The string value of an element of a document with this outline."""
        return _unescaped("".join(pieces_of(text)[2 * self.starts[number] + 2 : 2 * self.ends[number] + 1 : 2]))

    def attribute_of(self, number: int, place: int, text: str) -> tuple[str, str]:
        """(name, value) of an element's attribute at a position from 1."""
        _, values = skeleton_of(pieces_of(text)[2 * self.starts[number] + 1])
        return self.attributes[number][place - 1], _unescaped(values[place - 1])

    def markup_of(self, number: int, text: str) -> str:
        """An element of a document without namespaces, as it is written there."""
        start, end = self.starts[number] + 1, self.ends[number] + 1
        *within, last = text.split("<", end + 1)[start : end + 1]
        return "<" + "<".join([*within, last[: last.index(">") + 1]])

    @lazy
    def parents(self) -> list[int | None]:
        """Each element's parent, by number; None for the root."""
        found: list[int | None] = []
        waiting: list[int | None] = [None]
        for number, children in enumerate(self.counts):
            found.append(waiting.pop())
            waiting += [number] * children
        return found


class OutlineReader:
    """Reads documents with an outline into the fields of `ElementColumns`, which has their meaning. Childless elements
    are left out if no query mentions them, nor their attributes. `key` is that of tags and counts, and
    `attributes_key` that of owners and names."""

    def __init__(
        self,
        outline: DocumentOutline,
        owned: Mapping[str, bool] | None,
        valued: Mapping[str, bool],
        mentioned: Mapping[str, bool] | None,
    ) -> None:
        self.outline, counts = outline, [*outline.counts]
        self.tags, self.counts, numbers = list[str](), list[int](), list[int]()
        self.owners, self.places, self.names = list[int](), list[int](), list[str]()
        values = count()
        values_at = list[int]()
        for number, (tag, parent, names) in enumerate(
            zip(outline.tags, outline.parents, outline.attributes, strict=True)
        ):
            at = [*islice(values, len(names))]
            has_owned = bool(names) and owned is not None and owned[tag]
            if not (has_owned or counts[number] or parent is None or mentioned is None or mentioned[tag]):
                counts[parent] -= 1
                continue
            if has_owned:
                values_at += at
                self.owners += [len(self.tags)] * len(names)
                self.places += range(1, len(names) + 1)
                self.names += names
            self.tags.append(tag)
            numbers.append(number)
        self.counts = [counts[number] for number in numbers]
        self.numbers: Sequence[int] = numbers if len(numbers) < len(counts) else range(len(counts))
        self.key, self.attributes_key = outline_key(self.tags, self.counts), attributes_key(self.owners, self.names)
        # The text before the root is empty, as is that of an element that is one tag.
        both = ((outline.starts[number], outline.ends[number]) for number in self.numbers)
        self._texts = items_at([2 * start + 2 if end > start else 0 for start, end in both])
        # Also those of which all children are left out.
        inner = ((at, of) for at, of in enumerate(self.numbers) if outline.counts[of] and valued[self.tags[at]])
        self.inner = [(at, slice(2 * outline.starts[of] + 2, 2 * outline.ends[of] + 1, 2)) for at, of in inner]
        self._values = items_at(values_at)

    def read(self, pieces: list[str], values: Sequence[str], *, escaped: bool) -> HeldTexts:
        """Takes the text of each element up to its first child, or its whole value if it matters, and the values that
        matter of all attributes."""
        texts, values = self._texts(pieces), self._values(values) if self.names else ()
        if self.inner:
            texts = [*texts]
            for at, within in self.inner:
                texts[at] = "".join(pieces[within])
        if escaped:
            texts, values = _all_unescaped(texts), _all_unescaped(values)
        return self, texts, values


HeldTexts = tuple[OutlineReader, Sequence[str], Sequence[str]]
"""What a reader has read of one document: texts of elements, and values of attributes."""
Text = str | Callable[[], str] | None  # the text of a document, or what makes it


@dataclass(slots=True)
class _Stream:
    """How many documents of a stream had an outline that was met before (`hits`), or a new one or one that cannot be
    used; and how many will not be compared (`resting`). `vain`: how many more were compared before they were parsed and
    had to be parsed than not; and how many will be parsed at once (`written`)."""

    hits: int = 0
    misses: int = 0
    resting: int = 0
    vain: int = 0
    written: int = 0


class Outlines:
    """The cached outlines, and their readers into `columns`. `forget` after other tags become relevant."""

    def __init__(self, columns: Callable[[], ElementColumns]) -> None:
        self._columns = columns
        self._known: dict[TagSkeleton, DocumentOutline | None] = {}
        self._readers: dict[DocumentOutline, OutlineReader | None] = {}
        self._met = ClearedCache[int, int](MOST_OUTLINES)  # how many documents had a skeleton, by its hash
        self._streams = ClearedCache[str, _Stream](MOST_STREAMS)

    def forget(self) -> None:
        self._readers.clear()
        self._streams.clear()

    def parsed(
        self, documents: Iterable[tuple[str, bytes]], max_nodes: int | None
    ) -> Iterator[ParsedDocument | DocumentError]:
        """`parse_documents` for documents with their streams. Those with a known outline are not parsed if they are
        written as we would write them, but for quotes and CDATA sections."""
        most, waiting = _most_together(max_nodes), iter(documents)
        if self._columns().keeps_trees:
            most = 0
        for some in iter(lambda: list(islice(waiting, LOOKED_AT)), []):
            tried = [xml if len(xml) <= most and self._is_compared(stream) else b"" for stream, xml in some]
            read = zip(some, _delimited(tried), strict=True)
            found = [self._recognised(stream, len(xml), *one) if one[0] else None for (stream, xml), one in read]
            rest = [one for one, known in zip(some, found, strict=True) if known is None]
            parsed = parse_documents([xml for _, xml in rest], max_nodes=max_nodes)
            for (stream, xml), known, compared in zip(some, found, tried, strict=True):
                if known is None:
                    document = next(parsed)
                    if isinstance(document, ParsedDocument) and len(xml) <= most:
                        if not self._state(stream).resting:
                            document = ParsedDocument(document.top, document.size, document.xml())
                        self._look(stream, document)
                        if compared and document.outline is not None:
                            self._note_vain(self._state(stream))
                    yield document
                else:
                    yield known

    def hold(self, stream: str, document: ParsedDocument, columns: ElementColumns) -> bool:
        """Replaces all columns by those of a document. False if its tree must be read instead."""
        held, outline = document.held, document.outline
        if not document.is_looked_at or (held and outline and self._readers.get(outline) is not held[0]):
            self._look(stream, document)
            held = document.held
        if held is None:
            return False
        columns.hold_read(document, held)
        return True

    def _is_compared(self, stream: str) -> bool:
        """Whether the next document of a stream is compared before it is parsed."""
        state = self._state(stream)
        if state.written and not state.resting:
            state.written -= 1
            return False
        return not state.resting and bool(self._known)

    def _recognised(self, stream: str, size: int, xml: bytes, marks: bytes) -> ParsedDocument | None:
        """A document of a size that has a known outline, and whose tree would be written as the same text. `xml` and
        `marks` are what `_delimited` returns for it.

        The text is one that had the outline, with other texts and values of attributes. They are non-empty where those
        were, so it is well-formed if they have no `<`, only references as we write them, and no forbidden character."""
        is_read = marks[:1] == b"\1"
        if not (alternating := _ALTERNATING[is_read]).startswith(marks) and (
            b"\xef\xbf" in xml or not alternating.startswith(marks.replace(b"\xef", b""))
        ):
            return None  # U+FFFE and U+FFFF begin with these bytes
        try:
            text = xml.decode()
        except UnicodeDecodeError:
            return None
        pieces = text.replace("\2", "\1").split("\1") if is_read else pieces_of(text)
        tags = "\1".join(pieces[1::2])
        skeleton, values = skeleton_of(tags)
        if is_quoted := "'" in skeleton[0]:
            tags = _QUOTED.sub(_in_double_quotes, tags)
            skeleton, values = skeleton_of(tags)
        outline = self._known.get(skeleton)
        if outline is None or len(pieces) != outline.length or pieces[0] or pieces[-1] or not outline.has_texts(pieces):
            return None
        if values and (outline.is_normalised or "\n" in tags or "\t" in tags):
            return None
        if (reader := self._readers.get(outline) or self._reader(outline)) is None:
            return None
        if is_quoted:
            text = "".join([f"\1{tag}\2{after}" for tag, after in zip(tags.split("\1"), pieces[2::2], strict=True)])
        state = self._streams.get(stream) or self._state(stream)
        state.hits += 1
        state.vain -= state.vain > 0
        written = partial(_written, text) if text[0] == "\1" else text
        return ParsedDocument(None, size, written, reader.read(pieces, values, escaped=False))

    def _look(self, stream: str, document: ParsedDocument) -> None:
        """Finds the outline of a document with a text, and reads it so if possible."""
        document.is_looked_at, document.held, state = True, None, self._state(stream)
        if state.resting:
            state.resting -= 1
            return
        if (text := document.text) is None:
            return
        pieces = pieces_of(text)
        skeleton, values = skeleton_of("\1".join(pieces[1::2]))
        is_known = skeleton in self._known
        outline = self._known[skeleton] if is_known else self._new(skeleton, document, state)
        reader = None if outline is None else self._reader(outline)
        if outline is None or reader is None:
            state.misses += is_known
            if state.misses == TRIAL:
                state.resting = PAUSE if state.hits < 2 * TRIAL else 0
                state.hits = state.misses = 0
            return
        state.hits += 1
        document.outline, document.held = outline, reader.read(pieces, values, escaped="&" in text)

    def _new(self, skeleton: TagSkeleton, document: ParsedDocument, state: _Stream) -> DocumentOutline | None:
        """The outline of a document with a skeleton that is not known; None if it is not to be used."""
        mark = hash(skeleton)
        met = self._met[mark] = self._met.get(mark, 0) + 1
        state.misses += met == 1
        state.hits += met > 1
        if met < RUN or skeleton[0].count("\1") >= MOST_TAGS:
            return None
        if len(self._known) >= MOST_OUTLINES:
            self._known.clear()
            self._readers.clear()
        try:
            outline = DocumentOutline(skeleton, list(document.top.iter()))
        except ValueError:
            outline = None
        self._known[skeleton] = outline
        return outline

    def _note_vain(self, state: _Stream) -> None:
        if not state.written:
            state.vain += 1
            if state.vain >= TRIAL:
                state.vain, state.written = 0, PAUSE

    def _state(self, stream: str) -> _Stream:
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = _Stream()
        return state

    def _reader(self, outline: DocumentOutline) -> OutlineReader | None:
        if outline not in self._readers:
            self._readers[outline] = self._columns().reader(outline)
        return self._readers[outline]


def outline_key(tags: Sequence[str], counts: Sequence[int]) -> tuple[str, bytes]:
    """The hash of either is computed once."""
    return " ".join(tags), array("I", counts).tobytes()  # no name has a blank


def attributes_key(owners: Sequence[int], names: Sequence[str]) -> str:
    """A text, because its hash is computed once."""
    return " ".join([*map(str, owners), *names])


def pieces_of(text: str) -> list[str]:
    """The tags of a document, without `<` and `>`, and the texts before and after each."""
    return text.replace(">", "<").split("<")


def skeleton_of(tags: str) -> tuple[TagSkeleton, Sequence[str]]:
    """The skeleton of a document's tags, joined by U+0001, and the values of its attributes but namespaces."""
    parts = tags.split('"')
    if len(parts) % 2 == 0:
        return ("",), []  # no document's
    names, values = '"'.join(parts[::2]), parts[1::2]
    if " xmlns" not in names:
        return (names,), values
    of_namespaces, of_others = _namespaces(names)
    return (names, *of_namespaces(values)), of_others(values)


@lru_cache(MOST_OUTLINES)
def _namespaces(names: str) -> tuple[ItemsAt[str], ItemsAt[str]]:
    """What take, of the values of all attributes, those of namespaces and the others."""
    places: tuple[list[int], list[int]] = ([], [])
    for place, name in enumerate(names.split('"')[:-1]):
        places[not name.rpartition(" ")[2].startswith("xmlns")].append(place)
    return items_at(places[0]), items_at(places[1])


def _written(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\1", "<").replace("\2", ">")


def _in_double_quotes(attribute: re.Match[str]) -> str:
    return attribute[1] or f'="{attribute[2]}"'


def _delimited(xmls: Sequence[bytes], *, read: bool = False) -> Iterable[tuple[bytes, bytes]]:
    """Each document, and of it `<`, `>`, forbidden characters, and the first byte of some that are not well-formed.
    Those with CDATA sections or references are read: `<` and `>` of tags become U+0001 and U+0002."""
    joined = b"\0".join(xmls)
    if b"\1" in joined or b"\2" in joined or b"\3" in joined:
        xmls = [b"" if {*b"\1\2\3"} & {*xml} else xml for xml in xmls]
        joined = b"\0".join(xmls)
    if read := read or _SECTION in joined:
        first, *others = joined.split(_SECTION)
        parts, before = [_read(first)], b"<" + first
        for other in others:
            parts += _read_section(before, *other.partition(b"]]>"))
            before = other
        joined = b"".join(parts)
    marks = joined.translate(None, _READ if read else _PLAIN).split(b"\0")
    if len(marks) != len(xmls):
        return chain.from_iterable([(xml, b"\0")] if b"\0" in xml else _delimited([xml], read=read) for xml in xmls)
    if read:
        return zip(joined.split(b"\0"), marks, strict=True)
    found = [*zip(xmls, marks, strict=True)]
    if some := [place for place, of in enumerate(marks) if b"&" in of]:
        for place, one in zip(some, _delimited([xmls[place] for place in some], read=True), strict=True):
            found[place] = one
    return found


def _read(xml: bytes) -> bytes:
    """XML without CDATA sections, with U+0004 for references that we do not write so."""
    xml = xml.translate(_TO_DELIMITERS)
    if b"&" in xml:
        xml = xml.replace(b"&lt;", b"<").replace(b"&gt;", b">")
        xml = xml.replace(b"&amp;", b"\3").replace(b"&", b"\4").replace(b"\3", b"&")
    return xml


def _read_section(before: bytes, text: bytes, end: bytes, after: bytes) -> tuple[bytes, bytes]:
    """The text of a CDATA section, and what follows it."""
    if not end or b"\0" in text:
        return b"", _read(_SECTION + text + end + after)  # it does not end in its document
    if not (before.endswith(b">") and after.startswith(b"<")):  # mostly it is all of a text
        before = before[before.rfind(b">") + 1 :]
        reference = before.rfind(b"&")
        in_tag_or_outside = b"<" in before or b"\0" in before or after[:1] in (b"", b"\0")
        in_reference = reference >= 0 and b";" not in before[reference:]
        if in_tag_or_outside or in_reference or text[:1] in _CONTINUING or after[:1] in _CONTINUING:
            return b"\1\1", _read(after)
    return text, _read(after)


_OTHER_ESCAPES = (("&quot;", '"'), ("&#9;", "\t"), ("&#10;", "\n"), ("&#13;", "\r"))


def _unescaped(text: str) -> str:
    if "&" in text:
        text = text.replace("&lt;", "<").replace("&gt;", ">")
        if "&#" in text or "&quot;" in text:
            for escape, character in _OTHER_ESCAPES:
                text = text.replace(escape, character)
        return text.replace("&amp;", "&")
    return text


def _all_unescaped(texts: Sequence[str]) -> Sequence[str]:
    return [_unescaped(text) if "&" in text else text for text in texts]


NODE_BYTES = 4  # minimum size of an element or an attribute: `<a/>`

MAX_NAMESPACES = 1_000
"""Maximum number of namespace declarations in scope at an element: serialising it takes quadratic time in them."""

ROOM_FOR_MANY_NAMESPACES = 5 * MAX_NAMESPACES  # minimum size in bytes of a document with more, also if it uses entities

_SOME_IN_A_TAG = re.compile(rb"xmlns(?>[^<]*?xmlns){3}")
"""Matches a tag with four declarations or more, and its text. 256 levels with fewer have fewer than 1,000."""

_EXPANSION, _EXPANSION_FREE = 6, 1_000_000
"""The factor by which entities may enlarge a document before libxml2 gives up, and the bytes that it always allows."""


def excess(xml: bytes, prolog: Prolog, max_nodes: int) -> str:
    """Why a document is too large for a tree, or "", in linear time. It may have `max_nodes` elements and attributes.
    Ill-formed documents are left to the parser."""
    if _may_exceed(xml, prolog, max_nodes):
        try:
            etree.fromstring(xml, xml_parser(target=_Counter(max_nodes)))
        except _EnoughError as enough:
            return str(enough)
        except (etree.XMLSyntaxError, ValueError):
            pass
    return ""


def _may_exceed(xml: bytes, prolog: Prolog, max_nodes: int) -> bool:
    size = len(xml)
    roomy = size >= ROOM_FOR_MANY_NAMESPACES
    if prolog.entities:
        return roomy or _EXPANSION * size + _EXPANSION_FREE >= NODE_BYTES * max_nodes
    if size < NODE_BYTES * max_nodes and not roomy:
        return False
    encoding = wide_encoding(xml)
    if size >= NODE_BYTES * max_nodes:
        tags = xml.count(b"<") - (0 if encoding else xml.count(b"</"))
        if tags + xml.count(b"=") > max_nodes:
            return True
    if not roomy or xml.count("xmlns".encode(encoding or "ascii")) <= MAX_NAMESPACES:
        return False
    return encoding is not None or _SOME_IN_A_TAG.search(xml) is not None


class _EnoughError(Exception): ...


class _Counter:
    def __init__(self, max_nodes: int) -> None:
        self._left = self._most = max_nodes
        self._namespaces = 0
        self._declared: list[int] = []

    def start(self, _tag: str, attributes: dict[str, str], namespaces: dict[str | None, str]) -> None:
        self._left -= 1 + len(attributes)
        if self._left < 0:
            raise _EnoughError(f"more than {self._most:,} elements and attributes")
        self._declared.append(len(namespaces))
        self._namespaces += len(namespaces)
        if self._namespaces > MAX_NAMESPACES:
            raise _EnoughError(f"more than {MAX_NAMESPACES:,} declarations of namespaces at one element")

    def end(self, _tag: str) -> None:
        self._namespaces -= self._declared.pop()

    def close(self) -> None: ...


MAX_BYTES = 16 << 20
"""Maximum size of an external document. Its tree takes up to 75 times as much memory."""

MOST_NODES = MAX_BYTES // NODE_BYTES
"""Maximum number of elements and attributes. Entities must not make a document larger than it could be without."""

MAX_ATTRIBUTES = 1_000  # maximum number of an element's attributes: listing them takes quadratic time

ROOM_FOR_MANY_ATTRIBUTES = 5 * MAX_ATTRIBUTES  # minimum size in bytes of a document with more attributes at an element

_HAS_MANY = etree.XPath(f"boolean(//@*[{MAX_ATTRIBUTES + 1}])")


class DocumentError(InputError, ValueError):
    """A document that cannot be read: the message has the place and the cause."""


class ParsedDocument:
    """The tree of a document. Its elements are numbered in document order, from 0. `size` is its XML's length in bytes.
    `top` is its root element, perhaps beside other documents in a larger tree, so use it only to look down. `text` is
    what `xml` returns, and is parsed when the tree is needed if there is none. `outline` is the shared structure, if
    known, and `held` what was read with it."""

    __slots__ = ("__dict__", "_text", "_top", "held", "is_looked_at", "outline", "size")

    def __init__(self, top: etree._Element | None, size: int, text: Text = None, held: HeldTexts | None = None) -> None:
        self._top, self.size, self._text, self.held = top, size, text, held
        self.outline: DocumentOutline | None = None if held is None else held[0].outline
        self.is_looked_at = held is not None  # whether its outline has been looked for

    @property
    def text(self) -> str | None:
        text = self._text
        if callable(text):
            text = self._text = text()
        return text

    @property
    def top(self) -> etree._Element:
        if (top := self._top) is None:
            assert self.text is not None, "a document has a tree or a text"
            top = self._top = etree.fromstring(self.text, PARSERS[True])
        return top

    @lazy
    def root(self) -> etree._Element:
        return self.top if self.top.getparent() is None else deepcopy(self.top)

    def xml(self) -> str:
        text = self._text if isinstance(self._text, str) else self.text
        return etree.tostring(self.top, encoding="unicode", with_tail=False) if text is None else text

    @lazy
    def elements(self) -> list[etree._Element]:
        return list(self.top.iter())

    @lazy
    def number(self) -> dict[etree._Element, int]:
        return {element: i for i, element in enumerate(self.elements)}

    @lazy
    def end(self) -> list[int]:
        """For each element, the number after that of its last descendant."""
        ends = list(range(1, len(self.elements) + 1))
        for i in range(len(self.elements) - 1, 0, -1):
            parent = self.parent[i]
            assert parent is not None, "only the root element has no parent"
            ends[parent] = max(ends[parent], ends[i])
        return ends

    @lazy
    def parent(self) -> list[int | None]:
        """Each element's parent, by number; None for the root."""
        if self.outline is not None:
            return self.outline.parents
        numbers = self.number
        above = (element.getparent() for element in self.elements)
        parents = [None if one is None else numbers.get(one) for one in above]
        parents[0] = None  # what is above the root element is not of this document
        return parents

    @lazy
    def shape(self) -> object:
        """Equal for documents whose elements and attributes have the same names in the same order."""
        if self.outline is not None:
            return self.outline
        named = [(str(element.tag), len(element), *element.attrib) for element in self.elements]
        return tuple(named)

    def attribute(self, element: int, place: int) -> tuple[str, str]:
        """(name, value) of an element's attribute at a position from 1."""
        if self.outline is not None and self.text is not None:
            return self.outline.attribute_of(element, place, self.text)
        name, value = self.elements[element].attrib.items()[place - 1]
        return str(name), str(value)

    def string_value(self, element: int, attribute: int = 0) -> str:
        """XPath's string value: of an attribute, or all text in an element (`attribute` 0)."""
        if attribute:
            return self.attribute(element, attribute)[1]
        if self.outline is not None and self.text is not None:
            return self.outline.text_of(element, self.text)
        return element_text(self.elements[element])


class StreamDocument(NamedTuple):
    """A parsed document with its id, stream and interval in UTC microseconds."""

    docid: int
    stream: str
    t0: int
    t1: int
    tree: ParsedDocument


Arriving = tuple[int, str, int, int, ParsedDocument]  # the fields of a `StreamDocument`, as a plain tuple


def element_text(element: etree._Element) -> str:
    if len(element) == 0:
        return element.text or ""
    return etree.tostring(element, method="text", encoding="unicode", with_tail=False)


def parse_document(xml: bytes, *, trusted: bool = False, max_nodes: int | None = None) -> ParsedDocument:
    """Parses a document of at most `max_nodes` elements and attributes. Raises DocumentError. `trusted`, for documents
    that we wrote, lifts our limits and libxml2's (256 levels, 10 MB a text node)."""
    size = len(xml)
    if size > MAX_BYTES and not trusted:
        raise DocumentError(f"larger than {MAX_BYTES >> 20} MiB")
    # A document that starts with its root element is in UTF-8 and has no DOCTYPE.
    bare = size > 1 and xml[0] == _LESS_THAN and _FIRST_LETTER <= xml[1] <= _LAST_LETTER
    prolog = _BARE if bare else read_prolog(xml)
    if prolog.refused:
        raise DocumentError(prolog.refused)
    if not trusted and (cause := excess(xml, prolog, MOST_NODES if max_nodes is None else max_nodes)):
        raise DocumentError(cause)
    parser = PARSERS[trusted]
    try:
        root = etree.fromstring(xml, parser)
    except etree.XMLSyntaxError as error:
        line, column = error.position
        raise DocumentError(f"line {line}, column {column}: {_cause(error.msg)}") from None
    except ValueError as error:
        raise DocumentError(str(error)) from None
    # lxml ignores an error if a warning follows it.
    for entry in parser.error_log:
        if entry.level >= etree.ErrorLevels.ERROR:
            raise DocumentError(f"line {entry.line}, column {entry.column}: {_cause(entry.message)}")
    if not prolog.understood and root.getroottree().docinfo.doctype:  # type: ignore[union-attr]  # one exists
        raise DocumentError("the DOCTYPE cannot be read: write it in UTF-8")
    roomy = size > ROOM_FOR_MANY_ATTRIBUTES and not trusted and not (bare and _has_short_tags(xml))
    if roomy and _HAS_MANY(root):
        raise DocumentError(f"an element has more than {MAX_ATTRIBUTES:,} attributes")
    return ParsedDocument(root, size)


def _has_short_tags(xml: bytes) -> bool:
    """Whether every stretch of half the size of too many attributes contains the start of a tag, so that no tag is that
    long. For UTF-8 without a DOCTYPE, which could add attributes."""
    step = ROOM_FOR_MANY_ATTRIBUTES // 2
    return all(xml.find(b"<", place, place + step) >= 0 for place in range(0, len(xml) - step, step))


def _cause(message: str | None) -> str:
    return (message or "not well-formed").split(", line ")[0].strip()


PARSERS = {trusted: xml_parser(elements_only=True, trusted=trusted) for trusted in (False, True)}
"""The parsers of all documents, by whether they are trusted."""

_LESS_THAN, _FIRST_LETTER, _LAST_LETTER = b"<Az"
_BARE = Prolog(understood=True)


MOST_TEXT = 4
"""Maximum eagerly read text of elements with children by the document's size: it is also part of their ancestors'."""


class ElementColumns:
    """Columns over elements, numbered in document order across all documents.

    `owned` says for each tag whether its attributes matter; None if no attributes do. `valued` says whether its string
    values do. `interned` returns one object for each name, and `mentioned` whether childless elements matter; None
    if all do. `trees`: `element` will be called. `tags`, `counts` and `texts` have an entry per element;
    `owners`, `places`, `names` and `values` one per attribute that may matter. Childless elements that do not matter
    may be left out.
    """

    def __init__(
        self,
        owned: Mapping[str, bool] | None,
        valued: Mapping[str, bool],
        interned: Mapping[str, str],
        mentioned: Mapping[str, bool] | None = None,
        *,
        trees: bool,
    ) -> None:
        self._owned, self._valued, self._interned, self.keeps_trees = owned, valued, interned, trees
        self._mentioned = None if trees else mentioned
        self.tags: list[str] = []  # `{uri}local` or `local`
        self.numbers: Sequence[int] = ()  # the numbers in the single document that is held
        self._gaps: list[tuple[int, Sequence[int]]] = []
        """The first element, and `numbers`, of each added document of which some elements are left out."""
        self.counts: list[int] = []  # number of child elements
        self.texts: list[str | None] = []
        """The string value of each element that is childless, or whose value matters. None may stand for ''."""
        self.owners: list[int] = []  # the element of each attribute, by number
        self.places: list[int] = []  # the position of each attribute in its element, from 1
        self.names: list[str] = []
        self.values: list[str] = []
        self.first: list[int] = [0]
        """The first element of each document, by number, and at the end the number of all elements."""
        self.outline: OutlineReader | None = None  # what read the single document, if it was held by its text
        self._trees: list[ParsedDocument] = []
        self.unread: dict[int, etree._Element] = {}  # elements whose values are read into `texts` on demand, by number

    def add(self, document: ParsedDocument) -> None:
        if self._owned is None:
            self._read_elements(document)
        else:
            self._read_attributes_too(document, self._owned)
        if self.keeps_trees:
            self._trees.append(document)
        self.first.append(len(self.tags))

    def hold(self, document: ParsedDocument) -> None:
        """Replaces all columns by those of one document. `first` stays unchanged."""
        if self.unread:
            self.unread = {}
        self.outline = None
        self.tags, self.counts, self.texts = [], [], []
        if self._owned is None:
            self._read_elements(document)
        else:
            self.owners, self.places, self.names, self.values = [], [], [], []
            self._read_attributes_too(document, self._owned)
        self.numbers = range(len(self.tags))
        if self.keeps_trees:
            self._trees = [document]

    def reader(self, outline: DocumentOutline) -> OutlineReader | None:
        """None if too many values of elements with children matter in documents with an outline."""
        reader = OutlineReader(outline, self._owned, self._valued, self._mentioned)
        return reader if len(reader.inner) <= MOST_TEXT else None

    def hold_read(self, document: ParsedDocument, held: HeldTexts) -> None:
        if self.unread:
            self.unread = {}
        of, self.texts, self.values = held  # type: ignore[assignment]  # columns that are held are only read
        self.outline, self.tags, self.counts, self.numbers = of, of.tags, of.counts, of.numbers
        self.owners, self.places, self.names = of.owners, of.places, of.names
        if self.keeps_trees:
            self._trees = [document]

    def add_held(self, other: ElementColumns) -> None:
        before = len(self.tags)
        if other.unread:
            self.unread.update((before + number, element) for number, element in other.unread.items())
        if other.owners:
            self.owners += [before + owner for owner in other.owners]
            self.places += other.places
            self.names += other.names
            self.values += other.values
        self.tags += other.tags
        self.counts += other.counts
        self.texts += other.texts
        if len(other.numbers) <= other.numbers[-1]:
            self._gaps.append((before, other.numbers))
        self._trees += other._trees
        self.first.append(len(self.tags))

    # The same loop twice, because it is most of stage 1: asking for each element whether attributes matter takes 5 % of
    # the time. Interning names saves 10 % in a large document, where names are looked up again and again.

    def _read_elements(self, document: ParsedDocument) -> None:
        tags, counts, texts, valued, interned = self.tags, self.counts, self.texts, self._valued, self._interned
        left = MOST_TEXT * document.size
        for element in document.top.iter():
            children, tag = len(element), interned[element.tag]
            if children and valued[tag]:
                left = self._add_value(element, left)
            else:
                texts.append(element.text)
            tags.append(tag)
            counts.append(children)

    def _read_attributes_too(self, document: ParsedDocument, owned: Mapping[str, bool]) -> None:
        tags, counts, texts, valued, interned = self.tags, self.counts, self.texts, self._valued, self._interned
        owners, places, names, values = self.owners, self.places, self.names, self.values
        left = MOST_TEXT * document.size
        for element in document.top.iter():
            tag = interned[element.tag]
            if (attributes := element.items()) and owned[tag]:
                place = 0
                for name, value in attributes:
                    place += 1  # noqa: SIM113  # most elements have none or one: `enumerate` takes longer
                    owners.append(len(tags))
                    places.append(place)
                    names.append(name)  # type: ignore[arg-type]  # only names of our own making could be bytes
                    values.append(value)  # type: ignore[arg-type]  # as above
            children = len(element)
            if children and valued[tag]:
                left = self._add_value(element, left)
            else:
                texts.append(element.text)
            tags.append(tag)
            counts.append(children)

    def _add_value(self, element: etree._Element, left: int) -> int:
        """Adds the value of the next element, which has children, or defers it. Returns the remaining eager budget."""
        if left >= 0:
            text = element_text(element)
            self.texts.append(text)
            return left - len(text)
        self.unread[len(self.tags)] = element
        self.texts.append(None)
        return left

    def element(self, number: int) -> etree._Element:
        """Requires `trees`."""
        place = bisect_right(self.first, number) - 1
        return self._trees[place].elements[number - self.first[place]]

    def left_out_before(self) -> Ints | None:
        """How many elements of the document before each element were left out; None if none were anywhere."""
        if not self._gaps:
            return None
        left_out = np.zeros(self.first[-1], np.int64)
        for start, numbers in self._gaps:
            left_out[start : start + len(numbers)] = numbers
            left_out[start : start + len(numbers)] -= np.arange(len(numbers))
        return left_out

    def read_values(self, numbers: Iterable[int]) -> None:
        """Reads the unread ones of some elements' values."""
        for number in numbers:
            if (element := self.unread.pop(number, None)) is not None:
                self.texts[number] = element_text(element)


OTHER = "\0"  # stands for a local name or namespace that no test mentions; no XML name contains it


class Vocabulary:
    """The registered name tests, counted."""

    def __init__(self) -> None:
        self._locals: Counter[str] = Counter()
        self._uris: Counter[str] = Counter()

    def add(self, test: Test) -> None:
        self._locals[test.local] += 1
        self._uris[test.uri] += 1

    def remove(self, test: Test) -> None:
        decrease(self._locals, test.local)
        decrease(self._uris, test.uri)

    def mentions(self, name: str) -> bool:
        """Whether any test may accept it: if not, a childless element neither binds nor counts."""
        return "*" in self._locals or split_name(name)[1] in self._locals

    def canonical(self, name: str) -> str:
        """The canonical name that passes the same tests; there are only as many as the tests distinguish."""
        uri, local = split_name(name)
        if local not in self._locals:
            local = OTHER
        if uri and uri not in self._uris:
            uri = OTHER
        return f"{{{uri}}}{local}" if uri else local


class Tags:
    """The tags that pass any of some counted tests. All tags pass the test None."""

    def __init__(self) -> None:
        self._tests: Counter[Test | None] = Counter()

    def add(self, test: Test | None) -> None:
        self._tests[test] += 1

    def remove(self, test: Test | None) -> None:
        decrease(self._tests, test)

    def __bool__(self) -> bool:
        return bool(self._tests)

    def __contains__(self, tag: str) -> bool:
        return any(test is None or test.accepts(tag) for test in self._tests)


def owner_test(parent: Test | None, axis: str) -> Test | None:
    """The test for an attribute's owner, on this axis below a node that passes `parent`; None for no test."""
    return parent if axis == "/" else None


def split_name(name: str) -> tuple[str, str]:
    """(namespace, local name) of lxml's `{uri}local`."""
    if name.startswith("{"):
        uri, local = name[1:].rsplit("}", 1)
        return uri, local
    return "", name


MOST, MOST_BYTES = 32, 1 << 14
"""Maximum number and size of documents that are parsed together. More exceed the processor's caches: 256 documents take
as long on a quiet machine, and up to 20 % longer on a busy one."""

SMALL = ROOM_FOR_MANY_ATTRIBUTES
"""Maximum size in bytes of a document that is parsed with others; larger ones gain less."""

_BREAK = "break" + token_hex(8)
"""An element name that no document has, because it is random. One per process, because libxml2 never frees a name."""

_OPEN, _BETWEEN, _CLOSE = f"<{_BREAK}>".encode(), f"<{_BREAK}/>".encode(), f"</{_BREAK}>".encode()
_DECLARATION = re.compile(
    rb"""\A<\?xml\s+version\s*=\s*(?:"1\.0"|'1\.0')(?:\s+encoding\s*=\s*(?:"utf-8"|'utf-8'))?\s*\?>[ \t\r\n]*""", re.I
)
_TAG_OPEN, _A, _Z, _GREATER_THAN = b"<Az>"
_ENDS = itemgetter(0, 1, -2, -1)
_NO_TAG_ENDS = b"-?]"  # characters before the last `>` of a comment, a processing instruction or CDATA

_AS_EXPECTED = etree.XPath(f"count({_BREAK}) = $breaks and count(*) = 2 * $breaks + 1 and not(text())")


def parse_documents(
    xmls: Iterable[bytes], *, trusted: bool = False, max_nodes: int | None = None
) -> Iterator[ParsedDocument | DocumentError]:
    """`parse_document`'s result or error for each document, in order."""
    most = _most_together(max_nodes)

    def alone(xml: bytes) -> ParsedDocument | DocumentError:
        try:
            return parse_document(xml, trusted=trusted, max_nodes=max_nodes)
        except DocumentError as error:
            return error

    def parsed(xmls: list[bytes]) -> Iterable[ParsedDocument | DocumentError]:
        small = [xml for xml in xmls if len(xml) <= most]
        if sum(map(len, small)) > MOST_BYTES:
            half = len(xmls) // 2
            return chain.from_iterable(map(parsed, (xmls[:half], xmls[half:])))
        together = _together(small, trusted) if len(small) > 1 else None
        if together is None:
            return map(alone, xmls)
        if len(small) == len(xmls):
            return together
        some = iter(together)
        return (next(some) if len(xml) <= most else alone(xml) for xml in xmls)

    waiting = iter(xmls)
    return chain.from_iterable(map(parsed, iter(lambda: list(islice(waiting, MOST)), [])))


def _most_together(max_nodes: int | None) -> int:
    return SMALL if max_nodes is None else min(SMALL, NODE_BYTES * max_nodes)


def _together(xmls: list[bytes], trusted: bool) -> list[ParsedDocument] | None:
    """The documents; None unless each is certainly exactly one element.

    If all breaks are children of the root element, the parser was at that level wherever a document began or ended.
    Then a document begins with an element. Its last `>` ends an element, or is text at that level, of which there is
    none. There are as many other children as documents, so each document has one, which begins and ends with it."""
    sizes = map(len, xmls)
    if not _all_elements(xmls):
        xmls = [_DECLARATION.sub(b"", xml, count=1).strip(b" \t\r\n") for xml in xmls]
        if not _all_elements(xmls):
            return None
    parser = PARSERS[trusted]
    try:
        # In one pass, because the joined bytes do not fit into the caches of the processor twice.
        root = etree.fromstring(_BETWEEN.join((_OPEN + xmls[0], *xmls[1:-1], xmls[-1] + _CLOSE)), parser)
    except (etree.XMLSyntaxError, ValueError):
        return None
    # Documents with warnings, or errors that lxml ignores, are parsed one by one.
    if parser.error_log or not _AS_EXPECTED(root, breaks=len(xmls) - 1):
        return None
    # Serializing all of them together takes half the time.
    texts = cache(lambda: etree.tostring(root, encoding="unicode")[len(_OPEN) : -len(_CLOSE)].split(_BETWEEN.decode()))
    written = (lambda place=place: texts()[place] for place in count())
    return list(map(ParsedDocument, root[::2], sizes, written))  # type: ignore[index]  # the stubs know no slices


def _all_elements(xmls: Sequence[bytes]) -> bool:
    """Whether each begins with a start tag, and none ends with a comment, a processing instruction or CDATA."""
    if min(map(len, xmls)) < len(b"<a/>"):
        return False
    return all(
        first == _TAG_OPEN and (_A <= second <= _Z) and last == _GREATER_THAN and last_but_one not in _NO_TAG_ENDS
        for first, second, last_but_one, last in set(map(_ENDS, xmls))
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum number of cached `states` of the automaton (3 KB each), `classes` of nodes and names, `emissions` of
    nodes, and `shapes` of documents (0 for none). A full cache is cleared, which `flushes` counts."""

    states: int = 100_000
    classes: int = 200_000
    emissions: int = 200_000
    shapes: int = 10_000


DEFAULT = Limits()
