import re

import pytest
from lxml import etree, html

import mmqjp
from mmqjp.engine import Session
from tests.mmqjp.present.test_formats import HOSTILE

PAIRS = "FROM S//item->a[./title->t] FOLLOWED BY {t = u, 7 d} S//item->b[./title->u] PUBLISH pairs"
ALLOWED = {"div", "style", "ol", "ul", "li", "p", "time", "span", "a", "mark", "pre", "details", "summary", "svg"}
DRAWN = {"title", "desc", "g", "text", "rect", "path", "circle", "tspan"}


def document(number, title, day=1):
    item = etree.Element("item")
    etree.SubElement(item, "title").text = title
    etree.SubElement(item, "item_url").text = f"https://a.example/{number}"
    return mmqjp.Document(id=f"d{number}", time=f"2026-01-{day:02}", xml=etree.tostring(item))


@pytest.fixture
def engine():
    with mmqjp.Engine("duckdb") as opened:
        opened.subscribe(PAIRS)
        yield opened


def parsed(text):
    """What a notebook shows, as a parser of HTML reads it; its style counts for nothing outside of it."""
    root = html.fragment_fromstring(text)
    assert root.tag == "div" and root.get("class") == "mmqjp"
    assert {one.tag for one in root.iter() if isinstance(one.tag, str)} <= ALLOWED | DRAWN
    assert not [name for one in root.iter() for name in one.attrib if name.startswith("on")]
    for style in root.iter("style"):
        selectors = re.findall(r"([^{}]+)\{[^{}]*\}", style.text or "")
        assert selectors and all(one.strip().startswith(".mmqjp") for some in selectors for one in some.split(","))
        style.getparent().remove(style)
    return root


def test_outputs_are_shown_with_their_documents(engine):
    found = engine.process([document(1, "Old pier"), document(2, "Old pier", 3)])
    for outputs in (found, engine.outputs()):
        root = parsed(outputs._repr_html_())
        assert [one.text_content() for one in root.iter("mark")] == ["Old pier", "Old pier"]
        assert [one.get("href") for one in root.iter("a")] == ["https://a.example/1", "https://a.example/2"]
        assert "same title" in root.text_content() and "output 0" in root.text_content()
    assert repr(engine.outputs()) == repr(list(found)) == repr(found)


def test_there_is_nothing_to_show_or_only_text(engine):
    assert "No outputs." in parsed(engine.process([])._repr_html_()).text_content()
    assert repr(engine.outputs()) == "[]"
    with mmqjp.Engine("duckdb") as closed:
        closed.subscribe("FROM S//item->x PUBLISH every")
        found = closed.process([document(1, "A")])
    assert found._repr_html_() is None and "Output(" in repr(found)
    with Session("duckdb") as session:  # services have no use for more
        assert session.process([document(1, "A")])._repr_html_() is None


def test_texts_of_documents_are_no_markup(engine):
    documents = [document(2 * n + m, text, m + 1) for n, text in enumerate(HOSTILE) for m in range(2)]
    root = parsed(engine.process(documents)._repr_html_())
    titles = [one.text_content().strip() for one in root.iter("p") if one.get("class") == "title"]
    assert sorted(set(titles)) == sorted({" ".join(text.split()) for text in HOSTILE})
    for output in engine.outputs():
        parsed(engine.why(output.id)._repr_html_())


def test_only_the_first_outputs_are_shown(engine):
    engine.subscribe("FROM S//item->x PUBLISH every")
    found = engine.process([document(number, f"Title {number}", 1) for number in range(45)])
    for outputs in (found, engine.outputs()):
        root = parsed(outputs._repr_html_())
        assert len(root.findall(".//li[@class='match']")) == 20 and "25 more." in root.text_content()
    assert repr(engine.outputs()).endswith("), more]") and repr(engine.outputs(after=43)).count("Output(") == 1
    assert "more" not in parsed(engine.outputs(after=30)._repr_html_()).text_content()


def test_why_and_explain(engine):
    (output,) = engine.process([document(1, "Old <b>pier"), document(2, "Old <b>pier", 3)])
    for asked in (output.id, output.id[:8], output.seq, str(output.seq)):
        found = engine.why(asked)
        assert 'same title "Old <b>pier"' in repr(found) and "PUBLISH pairs" in str(found)
        assert "same title" in parsed(found._repr_html_()).text_content()
    with pytest.raises(mmqjp.NoOutput):
        engine.why("ffff")
    explained = engine.explain("pairs")
    assert repr(explained).startswith("query pairs\n") and "R_vj" in str(explained)
    root = parsed(explained._repr_html_())
    assert len(list(root.iter("svg"))) == 1
    assert root.find(".//pre").text_content() == str(explained)
    with pytest.raises(mmqjp.UnknownQuery):
        engine.explain("other")
