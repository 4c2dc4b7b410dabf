import csv
import io
import json
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, timedelta, timezone
from hashlib import sha256
from typing import Any

import pytest
from lxml import html
from markdown_it import MarkdownIt
from rich.console import Console

from mmqjp.answers.output import Output
from mmqjp.explain.terms import JoinedValue, Operand, Reason, ShownCondition
from mmqjp.present import item, terminal
from tests.support.messages import story

DAY = 86_400_000_000

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a | b \\| c",
    "[x](javascript:alert(1)) ![y](https://a.example/y.png)",
    "**b** _i_ `c` ~~d~~ <!-- e --> &amp; $f$ {{ 7*7 }} {% x %}",
    "=HYPERLINK(0) ; '1'!A1",
    "-1+1|cmd",
    'quoted "x", and; comma',
    "عنوان من اليمين",
    "</style></title><b>",
    "@someone www.a.example https://b.example",
    "[bold red]x[/] :smile:",
    "w" * 200,
)


MARKDOWN_ELEMENTS = {"div", "p", "strong", "h2", "table", "thead", "tbody", "tr", "th", "td", "br", "a"}

PAGE_ELEMENTS = {"html", "head", "meta", "title", "style", "body", "header", "main", "h1", "h2", "p", "nav", "ul", "ol"}
PAGE_ELEMENTS |= {"li", "a", "span", "section", "time", "div", "mark"}


def output(query="q1", seq=0, t1=DAY, documents=("d1", "d2")):
    streams = ("S",) * len(documents)
    return Output(query, 0, t1, documents, streams, {"x": 1}, "<match/>", f"{seq:032}", seq)


def some_item(title="A", number=1, time=DAY):
    return item.ShownItem(f"d{number}", "S", time, "item", title, "a.example", "", f"https://a.example/{number}")


def joined(left, right, functions=()):
    return JoinedValue(Operand("title", left, functions, 0), Operand("title", right, functions, 1))


def match(title="A", other="B", query="q1", seq=0, t1=DAY, reason=None):
    reason = reason or Reason((joined(title, other, ("lower-case",)),))
    return item.ShownMatch(output(query, seq, t1), (some_item(title), some_item(other, 2)), reason, (("note", title),))


HOSTILE_MATCHES = [match(text, text[::-1], seq=number) for number, text in enumerate(HOSTILE)]


def parsed(text: str) -> Any:
    return html.document_fromstring(text)


def written(write, *arguments):
    out = io.BytesIO()
    write(*arguments, out)
    return out.getvalue().decode()


def report_of(matches, **more):
    groups = item.MatchSpool().add(matches).groups()
    return item.Report(groups, sum(map(len, groups)), item.IN_UTC, **more)


def test_json_and_json_lines_are_the_output_lines_with_more():
    lines = written(terminal.write_json_lines, [match.to_dict() for match in HOSTILE_MATCHES]).splitlines()
    for line, one in zip(lines, HOSTILE_MATCHES, strict=True):
        found = json.loads(line)
        assert json.loads(one.output.to_line()).items() <= found.items()
        assert [shown["title"] for shown in found["items"]] == [shown.title for shown in one.items]
        assert item.ShownMatch.from_dict(found) == one
    for one in (story(1, "a" * 32, 2), story(2, "b" * 32, 20, "merged", ("a" * 32,))):
        assert item.ShownMatch.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    for count in (0, 1, len(HOSTILE)):
        some = [match.to_dict() for match in HOSTILE_MATCHES[:count]]
        assert json.loads(written(terminal.write_json_array, some)) == [json.loads(line) for line in lines[:count]]


def test_csv_has_a_row_for_each_match_and_no_formulas():
    text = written(lambda out: terminal.write_csv(HOSTILE_MATCHES, out, item.IN_UTC))
    assert text.count("\r\n") == len(HOSTILE) + 1
    rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    assert [row["title_1"].removeprefix("'") for row in rows] == [*HOSTILE]
    assert {row["time_2"] for row in rows} == {"1970-01-02T00:00:00Z"}
    assert not [cell for row in rows for cell in row.values() if cell.startswith(("=", "+", "-", "@"))]
    three = (some_item(), some_item("B", 2), some_item("C", 3))
    long = item.ShownMatch(output(documents=("d1", "d2", "d3")), three, Reason())
    text = written(lambda out: terminal.write_csv([match(), long], out, item.IN_UTC))
    assert [row["title_3"] for row in csv.DictReader(io.StringIO(text))] == ["", "C"]


def test_markdown_shows_every_text_as_it_is():
    text = written(lambda out: terminal.write_markdown(report_of(HOSTILE_MATCHES), out))
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    page = parsed(parser.render(text))
    rows = page.xpath("//tbody/tr")
    assert [len(row.xpath("./td")) for row in rows] == [3] * len(HOSTILE)
    titles = [row.xpath("./td[2]/a")[0].text_content().replace("\u2060", "") for row in rows]
    assert titles == [*reversed(HOSTILE)]
    assert {link.get("href") for link in page.iter("a")} == {"https://a.example/1", "https://a.example/2"}
    assert {element.tag for element in page.iter()} <= MARKDOWN_ELEMENTS | {"html", "body"}
    gap = "\u2060"
    assert terminal.escape_markdown("@ann www.a.example https://b.example/@c") == (
        f"{gap}@ann www\\.a.example https\\://b.example/{gap}@c"
    )
    assert terminal.escape_markdown("fixes #12, a/b#3, see !4, GH-5 or x@y.z; C# 7!") == (
        f"fixes {gap}#12, a/b{gap}#3, see {gap}!4, {gap}GH-5 or x{gap}@y.z; C# 7!"
    )


def test_the_page_shows_every_text_as_it_is_and_loads_nothing():
    page = parsed(written(lambda out: terminal.write_page(report_of(HOSTILE_MATCHES), out)))
    titles = page.find_class("title")
    assert [title.text_content().strip() for title in titles[::2]] == [*reversed(HOSTILE)]
    assert [title.get("dir") for title in titles] == ["auto"] * 2 * len(HOSTILE)
    assert {element.tag for element in page.iter()} <= PAGE_ELEMENTS
    attributes = {name for element in page.iter() for name in element.attrib}
    assert not [name for name in attributes if name.startswith("on") or name == "src"]
    outside = [link for link in page.iter("a") if not link.get("href").startswith("#query-")]
    assert {(link.get("href"), link.get("rel")) for link in outside} == {
        (f"https://a.example/{number}", "noopener noreferrer nofollow") for number in (1, 2)
    }


def test_the_policy_of_the_page_allows_its_own_style_alone():
    text = written(lambda out: terminal.write_page(report_of([match()]), out))
    style = text.partition("<style>")[2].partition("</style>")[0]
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = parsed(text).xpath("//meta[@http-equiv='Content-Security-Policy']/@content")
    assert policy == [f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"]


def test_groups_of_the_page():
    matches = [match(title, query=title[0].lower(), t1=day * DAY) for title, day in (("A1", 1), ("B", 5), ("A2", 3))]
    text = written(lambda out: terminal.write_page(report_of(matches, texts={"a": ["FROM x < y"]}), out))
    found = parsed(text)
    assert [" ".join(one.text_content().split()) for one in found.iter("h2")] == ["a 2 matches", "b 1 match"]
    titles = [title.text_content().strip() for title in found.find_class("title")]
    assert titles[::2] == ["A2", "A1", "B"]
    assert [pre.text for pre in found.iter("pre")] == ["FROM x < y"]
    assert found.xpath("//h2/@id") == [href.removeprefix("#") for href in found.xpath("//nav//a/@href")]
    text = written(lambda out: terminal.write_page(report_of([]), out))
    assert "0 matches" in text and "No query has matched anything yet." in text


def test_the_table_keeps_links_whole_and_obeys_the_width():
    long = item.ShownItem("d1", "S", DAY, "item", "word " * 30, "a.example", "", "https://a.example/" + "x" * 100)
    one = item.ShownMatch(output(documents=("d1",)), (long,), Reason())
    out = io.StringIO()
    terminal.print_report(report_of([one, *HOSTILE_MATCHES]), Console(file=out, width=60, highlight=False, emoji=False))
    lines = out.getvalue().splitlines()
    assert f"{' ' * 18}{long.link}" in lines
    assert max(len(line) for line in lines if "https://a.example/x" not in line) <= 60
    assert all(line == line.rstrip() for line in lines)
    assert "[bold red]x[/] :smile:" in out.getvalue()


def test_a_story_is_told_once_as_it_was_last():
    a, b, c = (letter * 32 for letter in "abc")
    told = [
        story(1, a, 2, "opened"),
        story(2, b, 2, "opened"),
        story(3, c, 3),
        story(4, a, 4),
        story(5, a, 20, "merged", (b,)),
    ]
    out = io.StringIO()
    terminal.print_report(report_of(told), Console(file=out, width=80, highlight=False, emoji=False))
    texts = written(lambda out: terminal.write_markdown(report_of(told), out)), out.getvalue()
    page = parsed(written(lambda out: terminal.write_page(report_of(told), out)))
    for text in (*texts, page.text_content()):
        words = " ".join(text.replace("\\", "").split())
        assert "2 stories" in words and "20 documents of 20 feeds" in words and "8 more in between" in words
        assert "in common: tram, fire" in words and "took up 1 other story" in words
        assert "Tram 0 on FIRE" in words and "Tram 8 on FIRE" not in words and "Tram 9 on FIRE" in words
        assert words.index("20 documents") < words.index("3 documents of 3 feeds") and "2 documents" not in words
    assert [" ".join(one.text_content().split()) for one in page.iter("summary")] == [
        "and 19 more, the latest 2026-05-06 12:00", "and 2 more, the latest 2026-05-06 12:00"
    ]  # fmt: skip
    assert [one.text_content() for one in page.find_class("title")[0].iter("mark")] == ["Tram", "FIRE"]
    mixed = report_of([*told, match()])
    assert (mixed.summary, [group.count_text for group in mixed.groups]) == ("3 matches", ["3 matches"])
    rows = list(csv.DictReader(io.StringIO(written(lambda out: terminal.write_csv(told, out, item.IN_UTC)))))
    assert len(rows) == 5 and rows[4]["title_12"] == "Tram 19 on FIRE"


HOSTS = JoinedValue(Operand("u", "https://www.a.example/x", ("host",)), Operand("v", "//a.example", ("host",)))
CONTAINS = ShownCondition(("contains(", Operand("content", "x" * 500), ", ", Operand("u", "A"), ")"))


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (None, item.UNKNOWN),
        (Reason((joined("A", "a", ("lower-case",)),)), 'title "A" = "a" by lower-case'),
        (Reason((joined("A", "A", ("lower-case",)),) * 2), 'same title "A"'),
        (Reason((HOSTS,)), 'u "https://www.a.example/x" = v "//a.example" by host: "a.example"'),
        (Reason((JoinedValue(Operand("u", "A"), Operand("link/@href", "A")),)), 'u = link/@href "A"'),
        (Reason((), (CONTAINS,)), 'contains(content, u "A")'),
        (Reason(), item.FILTERED),
    ],
)
def test_facts_say_what_made_a_match(reason, expected):
    assert list(map(item.fact_text, item.reason_facts(item.ShownMatch(output(), (), reason)))) == [expected]


def test_selected_and_joined_values():
    one = item.ShownMatch(output(), (some_item("A"),), Reason(), (("t", "A"), ("u", "https://a.example/1"), ("w", "B")))
    assert item.values(one) == [("w", "B")]
    reason = Reason((joined("B", "b"), JoinedValue(Operand("name", "wor", (), 0), Operand("name", "zz", (), 1))))
    assert item.marked_title(match("A word", "b", reason=reason), 0) == [("A ", False), ("wor", True), ("d", False)]
    assert item.marked_title(match("A", "b", reason=reason), 1) == [("b", True)]


def test_times_are_shown_in_the_zone_and_read_in_it():
    there = item.TimeFormat(timezone(timedelta(hours=2), "THERE"))
    assert (there.minute(DAY), there.zone_at(DAY)) == ("1970-01-02 02:00", "THERE")
    assert (there.iso(DAY), item.IN_UTC.iso(DAY)) == ("1970-01-02T02:00:00+02:00", "1970-01-02T00:00:00Z")
    assert there.read("1970-01-02") == DAY - 7_200_000_000
    assert there.read("1970-01-02T00:00:00Z") == item.TimeFormat(UTC).read("1970-01-02") == DAY
    assert (item.IN_UTC.minute(10**18), item.TimeFormat().iso(-(10**18))) == (str(10**18), str(-(10**18)))
    assert (there.utc(DAY), there.utc(10**18), there.second(DAY + 7)) == (
        "1970-01-02 00:00:00 UTC", str(10**18), "1970-01-02T02:00:00+02:00"
    )  # fmt: skip
    absent = match(reason=Reason(conditions=(ShownCondition(("nothing came, until 1970-01-02T00:00:00Z",)),)))
    assert item.fact_text(item.reason_facts(absent, there)[0]) == "nothing came, until 1970-01-02T02:00:00+02:00"
    page = written(terminal.write_page, replace(report_of([absent]), clock=there))
    assert parsed(page).xpath("//ul[@class='why']//time/@datetime") == ["1970-01-02T02:00:00+02:00"]
    assert parsed(page).xpath("//ul[@class='items']//time/@title") == ["1970-01-02 00:00:00 UTC"] * 2


def item_from(xml):
    return item.item_of("d", "S", 5, xml)


def test_items_have_titles_sites_and_links():
    url = "<item_url>https://www.n.example/a?b=1&amp;c=2</item_url>"
    links = '<link rel="self" href="https://e.example/s"/><link href="https://e.example/1"/>'
    channel = "<channel_url>https://feeds.example/x</channel_url>"
    for xml, title, site, link in (
        (f"<item>{url}{channel}<title> A\n b </title></item>", "A b", "n.example", "https://www.n.example/a?b=1&c=2"),
        (f"<item>{channel}<title>A</title></item>", "A", "feeds.example", ""),
        (
            f'<e xmlns="http://www.w3.org/2005/Atom"><title>A</title>{links}</e>',
            "A",
            "e.example",
            "https://e.example/1",
        ),
        ("<item><title>A</title><link>https://e.example/2</link></item>", "A", "e.example", "https://e.example/2"),
        ("<book><author>Ada</author><title>A <i>b</i></title></book>", "A b", "", ""),
    ):
        found = item_from(xml)
        assert (found.title, found.site, found.link) == (title, site, link)
    assert item_from("<item><feed_title>News</feed_title></item>").feed == "News"


def test_titles_that_are_missing_long_or_harmful():
    found = item_from('<order n="7"><by>Ada</by><p>x</p><p> y\n z</p><p>w</p></order>')
    assert (found.kind, found.title) == ("order", "7 · Ada · x · y z")
    assert item_from("<a><b/></a>").title == "d"
    gone = item.missing_item("feed https://a.example/1 0f", "S")
    assert (gone.title, gone.is_kept, gone.link) == ("feed https://a.example/1 0f", False, "")
    assert item.truncate("abcd", 4) == "abcd" and item.truncate("abc de", 5) == "abc…"
    assert len(item_from(f"<a><title>{'x' * 5_000}</title></a>").title) == 300
    assert item_from("<a><title>a\u009b31m b\u202e c</title></a>").title == "a\ufffd31m b\ufffd c"


NO_LINKS = (
    "javascript:alert(1)", "JavaScript:alert(1)//https://a.example", "data:text/html,x", "https:///path", "//a.example",
    "https://a.example/ b", "https://a.example/\nb", 'https://a.example/"onmouseover=x', "https://a.example/<b>",
    "https://[bad", "https://a.example/\u202eb", "",
)  # fmt: skip


def test_only_whole_web_addresses_are_links():
    assert [one for one in NO_LINKS if item.is_web_address(one)] == []
    assert item.is_web_address("https://a.example/b?c=d#e") and item.is_web_address("HTTP://A.example:80/ü")
