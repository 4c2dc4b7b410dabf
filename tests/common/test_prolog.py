"""What a DOCTYPE does to a document: held against expat, which gives attributes their defaults."""

from random import Random
from xml.parsers import expat

import pytest

from common.xml import read_prolog
from tests.generate.seeds import seeds
from tests.support.cpu import printed
from tests.support.fuzz_stage1 import read, reference
from xpath_stage.documents import DocumentError, parse_document

NAMES = ("a", "b", "c")
TYPES = ("CDATA", "NMTOKEN", "NMTOKENS", "IDREF", "(v|w)", "NOTATION (n)", "ENTITY")
DEFAULTS = ("#IMPLIED", "#IMPLIED", "#IMPLIED", "#REQUIRED", "#FIXED 'v'", "'v'", '" v "', "'&#39;'")
VALUES = ("v", " v ", "  v \n w ", "&#32;v&#32;&#10;", "&e;", "", "&#60;!ATTLIST a k CDATA &#34;&#34;")
NOISE = (
    "<!-- <!ATTLIST a k CDATA 'v'> \" ' -->", "<?p <!ATTLIST a k CDATA 'v'> ' ?>", "<!ELEMENT d@ (b|c)*>", "\n", " ",
    "<!ENTITY f \"<!ATTLIST a k CDATA 'v'>\">", "<!ENTITY f '&#37;p;'>", "<!NOTATION n@ SYSTEM \"n'n\">",
    "<!ENTITY % p '<!ENTITY f \"\">'>", "<!ENTITY g ']>'>", "<!ENTITY e '>'>",
)  # fmt: skip


def declaration(rng: Random) -> str:
    if rng.randrange(2):
        # libxml2 takes what is declared twice for an error.
        return rng.choice(NOISE).replace("@", str(rng.randrange(10**9)))
    default = rng.choice(DEFAULTS if rng.randrange(3) == 0 else DEFAULTS[:4])
    space = rng.choice(" \n")
    return f"<!ATTLIST {rng.choice(NAMES)}{space}{rng.choice('kmn')} {rng.choice(TYPES)} {default} >"


def element(rng: Random, depth: int = 0) -> str:
    name = rng.choice(NAMES) if depth else "a"
    attributes = "".join(f" {key}='{rng.choice(VALUES)}'" for key in rng.sample("kmn", rng.randrange(3)))
    inside = "".join(element(rng, depth + 1) for _ in range(rng.randrange(3 if depth < 3 else 1)))
    return f"<{name}{attributes}>{inside}{rng.choice(('', '1', '&e;'))}</{name}>"


def document(rng: Random) -> str:
    subset = "".join(declaration(rng) for _ in range(rng.randrange(6)))
    before = rng.choice(("", "", "<?xml version='1.0'?>", "<!-- [ -->\n", "<?p [?>"))
    return f"{before}<!DOCTYPE a{rng.choice(('', ' '))}[{subset}<!ENTITY e 'v'>]{rng.choice(('', ' '))}>{element(rng)}"


def declares_a_default(text: str) -> bool:
    """Whether expat meets one."""
    found: list[str] = []

    def declared(_element: str, name: str, _type: str, default: str | None, _required: bool) -> None:
        if default is not None:
            found.append(name)

    parser = expat.ParserCreate()
    parser.AttlistDeclHandler = declared
    parser.Parse(text.encode(), True)
    return bool(found)


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_a_document_says_what_expat_reads_or_is_refused_for_a_default(seed: int):
    rng = Random(seed)
    counts = {True: 0, False: 0}
    for _ in range(500):
        text = document(rng)
        expected, refused = reference(text), declares_a_default(text)
        encoding = rng.choice(("utf-8", "utf-8-sig", "utf-16"))
        counts[refused] += 1
        if refused:
            with pytest.raises(DocumentError, match="default"):
                parse_document(text.encode(encoding))
        else:
            assert read(parse_document(text.encode(encoding))).content() == expected.content(), text
    assert min(counts.values()) > 50


def test_a_doctype_is_understood_to_its_end():
    assert read_prolog(b"<!DOCTYPE a [<!ENTITY e ''>]><a/>")[:2] == (True, True)
    assert read_prolog(b"<!DOCTYPE a PUBLIC \"]'>[\" '\"'\n><a/>")[:2] == (True, False)
    assert read_prolog(b"<?xml version='1.0'?>\n<a/>")[:2] == (True, False)
    for cut in (b"<!DOCTYPE a [", b"<!DOCTYPE a [<!ENTITY e '>]><a/>", b"<!DOCTYPE a [<!-- ]><a/>", b"<!DOCTYPE"):
        assert not read_prolog(cut).understood
    assert not read_prolog(b"<?xml version='1.0' encoding='utf-7'?><a/>").understood


# ---------------------------------------------------------------- linear time

PARSE = r"""
from xpath_stage.documents import DocumentError, parse_document
def subset(text): return b"<!DOCTYPE r [" + text + b"]><r/>"
def numbered(text, count): return b"".join(text % i for i in range(count))
for xml in (
    subset(b"<!ATTLIST r " + numbered(b"a%d CDATA #IMPLIED ", 80_000) + b">"),
    subset(numbered(b"<!ATTLIST r a%d CDATA #IMPLIED>", 80_000)),
    subset(numbered(b"<!ENTITY e%d ''>", 35_000)),
    subset(b"<!ATTLIST r " + numbered(b"a%d CDATA '' ", 35_000) + b">") + b"<r/>" * 35_000,
    subset(b"<!-" * 170_000), subset(b"<!--" * 170_000), subset(b"<!ENTITY e '" * 35_000), subset(b"%" * 340_000),
    b"<!--" * 170_000, b"<?" * 340_000, b" " * 1_400_000, b"<!DOCTYPE " * 70_000, b"<!---->" * 170_000 + b"<r/>",
    b"<r>" + b"<a/>" * 1_400_000 + b"</r>", b"<r>" + b"xmlns" * 270_000 + b"</r>",
    b"<r>" + b"<a xmlns='u:x'>xmlns xmlns</a>" * 100_000 + b"</r>",
    b"<r " + numbered(b"a%d='' ", 170_000) + b"/>", b"<r " + numbered(b"xmlns:a%d='u' ", 170_000) + b"/>",
    b"<r>" + b"<a>" * 250 + b"<b k='&#65;'>&amp;<![CDATA[]]><!----></b>" * 70_000 + b"</a>" * 250 + b"</r>",
):
    assert len(xml) > 330_000, len(xml)
    try:
        parse_document(xml, max_nodes=1_000_000)
    except DocumentError:
        pass
print("done")
"""


def test_documents_made_to_take_long_are_read_or_refused_in_linear_time():
    assert printed(PARSE, seconds=8) == "done\n"
