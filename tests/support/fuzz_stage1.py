"""Fuzzes stage 1 with mutated XML, and compares it with expat and exact matching."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from xml.parsers import expat

from tests.generate.documents import document_xml
from tests.support.conjuncts import conjuncts_of
from tests.support.witnessed import Stage
from xpath_stage.documents import DocumentError, Limits, ParsedDocument, StreamDocument, parse_document
from xpath_stage.evaluator import XPathStage
from xscl.parser import parse_script

ROUND = 40
"""The number of documents that are matched together."""

MAX_BYTES = 4_000
"""The largest document. Exact matching of larger ones takes long."""

SEEDS = (
    b"<a><b>1</b><b k='1'>2</b><c>u</c><a><b>1</b><c/></a></a>",
    b"<?xml version='1.0'?>\r\n<!-- c --><a k='1' m=\"2\">1<b> 1\n2 </b>3<!-- 4 --><c><![CDATA[<5>]]></c>&lt;6</a>\n",
    b"<p:a xmlns:p='u:x' xmlns='u:y' p:k='1' k='2' xml:lang='de'><b xmlns=''>1</b><p:b>2</p:b><b/></p:a>",
    b"<!DOCTYPE a [<!ENTITY e '1<b>2</b>'><!ENTITY f '&e;3'>]><a k='1'>&f;<b>&#49;&#x32;</b><a>&e;</a></a>",
    b"<!DOCTYPE a [<!ELEMENT a (b)*><!ATTLIST a k NMTOKENS #IMPLIED>]><a k=' 1  2 ' xmlns:q='u:x'> <q:b/> <b/></a>",
    b"<a>" * 30 + b"1<b>HTTP://EX.org:80/P?b=2&amp;a=1#t</b>" + b"</a>" * 30,
    "<a><b>\u00e9\u0130\u01c5\ufb01</b><\u00e9\u0131 \u00fc='\U0001f600'/><b>\u2028\u0085\u00a01</b></a>".encode(),
)
"""Well-formed documents with the names that the queries use."""

DECLARATIONS = (
    "<!ENTITY e '1'>", "<!ENTITY e '1<b k=\"2\">2</b>&f;'>", "<!ENTITY f '<!-- c -->&#38;<?p i?>'>",
    "<!ENTITY f '<b>'>", "<!ENTITY e '&e;'>", "<!ENTITY e SYSTEM 'file:///etc/hostname'>",
    "<!ENTITY e PUBLIC '-//x' 'x'>", "<!ENTITY e SYSTEM 'x' NDATA n>", "<!ENTITY lt SYSTEM 'x'>",
    "<!ENTITY % p \"<!ENTITY e SYSTEM 'x'>\">", "<!ENTITY % p SYSTEM 'x'>", "%p;", "<!ELEMENT a (b|c)*>",
    "<!ATTLIST a k CDATA '1' m NMTOKENS #IMPLIED>", "<!ATTLIST b k ID #IMPLIED m (1|2) '2'>",
    "<!ATTLIST a k NMTOKENS #IMPLIED m CDATA #IMPLIED>", "<!ATTLIST b k ID #IMPLIED m (1|2) #REQUIRED>",
    "<!ATTLIST a xmlns CDATA 'u:x'>", "<!ATTLIST a xmlns:p CDATA ''>", "<!ATTLIST a p:k CDATA '1'>",
    "<!ENTITY e '1&#60;b>2'>", "<!ENTITY b '&#38;#60;'>", "<!ATTLIST b xmlns:p CDATA 'u:x'>",
    "<!NOTATION n SYSTEM 'n'>", "<!-- c -->", "<?p i?>",
)  # fmt: skip

PIECES = tuple(
    piece if isinstance(piece, bytes) else piece.encode("utf-8", "surrogatepass")
    for piece in (
        "&e;", "&f;", "&lt;", "&amp;", "&quot;", "&nbsp;", "&#49;", "&#0;", "&#13;", "&#xD800;", "&#x10FFFF;", "%p;",
        "<![CDATA[1]]>", "<![CDATA[", "]]>", "<!-- c -->", "<!-- -- -->", "<!---->", "<?p i?>", "<?xml version='1.0'?>",
        "<?xml version='1.1' encoding='utf-16' standalone='yes'?>", " k='1'", " k=\"&e;\"", " p:k='1'", " m", " k=1",
        " xmlns='u:x'", " xmlns=''", " xmlns:p='u:x'", " xmlns:p=''", " xmlns:xml='u:x'", " xmlns='u}x'",
        " xmlns='relative'",
        " xml:space='preserve'", " xml:id='1'", "<a>", "</a>", "<b/>", "<c>", "</c>", "<p:b>", "</p:b>", "<p:a:b/>",
        "<xi:include xmlns:xi='http://www.w3.org/2001/XInclude' href='x'/>", "<", ">", "/", "=", "'", '"', ":", "-",
        "1", "1.0", " 1 ", "\r\n", "\r", "\t", "\0", "\x01", "\x7f", "\x85", "\u00b7", "\u2028", "\ufeff", "\ufffe",
        "\ud800", "\U0001f600", "\u0345", "\u0130", b"\xc0\xbc", b"\xff", b"\xfe\xff", b"\x1b$B",
    )
)  # fmt: skip

ENCODINGS = (
    "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "iso-8859-1",
    "us-ascii", "windows-1252", "iso-8859-15", "koi8-r", "cp037", "utf-7", "shift_jis", "euc-jp",
)  # fmt: skip

Mutation = Callable[[Random, bytes], bytes]


def mutated(rng: Random) -> bytes:
    """A document that was well-formed, with some mutations, or none."""
    xml = document_xml(rng, 12) if rng.randrange(3) == 0 else rng.choice(SEEDS)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        xml = rng.choice(MUTATIONS)(rng, xml)
    return xml[:MAX_BYTES]


def _place(rng: Random, xml: bytes) -> int:
    places = [found.start() for found in re.finditer(rb"[<>&;='\"/ ]", xml)] if rng.randrange(2) else []
    return rng.choice(places) + rng.randrange(2) if places else rng.randrange(len(xml) + 1)


def _chunk(rng: Random, xml: bytes) -> tuple[int, int]:
    start, end = sorted((_place(rng, xml), _place(rng, xml)))
    return start, end


def flip(rng: Random, xml: bytes) -> bytes:
    changed = bytearray(xml)
    for _ in range(rng.choice((1, 1, 2, 8)) if xml else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def insert(rng: Random, xml: bytes) -> bytes:
    place = _place(rng, xml)
    return xml[:place] + rng.choice(PIECES) + xml[place:]


def wrap(rng: Random, xml: bytes) -> bytes:
    """Puts a chunk into a CDATA section, a comment, a processing instruction or an element."""
    start, end = _chunk(rng, xml)
    before, after = rng.choice(((b"<![CDATA[", b"]]>"), (b"<!--", b"-->"), (b"<?p ", b"?>"), (b"<a k='1'>", b"</a>")))
    return xml[:start] + before + xml[start:end] + after + xml[end:]


def truncate(rng: Random, xml: bytes) -> bytes:
    return xml[: _place(rng, xml)]


def delete(rng: Random, xml: bytes) -> bytes:
    start, end = _chunk(rng, xml)
    return xml[:start] + xml[end:]


def duplicate(rng: Random, xml: bytes) -> bytes:
    start, end = _chunk(rng, xml)
    place = rng.choice((end, _place(rng, xml)))
    return xml[:place] + xml[start:end] * rng.choice((1, 1, 2, 5)) + xml[place:]


def splice(rng: Random, xml: bytes) -> bytes:
    other = rng.choice(SEEDS)
    return xml[: _place(rng, xml)] + other[_place(rng, other) :]


def declare(rng: Random, xml: bytes) -> bytes:
    """Puts a DOCTYPE, mostly before the root element, and a reference to an entity somewhere."""
    subset = "".join(rng.choice(DECLARATIONS) for _ in range(rng.randrange(4)))
    outside = rng.choice(("", "", "", " SYSTEM 'x'", " PUBLIC '-//x' 'x'"))
    root = re.search(rb"<[A-Za-z]", xml)
    place = root.start() if root and rng.randrange(8) else _place(rng, xml)
    if rng.randrange(2):
        xml = re.sub(rb"(?<=[^/?\]-])>", b">&e;", xml, count=rng.randrange(1, 3))
    return xml[:place] + f"<!DOCTYPE a{outside} [{subset}]>".encode() + xml[place:]


def nest(rng: Random, xml: bytes) -> bytes:
    depth = rng.choice((1, 3, 40, 300))
    return b"<a>" * depth + xml + b"</a>" * depth


def swell(rng: Random, xml: bytes) -> bytes:
    place = _place(rng, xml)
    long = rng.choice((b"1" * 1000, b" " * 1000, b" k='" + b"x" * 1000 + b"'"))
    many = b"".join(b" k%d='%d'" % (number, number % 3) for number in range(100))
    return xml[:place] + rng.choice((long, many)) + xml[place:]


def revalue(rng: Random, xml: bytes) -> bytes:
    """Replaces some values by a few common ones. The document keeps its shape, which it shares with others."""
    return re.sub(rb"(?<=[>'\"])\w{1,2}(?=[<'\"])", lambda found: rng.choice((found[0], b"1", b"2", b"10")), xml)


def recode(rng: Random, xml: bytes) -> bytes:
    """Writes the document in another encoding, which it may declare, sometimes wrongly."""
    text = xml.decode("utf-8", "replace")
    encoding = rng.choice(ENCODINGS)
    if rng.randrange(3):
        text = re.sub(r"\A<\?xml[^>]*\?>", "", text)
        named = rng.choice((*[encoding.removesuffix("-sig")] * 5, rng.choice(ENCODINGS), "no-such", "UTF-16"))
        text = f"<?xml version='1.0' encoding='{named}'?>{text}"
    mark = rng.choice(("", "", "\ufeff"))
    return (mark + text).encode(encoding, rng.choice(("xmlcharrefreplace", "replace")))


MUTATIONS: tuple[Mutation, ...] = (
    flip, insert, insert, insert, wrap, truncate, delete, duplicate, splice, declare, declare, nest, swell, revalue,
    revalue, recode, recode,
)  # fmt: skip


@dataclass
class Read:
    """The name and attributes of each element, in document order, the text of the root element, and the names of the
    declared external entities."""

    elements: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def start(self, name: str, attributes: list[str]) -> None:
        names = map(_clark, attributes[::2])
        self.elements.append((_clark(name), list(zip(names, map(_plain, attributes[1::2]), strict=True))))

    def text(self, text: str) -> None:
        self.texts.append(text)

    def entity(
        self, name: str, _parameter: bool, _value: str | None, _base: str | None, system: str | None, *_: str | None
    ) -> None:
        if system is not None:
            self.outside.append(name)

    def content(self) -> object:
        return self.elements, "".join(self.texts)

    def blurred(self) -> object:
        """The content without namespaces, and with line feeds for carriage returns."""
        local = [(tag.split("}")[-1], [(k.split("}")[-1], v) for k, v in pairs]) for tag, pairs in self.elements]
        return local, "".join(self.texts).replace("\r", "\n")


def reference(text: str, *, namespaces: bool = True) -> Read:
    """What expat makes of a document, including default attributes. Raises ExpatError."""
    reader, parser = Read(), expat.ParserCreate("utf-8", "\n" if namespaces else None)
    parser.ordered_attributes = True
    parser.StartElementHandler = reader.start
    parser.CharacterDataHandler = reader.text
    parser.EntityDeclHandler = reader.entity
    spelled = _NAME_CHARACTER.sub(lambda found: f"{'é' if found[1] else '·'}{ord(found[0]):06x}", text)
    parser.Parse(spelled.encode(), True)
    reader.texts = [_plain("".join(reader.texts))]
    return reader


def _clark(name: str) -> str:
    return _plain("{{{}}}{}".format(*name.split("\n", 1)) if "\n" in name else name)


_NAME_CHARACTER = re.compile(
    "([\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f\u2c00-\u2fef\u3001-\ud7ff"
    "\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff])|[\u00b7\u0300-\u036f\u203f\u2040]"
)
"""Characters of names in XML's fifth edition, which libxml2 reads; in the group are those that may start a name. Expat
reads the fourth edition: they are spelled with characters of both."""


def _plain(text: str) -> str:
    return re.sub("[é·]([0-9a-f]{6})", lambda found: chr(int(found[1], 16)), text)


_STARTS = (
    (b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe\0\0", "utf-32-le"), (b"\0\0\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"<\0\0\0", "utf-32-le"), (b"\0\0\0<", "utf-32-be"),
    (b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"),
)  # fmt: skip
"""The first bytes that determine a document's encoding, whatever it declares."""

_DECLARED = re.compile(rb"<\?xml\s[^>]*?encoding\s*=\s*['\"]([-\w.]+)", re.ASCII)


def decoded(xml: bytes) -> str:
    """The text of a document, because expat lacks most encodings. Raises UnicodeDecodeError or LookupError."""
    declared = _DECLARED.match(xml)
    encoding = next((name for start, name in _STARTS if xml.startswith(start)), declared and declared[1].decode())
    return xml.decode(encoding or "utf-8").lstrip("\ufeff")


def parsed(xml: bytes) -> ParsedDocument | None:
    """The document; None if it was refused. Fails if anything else happens, or if expat refuses it."""
    try:
        document = parse_document(xml)
    except DocumentError:
        return None
    compare(document, decoded(xml))
    return document


def compare(document: ParsedDocument, text: str) -> None:
    """Compares a document with what expat makes of its text, except where libxml2 is known to be wrong."""
    try:
        expected = reference(text)
    except expat.ExpatError:
        # libxml2 does not hold a DOCTYPE to the rules of namespaces.
        if "<!DOCTYPE" not in text:
            raise
        expected = reference(text, namespaces=False)
        assert not expected.outside
        return
    assert not expected.outside
    ours = read(document)
    if "<!ENTITY" in text:
        # Elements of entities are in no namespace, carriage returns of theirs are line feeds.
        assert ours.blurred() == expected.blurred()
    else:
        assert ours.content() == expected.content()


def read(document: ParsedDocument) -> Read:
    elements = [(str(element.tag), [(str(k), str(v)) for k, v in element.items()]) for element in document.elements]
    return Read(elements, [document.string_value(0)])


PLAIN = """
DECLARE NAMESPACE p = "u:x"; DECLARE NAMESPACE y = "u:y";
/a->x JOIN {x = y, 1} //a//a->y;
//a//a//a->x JOIN {lower-case(x) = upper-case(y), 1} //*->y;
//@k->x JOIN {lower-case(x) = y AND x = y, 1} //a//@*->y;
//*:b->x JOIN {normalize-space(x) = y, 1} //p:b->y;
//p:*->x JOIN {x = y, 1} //@p:k->y;
/*/*->x JOIN {x = y, 1} //y:a[./b]->y;
//a[./b]->x JOIN {canonical-url(x) = y AND host(x) = host(y), 1} //a[.//b]//c->y;
//b[. = '1']->x JOIN {x = y, 1} //a[./b = ''][./@*]->y;
//a->r[./b->x][./c->y] JOIN {x = x' AND y = y', 1} //a->r'[./b->x'][./c->y'];
//a->r[./*->x][.//@*->y] JOIN {x = y' AND y = x' AND r = r', 1} //a->r'[./*->x'][.//@*->y'];
//é->x JOIN {upper-case(x) = y, 1} //*[./@ü]->y
"""
"""Queries whose results the shape cache may keep."""

OTHERS = """
//a[@k = '1']/b->x JOIN {x = y, 1} //@k[. != '1']->y;
//a[not(./b)]->x JOIN {x = y, 1} //a[./b or ./c]->y;
//b[count(./c) > 1]->x JOIN {x = y, 1} //b[contains(., '1')]->y;
//b[matches(., '^[0-9]+$')]->x JOIN {x = y, 1} //*[normalize-space(.) = '1']->y;
//b[. < 10]->x JOIN {x = y, 1} //b[string-length(.) = 1]->y;
//*[@xml:lang = 'de'][./*]->x JOIN {x = y, 1} //*:a[./@*][ends-with(., '2')]/*:b[. = '' or . > 1]->y
"""
QUERIES = [conjuncts_of(parse_script(script)) for script in (PLAIN, PLAIN + ";" + OTHERS)]


def check(documents: Sequence[bytes]) -> int:
    """Compares stage 1 with expat and exact matching on documents. Returns how many of them could be read."""
    trees = [tree for xml in documents if (tree := parsed(xml)) is not None]
    batch = [StreamDocument(number, "S", 0, 0, tree) for number, tree in enumerate(trees)]
    for conjuncts in QUERIES:
        cached, walked, cramped = stages = [
            Stage(XPathStage()),
            Stage(XPathStage(limits=Limits(shapes=0))),
            Stage(XPathStage(limits=Limits(states=3, shapes=4))),
        ]
        for stage in stages:
            stage.add(conjuncts)
        cached.check(batch)
        expected = walked.named(walked.evaluate(batch))
        for stage in (cached, cached, cramped, cramped):
            assert stage.named(stage.evaluate(batch)) == expected
    return len(batch)
