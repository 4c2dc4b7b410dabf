"""Recipes build texts that find something, whatever is filled in; and the page says what to widen."""

import html
import re
from collections import Counter

import pytest

from feeds.documents import Document
from feeds.tail import read_documents
from mmqjp.engine import Session
from mmqjp.queries.recipes import RECIPES, BadRecipe
from tests.support.backtest import try_in_this_process
from tests.support.docs import blocks
from tests.support.places import ROOT
from tests.support.web import browser, script, site_of
from xscl.parser import parse_script


@pytest.fixture(scope="module")
def news():
    """An engine with the items of the example feeds. Tests subscribe to nothing that others look for."""
    with Session("duckdb", quiet=True) as engine:
        engine.process(
            [one for one in read_documents([ROOT / "examples" / "feeds"], feeds="item") if isinstance(one, Document)]
        )
        yield engine


@pytest.fixture
def site(news, monkeypatch):
    try_in_this_process(monkeypatch)
    return site_of(news)


IN_THE_RECIPES: dict[str, dict[str, str]] = {
    "same_headline": {}, "in_other_words": {"name": "on_three_sites"},
    "my_words": {"words": "barrier", "name": "barrier"},
    "by_author": {"name": "all_by_mia_falk"}, "first_release": {}, "retitled": {}, "silent": {}, "who_was_first": {},
    "named": {"feed": "lockwatch.example"},
}  # fmt: skip
"""What is filled in where docs/recipes.md shows what it finds."""


def test_each_recipe_finds_something_and_is_in_the_documentation():
    shown = {block.text for block in blocks(ROOT / "docs" / "recipes.md") if block.language == "xscl"}
    assert RECIPES.keys() == IN_THE_RECIPES.keys()
    for name, values in IN_THE_RECIPES.items():
        assert RECIPES[name].script(values) in shown, name
    items = [one for one in read_documents([ROOT / "examples" / "feeds"], feeds="item") if isinstance(one, Document)]
    with Session("duckdb", settle=None, quiet=True) as engine:
        for recipe in RECIPES.values():
            engine.subscribe(recipe.script({}), add=True)
        found = Counter(output.query for output in [*engine.process(items), *engine.finish()])
    assert RECIPES.keys() <= found.keys()


HOSTILE = [
    '"', '""', "'", '" or true() or "', '"] PUBLISH other; FROM S//item[./a = "', "{}", "} S//x PUBLISH y",
    "$words $name ${name}", "-- a comment", "\\", "\\\"", "a\tb", "<b>&amp;</b>", "x -> y", "(: c :)", "%s {0}",
    "é\u0301", "\u202eevil", "🧜", "'\"'" * 100,
]  # fmt: skip
"""Texts without commas, which would be several."""

LITERAL = re.compile(r'"(?:[^"\n]|"")*"')


@pytest.mark.parametrize("key", ["words", "feed", "without", "author", "other"])
def test_what_is_filled_in_stays_a_string(key):
    """Whatever it is, the query around it is that of a harmless text, and its string is what was written."""
    for recipe in (one for one in RECIPES.values() if key in one.defaults):
        shapes = {
            LITERAL.sub("STRING", recipe.script({key: text})) for text in ("one", "one.example", "http://one.example/")
        }
        for text in HOSTILE:
            built = recipe.script({key: f"x{text}"})
            assert LITERAL.sub("STRING", built) in shapes, (recipe.name, text)
            assert len(parse_script(built).all_queries) == len(parse_script(recipe.script({})).all_queries)
            written = f"x{' '.join(text.split())}" if text.strip() else "x"
            assert any(one[1:-1].replace('""', '"') in (written, written.lower()) for one in LITERAL.findall(built)), (
                text
            )


WRONG = [
    ("my_words", "words", "", "at least one word"), ("my_words", "words", " , ,", "at least one word"),
    ("my_words", "words", "ok, -", "is not a word"), ("my_words", "words", "x" * 10_240, "at most 4,000"),
    ("my_words", "words", "x" * 600, "500 characters"), ("my_words", "words", ",".join("abcdefghij" * 6), "at most 50"),
    ("my_words", "words", "a\x00b", "control character"), ("my_words", "words", "a\ud800", "control character"),
    ("my_words", "where", "x", "choose one of"), ("my_words", "feed", "\x1b[31m", "control character"),
    ("my_words", "name", "1x", "begins with a letter"), ("my_words", "name", "a b", "begins with a letter"),
    ("my_words", "name", "select", "not a word of the language"),
    ("my_words", "name", "x; FROM S PUBLISH y", "begins with"),
    ("my_words", "name", "x" * 200, "begins with"), ("by_author", "author", "  ", "name of an author"),
    ("same_headline", "sites", "1", "from 2 to 100"), ("same_headline", "sites", "٣", "from 2 to 100"),
    ("same_headline", "sites", "9" * 5_000, "at most 4,000"), ("same_headline", "within", "", "a number and a unit"),
    ("same_headline", "within", "48", "a number and a unit"), ("same_headline", "within", "0 h", "a number and a unit"),
    ("same_headline", "within", "2 fortnights", "not a duration"),
    ("same_headline", "within", "INF", "a number and a unit"),
    ("same_headline", "within", "1 h } S//x", "a number and a unit"),
    ("silent", "within", "-1 d", "a number and a unit"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "text", "message"), WRONG)
def test_what_is_wrong_is_said_of_its_field(site, name, key, text, message):
    with pytest.raises(BadRecipe, match=message) as error:
        RECIPES[name].script({key: text})
    assert error.value.fields.keys() == {key}
    if text.isprintable() and len(text) < 5_000:
        page = browser(site).post("/build", data={"recipe": name, "do": "try", key: text})
        assert page.status_code == 400 and f'id="{key}-error"' in page.text and 'aria-invalid="true"' in page.text
        assert "Its text" not in page.text and "Tried on" not in page.text


def test_the_sentences_are_listed_and_what_is_known_of_an_item_is_filled_in(site):
    pages = browser(site)
    text = pages.get("/build").text
    assert all(html.escape(one.title) in text and f"/build?recipe={one.name}" in text for one in RECIPES.values())
    for fields, title, value in (
        ({"author": 'Ann "A" <b>'}, "What an author writes", 'value="Ann &#34;A&#34; &lt;b&gt;"'),
        ({"words": "storm surge", "feed": "https://a.example/f"}, "My words", 'value="https://a.example/f"'),
        ({"feed": "https://a.example/f"}, "A feed that fell silent", 'value="https://a.example/f"'),
        ({"recipe": "retitled", "feed": "a.example"}, "A page that came back", 'value="a.example"'),
    ):
        shown = pages.get("/build", params=fields)
        assert shown.status_code == 200 and f"<h1>{title}" in shown.text and value in shown.text
        assert "Its text" in shown.text and "Tried on" not in shown.text, "an address tries nothing"
    assert pages.get("/build", params={"recipe": "<script>"}).status_code == 404
    assert pages.post("/build", data={"recipe": "none"}).status_code == 400


def test_a_recipe_is_tried_and_subscribed_to(site, news):
    pages = browser(site)
    found = pages.post("/build", data={"recipe": "same_headline", "do": "try"}).text
    assert "<dd>2</dd>" in found and found.count('<li class="match"') == 2 and "Outputs per day" in found
    assert "Open in the editor" in found and "Nothing is stored" in found and not news.registry.named("same_headline")
    done = pages.post("/build", data={"recipe": "my_words", "words": "barrier", "name": "wall", "do": "subscribe"})
    assert (done.status_code, done.headers["location"].partition("?")[0]) == (303, "/q/wall")
    assert [one.name for one in news.registry.named("wall")] == ["wall"]
    news.unsubscribe("wall")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"recipe": "first_release", "within": "1 h"}, "the nearest are 1 d 2 h apart.*Give it a longer time"),
        ({"recipe": "same_headline", "sites": "7"}, "on too few sites.*Ask for fewer sites"),
        ({"recipe": "my_words", "words": "zebra"}, "does not match any of 43 documents.*Other words"),
        ({"recipe": "by_author", "author": "Nobody"}, "tove lind.*Spell the name as the feed does"),
        ({"recipe": "named", "feed": "nowhere.example"}, "does not match any.*Name more feeds, or leave it empty"),
        ({"recipe": "named", "number": "cve"}, "Take the numbers of all advisories"),
        ({"recipe": "retitled", "within": "1 s", "feed": "coastpost.example"}, "Give it a longer time"),
    ],
)
def test_a_recipe_that_finds_nothing_says_what_to_widen(site, fields, said):
    page = browser(site).post("/build", data={**fields, "do": "try"})
    text = html.unescape(page.text)
    assert page.status_code == 200 and "It finds nothing in them" in text
    assert re.search(said, text[text.index("It finds nothing") :], re.DOTALL), text


def test_programs_build_texts_too(site):
    api = script(site)
    listed = api.get("/api/v1/recipes").json()
    assert [one["name"] for one in listed] == list(RECIPES) and listed[0]["fields"][0]["choices"] == {
        "title": "headline", "page": "page"
    }  # fmt: skip
    built = api.post("/api/v1/recipes/my_words", json={"words": 'a "b"'}).json()["text"]
    assert (
        'has-phrase(./title, "a ""b""")' in built
        and api.post("/api/v1/check", json={"text": built}).json()["mistakes"] == 0
    )
    for name, values in (("none", {}), ("my_words", {"word": "x"}), ("my_words", {"words": ""})):
        answer = api.post(f"/api/v1/recipes/{name}", json=values)
        assert answer.status_code == 400 and answer.json()["error"]
