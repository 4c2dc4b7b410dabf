"""README.md and the pages of docs/, docstrings and the notebook: each block runs, and prints what is shown. Feeds that
are examples are sound, and each query of the demo finds what it is there for."""

import doctest
import json
import re
import tomllib
from collections import Counter
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest
from lxml import etree

import mmqjp.demo
from feeds.documents import Document
from feeds.tail import read_documents
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from tests.oracle.evaluation import evaluate
from tests.support import generated_pages
from tests.support.cli import run_on
from tests.support.docs import DOCS, GENERATED, PAGES, blocks, differences, printed_cells, run_notebook
from tests.support.house import files_of, module_name
from tests.support.places import ROOT
from tests.test_house import PACKAGES
from xscl.parser import parse_script
from xscl.syntax import Script


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_print_what_the_page_shows(page: Path):
    found = "\n\n".join(f"{d.place} shows:\n{d.shown}\nand it prints:\n{d.printed}" for d in differences(page))
    assert not found, f"{found}\n\npython -m tests.support.docs --write {page} writes what is printed"


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.stem)
def test_pages_that_are_made_are_current(page: Path):
    assert page.read_text("utf-8") == GENERATED[page](), "python -m tests.support.docs --write makes it anew"


def test_the_query_of_the_readme_tells_each_story_once_and_no_doubles_of_a_site(tmp_path):
    (text,) = (block.text for block in blocks(ROOT / "README.md") if block.file == "my.xscl")
    told = [(f"https://site{n}.example/", f"Storm {n} closes the harbour bridge") for n in range(12)]
    told += [(f"https://{site}", "Baker wins a contest") for site in ("twice.example/", "www.twice.example/all")]
    item = "<item><title>{}</title><channel_url>{}</channel_url><feed_url>{}feed</feed_url></item>"
    items = [{"id": f"d{n}", "time": n, "xml": item.format(of, site, site)} for n, (site, of) in enumerate(told)]
    (line,) = run_on(tmp_path, queries=text, documents=items).stdout.splitlines()
    assert json.loads(line)["change"] == "opened"


def test_every_table_of_a_store_is_described():
    assert generated_pages.undescribed() == set(), "describe these in tests/data/table_meanings.toml"


def test_the_site_has_every_page():
    settings = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))
    listed = set(re.findall(r"'([\w-]+\.md)'", str(settings["project"]["nav"])))
    assert listed == {path.name for path in DOCS.glob("*.md")}


WITH_EXAMPLES = [path for path in files_of(*PACKAGES) if ">>> " in path.read_text("utf-8")]


@pytest.mark.parametrize("name", list(map(module_name, WITH_EXAMPLES)))
def test_examples_give_what_they_say(name: str):
    failed, attempted = doctest.testmod(import_module(name))
    assert attempted and not failed


MEASURED = re.compile(r"\d+(?:\.\d+)? m?s\b")


def pages(notebook):
    """What cells show in place of text, without what was measured."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    found = [html for output in outputs if (html := output.get("data", {}).get("text/html"))]
    return [MEASURED.sub("TIME", html) for html in found]


@pytest.mark.soak
def test_the_first_hour_prints_what_it_shows():
    shown, ran = run_notebook()
    assert printed_cells(shown) == printed_cells(ran), "python -m tests.support.docs --write writes what is printed"
    assert pages(shown) == pages(ran) and len(pages(ran)) == 3


# ------------------------------------------------------------ example feeds

DEMO = Path(mmqjp.demo.__file__).parent
FOUND = {
    "same_story": 2, "nearly_same": 1, "follow_up": 3, "book_blog": 2, "retitled": 1, "correction": 1,
    "new_from_author": 3, "bargain": 1, "silent": 2, "first_cut": 1,
}  # fmt: skip


def test_every_query_of_the_demo_has_something_to_find():
    documents = [document for document in read_documents([DEMO], feeds="item") if isinstance(document, Document)]
    assert len({document.id for document in documents}) == len(documents) == 36, "the entries of its feeds"
    script = parse_script((DEMO / "demo.xscl").read_text())
    queries = Script(tuple(query for query in script.queries if not query.hidden))  # those of stories are
    assert Counter(row.query for row in evaluate(queries, documents)) == FOUND
    reader = parse_script((DEMO / "reader.xscl").read_text())
    assert len([query for query in reader.all_queries if not query.hidden]) == 11


@pytest.mark.parametrize("name", ["on_three_sites", "who_was_first", "named", "watched", "big"])
def test_recipes_find_the_same_live(name, tmp_path):
    """Whatever the batches and restarts."""
    page = (block.text for block in blocks(ROOT / "docs" / "recipes.md") if block.language == "xscl")
    script = parse_script(next(text for text in page if f"PUBLISH {name}" in text))
    words = [Document(word, f"<word>{word}</word>", "watch", "2025-08-01") for word in ("outage", "seagrass")]
    items = [one for one in read_documents([ROOT / "examples" / "feeds"], feeds="item") if isinstance(one, Document)]
    items = [*words, *sorted(items, key=attrgetter("t1"))]
    found: list[list[tuple[str, tuple[str, ...], str]]] = []
    for size in (len(items), 40):
        told: list[Output] = []
        for first in range(0, len(items), size):
            with Session("duckdb", state=tmp_path / f"{size}", lateness=0, settle=0, quiet=True) as engine:
                engine.ensure(script)
                told += engine.process(items[first : first + size])
        found.append(sorted((one.query, one.documents, one.xml) for one in told))
    assert found[0] == found[1] and {query for query, *_ in found[0]} == {name}


def test_the_examples_are_the_feeds_of_their_subscriptions():
    outlines = etree.parse(ROOT / "examples" / "feeds.opml").iter("outline")
    found = read_documents([ROOT / "examples" / "feeds"], feeds="item")
    sources = {document.id.split(" ")[0] for document in found if isinstance(document, Document)}
    assert sources == {outline.get("xmlUrl") for outline in outlines} - {None}
