"""Reading documents: what they mean, and what is refused instead of read, fetched or blown up."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpath_stage.documents import DocumentError, parse_document
from xpath_stage.masks import MAX_NAMESPACES


def text(xml: bytes) -> str:
    """The string value of a document's root."""
    return parse_document(xml).string_value(0)


# ---------------------------------------------------------------- what documents mean


def test_elements_are_numbered_in_document_order():
    document = parse_document(b"<a><b><c/></b><!-- no --><d/><?no no?><e/></a>")
    assert [element.tag for element in document.elements] == ["a", "b", "c", "d", "e"]
    assert [document.number[element] for element in document.elements] == [0, 1, 2, 3, 4]
    assert document.end == [5, 3, 3, 4, 5]


def test_attributes_are_found_by_their_place():
    document = parse_document(b"<a m='1' xmlns:p='u:x' p:k='2'/>")
    assert [document.attribute(0, place) for place in (1, 2)] == [("m", "1"), ("{u:x}k", "2")]
    assert [document.string_value(0, place) for place in (1, 2)] == ["1", "2"]


@pytest.mark.parametrize(
    ("xml", "value"),
    [
        *((b"<a/>", ""), (b"<a></a>", ""), (b"<a> 1\n 2 </a>", " 1\n 2 "), (b"<a>1\r\n2\r3</a>", "1\n2\n3")),
        *((b"<a>1<b>2<c/>3</b>4</a>", "1234"), (b"<!-- 0 --><a>1<!-- 2 -->3</a><!-- 4 -->", "13")),
        *((b"<a>1<b/><!-- 2 -->3</a>", "13"), (b"<a><!-- 1 --></a>", ""), (b"<a>1<?p 2?>3</a>", "13")),
        *((b"<a><![CDATA[<1>]]>2<![CDATA[]]>3</a>", "<1>23"), (b"<a>&lt;&#49;&#x32;&amp;</a>", "<12&")),
        (b'<!DOCTYPE a [<!ENTITY e "1">]><a>&e;2</a>', "12"),
        (b'<!DOCTYPE a [<!ENTITY e "1<b>2</b>&f;"><!ENTITY f "3">]><a>0&e;4</a>', "01234"),
        (b'<!DOCTYPE a [<!ENTITY e "<!-- 1 -->2">]><a>&e;</a>', "2"),
    ],
)
def test_string_values(xml: bytes, value: str):
    assert text(xml) == value


def test_elements_of_an_entity_are_elements():
    document = parse_document(b'<!DOCTYPE a [<!ENTITY e "1<b>2</b>">]><a>&e;<c>3</c></a>')
    values = {str(element.tag): document.string_value(number) for number, element in enumerate(document.elements)}
    assert values == {"a": "123", "b": "2", "c": "3"}


def test_entities_in_attributes_are_expanded_and_white_space_is_normalised_to_spaces():
    document = parse_document(b'<!DOCTYPE a [<!ENTITY e "1&#38;amp;2">]><a k="&e;\n\t3&#10;4"/>')
    assert document.attribute(0, 1) == ("k", "1&2  3\n4")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("trusted", [False, True])
def test_a_doctype_s_default_of_an_attribute_is_refused(encoding: str, trusted: bool):
    for default in ("CDATA '1'", "CDATA #FIXED '1'", "(1|2) '1'", "NMTOKENS ''", 'CDATA "1"'):
        subset = f"<!-- ' --><!ATTLIST b m CDATA #IMPLIED>\n<!ATTLIST a\nk {default}>"
        xml = f"<!-- <!DOCTYPE b> -->\n<?p i?><!DOCTYPE a [{subset}]><a/>"
        with pytest.raises(DocumentError, match="gives an attribute of 'a' a default"):
            parse_document(xml.encode(encoding), trusted=trusted)


def test_references_to_parameter_entities_are_refused():
    for value in ("", "<!ATTLIST a k CDATA &#39;1&#39;>"):
        with pytest.raises(DocumentError, match="parameter entity 'p'"):
            parse_document(f"<!DOCTYPE a [<!ENTITY % p '{value}'>%p;]><a/>".encode())


@pytest.mark.parametrize("encoding", ["iso-2022-jp", "shift_jis", "no-such", "utf-16", "utf-7"])
def test_declarations_are_refused_in_an_encoding_in_which_they_cannot_be_looked_for(encoding: str):
    subset = "<!DOCTYPE a [<!ELEMENT a ANY>]><a/>".encode("utf-7" if encoding == "utf-7" else "ascii")
    with pytest.raises(DocumentError, match=encoding if encoding != "utf-7" else ""):
        parse_document(f"<?xml version='1.0' encoding='{encoding}'?>".encode() + subset)


# ---------------------------------------------------------------- encodings


@pytest.mark.parametrize(
    "xml",
    [
        "<a>\u00e9\u20ac\U0001f600</a>".encode(),
        b"\xef\xbb\xbf" + "<a>\u00e9\u20ac\U0001f600</a>".encode(),
        "<?xml version='1.0' encoding='utf-16'?><a>\u00e9\u20ac\U0001f600</a>".encode("utf-16"),
        "<a>\u00e9\u20ac\U0001f600</a>".encode("utf-16"),
        b"<?xml version='1.0' encoding='us-ascii'?><a>&#233;&#8364;&#128512;</a>",
    ],
    ids=["utf-8", "utf-8 with a mark", "utf-16", "utf-16 by its mark alone", "ascii"],
)
def test_encodings(xml: bytes):
    assert text(xml) == "\u00e9\u20ac\U0001f600"


def test_a_declared_encoding_is_believed():
    assert text(b"<?xml version='1.0' encoding='iso-8859-1'?><a>\xe9</a>") == "\u00e9"
    assert text(b"<?xml version='1.0' encoding='windows-1252'?><a>\x80</a>") == "\u20ac"


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("xml", "line", "cause"),
    [
        *((b"", 1, "Document is empty"), (b"  \n ", 2, ""), (b"text", 1, "Start tag expected"), (b"<a>", 1, "")),
        *((b"<a>\n</b>", 2, "mismatch"), (b"<a/>\n\n<b/>", 3, "Extra content"), (b"<a>\x00</a>", 1, "")),
        *((b"<a>\n&#0;</a>", 2, "invalid xmlChar value 0"), (b"<a>\n\x01</a>", 2, "invalid Char value 1")),
        *((b"<a>&nbsp;</a>", 1, "'nbsp' not defined"), (b"<a k='1' k='2'/>", 1, "redefined")),
        *((b"<p:a/>", 1, "prefix p on a is not defined"), (b"<a>\xe9</a>", 1, ""), (b"<a>\xed\xa0\x80</a>", 1, "")),
        (b"<?xml version='1.0' encoding='no-such'?><a/>", 1, "no-such"),
        (b"<?xml version='1.0' encoding='us-ascii'?><a>\xe9</a>", 1, ""),
        ("<?xml version='1.0' encoding='utf-16'?><a/>".encode("utf-16")[:-1], 1, ""),
    ],
)
def test_what_is_not_well_formed_is_refused_with_its_place(xml: bytes, line: int, cause: str):
    with pytest.raises(DocumentError, match=rf"\Aline {line}, column [0-9]+: .+\Z") as caught:
        parse_document(xml)
    assert cause in str(caught.value)


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """The URL of a file that must not be read."""
    file = tmp_path / "secret.txt"
    file.write_text("secret", encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize(
    ("declarations", "content"),
    [
        *(
            ('e SYSTEM "{}"', ""),
            ('e SYSTEM "{}"', "&e;"),
            ('e SYSTEM "{}"', "<b>&e;</b>"),
            ('e PUBLIC "-//x" "{}"', ""),
        ),
        *(('e SYSTEM "{}" NDATA gif', ""), ('% e SYSTEM "{}"', ""), ('% e SYSTEM "{}"> %e; <!ENTITY f "1"', "")),
    ],
)
def test_an_external_entity_is_refused_used_or_not(secret: str, declarations: str, content: str):
    notation = '<!NOTATION gif SYSTEM "gif">' if "NDATA" in declarations else ""
    with pytest.raises(DocumentError, match="'e'"):
        parse_document(f"<!DOCTYPE a [{notation}<!ENTITY {declarations.format(secret)}>]><a>{content}</a>".encode())


def test_an_external_entity_s_file_is_not_opened(tmp_path: Path):
    """What is said does not depend on whether the file is there, nor on what is in it."""
    file = tmp_path / "entity.xml"
    xml = f'<!DOCTYPE a [<!ENTITY e SYSTEM "{file.as_uri()}">]><a>&e;</a>'.encode()
    messages = set()
    for content in (None, "text", "<b>"):
        if content is not None:
            file.write_text(content, encoding="utf-8")
        with pytest.raises(DocumentError) as caught:
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


def test_x_include_is_an_element_like_any_other(secret: str):
    xml = f'<a xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="{secret}" parse="text"/></a>'
    assert text(xml.encode()) == ""


# ---------------------------------------------------------------- what would exhaust memory


def laughs(levels: int, width: int) -> bytes:
    entities = '<!ENTITY e0 "ha">' + "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * width}">' for i in range(1, levels + 1))
    return f"<!DOCTYPE a [{entities}]><a>&e{levels};</a>".encode()


def test_few_laughs_are_text():
    assert text(laughs(2, 3)) == "ha" * 9


@pytest.mark.parametrize(
    "xml",
    [
        laughs(10, 10),
        f'<!DOCTYPE a [<!ENTITY e "{"x" * 50_000}">]><a>{"&e;" * 5_000}</a>'.encode(),
        b'<!DOCTYPE a [<!ENTITY e "&f;"><!ENTITY f "&e;">]><a>&e;</a>',
    ],
    ids=["a billion laughs", "quadratic", "an entity that holds itself"],
)
def test_entities_that_blow_up_are_refused(xml: bytes):
    with pytest.raises(DocumentError):
        parse_document(xml)


def nested(depth: int) -> bytes:
    return b"<a>" * depth + b"1" + b"</a>" * depth


def test_elements_may_nest_256_levels_deep():
    assert len(parse_document(nested(256)).elements) == 256
    with pytest.raises(DocumentError) as caught:
        parse_document(nested(257))
    assert "256" in str(caught.value)
    assert len(parse_document(nested(257), trusted=True).elements) == 257


def test_a_text_node_may_have_10_megabytes():
    limit = 10_000_000
    assert len(text(b"<a>" + b"x" * limit + b"</a>")) == limit
    too_long = b"<a>" + b"x" * (limit + 1) + b"</a>"
    with pytest.raises(DocumentError):
        parse_document(too_long)
    assert len(parse_document(too_long, trusted=True).string_value(0)) == limit + 1


# ---------------------------------------------------------------- what is counted before there is a tree


def test_elements_and_attributes_are_counted_to_the_last():
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


def test_what_has_too_many_elements_is_refused_without_a_tree(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("xpath_stage.documents.PARSERS", {})  # those that make trees
    with pytest.raises(DocumentError, match="more than 1,000"):
        parse_document(b"<a>" + b"<b/>" * 5_000 + b"</a>", max_nodes=1_000)


def declaring(*counts: int) -> bytes:
    """Elements inside each other that declare so many namespaces."""
    tags = ["<a" + "".join(f" xmlns:p{i}_{j}='u'" for j in range(count)) + ">" for i, count in enumerate(counts)]
    return ("".join(tags) + "</a>" * len(counts)).encode()


def test_namespaces_that_hold_at_one_element_are_counted():
    assert len(parse_document(declaring(*[MAX_NAMESPACES // 10] * 10)).elements) == 10
    beside = b"<a>" + b"<b xmlns='u:x'/>" * (2 * MAX_NAMESPACES) + b"</a>"
    assert len(parse_document(beside).elements) == 2 * MAX_NAMESPACES + 1
    for counts in ((MAX_NAMESPACES + 1,), (*[MAX_NAMESPACES // 10] * 10, 1)):
        for encoding in ("utf-8", "utf-16"):
            with pytest.raises(DocumentError, match="declarations of namespaces"):
                parse_document(declaring(*counts).decode().encode(encoding))
    entity = declaring(MAX_NAMESPACES + 1).decode().replace("x", "&#120;", MAX_NAMESPACES)
    with pytest.raises(DocumentError, match="declarations of namespaces"):
        parse_document(f'<!DOCTYPE a [<!ENTITY e "{entity}">]><a>&e;</a>'.encode())
