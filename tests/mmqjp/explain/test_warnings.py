"""Warnings of `mmqjp check`: what is told of queries over items, and what is not."""

from __future__ import annotations

import pytest

from mmqjp.explain.warnings import warnings_of
from xscl.parser import parse_script
from xscl.problems import XsclError


def warned(text: str, feeds: object = "item") -> list[XsclError]:
    return warnings_of(text, parse_script(text), feeds)  # type: ignore[arg-type]  # the tests give right ones


@pytest.mark.parametrize(
    ("text", "at", "message", "hint"),
    [
        ("S//item[./titel->t]", "titel", "items have no titel", "did you mean title?"),
        ("S//item[./pubDate]", "pubDate", "items have no pubDate", "did you mean timestamp?"),
        ("S//item[not(./summary)]", "summary", "items have no summary", "did you mean description?"),
        ("S//entry", "entry", "items have no entry", "did you mean item?"),
        ("S//itme[./title]", "itme", "items have no itme", "did you mean item?"),
        ("S/title", "title", "the root element of an item is item, not title", "write //title"),
        ("S//item[./title/foo]", "foo", "title has no elements in it", "it holds text: end the path with title"),
        ("S//item[./link/href]", "href", "link has no elements in it", "href is an attribute: write link/@href"),
        ("S//item[./link/@url]", "@url", "link has no attribute url", "did you mean href?"),
        ("S//item[./@title]", "@title", "items have no attribute title", "title is an element: write it without the @"),
        ("S//item[./title/@href]", "@href", "title has no attribute href", "link has it: write link/@href"),
        ("S//item[./timestamp = 5]", "./timestamp = 5", "timestamp holds a time, which is no number: this never holds",
         'compare it with a time, such as "2026-07-16"'),
        ("S//item[./item_url < 5]", "./item_url < 5", "item_url holds an address, which is no number: this never holds",
         "compare it with = or !="),
        ("S//item[./updated != 5]", "./updated != 5", "updated holds a time, which is no number: this always holds",
         'compare it with a time, such as "2026-07-16"'),
        ("S//item[./timestamp < ./updated]", "./timestamp < ./updated",
         "two paths are compared as numbers, and this is a time: this never holds",
         "write date(./timestamp) < date(./updated)"),
        ("S//item->a JOIN {a/guid = b/guid and a/updated >= b/title, 1 h} S//item->b", "a/updated >= b/title",
         "two paths are compared as numbers, and this is a time: this never holds",
         "write date(a/updated) >= date(b/title)"),
        ('S//item[./timestamp = "2026-07-16"]', './timestamp = "2026-07-16"',
         "items write this time as 2026-07-16T00:00:00Z: this never holds", 'write date(./timestamp) = "2026-07-16"'),
        ('S//item[contains(./link, "x")]', "./link", "link holds no text", "write link/@href"),
        ('S//item[./lang = "en" and ./lang = "de"]', './lang = "de"',
         'one text cannot be both "en" and "de": this never holds', "write or between the two, if either will do"),
        ('S//item[./lang = "en"][./lang = "de"]', './lang = "de"',
         'one text cannot be both "en" and "de": this never holds', "write or between the two, if either will do"),
        ('S//item/link->l[./@rel = "a"][./@rel = "b"]', './@rel = "b"',
         'one text cannot be both "a" and "b": this never holds', "write or between the two, if either will do"),
        ("S//item->a JOIN {a/titel = b/title, 1 h} S//item->b", "titel", "items have no titel", "did you mean title?"),
        ("S//item[./link->l] JOIN {l = m, 1 h} S//item[./guid->m]", "l", "link holds no text", "write link/@href"),
        ("SELECT a/titel AS t FROM S//item->a", "titel", "items have no titel", "did you mean title?"),
        ("SELECT <x>{a/titel}</x> FROM S//item->a", "titel", "items have no titel", "did you mean title?"),
        ("S//item[./guid->g] JOIN {g = t and g = b/titel, 1 h} (SELECT c AS b, c/title AS t FROM S//item->c)", "titel",
         "items have no titel", "did you mean title?"),
        ("neus//item", "neus", "nothing PUBLISHes neus, and feeds come on stream S",
         "read S, or PUBLISH neus in another query"),
        ("s//item", "s", "nothing PUBLISHes s, and feeds come on stream S", "did you mean S?"),
        ("neus//item; S//item PUBLISH news", "neus", "nothing PUBLISHes neus, and feeds come on stream S",
         "did you mean news?"),
    ],
)  # fmt: skip
def test_a_warning_has_its_place_its_cause_and_what_to_do(text, at, message, hint):
    (found,) = warned(text)
    assert (text[found.span.start : found.span.end], found.message, found.hint) == (at, message, hint)


@pytest.mark.parametrize(
    "text",
    [
        "S//item", "S/item", "S/*", "S//*[./title]", "//*:item", "S//title", "S/item/link/@href",
        "S//@href", "S//item//@*",
        'S//item[./category = "a" and ./category = "b"]',
        'S//item[./lang = "en" or ./lang = "de"]',
        'S//item[./lang = "en" and ./title = "de"]',
        'S//item[.//* = "en" and .//* = "de"]',
        'S//item/category[. = "x" or . = "y"]',
        'S//item[./timestamp = "2026-07-16T00:00:00Z"]', 'S//item[./timestamp >= "2026-07-16"]',
        'S//item[date(./timestamp) < date(./updated) and ./timestamp = ./updated]',
        "S//item[./enclosure/@length > 1000 and ./title > 5 and count(./link) > 2 and ./link]",
        "S//item PUBLISH news; news//itemm[./nothing = 3]->x",
        "S//item PUBLISH S2; S2//a->x JOIN {x = y/titel, 1 h} S2//item->y",
    ],
)  # fmt: skip
def test_no_warning_is_given_for_what_may_match(text):
    assert warned(text) == []


def test_nothing_is_known_of_documents_that_are_not_items():
    text = "S//titel[./@k < 5]; T//x; new//x; S//a PUBLISH news; S//item[./lang = 'a' and ./lang = 'b']"
    assert [w.message for w in warned(text, None)] == ["nothing PUBLISHes new"]
    assert [w.message for w in warned(text, "raw")] == [
        "nothing PUBLISHes T, and feeds come on stream S",
        "nothing PUBLISHes new, and feeds come on stream S",
    ]


def test_warnings_stand_in_their_own_place_though_queries_share_their_parts():
    text = "S//item[./titel->t] PUBLISH a;\n\n   S//item[./titel->t] PUBLISH b;\nS//item[./titel->u]"
    assert [(w.line, w.column) for w in warned(text)] == [(1, 11), (3, 14), (4, 11)]
    assert warned(text)[1].render("f.xscl", "warning") == (
        "f.xscl:3:14: warning: items have no titel\n"
        "     S//item[./titel->t] PUBLISH b;\n"
        "               ^^^^^\nhelp: did you mean title?"
    )


@pytest.mark.parametrize("feeds", [None, "item"])
@pytest.mark.parametrize(
    ("text", "at", "message", "hint"),
    [
        ('S//item[lower-case(./category) = "AI"]', '"AI"', 'lower-case(...) never is "AI": this never holds',
         'write "ai"'),
        ('S//item["ai" != upper-case(./category)]', '"ai"', 'upper-case(...) never is "ai": this always holds',
         'write "AI"'),
        ('S//item[contains(lower-case(./title), "Policy")]', '"Policy"',
         'lower-case(...) never has "Policy" in it: this never holds', 'write "policy"'),
        ('S//item[starts-with(upper-case(./title), "ß")]', '"ß"',
         'upper-case(...) never begins with "ß": this never holds', 'write "SS"'),
        ('S//item[host(./item_url) = "X.com"]', '"X.com"', 'host(...) never is "X.com": this never holds',
         'write "x.com"'),
        ('S//item[host(./item_url) = "http://x.com/a"]', '"http://x.com/a"',
         'host(...) never is "http://x.com/a": this never holds', 'write "x.com"'),
        ('S//item[normalize-space(./title) = "a  b"]', '"a  b"',
         'normalize-space(...) never is "a  b": this never holds', 'write "a b"'),
        ('S//item->a JOIN {a/guid = b/guid and lower-case(a/lang) = "EN", 1 h} S//item->b', '"EN"',
         'lower-case(...) never is "EN": this never holds', 'write "en"'),
        ('S//item->a[./title->t][contains(t, "AI")]', "t",
         "t is a variable, and filters know paths only: this is an element named t",
         "write ./title (or ./t, if you mean an element of that name)"),
        ('S//item->a[a/title = "x"]', "a", "a is a variable, and filters know paths only: this is an element named a",
         "write ./title (or ./a, if you mean an element of that name)"),
    ],
)  # fmt: skip
def test_warnings_of_conditions_need_no_feeds(text, at, message, hint, feeds):
    (found,) = warned(text, feeds)
    assert (text[found.span.start : found.span.end], found.message, found.hint) == (at, message, hint)


@pytest.mark.parametrize(
    "text",
    [
        'S//item[lower-case(./title) = "ai" and upper-case(./title) != "SS" and lower-case(./title) = ""]',
        'S//item[host(./item_url) = "x.com" or host(./item_url) = ""][contains(normalize-space(./title), "a  b")]',
        'S//item[date(./timestamp) = "2026-07-16T10:00:00+02:00"][canonical-url(./item_url) = "https://x.com"]',
        'S//item->a[./title->title][contains(title, "AI")][./author->author]',
        'S//x->a[./title->t][contains(./t, "AI")][./b/a]',
    ],
)
def test_conditions_that_may_hold(text):
    assert warned(text, None) == []
