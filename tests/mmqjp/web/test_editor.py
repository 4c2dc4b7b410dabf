"""What the editor of queries is made of and what it completes."""

import json
import re
from hashlib import sha256

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.web.areas import completions
from tests.mmqjp.web.conftest import NOW
from tests.support.places import ROOT
from tests.support.web import browser, script, site_of
from xscl.check_expressions import EVENT_FUNCTIONS, SIGNATURES
from xscl.lalr import grammar_keywords
from xscl.text import KEYWORDS


def test_the_bundle_is_what_its_head_says_and_has_the_versions_of_the_lock_file():
    text = (ROOT / "mmqjp/web/static/codemirror.js").read_bytes().decode()
    head, _, body = text.partition("*/\n")
    assert (
        sha256(body.encode()).hexdigest() in head and "MIT License" in head and "Permission is hereby granted" in head
    )
    packages = json.loads((ROOT / "tools/editor/package-lock.json").read_text("utf-8"))["packages"]
    locked = {path.removeprefix("node_modules/"): one["version"] for path, one in packages.items() if path}
    inside = dict(re.findall(r"^(@?[\w/-]+) ([\d.]+), Copyright", head, re.MULTILINE))
    assert inside.items() <= locked.items() and "@codemirror/view" in inside
    assert f"esbuild {locked['esbuild']};" in head
    assert all("resolved" not in one for one in packages.values()), "whose registry it was is nobody's business"
    exported = {name for line in re.findall(r"\{([^{}]*)\}", (ROOT / "tools/editor/parts.js").read_text()) for name in
                re.findall(r"\w+", line)}  # fmt: skip
    used = re.findall(r"import \{(.*?)\} from", (ROOT / "mmqjp/web/static/editor.js").read_text("utf-8"), re.DOTALL)
    assert set(re.findall(r"\w+", used[0])) == exported


def test_keywords_are_those_of_the_grammars():
    keywords = grammar_keywords()
    assert {word.upper() for word in KEYWORDS} <= set(keywords)
    assert {"STORIES", "PATTERN", "AGGREGATE", "INF", "WEIGHTS"} <= set(keywords) and len(keywords) == len(
        set(keywords)
    )


def test_what_the_store_has_is_completed(monkeypatch):
    with Session("duckdb", now=lambda: NOW) as engine:
        engine.subscribe("""FROM S//book->b[./author] PUBLISH written; FROM S//book->b[./x];
DEFINE EVENT Sold FROM shop//sale->s (title := s/title, copies := number(s/@copies));
FROM FILTER{copies > 1} Sold PUBLISH well""")
        given = {
            "S": [
                "<book lang='en'><author born='1'>Ada</author><t:title xmlns:t='http://t/'/></book>",
                "<book><isbn/></book>",
            ],
            "shop": ["<day><!-- c --><sale copies='2'><title>A</title></sale></day>"],
        }
        documents = ((stream, number, xml) for stream, xmls in given.items() for number, xml in enumerate(xmls))
        engine.process([Document(f"{s}{n}", xml, stream=s, time=NOW - 9 + n) for s, n, xml in documents])
        api = script(site_of(engine, now=lambda: NOW))
        found = api.get("/api/v1/completions").json()
        assert found["paths"] == {
            "S": {"": ["book"], "book": ["*:title", "@lang", "author", "isbn"], "author": ["@born"]},
            "shop": {"": ["day"], "day": ["sale"], "sale": ["@copies", "title"]},
        }
        assert found["streams"] == ["S", "shop", "well", "written"]
        assert found["events"] == {"Sold": ["title", "copies"], "well": ["title", "copies"]}
        assert set(found["functions"]) == {*SIGNATURES, *EVENT_FUNCTIONS, "string", "count"}
        assert tuple(found["keywords"]) == grammar_keywords()
        page = browser(site_of(engine, now=lambda: NOW)).get("/new").text
        assert f'data-keywords="{" ".join(grammar_keywords())}"' in page and "editor.js" in page
        monkeypatch.setattr(completions, "MOST_NAMES", 2)
        monkeypatch.setattr(completions, "LONGEST_READ", 60)
        found = script(site_of(engine, now=lambda: NOW)).get("/api/v1/completions").json()["paths"]
        assert found == {"S": {"": ["book"], "book": ["isbn"]}, "shop": {"": ["day"], "day": ["sale"]}}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("FROM S//a->x[./b]\n  PUBLISH", (2, 10, 1)),
        ("FROM S//a[contain(., 'x')] PUBLISH y", (1, 11, 7)),
        ("-- \U0001f600\nFROM S//a[./b = tt(\n)] PUBLISH y", (2, 17, 2)),
    ],
)
def test_mistakes_have_their_places_and_lengths(unchanged_engine, text, place):
    found = script(site_of(unchanged_engine)).post("/api/v1/check", json={"text": text}).json()
    (error,) = found["errors"]
    assert (error["line"], error["column"], error["length"])[: len(place)] == place
    lines = text.split("\n")
    assert error["column"] - 1 + error["length"] <= max(len(lines[error["line"] - 1]), 1) + 1
