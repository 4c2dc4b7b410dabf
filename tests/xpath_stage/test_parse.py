import html
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from encodings.aliases import aliases
from functools import partial
from pathlib import Path
from random import Random

import pytest
from lxml import etree

from common.tools import Memo
from tests.generate.documents import document_xml
from tests.generate.seeds import seeds
from tests.support.fuzz_stage1 import PIECES, QUERIES, ROUND, SEEDS, check, decoded, mutated, parsed, read, reference
from tests.support.witnessed import Stage
from xpath_stage import documents as parsing
from xpath_stage.documents import (
    DocumentError,
    Outlines,
    ParsedDocument,
    parse_document,
    parse_documents,
    pieces_of,
    skeleton_of,
)


def text(xml: bytes) -> str:
    return parse_document(xml).string_value(0)


@pytest.mark.parametrize("encoding", ["iso-2022-jp", "shift_jis", "no-such", "utf-16", "utf-7"])
def test_declarations_are_refused_in_an_encoding_in_which_they_cannot_be_looked_for(encoding: str):
    subset = "<!DOCTYPE a [<!ELEMENT a ANY>]><a/>".encode("utf-7" if encoding == "utf-7" else "ascii")
    with pytest.raises(DocumentError, match=encoding if encoding != "utf-7" else None):
        parse_document(f"<?xml version='1.0' encoding='{encoding}'?>".encode() + subset)


@pytest.mark.parametrize(
    ("xml", "line", "cause"),
    [
        *((b"", 1, "Document is empty"), (b"text", 1, "Start tag expected"), (b"<a>\n</b>", 2, "mismatch")),
        *((b"<a/>\n\n<b/>", 3, "Extra content"), (b"<a>\n\x01</a>", 2, "invalid Char value 1")),
        *((b"<a>&nbsp;</a>", 1, "'nbsp' not defined"), (b"<p:a/>", 1, "prefix p on a is not defined")),
        (b"<?xml version='1.0' encoding='no-such'?><a/>", 1, "no-such"),
        ("<?xml version='1.0' encoding='utf-16'?><a/>".encode("utf-16")[:-1], 1, ""),
    ],
)
def test_what_is_not_well_formed_is_refused_with_its_place(xml: bytes, line: int, cause: str):
    with pytest.raises(DocumentError, match=rf"\Aline {line}, column [0-9]+: .+\Z") as caught:
        parse_document(xml)
    assert cause in str(caught.value)


@pytest.mark.parametrize("declarations", ['e SYSTEM "{}"', '% e SYSTEM "{}"> %e; <!ENTITY f "1"'])
def test_what_is_said_of_an_external_entity_does_not_depend_on_its_file(tmp_path: Path, declarations: str):
    """Neither on whether it is there, nor on what is in it."""
    file, messages = tmp_path / "entity.xml", set()
    xml = f"<!DOCTYPE a [<!ENTITY {declarations.format(file.as_uri())}>]><a>&e;</a>".encode()
    for inside in (None, "text", "<b>"):
        if inside is not None:
            file.write_text(inside, encoding="utf-8")
        with pytest.raises(DocumentError, match="'e'") as caught:
            parse_document(xml)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_an_external_subset_is_not_read(tmp_path: Path):
    file = tmp_path / "a.dtd"
    file.write_text('<!ATTLIST a k CDATA "secret"><!ENTITY e "secret">', encoding="utf-8")
    document = parse_document(f'<!DOCTYPE a SYSTEM "{file.as_uri()}"><a>1</a>'.encode())
    assert document.string_value(0) == "1"
    assert not document.elements[0].attrib
    with pytest.raises(DocumentError):
        parse_document(f'<!DOCTYPE a SYSTEM "{file.as_uri()}"><a>&e;</a>'.encode())


def laughs(levels: int, width: int) -> bytes:
    entities = '<!ENTITY e0 "ha">' + "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * width}">' for i in range(1, levels + 1))
    return f"<!DOCTYPE a [{entities}]><a>&e{levels};</a>".encode()


def test_entities_that_blow_up_are_refused():
    assert text(laughs(2, 3)) == "ha" * 9
    quadratic = f'<!DOCTYPE a [<!ENTITY e "{"x" * 50_000}">]><a>{"&e;" * 5_000}</a>'.encode()
    holds_itself = b'<!DOCTYPE a [<!ENTITY e "&f;"><!ENTITY f "&e;">]><a>&e;</a>'
    for xml in (laughs(10, 10), quadratic, holds_itself):
        with pytest.raises(DocumentError):
            parse_document(xml)


@pytest.mark.parametrize(
    ("make", "most", "cause"),
    [
        (lambda depth: b"<a>" * depth + b"1" + b"</a>" * depth, 256, "256"),
        (lambda length: b"<a>" + b"x" * length + b"</a>", 10_000_000, None),
    ],
    ids=["levels of elements", "bytes of a text node"],
)
def test_depth_and_length_are_bounded(make: Callable[[int], bytes], most: int, cause: str | None):
    for number, trusted in ((most, False), (most + 1, True)):
        assert parse_document(make(number), trusted=trusted).xml().encode() == make(number)
    with pytest.raises(DocumentError, match=cause):
        parse_document(make(most + 1))


def test_elements_and_attributes_are_counted_to_the_last(monkeypatch: pytest.MonkeyPatch):
    xml = b"<a><b/><b c='1'/>====&lt;</a>"
    assert len(parse_document(xml, max_nodes=4).elements) == 3
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        with pytest.raises(DocumentError, match=r"\Amore than 3 elements and attributes\Z"):
            parse_document(xml.decode().encode(encoding), max_nodes=3)
    # Those that entities make, too.
    xml = b"<!DOCTYPE a [<!ENTITY e '<b/><b/><b/>'>]><a>&e;&e;</a>"
    assert len(parse_document(xml, max_nodes=7).elements) == 7
    with pytest.raises(DocumentError, match="more than 6"):
        parse_document(xml, max_nodes=6)
    monkeypatch.setattr("xpath_stage.documents.PARSERS", {})  # those that make trees
    with pytest.raises(DocumentError, match="more than 1,000"):
        parse_document(b"<a>" + b"<b/>" * 5_000 + b"</a>", max_nodes=1_000)


def declaring(*counts: int) -> bytes:
    """Elements inside each other that declare so many namespaces."""
    tags = ["<a" + "".join(f" xmlns:p{i}_{j}='u'" for j in range(count)) + ">" for i, count in enumerate(counts)]
    return ("".join(tags) + "</a>" * len(counts)).encode()


def test_namespaces_that_hold_at_one_element_are_counted():
    assert len(parse_document(declaring(*[parsing.MAX_NAMESPACES // 10] * 10)).elements) == 10
    beside = b"<a>" + b"<b xmlns='u:x'/>" * (2 * parsing.MAX_NAMESPACES) + b"</a>"
    assert len(parse_document(beside).elements) == 2 * parsing.MAX_NAMESPACES + 1
    for counts in ((parsing.MAX_NAMESPACES + 1,), (*[parsing.MAX_NAMESPACES // 10] * 10, 1)):
        for encoding in ("utf-8", "utf-16"):
            with pytest.raises(DocumentError, match="declarations of namespaces"):
                parse_document(declaring(*counts).decode().encode(encoding))
    entity = declaring(parsing.MAX_NAMESPACES + 1).decode().replace("x", "&#120;", parsing.MAX_NAMESPACES)
    with pytest.raises(DocumentError, match="declarations of namespaces"):
        parse_document(f'<!DOCTYPE a [<!ENTITY e "{entity}">]><a>&e;</a>'.encode())


# ---------------------------------------------------------------- documents parsed together

GOOD = b"<a k='1'>1<b>2</b>3</a>"


def outcome(document: ParsedDocument | DocumentError) -> object:
    if isinstance(document, DocumentError):
        return str(document)
    return read(document).content(), document.size, document.xml(), document.parent


def alone(xml: bytes, trusted: bool) -> ParsedDocument | DocumentError:
    try:
        return parse_document(xml, trusted=trusted)
    except DocumentError as error:
        return error


def same(*xmls: bytes, trusted: bool = False) -> list[bool]:
    """Holds documents parsed together to what each is alone; tells which were parsed together."""
    documents = list(parse_documents(xmls, trusted=trusted))
    assert list(map(outcome, documents)) == [outcome(alone(xml, trusted)) for xml in xmls]
    return [isinstance(document, ParsedDocument) and document.top is not document.root for document in documents]


@pytest.mark.parametrize(
    "xml",
    [
        *(GOOD, b"<a/>", b" \r\n\t<a></a>\n", b"<?xml version='1.0'?><a/>"),
        b'<?xml version="1.0" encoding="UTF-8"?>\n<a>\xc3\xa9</a>\n',
        b"<a><!-- 1 -->2<?p 3?><![CDATA[<4>]]>&lt;&#49;</a>",
        b"<p:a xmlns:p='u:x' xmlns='u:y' p:k='1'><b xmlns=''/><p:b/><c xml:id='i'/></p:a>",
    ],
)
def test_small_documents_are_parsed_together(xml: bytes):
    assert same(GOOD, xml, GOOD) == [True] * 3
    assert same(xml, GOOD, trusted=True) == [True] * 2


def test_a_document_by_itself_is_parsed_alone_and_large_ones_do_not_keep_small_ones_apart():
    assert same(GOOD) == [False] and same() == []
    large = b"<a>" + b"1" * parsing.SMALL + b"</a>"
    assert same(GOOD, large, large, GOOD, large) == [True, False, False, True, False]
    assert same(large, GOOD, large) == [False] * 3
    assert same(GOOD, *[large] * 8, GOOD) == [True, *[False] * 8, True]
    for number in (parsing.MOST - 1, parsing.MOST, parsing.MOST + 1, 2 * parsing.MOST):
        same(*(f"<a><b>{i}</b></a>".encode() for i in range(number)))


def test_documents_that_may_exceed_a_bound_of_nodes_do_not_change_what_others_are():
    xmls = [b"<a>1</a>", b"<b>" + b"2" * 500 + b"</b>", b"<c/>" * 2, b"<d>" + b"<e/>" * 100 + b"</d>", b"<f>3</f>"]
    first, text, broken, many, last = map(outcome, parse_documents(xmls, max_nodes=100))
    assert [first, text, last] == [outcome(alone(xmls[i], trusted=False)) for i in (0, 1, 4)]
    assert many == "more than 100 elements and attributes"
    assert broken == str(alone(xmls[2], trusted=False))


def test_documents_that_are_large_in_all_are_parsed_a_few_together():
    texts = [f"<a>{i}{'1' * (parsing.SMALL - 100)}</a>".encode() for i in range(parsing.MOST)]
    documents = [one for one in parse_documents(texts) if isinstance(one, ParsedDocument)]
    assert [one.xml().encode() for one in documents] == texts
    below = Counter(one.top.getparent() for one in documents)
    assert None not in below and max(below.values()) * (parsing.SMALL - 90) <= parsing.MOST_BYTES


@pytest.mark.parametrize(
    "xmls",
    [
        *((b"<a/>1>",), (b"1<a/>",), (b"<a/>&#32;",), (b"<a/>&#32;>",), (b"<a/><![CDATA[]]>",), (b"</a><a>",)),
        *((b"<a/><?xml version='1.0'?>",), (b" <?xml version='1.0'?><a/>",), (b"<?xml version='1.1'?><a/>",)),
        (b"<?xml version='1.0'?><?xml version='1.0'?><a/>",),
        (b"<?xml version='1.0' encoding='latin-1'?><a>\xe9</a>",),
        (b"<?xml version='1.0' encoding='utf-16'?><a/>",),
        ("<?xml version='1.0' encoding='utf-16'?><a/>".encode("utf-16"),),
        *(("<a/>".encode("utf-16-le"),), (b"\xef\xbb\xbf<a/>",), (GOOD, b"\xef\xbb\xbf<a/>"), (b"<a>\xe9</a>",)),
        *((b"<a/>\xc3", b"\xa9<a/>"), (b"<a/>\0",), (b"<a/>\0>",), (b"<a>\0</a>",), (b"\x0b<a/>\x0c",)),
        (b"<!DOCTYPE a [<!ENTITY e '1'>]><a>&e;</a>", b"<a>&e;</a>"),
        (b"<!DOCTYPE a [<!ENTITY e SYSTEM 'x'>]><a/>",),
        *((b"<a xmlns:p='u:x'><p:b/></a>", b"<p:b/>"), (b"<p:b/>", b"<a xmlns='relative'/>")),
        *((b"<a xml:id='i'/>", b"<b xml:id='i'/>"), (b"<a xml:id='i'><b xml:id='i'/></a>",)),
        *((b"<>", b"</>"), (b"<a/>", b"<_/>"), (b"<[/>", b"<a/>")),
        *((b"<a>" * depth + b"</a>" * depth,) for depth in (255, 256, 257)),
    ],
)
def test_no_document_changes_what_others_are(xmls: tuple[bytes, ...]):
    for trusted in (False, True):
        same(*xmls, *[GOOD] * (len(xmls) == 1), trusted=trusted)
        same(GOOD, *xmls, GOOD, trusted=trusted)
        same(*reversed(xmls), trusted=trusted)


def test_attributes_are_counted_wherever_the_element_is():
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    names = [*letters, *(one + other for one in letters for other in letters)]
    for number, refused in ((parsing.MAX_ATTRIBUTES, False), (parsing.MAX_ATTRIBUTES + 1, True)):
        shortest = "".join(f" {name}=''" for name in names[:number])
        for before in (*range(0, 2 * parsing.MAX_ATTRIBUTES, 400), *range(2_490, 2_510, 2)):
            for after in ("", "<b/>" * 1_000):
                xml = f"<r>{'<b/>' * (before // 4)}{'x' * (before % 4)}<a{shortest}/>{after}</r>".encode()
                if refused:
                    with pytest.raises(DocumentError, match="attributes"):
                        parse_document(xml)
                else:
                    parse_document(xml)
    many = b"<a" + b"".join(b" a%d=''" % i for i in range(parsing.MAX_ATTRIBUTES + 1)) + b"/>"
    assert same(many, GOOD, GOOD) == [False, True, True]


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_mutated_documents_among_others_and_together(seed: int):
    rng = Random(seed)
    assert sum(same(GOOD, mutated(rng), GOOD)[1] for _ in range(300)) > 30
    for _ in range(50):
        same(*(mutated(rng) for _ in range(rng.randrange(5))))


# ---------------------------------------------------------------- fuzzing, and what it found


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_mutated_documents_are_read_as_expat_reads_them_or_refused(seed: int):
    rng = Random(seed)
    for xml in SEEDS:
        assert (document := parsed(xml)) and read(document).content() == reference(decoded(xml)).content()
    assert sum(parsed(mutated(rng)) is not None for _ in range(2_000)) > 200


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_what_is_read_is_matched_exactly(seed: int):
    rng = Random(seed)
    assert check([mutated(rng) for _ in range(ROUND)]) > 5


OUTSIDE = "<!DOCTYPE a [<!ENTITY e SYSTEM 'file:///etc/hostname'>]>"


def test_an_external_entity_is_refused_wherever_its_declaration_stands_and_in_all_encodings():
    text = "<?xml version='1.0'?>\n<a k='1'>1<b>&#50;</b></a>\n"
    for place in range(len(text) + 1):
        for xml in (text, text[22:], text[22:].upper()):
            refused((xml[:place] + OUTSIDE + xml[place:]).encode())
    for encoding in sorted({*aliases.values(), "utf-16-le", "utf-32-be", "utf-8-sig"}):
        for start in ("", "\ufeff", f"<?xml version='1.0' encoding='{encoding}'?>"):
            for root in ("<a/>", "<a>&e;</a>"):
                try:
                    encoded = (start + OUTSIDE + root).encode(encoding)
                except (LookupError, UnicodeError, AttributeError, TypeError):
                    continue
                refused(encoded)


def refused(xml: bytes) -> None:
    for trusted in (False, True):
        with pytest.raises(DocumentError):
            parse_document(xml, trusted=trusted)


LAST = "<c xmlns='relative'/>"
"""libxml2 warns of the name: lxml looks at the last complaint only, and overlooks all that came before."""


@pytest.mark.parametrize(
    "xml",
    [
        # A prefix that is not declared, an attribute given twice, and the text of undeclared entities lost.
        f"<a><p:b/>{LAST}</a>",
        f"<a><b p:k='1' p:k='2'/>{LAST}</a>",
        f"<a:b:c>{LAST}</a:b:c>",
        f"<!DOCTYPE a SYSTEM 'x'><a>1&e;2{LAST}</a>",
        f"<!DOCTYPE a [<!ENTITY % p '<!ENTITY e \"2\">'>%p;]><a>1&e;3{LAST}</a>",
        "<!DOCTYPE a [<!ENTITY % p \"<!ENTITY e SYSTEM 'x'>\">%p;<!ENTITY lt 'y'>]><a/>",
        # A brace would end the namespace in lxml's names.
        "<a xmlns='u}x'><b>1</b></a>",
        "<!DOCTYPE a [<!ATTLIST a xmlns CDATA 'u}x'>]><a><b>1</b></a>",
    ],
)
def test_what_was_overlooked_is_refused(xml: str):
    refused(xml.encode())


# ---------------------------------------------------------------- outlines of documents with the same tags

TEXTS = ("", " ", *"1<>&", "2 ", "&lt;", "&amp;amp;", "]]>", '"', "'", "='", "a\r\nb\tc", "\u00e9", "\U0001f600")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an outline of the first document that has it."""
    monkeypatch.setattr(parsing, "RUN", 1)


def readable(xmls: list[bytes]) -> list[ParsedDocument]:
    """Those that can be read, parsed together where possible."""
    return [one for one in parse_documents(xmls) if isinstance(one, ParsedDocument)]


def columns(*, attributes: bool = False, values: bool = False, mentioned: str | None = None) -> parsing.ElementColumns:
    owned = defaultdict[str, bool](lambda: True) if attributes else None
    known = None if mentioned is None else Memo[str, bool](lambda tag: tag in mentioned, 1_000)
    return parsing.ElementColumns(owned, defaultdict(lambda: values), Memo(str, 1_000), known, trees=False)


def held(
    documents: list[ParsedDocument], *, attributes: bool = False, values: bool = False, mentioned: str | None = None
) -> int:
    """Holds what columns read by outlines to what they read from trees. Returns how many documents had an outline."""
    ours, theirs = (columns(attributes=attributes, values=values, mentioned=some) for some in (mentioned, None))
    known, count = Outlines(lambda: ours), 0
    for document in documents:
        theirs.hold(document)
        if known.hold("S", document, ours):
            count += 1
            assert document.outline is not None
            numbers, parents = [*ours.numbers], document.parent
            for number in {*range(len(theirs.tags))}.difference(numbers):
                assert number and mentioned is not None and theirs.tags[number] not in mentioned
                assert not theirs.counts[number] and number not in theirs.owners
            assert ours.tags == [theirs.tags[number] for number in numbers]
            assert ours.counts == [sum(parents[child] == number for child in numbers) for number in numbers]
            assert [numbers[owner] for owner in ours.owners] == theirs.owners
            assert (ours.places, ours.names, [*ours.values]) == (theirs.places, theirs.names, theirs.values)
            texts = ((place, number) for place, number in enumerate(numbers) if values or not theirs.counts[number])
            assert all((ours.texts[place] or "") == (theirs.texts[number] or "") for place, number in texts)
            assert parents == parse_document(document.xml().encode(), trusted=True).parent
    return count


def rewritten(rng: Random, xml: bytes) -> bytes:
    """The document with other texts and values of attributes, and perhaps another namespace or name."""
    top = etree.fromstring(xml)
    for element in top.iter():
        if element.text is None or rng.random() < 0.8:
            element.text = rng.choice(TEXTS)
        element.tail = rng.choice(TEXTS) if element is not top and rng.random() < 0.2 else element.tail
        for name in element.attrib:
            element.set(name, rng.choice(TEXTS))
    written = etree.tostring(top)
    return written.replace(b"u:x", rng.choice((b"u:x", b"u:y", b"u:x='1'"))) if rng.random() < 0.3 else written


def similar(rng: Random, number: int) -> list[bytes]:
    """Documents of which many have the tags of others."""
    models = [document_xml(rng) for _ in range(3)]
    return [rewritten(rng, rng.choice(models)) for _ in range(number)]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_documents_with_the_tags_of_others_and_mutated_ones(seed: int):
    rng = Random(seed)
    assert sum(held(readable(similar(rng, 30))) for _ in range(10)) > 50
    for number in range(40):
        mentioned = ("ab", None)[number % 5 > 2]
        held(readable(similar(rng, 4)), attributes=number % 2 > 0, values=number % 4 > 1, mentioned=mentioned)
    held(readable([mutated(rng) for _ in range(500)]))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_what_is_read_by_outlines_binds_as_before(seed: int):
    rng = Random(seed)
    xmls = similar(rng, 60)
    stages = Stage(), Stage()
    for stage in stages:
        stage.add(QUERIES[1])
    for _ in range(3):
        together, alone = readable(xmls), [parse_document(xml) for xml in xmls]
        found = [
            stage.named(stage.evaluate([parsing.StreamDocument(i, "S", i, i, one) for i, one in enumerate(documents)]))
            for stage, documents in zip(stages, (together, alone), strict=True)
        ]
        assert found[0] == found[1]
        for stage in stages:
            stage.remove(0)
        xmls = [rewritten(rng, xml) for xml in xmls]


def damaged(rng: Random, xml: bytes) -> bytes:
    """The document with a few bytes replaced, removed or put in, of which some keep it well-formed."""
    for _ in range(rng.randint(0, 2)):
        start = rng.randrange(len(xml))
        piece = rng.choice(MARKS) if rng.random() < 0.7 else xml[start : start + rng.randint(1, 9)]
        xml = xml[:start] + piece + xml[start + rng.randint(0, 2) :]
    return xml


CHARACTERS = "\1\2\3\4<>&;\"'=/\n\r\t\0\x1b\x7f\x85\ufffe\uffff\ufffd\u00e9 ]"
MARKS = [character.encode() for character in CHARACTERS] + [b"\xed\xa0\x80", b"\xff", b"></", b"<!---->", b"<a/>"]
MARKS += [b"&lt;", b"&gt;", b"&amp;", b"&#10;", b"&apos;", b" a='1'", b' xml:id="1"', b' xmlns="u"', b"]]>", *PIECES]
MARKS += [b"<![CDATA[]]>", b"<![CDATA[<&>]]>", b"<![CDATA[", b"&<![CDATA[]]>", b"\xc3<![CDATA[", b"<![CDATA[\xa9]]>"]


def quoted(rng: Random, xml: bytes) -> bytes:
    """The document with some values in single quotes, and some texts in CDATA sections."""

    def section(text: re.Match[bytes]) -> bytes:
        inner = html.unescape(text[1].decode()).encode()
        return b"<![CDATA[%b]]>" % inner if rng.random() < 0.3 and b"]]>" not in inner else text[0]

    xml = re.sub(b"(?<=>)([^<>]+)(?=<)", section, xml)
    return re.sub(b'="([^"\'<]*)"', lambda found: b"='%b'" % found[1] if rng.random() < 0.5 else found[0], xml)


def read_columns(found: parsing.ElementColumns) -> object:
    texts = [text or "" for text in found.texts]
    return found.tags, found.counts, texts, found.owners, found.places, found.names, [*found.values]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_what_is_known_by_its_text_is_what_the_parser_reads(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parsing, "LOOKED_AT", 4)
    rng, count = Random(seed), 0
    for number in range(20):
        monkeypatch.setattr(parsing, "MOST_OUTLINES", rng.choice((2, 1_000)))
        ours, theirs = (columns(attributes=number % 2 > 0) for _ in range(2))
        known = Outlines(partial(columns, attributes=number % 2 > 0))
        models = [etree.tostring(etree.fromstring(xml), encoding="utf-8") for xml in similar(rng, 4)]
        models += [one for xml in models for one in (xml.replace(b'"', b"'"), quoted(rng, xml))]
        xmls = [damaged(rng, rng.choice(models)) for _ in range(120)]
        found = list(known.parsed([("S", xml) for xml in xmls], None))
        count += sum(isinstance(one, ParsedDocument) and one._top is None for one in found)
        for xml, one in zip(xmls, found, strict=True):
            expected = alone(xml, trusted=False)
            assert outcome(one) == outcome(expected), xml
            if isinstance(one, ParsedDocument) and isinstance(expected, ParsedDocument) and one.outline is not None:
                if known.hold("S", one, ours):
                    theirs.hold(expected)
                    assert read_columns(ours) == read_columns(theirs), xml
                for i, element in enumerate(expected.elements):
                    assert one.string_value(i) == expected.string_value(i), xml
                    places = range(1, len(element.attrib) + 1)
                    assert [one.attribute(i, place) for place in places] == [
                        expected.attribute(i, place) for place in places
                    ]
                    if b"xmlns" not in xml:
                        markup = etree.tostring(element, encoding="unicode", with_tail=False)
                        assert one.outline.markup_of(i, one.xml()) == markup
    assert count > 30


def flat(number: int, tag: str = "b") -> bytes:
    return f"<a><{tag}>{number}</{tag}><c k='{number}'/></a>".encode()


def test_an_outline_is_made_when_enough_documents_had_it():
    forty = [flat(number) for number in range(40)]
    for attributes, mentioned in ((False, None), (True, None), (False, "")):
        assert held(readable(forty), attributes=attributes, mentioned=mentioned) == 40 - parsing.RUN + 1
    assert held(readable([flat(number, "bc"[number % 2]) for number in range(40)])) == 40 - 2 * (parsing.RUN - 1)
    # Those that were parsed alone have none, and those of which many values of inner elements matter.
    deep = b"<a>" * (parsing.MOST_TEXT + 1) + b"<b/>" + b"</a>" * (parsing.MOST_TEXT + 1)
    assert held([parse_document(flat(number)) for number in range(40)]) == held(readable([deep] * 40), values=True) == 0
    assert held(readable(forty), values=True) == held(readable([deep[3:-4]] * 40), values=True) == 40 - parsing.RUN + 1
    # All streams share them.
    ours = columns()
    known = Outlines(lambda: ours)
    assert (
        sum(known.hold(f"S{number % 2}", one, ours) for number, one in enumerate(readable(forty)))
        == 40 - parsing.RUN + 1
    )
    # A document is not one whose tags are marked as ours are while they are read.
    marked = flat(0).translate(bytes.maketrans(b"<>", b"\1\2"))
    for others in ([*forty], [], [flat(1)], [b"<a>&amp;</a>"], [b"<a><![CDATA[<]]></a>"]):
        *found, last = known.parsed([("S", xml) for xml in (*others, marked)], None)
        assert [type(one) for one in found] == [ParsedDocument] * len(others) and type(last) is not ParsedDocument
    # None is looked for while few documents have one that is known.
    mixed = readable([flat(number, f"t{number}") for number in range(parsing.TRIAL)])
    assert held(mixed + readable([flat(number) for number in range(parsing.PAUSE + 40)])) == 40 - parsing.RUN + 1


@pytest.mark.usefixtures("at_once")
def test_a_namespace_is_part_of_the_skeleton_and_large_documents_have_none():
    one, other = (f'<a xmlns="u:{uri}" k="{uri}">1<b/></a>' for uri in "xy")
    texts = one, other, one.replace('k="x"', 'k="xmlns=&quot;"')
    skeletons = [skeleton_of("<".join(pieces_of(text)[1::2]))[0] for text in texts]
    assert skeletons[0] != skeletons[1] and skeletons[0] == skeletons[2]
    xmls = [b"<a>" + b"<b/>" * number + b"</a>" for number in (parsing.MOST_TAGS - 2, parsing.MOST_TAGS - 1)] * 2
    assert held(readable(xmls)) == 2
