"""Documents parsed together are what each is alone, however they are broken, and whatever they hold."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generate.seeds import seeds
from tests.support.fuzz_stage1 import mutated, read
from xpath_stage.documents import (
    MAX_ATTRIBUTES,
    MOST,
    MOST_BYTES,
    SMALL,
    DocumentError,
    ParsedDocument,
    parse_document,
    parse_documents,
)

GOOD = b"<a k='1'>1<b>2</b>3</a>"


def outcome(document: ParsedDocument | DocumentError) -> object:
    """What is read, or the error."""
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


# ---------------------------------------------------------------- what is parsed together


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


def test_a_document_by_itself_is_parsed_alone():
    assert same(GOOD) == [False] and same() == []


def test_large_documents_do_not_keep_small_ones_apart():
    large = b"<a>" + b"1" * SMALL + b"</a>"
    assert same(GOOD, large, large, GOOD, large) == [True, False, False, True, False]
    assert same(large, GOOD, large) == [False] * 3
    assert same(GOOD, *[large] * 8, GOOD) == [True, *[False] * 8, True]


def test_documents_that_may_exceed_a_bound_of_nodes_do_not_change_what_others_are():
    xmls = [b"<a>1</a>", b"<b>" + b"2" * 500 + b"</b>", b"<c/>" * 2, b"<d>" + b"<e/>" * 100 + b"</d>", b"<f>3</f>"]
    first, text, broken, many, last = map(outcome, parse_documents(xmls, max_nodes=100))
    assert [first, text, last] == [outcome(alone(xmls[i], trusted=False)) for i in (0, 1, 4)]
    assert many == "more than 100 elements and attributes"
    assert broken == str(alone(xmls[2], trusted=False))


def test_documents_that_are_large_in_all_are_parsed_a_few_together():
    texts = [f"<a>{i}{'1' * (SMALL - 100)}</a>".encode() for i in range(MOST)]
    documents = [one for one in parse_documents(texts) if isinstance(one, ParsedDocument)]
    assert [one.xml().encode() for one in documents] == texts
    below = Counter(one.top.getparent() for one in documents)
    assert None not in below and max(below.values()) * (SMALL - 90) <= MOST_BYTES


@pytest.mark.parametrize("number", [MOST - 1, MOST, MOST + 1, 2 * MOST])
def test_many_documents_stay_in_order(number: int):
    same(*(f"<a><b>{i}</b></a>".encode() for i in range(number)))


def test_a_broken_document_is_reported_at_its_own_place():
    good, broken, other = parse_documents([GOOD, b"<a>\n<b></a>", GOOD])
    assert isinstance(good, ParsedDocument) and isinstance(other, ParsedDocument)
    assert str(broken) == "line 2, column 8: Opening and ending tag mismatch: b line 2 and a"


def test_a_document_has_a_tree_of_its_own():
    first, second = parse_documents([b"<a><b/></a>", b"<c/>"])
    assert isinstance(first, ParsedDocument) and isinstance(second, ParsedDocument)
    assert first.root.getparent() is None and first.root.getnext() is None
    assert first.root.xpath("count(//*)") == 2
    assert second.root.xpath("string(preceding::*)") == "" and second.root.xpath("count(ancestor::*)") == 0


# ---------------------------------------------------------------- what no document may do to another


@pytest.mark.parametrize(
    "xmls",
    [
        *((b"<a>", b"</a>"), (b"<a><!--", b"--></a>"), (b"<a><![CDATA[", b"]]></a>"), (b"<a k='", b"'/>")),
        *((b"<a><?p ", b"?></a>"), (b"<a/><b/>", b""), (b"<a/><b/>", b" "), (b"<a/><b/>", b"<c/>"), (b"<", b"/>")),
        *((b"<a/>", b"", b"<b/>"), (b"<a/>", b"<!-- -->", b"<b/><c/>"), (b"<a/><?p?>", b"<!-- --><a/>")),
        *((b"<a/>1>",), (b"<a/>>",), (b"1<a/>",), (b"<a/>&#32;",), (b"<a/>&#32;>",), (b"<a/><![CDATA[]]>",)),
        *((b"<![CDATA[]]><a/>",), (b"<a/><![CDATA[ ]]>",), (b"<a/><![CDATA[]]><!-- -->",), (b"</a><a>",)),
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


def test_attributes_are_counted_element_by_element():
    many = b"<a" + b"".join(b" a%d=''" % i for i in range(MAX_ATTRIBUTES + 1)) + b"/>"
    assert same(many, GOOD, GOOD) == [False, True, True]


def test_attributes_are_counted_wherever_the_element_is():
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    names = [*letters, *(one + other for one in letters for other in letters)]
    for number, refused in ((MAX_ATTRIBUTES, False), (MAX_ATTRIBUTES + 1, True)):
        shortest = "".join(f" {name}=''" for name in names[:number])
        for before in (*range(0, 2 * MAX_ATTRIBUTES, 400), *range(2_490, 2_510, 2)):
            for after in ("", "<b/>" * 1_000):
                xml = f"<r>{'<b/>' * (before // 4)}{'x' * (before % 4)}<a{shortest}/>{after}</r>".encode()
                if refused:
                    with pytest.raises(DocumentError, match="attributes"):
                        parse_document(xml)
                else:
                    parse_document(xml)


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_mutated_documents_among_others_and_together(seed: int):
    rng = Random(seed)
    assert sum(same(GOOD, mutated(rng), GOOD)[1] for _ in range(1_000)) > 100
    for _ in range(50):
        same(*(mutated(rng) for _ in range(rng.randrange(5))))


@given(st.lists(st.sampled_from([b"<a>", b"</a>", b"<!--", b"-->", b"<![CDATA[", b"]]>", b"<?p ", b"?>", b"<a/>", b" ",
                                 b">", b"<a k='", b"'/>", b"1", b"|"]), max_size=12))  # fmt: skip
def test_pieces_of_markup(pieces: list[bytes]):
    same(*b"".join(pieces).split(b"|"))
    same(GOOD, *b"".join(pieces).split(b"|"), GOOD)
