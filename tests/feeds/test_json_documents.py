"""JSON as documents, and XML as JSON: what each rule says, and that nothing is lost on the way."""

import gzip
import json
import re
from pathlib import Path
from random import Random

import pytest
from lxml import etree

from common.errors import InvalidValue
from feeds.documents import Document, Reject
from feeds.json_documents import DEEPEST, json_to_xml, load_json, xml_to_json
from feeds.readers import Offset, read_line
from feeds.tail import Tail, read_documents
from mmqjp.spark.source import _item
from tests.generate.seeds import seeds
from xpath_stage.documents import ParsedDocument, parse_documents

RULES = [
    ('{"a": {"b": "x"}}', "<a><b>x</b></a>"),
    ('{"a": ["x", "y"], "b": []}', "<a>x</a><a>y</a>"),
    ('{"a": [[1, 2], [3]]}', "<a><item>1</item><item>2</item></a><a><item>3</item></a>"),
    ('["x", {"a": 1}]', "<item>x</item><item><a>1</a></item>"),
    ('{"a": true, "b": false, "c": null, "d": ""}', "<a>true</a><b>false</b><c></c><d></d>"),
    ('{"a": 1.50, "b": -0, "c": 1E400}', "<a>1.50</a><b>-0</b><c>1E400</c>"),
    (f'{{"a": {"7" * 400}}}', f"<a>{'7' * 400}</a>"),
    (f'{{"a": {"7" * 9000}}}', f"<a>{'7' * 9000}</a>"),
    ('{"a": 1, "a": 2}', "<a>1</a><a>2</a>"),
    ('{"to be": 1, "2": 2, "a:b": 3, "": 4}', '<_ key="to be">1</_><_ key="2">2</_><_ key="a:b">3</_><_ key="">4</_>'),
    ('{"_": 1, "\u00e9t\u00e9": 2, "xml": 3}', "<_>1</_><\u00e9t\u00e9>2</\u00e9t\u00e9><xml>3</xml>"),
    (r'{"<\"&\n\t": 1}', '<_ key="&lt;&quot;&amp;&#10;&#9;">1</_>'),
    (r'{"a": "<&>\r\n\\"}', "<a>&lt;&amp;&gt;&#13;\n\\</a>"),
    (r'{"a": "\\\u0000\ud800x"}', r'<a escaped="true">\\\u0000\uD800x</a>'),
    (r'{"\udfff\\": 1}', r'<_ key="\uDFFF\\" escaped-key="true">1</_>'),
    (r'{"a": "\ud83d\ude00"}', "<a>\U0001f600</a>"),
    ('"x"', "x"),
]


@pytest.mark.parametrize(("text", "inside"), RULES)
def test_json_becomes_elements(text: str, inside: str):
    xml = json_to_xml(load_json(text))
    assert xml == f"<json>{inside}</json>"
    (parsed,) = parse_documents([xml.encode()])
    assert isinstance(parsed, ParsedDocument)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "not JSON: Expecting value at column 1"),
        ('{"a": NaN}', "not JSON: NaN is not a number"),
        ('{"a": -Infinity}', "not JSON: -Infinity is not a number"),
        ('{"a": 01}', "not JSON: Expecting ',' delimiter at column 8"),
        ('\n{"a" 1}', "not JSON: Expecting ':' delimiter at line 2, column 6"),
        ('{"a": 1} x', "not JSON: Extra data at column 10"),
        ("[" * (DEEPEST + 2) + "]" * (DEEPEST + 2), f"JSON nested more than {DEEPEST} deep"),
        ("[" * 100_000 + "]" * 100_000, f"JSON nested more than {DEEPEST} deep"),
    ],
)
def test_what_is_no_document_is_refused(text: str, cause: str):
    with pytest.raises(InvalidValue, match=f"^{re.escape(cause)}$"):
        json_to_xml(load_json(text))


def test_what_is_nested_200_deep_is_read():
    for nested in ('{"a":' * DEEPEST + "1" + "}" * DEEPEST, "[" * DEEPEST + "]" * DEEPEST):
        xml = json_to_xml(load_json(nested))
        (parsed,) = parse_documents([xml.encode()])
        assert isinstance(parsed, ParsedDocument)
        assert json.loads(xml_to_json(xml))


def drawn(rng: Random, depth: int = 0) -> object:
    text = "".join(rng.choices('ab \\"<&>\n\t\0\ud800\u00e9\U0001f600', k=rng.randrange(4)))
    plain = [text, rng.randrange(-9, 9), rng.random(), True, False, None]
    if depth == 3 or rng.random() < 0.3:
        return rng.choice(plain)
    if rng.random() < 0.5:  # in an array of one, the element does not tell that it repeats
        return {
            f"{rng.choice(['a', 'to be', '', 'é', chr(0)])}{n}": drawn(rng, depth + 1) for n in range(rng.randrange(4))
        }
    return [drawn(rng, depth + 1) for _ in range(rng.randrange(2, 4))]


@pytest.mark.parametrize("seed", seeds(1, 300))
def test_what_was_typed_comes_back(seed: int):
    value = drawn(Random(seed))
    xml = json_to_xml(load_json(json.dumps(value)), typed=True)
    etree.fromstring(xml)
    assert json.loads(xml_to_json(xml)) == {"json": value}


@pytest.mark.parametrize(
    ("xml", "text"),
    [
        ("<a>x</a>", '{"a": "x"}'),
        ("<a b='1'>x</a>", '{"a": {"@b": "1", "#text": "x"}}'),
        ("<a>\n <b>1</b>\n <b>2</b>\n <c/>\n</a>", '{"a": {"b": ["1", "2"], "c": ""}}'),
        ("<a>x<b>y</b>z<!-- no --></a>", '{"a": {"b": "y", "#text": "xz"}}'),
        ("<a type='text'>5</a>", '{"a": {"@type": "text", "#text": "5"}}'),
        ("<a type='number'>five</a>", '{"a": {"@type": "number", "#text": "five"}}'),
        ("<p:a xmlns:p='urn:p' p:b='1' xml:lang='en'><c xmlns='urn:c'/></p:a>",
         '{"p:a": {"@p:b": "1", "@xml:lang": "en", "c": ""}}'),
        ("<_ key='to be'><_ key='\\u0000' escaped-key='true'/></_>", '{"to be": {"\\u0000": ""}}'),
    ],
)  # fmt: skip
def test_xml_becomes_json(xml: str, text: str):
    assert xml_to_json(xml) == text


@pytest.mark.parametrize(
    ("line", "xml"),
    [
        ('{"id": "d", "json": {"a": 1.0, "a": 2}}', "<json><a>1.0</a><a>2</a></json>"),
        ('{"id": "d", "json": null}', "<json></json>"),
        ('{"id": "d", "json": {"a": 1}, "types": true}', '<json type="map"><a type="number">1</a></json>'),
        (f'{{"id": "d", "time": 5, "json": {"1" * 5000}}}', f"<json>{'1' * 5000}</json>"),
        ('{"id": "d", "json": {}, "xml": "<a/>"}', 'a document has either "xml" or "json"'),
        ('{"id": "d", "json": {}, "types": 1}', '"types" is neither true nor false'),
        ('{"json": {}}', 'the key "id" is missing'),
        ('{"id": "d", "json": ' + "[" * 300 + "]" * 300 + "}", f"JSON nested more than {DEEPEST} deep"),
    ],
)
def test_a_line_may_have_json(line: str, xml: str):
    found = read_line(line.encode(), "line 1", lambda: 7)
    shown = found.xml if isinstance(found, Document) else found.reason.removeprefix("line 1: ")
    assert isinstance(found, Document | Reject) and shown == xml


LOG = b'{"at": "2026-05-04T10:00:00Z", "n": 1}\n\n{}\n{"at": "2026-05-05", "n": 3}\n[]\n{"at": "2026-05-06", "n": 4}'


@pytest.mark.parametrize("name", ["a.ndjson", "a.jsonl", "a.ndjson.gz"])
def test_each_line_of_a_log_is_a_document(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_bytes(gzip.compress(LOG) if name.endswith(".gz") else LOG)
    found = list(read_documents([path], json="typed", time_xpath="/json/at"))
    documents = [item for item in found if isinstance(item, Document)]
    assert [str(one.xml).count('type="number"') for one in documents] == [1, 1, 1]
    assert [one.id for one in documents] == [f"{path}:{number}" for number in (1, 4, 6)]
    assert documents[1].t0 - documents[0].t0 == 14 * 3600 * 1_000_000
    rejects = [item.reason for item in found if isinstance(item, Reject)]
    assert rejects == [f"{path}:{number}: /json/at finds nothing" for number in (3, 5)]


def test_a_growing_log_is_followed(tmp_path: Path):
    path = tmp_path / "a.ndjson"
    tail, positions, seen = Tail(path.parent, json="plain"), dict[tuple[str, str], Offset](), []
    for text in ('{"n": 1}\n{"n"', ": 2}", "\n12", "3\n"):
        with path.open("a") as file:
            file.write(text)
        for waiting in tail.waiting(positions):
            for read in waiting.read():
                positions[waiting.source, waiting.file] = read.offset
                seen.append(read.item.xml if isinstance(read.item, Document) else read.item)
    shown = [one for one in seen if one is not None]
    assert shown == ["<json><n>1</n></json>", "<json><n>2</n></json>", "<json>123</json>"]


@pytest.mark.parametrize(
    ("json", "value", "found"),
    [(None, b'{"id": "x", "json": {"a": 1}}', "<json><a>1</a></json>"), ("plain", b'{"a": 1}', "<json><a>1</a></json>"),
     ("typed", b"1", '<json type="number">1</json>'), ("plain", b"<a/>", "k: not JSON: Expecting value at column 1")],
)  # fmt: skip
def test_values_of_a_stream_may_be_json(json, value, found):
    item = _item(value, "d", "T", 5, "k", json, is_number=False)
    assert found in (str(item.xml) if isinstance(item, Document) else item.reason.replace("k: d", "k"))
    assert json is None or (item.id, item.stream) == ("d", "T")
