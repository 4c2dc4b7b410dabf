"""Requests for feeds and keys of links; readers of feeds miss nothing."""

import stat
from dataclasses import replace
from random import Random
from urllib.parse import unquote, urlsplit

import feedparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.feed import parse_feed
from join_stage.store.protocol import StoreError
from mmqjp.engine import Session
from mmqjp.syndication.atom import Links, archive_path, feed_path, load_feed_links, setting_of
from mmqjp.syndication.read_entries import FeedPages, FeedRequest, StoreFeeds, http_date
from mmqjp.tables.schema import CommitMetadata
from tests.generate.seeds import seeds
from tests.mmqjp.syndication.feed_cases import QUERIES, Clock, Recount, SessionReader, filled, process, urns
from tests.support.atom import ids_of, is_archive, link, validated

LINKS = Links(b"s" * 32)
URL = "https://a.example"


def pages_of(engine, clock):
    return FeedPages(StoreFeeds(SessionReader(engine)), LINKS, URL, clock)


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
        if answer.status == 304:
            assert not answer.body
            return
        assert answer.status == 200
        names = {"if_none_match": "ETag", "if_modified_since": "Last-Modified"}
        self.headers = {name: answer.headers[header] for name, header in names.items() if header in answer.headers}
        self.ids |= set(ids_of(answer.body))
        address = link(validated(answer.body), "prev-archive")
        while address is not None and address not in self.known:
            self.known.add(address)
            answer = self.pages.answer(at(address))
            if answer.status == 301:
                address = answer.headers["Location"]
                continue
            assert answer.status == 200
            root = validated(answer.body)
            assert is_archive(root) and link(root, "self") == address and link(root, "current") == self.address
            self.ids |= set(ids_of(answer.body))
            address = link(root, "prev-archive")


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_readers_lose_nothing_however_they_poll(seed):
    clock, random = Clock(), Random(seed)
    with Session("duckdb", now=clock) as engine:
        pages = pages_of(engine, clock)
        readers: dict[str, FeedReader] = {}

        def poll():
            clock.now += random.choice((1, 500_000, 1_000_000, 3_600_000_000))
            for name in QUERIES:
                if name in readers and random.random() < 0.4:
                    readers[name].poll()
                elif name in engine.queries():
                    readers.setdefault(name, FeedReader(pages, name, random))

        filled(engine, seed, after_each=poll)
        recount = Recount(engine.outputs())
        clock.now += 2_000_000
        for name, reader in readers.items():
            reader.poll()
            assert reader.ids == set(urns(recount.of(name)))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def engine(clock):
    with Session("duckdb", now=clock) as opened:
        for text in QUERIES.values():
            opened.subscribe(text)
        yield opened


def test_the_feed_of_a_query(engine, clock):
    process(engine, 0, 3, Random(0))
    answer = pages_of(engine, clock).answer(request("every"))
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("application/atom+xml")
    parsed = feedparser.parse(answer.body)
    assert parsed.feed.title == "every"
    assert [entry.title for entry in parsed.entries] == [f"Title {n}" for n in (2, 1, 0)]
    own = [entry.item_url for entry in parse_feed(answer.body).entries]
    assert own == [f"https://a.example/{n}" for n in (2, 1, 0)]
    empty = pages_of(engine, clock).answer(request("never"))
    assert empty.status == 200 and ids_of(empty.body) == []


def test_tags_and_dates(engine, clock):
    process(engine, 0, 3, Random(0))
    pages = pages_of(engine, clock)
    first = pages.answer(request("every"))
    assert "Last-Modified" not in first.headers, "more may be committed in this second"
    clock.now += 1_000_000
    second = pages.answer(request("every"))
    tag, date = second.headers["ETag"], second.headers["Last-Modified"]
    assert first.headers["ETag"] == tag and date == http_date(1_784_200_000_000_000)
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        answer = pages.answer(request("every", if_none_match=known))
        assert answer.status == 304 and answer.body == b"" and answer.headers["ETag"] == tag
    assert pages.answer(request("every", if_modified_since=date)).status == 304
    assert pages.answer(request("every", if_none_match='"x"', if_modified_since=date)).status == 200
    engine.process([])  # another batch without outputs
    assert pages.answer(request("every", if_none_match=tag)).status == 304
    process(engine, 3, 1, Random(0))
    assert pages.answer(request("every", if_none_match=tag)).status == 200
    assert pages.answer(request("every", if_modified_since=date)).status == 200


def test_wrong_and_revoked_keys(engine, clock):
    reader = SessionReader(engine)
    pages = FeedPages(StoreFeeds(reader), LINKS, URL, clock)
    assert pages.answer(FeedRequest("x" * 22, "every")).status == 404 and reader.asked == 0, "nothing is read for it"
    right = request("every")
    assert pages.answer(right).status == 200
    for wrong in (replace(right, key="x"), replace(right, name="same"), replace(right, key=right.key + ".1")):
        assert pages.answer(wrong).status in (404, 410)
    assert pages.answer(replace(right, key="")).status == 404
    assert pages.answer(FeedRequest(LINKS.key("unknown", 0), "unknown")).status == 404
    engine.commit_metadata(CommitMetadata(settings={setting_of("every"): "1"}))
    assert pages.answer(right).status == 410 and pages.answer(request("same")).status == 200
    newer = FeedRequest(LINKS.key("every", 1), "every")
    assert pages.answer(newer).status == 200
    engine.prune(None)  # which compacts settings
    assert pages.answer(right).status == 410 and pages.answer(newer).status == 200


def test_archives_stay_byte_for_byte_until_they_are_gone(clock):
    with Session("duckdb", now=clock, lateness=0) as engine:
        filled(engine, 4)
        pages = pages_of(engine, clock)
        archives = [(name, n) for name in ("every", "rare", "titles") for n in range((engine.last_seq + 1) // 100)]

        def found():
            return {key: pages.answer(request(*key)) for key in archives}

        kept = {key: answer for key, answer in found().items() if answer.status == 200}
        assert len(kept) > 3 and all("immutable" in answer.headers["Cache-Control"] for answer in kept.values())
        clock.now += 10**10
        pages = pages_of(engine, clock)
        process(engine, 500, 3, Random(0))
        engine.prune(1_000_000)
        now = found()
        gone = {key for key in kept if now[key].status == 410}
        assert gone and all(now[key].body == kept[key].body for key in kept.keys() - gone)


NAMES = st.text(max_size=20)


@given(NAMES, st.integers(0, 10**6))
def test_a_key_says_how_often_its_link_was_revoked(name, revoked):
    key = LINKS.key(name, revoked)
    assert LINKS.revoked_before(name, key) == revoked
    assert Links(b"t" * 32).revoked_before(name, key) is None


@given(st.lists(st.tuples(NAMES, st.integers(0, 9)), unique=True, min_size=2, max_size=6))
def test_each_feed_and_each_revocation_has_a_key_of_its_own(feeds):
    keys = [LINKS.key(*feed) for feed in feeds]
    assert len({key.partition(".")[0] for key in keys}) == len(feeds)
    for name, _ in feeds:
        own = {LINKS.key(name, revoked) for revoked in range(10)}
        assert [LINKS.revoked_before(name, key) is not None for key in keys] == [key in own for key in keys]


@given(st.text(max_size=40))
def test_no_other_text_is_a_key(text):
    assert LINKS.revoked_before("a", text) is None


def test_a_key_has_one_spelling_and_the_id_of_a_feed_is_its_own():
    for change in (".0", ".1", ".01", ".-1", ".1e3", ".99999999999", "\n", ".1\n", ".١"):
        assert LINKS.revoked_before("a", LINKS.key("a", 0) + change) is None
    assert LINKS.feed_id("a") == LINKS.feed_id("a") != LINKS.feed_id("b")


@given(NAMES)
def test_names_of_any_characters_are_parts_of_a_path(name):
    encodable = name.encode("utf-8", "ignore").decode()
    for path in (feed_path("KEY", encodable), archive_path("KEY", encodable, 7)):
        assert path.isascii() and path.startswith("/f/KEY/") and path.endswith(".atom") and " " not in path
    assert feed_path("KEY", encodable).count("/") == 3 and archive_path("KEY", encodable, 7).count("/") == 4


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
