"""Items as listed, searched, shown and asked for in SQL, against what plain Python reads from the documents."""

import csv
import io
import json
import random
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import duckdb
import pytest

from common.errors import InvalidValue
from feeds.documents import Document, Visit
from feeds.feed import read_entries
from feeds.history import History
from feeds.items import Entry, Origin, item_xml
from join_stage.store.protocol import DUCKDB_FILE
from mmqjp.engine import Session
from mmqjp.present import item_list
from mmqjp.present.item import item_of
from mmqjp.present.item_list import ItemFilter, heaviest_words, item_details, list_items, word_regex
from mmqjp.spark import attach
from mmqjp.tables.lookup import items_by_feed
from mmqjp.web.tallies import DAYS, FeedItems, tally_feeds
from tests.support.cli import mmqjp, printed, refused
from tests.support.feed_texts import MTIME, atom, json_feed, rss
from xscl.algebra.near import words

DAY = 86_400_000_000
COAST, RIVER, JSON = "https://coast.example/rss", "https://river.example/a?b=c&d=e", "https://j.example/feed.json"

HEADLINE = "<title>Tom &amp;amp; &lt;i&gt;Jerry&lt;/i&gt; %s</title>"
FIRST_FEED = (
    f"<item>{HEADLINE}<link>/1?x=1&amp;y=2</link><guid>g 1</guid><pubDate>Tue, 02 Sep 2025 10:00:00 +0200</pubDate>"
    "<description>How ﬁsh &amp;lt;swim&amp;gt; &amp;amp; sleep</description><dc:creator>Ann Béll</dc:creator>"
    "<author>Bo &amp; Co</author><category>Eco</category><category>A &amp;amp; B</category>"
    "<content:encoded>&lt;p&gt;A &lt;b&gt;cat&lt;/b&gt;s &amp;lt;title&amp;gt;no title&amp;lt;/title&amp;gt;&lt;/p&gt;"
    "</content:encoded></item><item><link>https://coast.example/2</link></item><item><title>no link</title></item>"
)

OWN = {  # documents that no feed showed
    "nested": "<item><title>one</title><media><title>two</title></media></item>",
    "flat": '<item lang="x"><title>an attribute</title></item>',
    "plain": "<item><title/><title> \n</title><title a='1 &gt; 0'>first\rone</title><!-- <title>no</title> -->"
    "<category>c</category><category/><timestamp>yesterday</timestamp><content>x</content><title>late</title></item>",
    "https://coast.example/rss not a version": "<a>Fish</a>",
    "x y 0123456789ab": "<log><line>fish</line></log>",
    "deep": "<item><content>a</content><b><c>d</c></b></item>",
    "empty": "<item/>",
}


def items_in(text, source, versions):
    history = History()
    for version in range(versions):
        origin = Origin("d", MTIME + version * DAY, source, MTIME + version * DAY, title="A feed")
        feed = text.replace("%s", f"v{version}").encode()
        yield [one for one in history.settle(read_entries(feed, origin, "item")) if not isinstance(one, Visit)]


def selecting(engine):
    return lambda sql: engine.question(sql, own=True).answer().to_pylist()


def fill(engine):
    """Puts in items of three feeds, some in several versions, and other documents."""
    json_items = json_feed({"id": "7", "title": "Zürich 京都市", "tags": ["t"], "authors": [{"name": "Ann Béll"}]})
    entry = "<id>e</id><title>Straße</title><updated>2025-01-02T03:04:05.5Z</updated><link href='http://x.example/'/>"
    for batch in items_in(rss(FIRST_FEED), COAST, 3):
        engine.process(batch)
    for feed, source in ((atom(entry), RIVER), (json_items, JSON)):
        for batch in items_in(feed, source, 1):
            engine.process(batch)
    engine.process([Document(id, xml, time=MTIME + n) for n, (id, xml) in enumerate(OWN.items())])


def rows_of(engine, sql):
    return engine.sql(sql, trusted=True).to_pylist()


def micros(text):
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def expected(engine):
    """The rows of `versions` and `items`, by docid, from the documents by an XML parser."""
    versions, seen = {}, defaultdict(list)
    for row in sorted(rows_of(engine, "SELECT * FROM documents WHERE kind = 'external'"), key=lambda row: row["docid"]):
        root, id = ET.fromstring(row["xml"]), row["id"]
        item = id[:-13] if re.fullmatch(r"\S+ .+ [0-9a-f]{12}", id) else id
        seen[item].append(row)
        # Of others than those of feeds, what comes after the content does not count.
        before = [*root][: next((n for n, one in enumerate(root) if one.tag == "content"), len(root))]
        if root.tag != "item" or root.attrib or not len(root) or any(len(child) for child in before):
            continue

        def texts(name, before=before):
            return [one.text for one in before if one.tag == name and (one.text or "").strip()]

        def first(name, texts=texts):
            return next((one.strip(" ") for one in texts(name)), None)

        def time(name, first=first):
            return micros(text) if (text := first(name)) and text.endswith("Z") else None

        versions[row["docid"]] = {
            "id": id, "feed": first("feed_url"), "feed_title": first("feed_title"), "title": first("title"),
            "url": first("item_url"), "author": ", ".join(texts("author")) or None, "lang": first("lang"),
            "published": time("timestamp"), "updated": time("updated"), "categories": texts("category") or None,
            "t0": row["t0"], "first_seen": row["taken_at"], "version": len(seen[item]), "stream": "S", "item": item,
            "docid": row["docid"],
        }  # fmt: skip
    items = {}
    for item, rows in seen.items():
        if (newest := versions.get(rows[-1]["docid"])) is not None:
            came = [row["taken_at"] for row in rows]
            counted = {"first_seen": None if None in came else min(came), "versions": len(rows)}
            items[newest["docid"]] = {k: v for k, v in newest.items() if k != "version"} | counted
            assert newest["item"] == item
    return {"items": items, "versions": versions}


def assert_views_are_exact(engine):
    for view, rows in expected(engine).items():
        found = rows_of(engine, f"SELECT * FROM {view} ORDER BY docid")
        assert {row["docid"]: row for row in found} == rows


@pytest.fixture(scope="module")
def engine():
    clock = iter(range(MTIME + 10 * DAY, 1 << 62, 1_000_000))
    with Session("duckdb", now=lambda: next(clock)) as engine:
        engine.subscribe("""
            FROM S//item->a[./title->t1][./item_url->u1]
              FOLLOWED BY {u1 = u2 AND t1 != t2, INF} S//item->b[./title->t2][./item_url->u2] PUBLISH pairs;
            FROM S//item[./category = "Eco"] PUBLISH eco; FROM S//item[./category = "Eco"] PUBLISH unseen HIDDEN;
            FROM S//nothing PUBLISH nothing""")
        fill(engine)
        yield engine


@pytest.fixture(scope="module")
def select(engine):
    return selecting(engine)


def test_views_have_what_the_documents_say(engine):
    assert_views_are_exact(engine)
    shown = {row["id"]: row for row in rows_of(engine, "SELECT * FROM items")}
    assert sum(row["versions"] == 3 for row in shown.values()) == 1
    assert shown.keys() & OWN.keys() == {"plain", "deep"}
    for row in rows_of(engine, "SELECT i.*, d.xml FROM items i JOIN documents d ON d.docid = i.docid"):
        if row["feed"] is None:
            continue
        item = item_of(row["id"], "S", row["t0"], row["xml"])
        assert (item.title, item.link, item.feed) == (row["title"] or item.title, row["url"] or "", row["feed_title"])


def test_views_have_the_same_on_spark(spark, tmp_path):
    with Session(spark, state=tmp_path) as engine:
        fill(engine)
        assert_views_are_exact(engine)
        asked = "SELECT title FROM items WHERE versions = 3"  # judged, by Spark, and by DuckDB over the same files
        for answer in (engine.sql(asked), engine.confined_question(asked).answer()):
            assert answer.to_pylist() == [{"title": "Tom & Jerry v2"}]
    attach(spark, tmp_path, "attached_items")
    (row,) = spark.sql("SELECT count(*) AS n, max(version) AS most FROM attached_items.versions").collect()
    assert (row.n, row.most) == (9, 3)


def test_documents_of_older_stores_have_no_time_of_arrival(tmp_path):
    with Session("duckdb", state=tmp_path) as engine:
        fill(engine)
    with duckdb.connect(str(tmp_path / DUCKDB_FILE)) as connection:
        connection.execute("UPDATE documents SET taken_at = NULL WHERE docid < 2")
    with Session("duckdb", state=tmp_path) as engine:
        assert_views_are_exact(engine)
        assert None in {row["first_seen"] for row in rows_of(engine, "SELECT first_seen FROM items")}


SEARCHES = {
    "": 12, "fish": 3, "FISH": 3, "Fish swim": 1, "swim fish sleep": 1, "fis": 0, "cats": 0, "cat": 1, "béll": 2,
    "be\u0301ll ANN": 2, "strasse": 1, "STRASSE": 1, "zurich": 0, "京都": 1, "都市": 1, "title": 1, "https": 0,
    "eco": 1, "b a": 1, "v0": 0, "v2": 1, "late": 1, "fish " * 300: 3,
}  # fmt: skip


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_finds_the_items_with_all_words(search, select):
    found = list_items(select, ItemFilter(search=search)).items
    assert len(found) == SEARCHES[search]
    assert [one.docid for one in found] == [
        one.docid for one in list_items(select, ItemFilter()).items if one.docid in {each.docid for each in found}
    ]


@pytest.mark.parametrize("search", ["***", "-", "…"])
def test_a_search_needs_a_word(search):
    with pytest.raises(InvalidValue, match="has no word"):
        ItemFilter(search=search)


WRITTEN = (
    "aAbfFiIlsSt\xdf\u1e9e\u017f\ufb01\ufb06\xe9\xc9e\u0301K\u212a\xc5\u0327"
    "q\u0303\xbd\xb2\u2460\uff21\u4eac\u90fd\u30ab\uff76\u3099\u30ac\uac00\u1100\u1161\u1ec6\u1eb8\u0302\u0345\u03b0\u0149\u01f0\u0130\u0131"
    " -.'\u0e33\u0e01\u33c2\u03a9\u2126\u043c\u0306\u0439\u0958\u0915"
)


def test_no_writing_of_a_word_escapes_the_search(select):
    """The store looks for words as they are written, which may be in many ways."""
    given = random.Random(7)
    pairs = []
    for _ in range(400):
        text = "".join(given.choices(WRITTEN, k=given.randint(1, 12)))
        pairs += [(text, word) for word in words(text)]
    rows = ", ".join(
        f"({n}, '{text.replace(chr(39), chr(39) * 2)}', '{word_regex(word)}')" for n, (text, word) in enumerate(pairs)
    )
    missed = select(f"SELECT n FROM (VALUES {rows}) AS v(n, text, regex) WHERE NOT regexp_matches(text, regex)")
    assert [pairs[row["n"]] for row in missed] == []


FILTERS = [
    ItemFilter(), ItemFilter(search="fish"), ItemFilter(feed=COAST), ItemFilter(feed="https://coast.example"),
    ItemFilter(since=MTIME), ItemFilter(until=MTIME), ItemFilter(since=MTIME, until=MTIME + 3, search="fish"),
    ItemFilter(feed=COAST, search="béll"),
]  # fmt: skip


@pytest.mark.parametrize("wanted", FILTERS)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_pages_have_every_item_once_in_order_of_time(wanted, most, engine, select, monkeypatch):
    monkeypatch.setattr(item_list, "AT_ONCE", 2)
    monkeypatch.setattr(item_list, "MOST_COMPARED", 3)
    monkeypatch.setattr(item_list, "NEWEST", (1, 4))
    found, before = [], None
    for _ in range(100):
        page = list_items(select, wanted, before, most)
        assert len(page.items) <= most
        found += [one.docid for one in page.items]
        if (before := page.next) is None:
            break
    rows = rows_of(engine, "SELECT docid, id, t1, xml FROM documents WHERE kind = 'external' ORDER BY docid")
    newest = {re.sub(r"(\S+ .+) [0-9a-f]{12}", r"\1", row["id"]): row for row in rows}.values()
    for_sure = [
        row for row in sorted(newest, key=lambda row: (-row["t1"], -row["docid"]))
        if row["id"].startswith(f"{wanted.feed} " if wanted.feed else "")
        and (wanted.since is None or row["t1"] >= wanted.since) and (wanted.until is None or row["t1"] < wanted.until)
        and (not wanted.search or wanted.has_words_of(row["xml"]))
    ]  # fmt: skip
    assert found == [row["docid"] for row in for_sure]


def test_one_item_has_its_fields_versions_and_outputs(select):
    (listed,) = list_items(select, ItemFilter(search="swim")).items
    assert (listed.versions, listed.feed, listed.author) == (3, COAST, "Bo & Co, Ann Béll")
    assert listed.summary.startswith("How ﬁsh")
    found = item_details(select, listed.docid)
    assert found is not None
    assert [(one.name, one.text) for one in found.fields if one.name in ("title", "category")] == [
        ("title", "Tom & Jerry v2"), ("category", "Eco"), ("category", "A &amp; B"),
    ]  # fmt: skip
    assert ("link", (("rel", "alternate"), ("href", "https://coast.example/1?x=1&y=2"))) in [
        (one.name, one.attributes) for one in found.fields
    ]
    versions = [
        (one.docid, one.changes and [(c.name, c.before, c.after) for c in one.changes]) for one in found.versions
    ]
    (third, changed), (second, before), (first, none) = versions
    assert third == found.docid > second > first
    assert none is None
    assert changed == [("title", "Tom & Jerry v1", "Tom & Jerry v2")]
    assert before == [("title", "Tom & Jerry v0", "Tom & Jerry v1")]
    assert {one.query for one in found.outputs} == {"pairs", "eco"}
    assert not found.has_more
    assert (found.feed, found.author) == (COAST, "Bo & Co")
    assert found.words == heaviest_words("Tom & Jerry v2 How fish <swim> & sleep")
    assert item_details(select, 10**30) is None


def test_long_documents_are_listed_by_their_ids(monkeypatch):
    with Session("duckdb") as engine:
        text = "word " * 30_000
        engine.process(
            [Document("long", f"<item><title>{text}</title></item>"), Document("huge", f"<a>{text * 9}</a>")]
        )
        select = selecting(engine)
        assert [one.item.title for one in list_items(select, ItemFilter()).items] == ["huge", "long"]
        assert list_items(select, ItemFilter(search="word")).items == ()
        long, huge = (item_details(select, docid) for docid in (0, 1))
        assert long is not None
        assert huge is not None
        assert (long.fields[0].text[:5], len(long.xml), long.characters) == ("word ", 20_000, 150_028)
        assert (huge.fields, huge.xml, huge.characters) == ((), "", 1_350_007)


def test_feeds_are_tallied_by_the_days_of_their_first_versions(select):
    today = MTIME // DAY + 1
    found = tally_feeds(select(items_by_feed(today - DAYS + 1)), today)
    assert {feed: (one.items, sum(one.days)) for feed, one in found.items()} == {
        COAST: (3, 2),
        RIVER: (1, 0),
        JSON: (1, 1),
        "x": (1, 1),
    }
    assert found[COAST].days[-2:] == (2, 0)
    assert MTIME + 10 * DAY <= (found[COAST].last or 0) < (found[JSON].last or 0)
    rows = [{"feed": "f", "day": day, "items": 1, "last": day} for day in (-1, today + 9)]
    assert tally_feeds(rows, today) == {"f": FeedItems(2, today + 9, (*(0,) * (DAYS - 1), 1))}


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    with Session("duckdb", state=state) as engine:
        fill(engine)
    return state


def test_the_command_lists_items(state):
    listed = json.loads(printed("items", "--state", state, "--search", "swim FISH", "--format", "json"))
    assert [(row["title"], row["versions"], row["categories"]) for row in listed] == [
        ("Tom & Jerry v2", 3, ["Eco", "A &amp; B"])
    ]
    rows = list(csv.DictReader(io.StringIO(printed("items", "--state", state, "--feed", COAST, "--format", "csv"))))
    assert [row["author"] for row in rows].count("Bo & Co, Ann Béll") == 1
    assert len(rows) == 4  # three items, and a document whose id begins like theirs
    lines = printed("items", "--state", state, "--limit", "2").splitlines()
    assert [(one["title"], one["id"]) for one in map(json.loads, lines)][1:] == [("empty", "empty")]
    table = printed("items", "--state", state, "--since", "2025-09-01", "--format", "table", "--search", "swim")
    assert "A feed, coast.example" in " ".join(table.split())
    assert printed("items", "--state", state, "--since", "2099-01-01", "--format", "json") == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--search", "***"], 1, "has no word: write letters or digits"),
        (["--since", "soon"], 2, "neither a time"),
        (["--limit", "0"], 2, "--limit"),
        (["--format", "xml"], 2, "--format"),
        (["--output", "nowhere/there/out.csv"], 1, "nowhere/there"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(arguments, status, said, state):
    assert said in refused("items", "--state", state, *arguments, status=status)


def test_the_list_of_feeds_counts_items(state, tmp_path):
    mmqjp("feeds", "add", COAST, "https://new.example/", "--state", state)
    listed = [json.loads(line) for line in printed("feeds", "list", "--json", "--state", state).splitlines()]
    assert [(one["items"], one["last_new"] is None) for one in listed] == [(3, False), (0, True)]
    assert re.search(r"items +last new +feed\n.* 3  20.*coast", printed("feeds", "list", "--state", state))
    mmqjp("feeds", "add", COAST, "--state", tmp_path)
    assert json.loads(printed("feeds", "list", "--json", "--state", tmp_path))["items"] is None
    assert "items" not in printed("feeds", "list", "--state", tmp_path)


def test_an_item_of_any_entry_is_one(select):
    """What our own writer makes of hostile texts is read back as it is."""
    hostile = "a<b>&amp;\"'</title><title>x ]]> \r\n &lt;/item&gt; \u2028 𝄞"
    entry = Entry("https://x.example/?a=<b>&c", title=hostile, description=hostile, guid=hostile, content=hostile,
                  authors=(hostile, "B"), categories=(hostile,), links=(("alternate", hostile),))  # fmt: skip
    with Session("duckdb") as engine:
        engine.process([Document("f g 0123456789ab", item_xml(entry, "f", hostile, (hostile,)))])
        assert_views_are_exact(engine)
        assert len(rows_of(engine, "SELECT * FROM items")) == 1
