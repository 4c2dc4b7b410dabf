"""feedparser's own test files: what it expects of a feed's entries is what our documents say, and no file is too odd.

`make feedparser-tests` downloads them; without them these tests are skipped.
"""

import ast
import html
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import feedparser
import nh3
import pytest
from lxml import etree

from feeds.documents import Document, Reject, Visit
from feeds.feed import EntryForm, read_entries
from feeds.history import History
from feeds.items import Origin, html_to_text, one_line
from tests.support.places import ROOT

DIRECTORY = ROOT / ".feedparser" / f"feedparser-{feedparser.__version__}" / "tests"
_EXPECTATION = re.compile(rb"Expect:\s*(.*?)\s*-->", re.DOTALL)

SERVER = "http://127.0.0.1:8097/"
"""Where cases that begin with `http_` say that they come from."""

OTHERWISE = {
    "content of a media type that is not text is left out":
        "atom10/entry_content_base64 atom10/entry_content_base64_2 namespace/atommathml namespace/atomsvgdesc "
        "namespace/atomsvgtitle",
    "an id is not an address, and stays as it is": "base/http_entry_id_base_docuri",
    "of several dates the first is read": "atom/entry_updated_multiple_values",
    "a text of a media type is left out":
        "atom10/entry_summary_base64 atom10/entry_summary_base64_2 atom10/entry_title_base64 "
        "atom10/entry_title_base64_2",
    "what a file is about is not a category of the entry":
        "media-rss/item_media_category_multiple media-rss/item_media_category_term",
    "the title of a file is not the entry's": "media-rss/item_media_title1",
    "the description of a file is not the entry's": "media-rss/media_group",
    "the content is what content:encoded says": "rss/item_description_and_summary",
    "what browsers take for a comment is no text": "rss/item_description_not_a_doctype",
    "an element that no standard has": "rss/item_madeup_tags_element",
    "the description is what description says": "rss/item_summary_and_description",
    "nh3 leaves other harmless remains of a nested CDATA": "sanitize/item_content_encoded_script_nested_cdata",
}  # fmt: skip
"""Why our documents mean to differ, and where."""

pytestmark = pytest.mark.skipif(not DIRECTORY.is_dir(), reason="make feedparser-tests downloads the cases")


def cases(folder: str) -> list[Path]:
    return sorted(path for path in (DIRECTORY / folder).rglob("*.xml") if path.is_file())


def documents(path: Path, form: EntryForm = "item") -> list[Document | Reject]:
    source = SERVER if path.name.startswith("http_") else ""
    items = History().settle(read_entries(path.read_bytes(), Origin(path.name, 0, source), form))
    return [item for item in items if not isinstance(item, Visit)]


# ---------------------------------------------------------------- what a case expects, and what we have


def comparisons(path: Path) -> Iterator[tuple[int, tuple[str | int, ...], Any]]:
    """The equations about entries in a case's expectation: the entry's place, the path to the value, and the value."""
    found = _EXPECTATION.search(path.read_bytes())
    if found is None:
        return
    try:
        tree = ast.parse(found[1].decode("utf-8"), mode="eval").body
    except (SyntaxError, UnicodeDecodeError):  # some are in the encoding of their file
        return
    for node in tree.values if isinstance(tree, ast.BoolOp) else [tree]:
        if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq):
            continue
        try:
            place, *rest = steps(node.left)
            expected = ast.literal_eval(node.comparators[0])
        except ValueError:
            continue
        if isinstance(place, int):
            yield place, tuple(rest), expected


def steps(node: ast.expr) -> list[str | int]:
    """`entries[0]['tags'][1].term` as [0, "tags", 1, "term"]; ValueError for what is not such a path."""
    if isinstance(node, ast.Name) and node.id == "entries":
        return []
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return [*steps(node.value), node.slice.value]  # type: ignore[list-item]
    if isinstance(node, ast.Attribute):
        return [*steps(node.value), node.attr]
    raise ValueError(ast.dump(node))


Item = dict[str, list[str]]


def read_item(document: Document | Reject) -> Item:
    """The values of an `<item>` by their elements, links as their addresses, and attributes of enclosures."""
    assert isinstance(document, Document), document
    values: Item = {}
    for leaf in etree.fromstring(document.xml_bytes()):
        values.setdefault(str(leaf.tag), []).append(leaf.get("href") or leaf.text or "")
        for name in ("type", "length") if leaf.tag == "enclosure" else ():
            values.setdefault(f"enclosure/{name}", []).append(leaf.get(name, ""))
    return values


def texts(expected: str) -> set[str]:
    """Text as it stands, and the text of markup."""
    return {one_line(expected), html_to_text(expected)}


def is_text(item: Item, name: str, expected: str) -> bool:
    return item.get(name, [""])[0] in texts(expected)


def is_description(item: Item, expected: str) -> bool:
    """feedparser gives the content as the summary where there is none."""
    if "description" in item:
        return is_text(item, "description", expected)
    return html_to_text(item.get("content", [""])[0]) in texts(expected)


def is_author(item: Item, expected: str) -> bool:
    """A name with an address is cut down to the name."""
    return any(author in expected and (author or not expected) for author in item.get("author", [""]))


def is_date(item: Item, expected: tuple[int, ...]) -> bool:
    moment = datetime.fromisoformat(item["timestamp"][0])
    return moment.replace(microsecond=0) == datetime(*expected[:6], tzinfo=UTC)  # type: ignore[misc, arg-type]


CHECKS: dict[tuple[str, ...], Callable[[Item, Any], bool]] = {
    **dict.fromkeys((("title",), ("title_detail", "value")), lambda item, expected: is_text(item, "title", expected)),
    **dict.fromkeys((("summary",), ("description",), ("summary_detail", "value")), is_description),
    ("content", "value"): lambda item, expected: (
        item.get("content", [""])[0] in {nh3.clean(expected, link_rel=None), html.escape(expected, quote=False)}
    ),
    ("link",): lambda item, expected: item.get("item_url", [""])[0] == one_line(expected),
    **dict.fromkeys((("id",), ("guid",)), lambda item, expected: item.get("guid", [""])[0] == one_line(expected)),
    **dict.fromkeys((("author",), ("author_detail", "name"), ("authors", "name")), is_author),
    ("tags", "term"): lambda item, expected: one_line(expected) in item.get("category", []),
    ("links", "href"): lambda item, expected: expected in item.get("link", []),
    ("enclosures", "href"): lambda item, expected: expected in item.get("enclosure", []),
    ("enclosures", "type"): lambda item, expected: expected in item.get("enclosure/type", []),
    ("enclosures", "length"): lambda item, expected: expected in item.get("enclosure/length", []),
    ("language",): lambda item, expected: item.get("lang", [""])[0] == expected.lower(),
    # A title of no language is in an entry that may have one.
    ("title_detail", "language"): lambda item, expected: expected in (None, item.get("lang", [""])[0]),
    **dict.fromkeys((("published_parsed",), ("updated_parsed",)), is_date),
}
"""What is compared, by the path to feedparser's value without the places in lists."""


def test_the_fields_of_wellformed_cases_are_what_feedparser_expects():
    compared, wrong = 0, {}
    for path in cases("wellformed"):
        if b"Header:" in path.read_bytes():
            continue
        items = None
        for place, keys, expected in comparisons(path):
            check = CHECKS.get(tuple(key for key in keys if isinstance(key, str)))
            if check is None or isinstance(expected, list):
                continue
            items = items if items is not None else documents(path)
            compared += 1
            if not check(read_item(items[place]), expected):
                wrong[path.relative_to(DIRECTORY / "wellformed").as_posix()] = (keys, expected, items[place])
    assert wrong.keys() == {f"{name}.xml" for names in OTHERWISE.values() for name in names.split()}, wrong
    assert compared > 800


@pytest.mark.parametrize("form", ["item", "raw"])
def test_no_case_crashes(form):
    for path in cases("."):
        for item in documents(path, form):
            if isinstance(item, Document):
                etree.fromstring(item.xml_bytes())
            else:
                assert item.reason
