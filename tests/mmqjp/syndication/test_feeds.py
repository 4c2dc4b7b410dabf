"""Feeds and archives of a store, as they are read and asked for, against what is recounted from all outputs, and as
Atom documents: valid, read back whole by feedparser and by our own reader, whatever the documents hold."""

import stat
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from random import Random
from urllib.parse import unquote, urlsplit
from uuid import UUID

import feedparser
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree, html

from feeds.documents import Document, from_datetime
from join_stage.store.protocol import Bounds, StoreError
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.explain.terms import JoinedValue, Operand, Reason
from mmqjp.present import recent, recipients
from mmqjp.present.item import ShownMatch, is_web_address, item_of, missing_item
from mmqjp.present.recent import RecentAnswers
from mmqjp.syndication import serve_feeds
from mmqjp.syndication.atom import (
    AtomFeed,
    Links,
    entry_of,
    feed_document,
    feed_path,
    load_feed_links,
    setting_of,
    timestamp,
)
from mmqjp.syndication.serve_feeds import ArchiveGone, Earlier, FeedContents, FeedPages, FeedRequest, StoreFeeds
from mmqjp.tables.schema import CommitMetadata
from tests.generate.seeds import seeds
from tests.support.atom import ATOM, ids_of, is_archive, link, validated
from tests.support.fake_sinks import Clock
from tests.support.feed_texts import entries_of
from tests.support.messages import TIME, story
from tests.support.web import remember_nothing

SIZE, NEWEST = 100, 50
"""What the design says of archives and feeds."""

QUERIES = {
    "every": "S//item->x PUBLISH every",
    "same": "S//item->x PUBLISH same",  # of one form with `every`
    "as_well": "S//item->x PUBLISH as_well",
    "titles": "SELECT p AS t FROM S//item->x[./page->p] PUBLISH titles",
    "rare": "S//item->x[./n = '3'] PUBLISH rare",
    "pairs": "S//item->x[./n->a] FOLLOWED BY {a = b, 20 s} S//item->y[./n->b] PUBLISH pairs",
    "never": "S//item->x[./n = 'none'] PUBLISH never",
}


NOW = 1_784_200_000_000_000


def recent_of(engine, heard=None, most_bytes=None):
    """Reads recent answers; `heard` gets the SQL that is asked."""

    def select(sql: str) -> pa.Table:
        if heard is not None:
            heard.append(sql)
        return engine.question(sql, Bounds(100_000, most_bytes)).answer()

    return RecentAnswers(select, lambda: engine.batch)


def remembering(engine, **options):
    return StoreFeeds(recent_of(engine, **options))


def feeds_of(engine, **options):
    return StoreFeeds(remember_nothing(recent_of(engine, **options)))


@pytest.fixture
def clock():
    return Clock(NOW)


@pytest.fixture
def published(clock):
    with Session("duckdb", now=clock, lateness=0) as opened:
        for text in QUERIES.values():
            opened.subscribe(text)
        yield opened


def document(number: int, random: Random) -> Document:
    fields = f"<title>Title {number}</title><item_url>https://a.example/{number}</item_url>"
    fields += f"<n>{random.randint(1, 9)}</n><page>of page {number}</page>"
    time = 1_000_000 * (number // 3)  # some at the same time: their outputs are numbered together
    return Document(f"https://a.example/f#{number}", f"<item>{fields}</item>".encode(), "S", time)


def change(engine: Session, random: Random) -> None:
    name = random.choice(list(QUERIES))
    known = engine.queries()
    if name not in known:
        engine.subscribe(QUERIES[name], backfill=random.random() < 0.3)
    else:
        random.choice((engine.pause, engine.resume, engine.unsubscribe))(name)


def process(engine: Session, first: int, count: int, random: Random) -> None:
    engine.process([document(number, random) for number in range(first, first + count)])


def filled(engine: Session, seed: int, batches: int = 8, after_each: Callable[[], object] = lambda: None) -> None:
    random, number = Random(seed), 0
    for name in random.sample(list(QUERIES), 4):
        engine.subscribe(QUERIES[name])
    for _ in range(batches):
        if random.random() < 0.5:
            change(engine, random)
        count = random.choice((1, 3, 30))
        process(engine, number, count, random)
        number += count
        after_each()


def urns(outputs: Iterable[Output]) -> list[str]:
    return [UUID(output.id).urn for output in outputs]


class Recount:
    def __init__(self, outputs: Iterable[Output]) -> None:
        self.outputs = list(outputs)
        assert [output.seq for output in self.outputs] == list(range(len(self.outputs)))
        self.archives = len(self.outputs) // SIZE

    def of(self, name: str) -> list[Output]:
        return [output for output in reversed(self.outputs) if output.query == name]

    def newest(self, name: str) -> list[str]:
        own = self.of(name)
        return urns([o for place, o in enumerate(own) if place < NEWEST or o.seq >= self.archives * SIZE])

    def archive(self, name: str, number: int) -> list[str]:
        return urns([o for o in self.of(name) if o.seq // SIZE == number])

    def chain(self, name: str) -> list[int]:
        """The numbers of the archives that are not empty, the newest first."""
        return sorted({o.seq // SIZE for o in self.of(name)} & set(range(self.archives)), reverse=True)

    def newest_archive(self, name: str) -> int | None:
        return next(iter(self.chain(name)), None)


def ids(entries):
    return [entry.id for entry in entries]


def check(feeds, recount):
    for name in QUERIES:
        found = feeds.newest(name)
        if found is None:
            assert not recount.of(name)
            continue
        chain = recount.chain(name)
        assert ids(found.entries) == recount.newest(name)
        assert found.previous == recount.newest_archive(name)
        for number in range(recount.archives):
            archive = feeds.archive(name, number)
            earlier = [one for one in chain if one < number]
            if number in chain:
                assert isinstance(archive, FeedContents) and ids(archive.entries) == recount.archive(name, number)
                assert archive.previous == (number - 1 if number else None)
            elif earlier:
                assert archive == Earlier(earlier[0])
            else:
                assert archive == FeedContents((), None, found.since)
        assert feeds.archive(name, recount.archives) is None


def archives(feeds, names, count):
    return {(name, number): feeds.archive(name, number) for name in names for number in range(count)}


def test_what_is_dropped_is_gone(clock):
    with Session("duckdb", now=clock, lateness=0) as engine:
        filled(engine, 11)
        feeds = feeds_of(engine)
        count = (engine.last_seq + 1) // 100
        before = archives(feeds, QUERIES, count)
        assert all(feeds.newest(name) for name in engine.queries())
        engine.prune(15_000_000)
        assert engine.sql("SELECT min(seq) AS seq FROM outputs")["seq"][0].as_py() > 0, "something is dropped"
        found = archives(feeds_of(engine), QUERIES, count)
        assert found[next(iter(engine.queries())), 0] == ArchiveGone()
        kept = {key for key, one in found.items() if not isinstance(one, ArchiveGone)}
        assert all(found[key] == before[key] for key in kept if isinstance(before[key], FeedContents))
        for name in engine.queries():
            found, fresh = feeds.newest(name), feeds_of(engine).newest(name)
            assert found is not None and fresh is not None
            assert (ids(found.entries), found.previous) == (ids(fresh.entries), fresh.previous)
        engine.prune(0)
        clock.time += 1
        assert engine.sql("SELECT count(*) AS n FROM outputs")["n"][0].as_py() < 20
        for name in engine.queries():
            newest = feeds.newest(name)
            assert newest is not None and newest.previous is None
            assert feeds.archive(name, count - 1) == ArchiveGone() and feeds.archive(name, count) is None
        pages = pages_of(engine, clock)
        for number, status in ((count - 1, 410), (count, 404)):
            assert pages.answer(request(name, number)).status_code == status


def test_there_is_no_feed_of_what_is_no_query(engine):
    filled(engine, 1, batches=1)
    feeds = feeds_of(engine)
    for name in ("unknown", "it's", "a\\b", "", "\n", "x' OR '1'='1", "é\u202e"):
        assert feeds.newest(name) is None and feeds.archive(name, 0) is None


def test_entries_have_values_only_of_queries_that_select(engine):
    for name in ("titles", "every"):
        engine.subscribe(QUERIES[name])
    process(engine, 0, 1, Random(0))
    feeds = feeds_of(engine)
    newest = [feeds.newest(name) for name in ("titles", "every")]
    titles, every = (entry for one in newest if one is not None for entry in one.entries)
    value = "&lt;dt dir=&quot;auto&quot;&gt;t&lt;/dt&gt;&lt;dd dir=&quot;auto&quot;&gt;of page 0&lt;/dd&gt;"
    assert value in titles.xml and "&gt;t&lt;" not in every.xml


def test_long_documents_have_titles_and_long_outputs_no_values(engine):
    engine.subscribe("SELECT c, t FROM S//item->x[./content->c][./title->t] PUBLISH long; S//item->x PUBLISH short")
    fields = "<title>Ä &amp; title</title><item_url>https://a.example/1</item_url>"
    engine.process([Document("d1", f"<item>{fields}<content>{'ä &lt;x&gt; ' * 20_000}</content></item>")])
    for name in ("long", "short"):
        newest = feeds_of(engine).newest(name)
        assert newest is not None
        (entry,) = newest.entries
        assert "<title>Ä &amp; title</title>" in entry.xml
        assert 'href="https://a.example/1"' in entry.xml and len(entry.xml) < 2_000
    engine.process([Document("d2", f"<item a='{'x' * 200_000}'><title>A</title></item>")])
    newest = feeds_of(engine, most_bytes=350_000).newest("short")  # too few for both documents
    assert newest is not None and [
        f"<title>{title}</title>" in entry.xml
        for title, entry in zip(("A", "Ä &amp; title"), newest.entries, strict=True)
    ] == [True, True]


def test_the_newest_outputs_are_not_asked_for_and_a_feed_is_read_once_for_each_batch(engine):
    filled(engine, 5, batches=3)
    for kind in (remembering, feeds_of):
        heard: list[str] = []
        feeds = kind(engine, heard=heard)
        found = {name: feeds.newest(name) for name in engine.queries()}
        assert None not in found.values()
        if kind is remembering:
            assert not any("m.name =" in sql or "WHERE name =" in sql for sql in heard), "none is for one name"
        heard.clear()
        assert {name: feeds.newest(name) for name in found} == found and heard == []
        engine.process([])
        assert {name: feeds.newest(name) for name in found} == found
        assert not [sql for sql in heard if "* FROM documents" in sql], "the entries are kept"


LINKS = Links(b"s" * 32)
URL = "https://a.example"


def pages_of(engine, clock):
    return FeedPages(feeds_of(engine), LINKS, URL, clock)


def request(name, archive=None, **headers):
    return FeedRequest(LINKS.key(name, 0), name, archive, **headers)


def at(address, **headers):
    parts = urlsplit(address)
    assert f"{parts.scheme}://{parts.netloc}" == URL
    _, _, key, *rest = parts.path.removesuffix(".atom").split("/")
    return FeedRequest(key, unquote(rest[0]), int(rest[1]) if rest[1:] else None, **headers)


class FeedReader:
    """A reader of a feed, as RFC 5005 has it: follows archives until it meets one that it knows."""

    def __init__(self, pages, name, random):
        self.pages, self.random, self.address = pages, random, f"{URL}/f/{LINKS.key(name, 0)}/{name}.atom"
        self.ids, self.known, self.headers = set(), set(), {}

    def poll(self):
        kept = self.random.choice([{}, self.headers, *({name: text} for name, text in self.headers.items())])
        answer = self.pages.answer(at(self.address, **kept))
        if answer.status_code == 304:
            assert not answer.body
            return
        assert answer.status_code == 200
        names = {"if_none_match": "ETag", "if_modified_since": "Last-Modified"}
        self.headers = {name: answer.headers[header] for name, header in names.items() if header in answer.headers}
        self.ids |= set(ids_of(answer.body))
        address = link(validated(answer.body), "prev-archive")
        while address is not None and address not in self.known:
            self.known.add(address)
            answer = self.pages.answer(at(address))
            if answer.status_code == 301:
                address = answer.headers["Location"]
                continue
            assert answer.status_code == 200 and "immutable" in answer.headers["Cache-Control"]
            root = validated(answer.body)
            assert is_archive(root) and link(root, "self") == address and link(root, "current") == self.address
            self.ids |= set(ids_of(answer.body))
            address = link(root, "prev-archive")


@pytest.mark.parametrize("seed", seeds(1, 6, 11))
def test_feeds_hold_what_is_recounted_archives_never_change_and_readers_lose_nothing(
    seed, clock, tmp_path, monkeypatch
):
    """Batch by batch, with few remembered answers, so that some feeds are asked for. Whatever happens after archives
    are full, they stay: pauses, removals, other queries of the name, a restart."""
    monkeypatch.setattr(recent, "OF_FORM", 40)
    monkeypatch.setattr(recipients, "MAX_CACHED_ANSWERS", 40)
    random = Random(seed)
    readers: dict[str, FeedReader] = {}
    with Session("duckdb", state=tmp_path, now=clock, lateness=0) as engine:
        pages = pages_of(engine, clock)
        remembered, asked = remembering(engine), feeds_of(engine)

        def compare():
            clock.time += random.choice((1, 500_000, 1_000_000, 3_600_000_000))
            recount = Recount(engine.outputs())
            for name in QUERIES:
                found = asked.newest(name)
                assert remembered.newest(name) == found
                if found is not None:
                    assert (ids(found.entries), found.previous) == (recount.newest(name), recount.newest_archive(name))
                if name in readers and random.random() < 0.4:
                    readers[name].poll()
                elif name in engine.queries():
                    readers.setdefault(name, FeedReader(pages, name, random))

        filled(engine, seed, after_each=compare)
        recount = Recount(engine.outputs())
        clock.time += 2_000_000
        for name, reader in readers.items():
            reader.poll()
            assert reader.ids == set(urns(recount.of(name)))
        before = archives(asked, QUERIES, recount.archives)
        for number, name in enumerate(list(engine.queries())):
            (engine.pause, engine.unsubscribe)[number % 2](name)
        for name in QUERIES:
            engine.subscribe(f"SELECT t FROM S//item->x[./title->t] PUBLISH {name}", backfill=True)
    with Session("duckdb", state=tmp_path, plan="basic", now=clock, lateness=0) as engine:
        feeds = feeds_of(engine)
        found = archives(feeds, QUERIES, recount.archives)
        assert all(found[key] == one for key, one in before.items() if one is not None), "None: there was no such name"
        check(feeds, Recount(engine.outputs()))
        remembered, asked = remembering(engine), feeds_of(engine)
        assert [remembered.newest(name) for name in QUERIES] == [asked.newest(name) for name in QUERIES]
        engine.prune(15_000_000)
        process(engine, 1_000, 3, random)  # what was dropped is seen with the next batch
        assert [remembered.newest(name) for name in QUERIES] == [asked.newest(name) for name in QUERIES]


def test_tags_and_dates(published, clock):
    process(published, 0, 3, Random(0))
    pages = pages_of(published, clock)
    first = pages.answer(request("every"))
    assert first.headers["Content-Type"].startswith("application/atom+xml")
    assert feedparser.parse(first.body).feed.title == "every"
    assert "Last-Modified" not in first.headers, "more may be committed in this second"
    clock.time += 1_000_000
    second = pages.answer(request("every"))
    tag, date = second.headers["ETag"], second.headers["Last-Modified"]
    assert first.headers["ETag"] == tag and date == serve_feeds.http_date(NOW)
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        answer = pages.answer(request("every", if_none_match=known))
        assert answer.status_code == 304 and answer.body == b"" and answer.headers["ETag"] == tag
    assert pages.answer(request("every", if_modified_since=date)).status_code == 304
    assert pages.answer(request("every", if_none_match='"x"', if_modified_since=date)).status_code == 200
    published.process([])  # another batch without outputs
    assert pages.answer(request("every", if_none_match=tag)).status_code == 304
    process(published, 3, 1, Random(0))
    assert pages.answer(request("every", if_none_match=tag)).status_code == 200
    assert pages.answer(request("every", if_modified_since=date)).status_code == 200


def test_wrong_and_revoked_keys(published, clock):
    heard: list[str] = []
    pages = FeedPages(feeds_of(published, heard=heard), LINKS, URL, clock)
    assert pages.answer(FeedRequest("x" * 22, "every")).status_code == 404 and not heard, "nothing is read for it"
    right = request("every")
    assert pages.answer(right).status_code == 200
    for wrong in (replace(right, key="x"), replace(right, name="same"), replace(right, key=right.key + ".1")):
        assert pages.answer(wrong).status_code in (404, 410)
    assert pages.answer(replace(right, key="")).status_code == 404
    assert pages.answer(FeedRequest(LINKS.key("unknown", 0), "unknown")).status_code == 404
    published.commit_metadata(CommitMetadata(settings={setting_of("every"): "1"}))
    assert pages.answer(right).status_code == 410 and pages.answer(request("same")).status_code == 200
    newer = FeedRequest(LINKS.key("every", 1), "every")
    assert pages.answer(newer).status_code == 200
    process(published, 0, 110, Random(0))
    assert pages.answer(request("same", 0)).status_code == 200
    published.prune(None)  # which compacts settings
    assert pages.answer(right).status_code == 410 and pages.answer(newer).status_code == 200


NAMES = st.text(max_size=20)


@given(st.lists(st.tuples(NAMES, st.integers(0, 9)), unique=True, min_size=2, max_size=6))
def test_each_feed_and_each_revocation_has_a_key_of_its_own(feeds):
    keys = [LINKS.key(*feed) for feed in feeds]
    assert len({key.partition(".")[0] for key in keys}) == len(feeds)
    for name, _ in feeds:
        expected = [revoked if own == name else None for own, revoked in feeds]
        assert [LINKS.revoked_before(name, key) for key in keys] == expected
        assert [Links(b"t" * 32).revoked_before(name, key) for key in keys] == [None] * len(keys)


@given(st.text(max_size=40))
def test_a_key_has_one_spelling_and_the_id_of_a_feed_is_its_own(text):
    assert LINKS.revoked_before("a", text) is None
    for change in (".0", ".1", ".01", ".-1", ".1e3", ".99999999999", "\n", ".1\n", ".١"):
        assert LINKS.revoked_before("a", LINKS.key("a", 0) + change) is None
    assert LINKS.feed_id("a") == LINKS.feed_id("a") != LINKS.feed_id("b")


@given(NAMES)
def test_names_of_any_characters_are_parts_of_a_path(name):
    encodable = name.encode("utf-8", "ignore").decode()
    for path in (feed_path("KEY", encodable), feed_path("KEY", encodable, 7)):
        assert path.isascii() and path.startswith("/f/KEY/") and path.endswith(".atom") and " " not in path
    assert feed_path("KEY", encodable).count("/") == 3 and feed_path("KEY", encodable, 7).count("/") == 4


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_the_secret_is_made_once_and_is_its_owners_alone(tmp_path, mode):
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    links = load_feed_links(state)
    assert load_feed_links(state) == links and len(links.secret) == 32 and "secret" not in repr(links)
    (path,) = (state / "secrets").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"short")
    with pytest.raises(StoreError, match="no secret of links"):
        load_feed_links(state)
    path.unlink()
    assert load_feed_links(state) != links


# ---------------------------------------------------------------- Atom documents

FEED = AtomFeed("urn:uuid:00000000-0000-4000-8000-000000000000", "stories", "https://a.example/f/k/stories.atom", 5)
NOON = 1_784_200_000_123_456

TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(("", "<b>&amp;</b>", "]]>", "-->", "\x00\x0b\ufffe", "عنوان من اليمين", "\u202eabc", "a" * 5000)),
)
TIMES = st.one_of(st.integers(0, NOON), st.sampled_from((-(10**17), -(2**62), 2**62, 1)))


def xml_of(title, url):
    """A document as the store has it: XML without what XML forbids."""
    root = etree.Element("item")
    for name, text in (("title", title), ("item_url", url)):
        allowed = "".join(char if char.isprintable() else " " for char in text)
        etree.SubElement(root, name).text = allowed
    return etree.tostring(root, encoding="unicode")


URLS = st.one_of(
    TEXTS,
    st.sampled_from(('https://b.example/?a=1&b="2"\'<', "javascript:alert(1)", "http://ü.example/ä#&amp;", "//x")),
)

WORDS = st.text('abc_é&<"ع', min_size=1)


@st.composite
def matches(draw):
    seq = draw(st.integers(0, 10**6))
    items = []
    for number in range(draw(st.integers(1, 3))):
        kept = draw(st.integers(0, 3))
        xml = xml_of(draw(TEXTS), draw(URLS))
        items.append(item_of(f"d{number}", "S", draw(TIMES), xml) if kept else missing_item(draw(TEXTS), "S"))
    documents = tuple(item.id for item in items)
    output = Output(draw(WORDS), 0, draw(TIMES), documents, ("S",) * len(items), {}, "<match/>", f"{seq:032x}", seq)
    reason = Reason((JoinedValue(Operand("title", draw(TEXTS)), Operand("title", draw(TEXTS))),))
    selected = draw(st.lists(st.tuples(TEXTS, TEXTS), max_size=2))
    return ShownMatch(output, tuple(items), draw(st.sampled_from((None, reason))), tuple(selected))


def plain_match(items, selected=()):
    names = tuple(item.id for item in items)
    output = Output("q", 0, NOON, names, ("S",) * len(names), {}, "<match/>", f"{0:032x}", 0)
    return ShownMatch(output, items, None, selected)


@given(st.lists(matches(), max_size=4, unique_by=lambda match: match.output.seq), TIMES)
def test_documents_are_valid_and_read_back(found, time):
    entries = [entry_of(match, time) for match in found]
    document = feed_document(FEED, entries, None)
    assert ids_of(document) == [
        f"urn:uuid:{match.output.id[:8]}-0000-0000-0000-{match.output.id[-12:]}" for match in found
    ]
    root = validated(document)
    assert link(root, "self") == FEED.address and link(root, "prev-archive") is None and not is_archive(root)
    for match, element, read in zip(found, root.iter(f"{ATOM}entry"), feedparser.parse(document).entries, strict=True):
        assert element.findtext(f"{ATOM}title"), "no title is empty"
        addresses = {one.get("href") for one in element.iter(f"{ATOM}link")}
        assert addresses == {item.link for item in match.items if item.link}
        assert all(address and is_web_address(address) for address in addresses)
        (tag,) = read.tags
        assert tag.term == match.output.query
        content = html.fragment_fromstring(element.findtext(f"{ATOM}content"))
        assert {one.tag for one in content.iter()} <= {"dl", "dt", "dd", "a"}
        assert {one.get("href") for one in content.iter("a")} == {item.link for item in match.items if item.link}
        told = content.text_content()
        assert all(text in told for item in match.items if (text := item.title) and text.isprintable())


def test_an_entry_tells_times_title_and_links():
    items = tuple(item_of(f"d{n}", "S", NOON, xml_of(f"Title {n}", f"https://a.example/{n}")) for n in (1, 2))
    document = feed_document(FEED, [entry_of(plain_match(items), NOON + 1)], None)
    (entry,) = feedparser.parse(document).entries
    assert entry.title == "Title 1" and entry.link == "https://a.example/1"
    links = [("alternate", "https://a.example/1"), ("related", "https://a.example/2")]
    assert [(one.rel, one.href) for one in entry.links] == links
    assert entry.published == timestamp(NOON) and entry.updated == timestamp(NOON + 1)
    (own,) = entries_of(document)
    assert (own.title, own.item_url) == ("Title 1", "https://a.example/1")


def test_a_story_is_one_entry_that_is_updated():
    told = [story(1, "a" * 32, 2, "opened"), story(2, "b" * 32, 2, "opened"), story(3, "a" * 32, 20)]
    entries = [entry_of(one, NOON + number * 1_000_000) for number, one in enumerate(told)]
    assert entries[0].id == entries[2].id != entries[1].id
    grown, other = feedparser.parse(feed_document(FEED, entries[::-1], None)).entries
    assert (grown.title, grown.published) == ("Tram 0 on FIRE", timestamp(TIME)) and other.published == grown.published
    assert grown.updated == timestamp(NOON + 2_000_000)
    assert "in common: tram, fire" in grown.summary and "8 more in between" in grown.summary


def test_titles_and_ids_of_stores_of_older_formats():
    for items, selected, title in (
        ((missing_item("d1", "S"),), (("who", "Ada"), ("what", "b")), "q: Ada, b"),
        ((missing_item("d1", "S"),), (), "q"),
        ((missing_item("d1", "S"), item_of("d2", "S", 1, "<item><title>B</title></item>")), (), "B"),
        ((item_of("d2", "S", 1, f"<item><title>{'x' * 900}</title></item>"),), (), f"{'x' * 299}…"),
    ):
        document = feed_document(FEED, [entry_of(plain_match(items, selected), NOON)], None)
        assert feedparser.parse(document).entries[0].title == title
    odd = ShownMatch(Output("q", 0, 0, ("d0",), ("S",), {}, "", "no digest", 1), (missing_item("d0", "S"),))
    first, again = entry_of(odd, 0), entry_of(odd, 0)
    assert first == again and "<id>urn:uuid:" in first.xml


@given(TIMES)
def test_times_are_those_of_rfc_3339(time):
    moment = datetime.fromisoformat(timestamp(time))
    assert from_datetime(moment) == time or moment.year in (1, 9999)
