from collections import Counter
from dataclasses import replace
from itertools import pairwise, permutations, product
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from lxml import etree

from common.dates import HOUR, SECOND
from feeds.documents import Document, Reject, SourceItem, Visit, VisitOutcome
from feeds.fetch.fetcher import DropArchive, WarcArchive
from feeds.fetch.state import FetchStore, source_name
from feeds.history import (
    MOST_VERSIONS,
    EndOfFetch,
    Fetch,
    History,
    InputItem,
    NotedVisit,
    Sighting,
    decode_sighting,
    encode_sighting,
    sightings,
)
from feeds.items import Entry, Origin, item_xml
from feeds.tail import read_documents
from mmqjp.answers.output import Output
from mmqjp.shown_engine import Engine
from tests.generate.seeds import examples
from tests.support.cli import mmqjp, write_queries
from tests.support.faults import Killed, armed, killed
from tests.support.feed_server import START, Fetching, rss, running_server
from tests.support.files import RSS, write

SOURCE = "https://s.example/feed"


def fetched(hours: int) -> Origin:
    return Origin(f"{hours}.xml", 0, SOURCE, START + hours * HOUR)


def seen(origin: Origin, *entries: Entry) -> list[Sighting | EndOfFetch]:
    fetch = Fetch(origin.source or origin.name, origin.name, origin.modified, origin.fetched)
    shown = list(sightings(((entry, item_xml(entry).decode(), "") for entry in entries), fetch))
    return [*shown, EndOfFetch(fetch, [one.key for one in shown])]


def met(history: History, hours: int, *entries: Entry) -> list[tuple[int, int]]:
    """The places and times (in hours) of the entries of a fetch that are documents."""
    judged = [history.judge(one) for one in seen(fetched(hours), *entries)]
    return [(place, (one.t0 - START) // HOUR) for place, one in enumerate(judged) if isinstance(one, Document)]


def again(history: History, **options: Any) -> History:
    loaded = History(**options)
    loaded.load(history.changed())
    return loaded


ENTRY = Entry(guid="g", title="T", date=START - HOUR)


def test_the_first_version_has_the_entrys_time_and_another_that_of_its_change_as_far_as_it_is_told():
    for changed, hour in (
        (replace(ENTRY, updated=START + HOUR), None),
        (replace(ENTRY, title="U"), 5),
        (replace(ENTRY, content="c", updated=START + 2 * HOUR), 2),
        (replace(ENTRY, title="U", date=START + 3 * HOUR), 3),
        (replace(ENTRY, title="U", date=START + 3 * HOUR, updated=START + 4 * HOUR), 4),
        (replace(ENTRY, title="U", updated=START - 2 * HOUR), 5),
        (replace(ENTRY, title="U", date=START + 90 * HOUR), 5),
        (replace(ENTRY, item_url="https://s.example/moved"), 5),
    ):
        history = History()
        assert met(history, 0, ENTRY) == [(0, -1)] and met(again(history), 5, ENTRY) == []
        assert met(history, 5, changed) == ([] if hour is None else [(0, hour)]), changed


@pytest.mark.parametrize(("name", "what"), [("title", "it"), ("guid", "its guid")])
def test_an_entry_that_changes_for_ever_is_stopped_with_a_reject_that_has_its_name_and_its_document(name, what):
    def version(number: int) -> Entry:
        return replace(ENTRY, guid=f"{number}") if name == "guid" else replace(ENTRY, title=f"{number}")

    history = History()
    taken = [met(history, hour, version(hour)) for hour in range(MOST_VERSIONS + 5)]
    assert [len(places) for places in taken] == [1] * MOST_VERSIONS + [0] * 5
    assert met(again(history), 99, replace(ENTRY, guid="x", title="really new")) == [(0, -1)]
    named = "3" if name == "guid" else "g"
    cause = f"the entry {named} of https://s.example/feed is left out, because {what} changes without end: "
    entries, history, rejects = list(map(version, range(9))), History(most=3), []
    for hour, entry in enumerate(entries):
        for _ in range(2):  # the second time, another entry has changed
            judged = [history.judge(one) for one in seen(fetched(hour), entry)]
            rejects += [one for one in judged if isinstance(one, Reject)]
            history = again(history, most=3)
    assert rejects[0].reason == f"3.xml: {cause}at most 3 versions are taken; --most-versions raises the limit"
    assert [one.raw for one in rejects] == [item_xml(entry).decode() for entry in entries[3:]]
    assert [one.time for one in rejects] == [START + hour * HOUR for hour in range(3, len(entries))]
    history, sizes = History(most=2), []  # of what is known of an entry that changes without end
    for hour in range(60):
        met(history, hour, version(hour))
        sizes.append(len(next(iter(history.changed().values()))))
    assert max(sizes[5:]) - min(sizes[5:]) < 10


def test_versions_can_be_ignored_and_a_repeated_guid_is_told_apart_by_link_and_then_by_place():
    history = History("ignore")
    assert met(history, 0, ENTRY) == [(0, -1)]
    assert met(history, 5, replace(ENTRY, title="U"), replace(ENTRY, guid="h")) == [(1, -1)]
    one, two = replace(ENTRY, item_url="https://s.example/1"), replace(ENTRY, item_url="https://s.example/2")
    third = replace(two, title="U")
    history = History("ignore")
    assert met(history, 0, one, two, third) == [(0, -1), (1, -1), (2, -1)]
    # A new one on top moves no other: the places are counted from the oldest.
    newest = replace(two, title="V", date=START)
    assert met(history, 1, newest, one, two, third) == [(0, 0)]


def test_what_a_feed_has_long_been_without_is_forgotten_and_what_it_lists_is_not():
    history, other = History(keep=10 * HOUR), replace(ENTRY, guid="h")
    assert met(history, 0, ENTRY, other) == [(0, -1), (1, -1)]
    assert met(history, 100, other) == []  # nothing was heard of the feed meanwhile: it is missing since now
    assert met(again(history, keep=10 * HOUR), 109, ENTRY, other) == []
    assert met(history, 105, other) == met(history, 111, other) == []
    assert met(history, 112, ENTRY, other) == [(0, -1)]
    history = History(keep=HOUR)
    met(history, 9, ENTRY, other)
    for hour in (1, 5, 8):  # a fetch that was found late makes nothing missing
        assert met(history, hour, ENTRY) == []
    assert met(history, 10, other) == []


def test_what_has_not_changed_need_not_be_kept_again():
    history, late = History(), replace(ENTRY, date=START + 9 * HOUR)
    assert met(history, 0, late) == [(0, 0)] and met(history, 1, late) == []
    assert history.future == {SOURCE: 1}, "counted once a version"
    assert list(history.changed()) == [SOURCE] and history.changed() == {}
    # What is called by its file's name is read once, and not remembered.
    origin = replace(fetched(0), source="")
    document, nothing = (history.judge(one) for one in seen(origin, ENTRY))
    assert isinstance(document, Document) and document.t0 == START - HOUR and nothing is None
    assert history.changed() == {}


def test_entries_keep_their_time_however_old_and_a_fetch_at_a_known_time_ends_with_a_visit():
    for origin, feed in (
        (fetched(0), SOURCE),
        (replace(fetched(0), fetched=None), ""),
        (replace(fetched(0), source=""), ""),  # known by its file: the next version would pass for another feed
    ):
        document, end = map(History().judge, seen(origin, replace(ENTRY, date=START - 9000 * HOUR)))
        assert isinstance(document, Document) and (document.t0, document.feed) == (START - 9000 * HOUR, feed)
        assert end == (Visit(SOURCE, START) if feed else None)


def note(hour: int, since: int | None = None, outcome: VisitOutcome = "complete") -> NotedVisit:
    return NotedVisit(SOURCE, START + hour * HOUR, outcome, None if since is None else START + since * HOUR)


def test_a_feed_never_comes_further_than_what_is_read_of_it_in_whatever_order_its_files_are_read():
    fetches: dict[int, list[InputItem]] = {}
    for hour in (1, 5):
        fetches[hour] = [*seen(fetched(hour), replace(ENTRY, title=f"{hour}"))]
    notes: list[list[InputItem]] = [[note(0, outcome="awaited")], [note(3, 1), note(9, 5)], [note(2, 1)], [note(8, 5)]]
    for order in permutations([*fetches.values(), *notes]):
        if order.index(fetches[5]) < order.index(fetches[1]):
            continue
        history, visits, kept = History(), list[Visit](), dict[str, str]()
        for place, items in enumerate(order, 1):
            kept |= history.changed()
            history = History()  # after a kill
            history.load(kept)
            visits += [one for one in map(history.judge, items) if isinstance(one, Visit)]
            listed = max((hour for hour in fetches if fetches[hour] in order[:place]), default=-1)
            known = [item for some in order[:place] for item in some if isinstance(item, NotedVisit)]
            told = [one.time for one in known if one.since is not None and one.since <= START + listed * HOUR]
            reached = max(0 if listed < 0 else START + listed * HOUR, *told, 0)
            assert max((one.time for one in visits if one.outcome == "complete"), default=0) == reached, order
        is_awaited = order.index(notes[0]) < order.index(fetches[1])
        assert [one.outcome for one in visits].count("awaited") == is_awaited
        assert all(one.feed == SOURCE for one in visits)


def test_an_older_page_adds_what_is_not_known_and_says_nothing_of_what_the_feed_lists():
    now, old, older = ENTRY, replace(ENTRY, guid="h", title="U"), replace(ENTRY, guid="i", date=START - 99 * HOUR)

    def page(history: History, hours: int, *entries: Entry) -> list[str]:
        shown = [replace(one, fetch=replace(one.fetch, page=True)) for one in seen(fetched(hours), *entries)[:-1]]
        again = [decode_sighting(encode_sighting(one), one.id, one.xml) for one in shown if isinstance(one, Sighting)]
        return [one.id.split(" ")[1] for one in map(history.judge, again) if isinstance(one, Document)]

    history = History(keep=10 * HOUR)
    assert page(history, 0, now, old) == ["g", "h"] and page(history, 1, replace(old, title="V"), older) == ["i"]
    # What a page had is not withdrawn, though an entry of the feed is older.
    (*_, end) = seen(fetched(2), now, older)
    found = history.judge(end)
    assert isinstance(found, Visit) and b"<entries>2</entries></visit>" in found.documents[0].xml_bytes()
    assert met(history, 3, replace(old, title="V"), now, older) == [(0, 3)], "it is a version, once the feed lists it"
    assert met(history, 30, now, older) == [] and met(history, 41, now, older) == []
    assert page(history, 41, old) == ["h"], "it was forgotten, like what a feed lists no longer"


def test_what_noted_visits_say_counts_from_what_is_read():
    read, unread = seen(fetched(5), ENTRY), [EndOfFetch(seen(fetched(5), ENTRY)[0].fetch, None)]
    for items, visits in (
        ([note(3)], []),  # of another crawler: it may be no feed
        ([*read, note(7)], [(5, "complete"), (7, "complete")]),
        ([*read, note(4, 1), note(4, None, "ended"), note(5, None, "awaited")], [(5, "complete")]),  # known to be over
        ([note(3, None, "ended")], [(3, "ended")]),
        ([note(7, 5, "ended"), *read], [(7, "ended")]),
        ([note(7, 5, "ended"), note(8, 5), *read], [(8, "complete")]),
        ([note(7, 6, "ended"), *read], [(5, "complete")]),
        (unread, [(5, "ended")]),
        ([*seen(fetched(1), ENTRY), *unread], [(1, "complete")]),
    ):
        history, found = History(), list[SourceItem | None]()
        for item in items:
            if isinstance(item, EndOfFetch | NotedVisit):
                assert decode_sighting(encode_sighting(item), "", "") == item
            found.append(history.judge(item))
        told = [((one.time - START) // HOUR, one.outcome) for one in found if isinstance(one, Visit)]
        assert told == visits, items


def test_run_tells_of_the_future_and_can_ignore_versions(tmp_path):
    for hour, title in enumerate(("a", "b")):
        drop = write(tmp_path / "crawl" / "s" / f"20260505T0{hour}0000Z-{'a' * 12}.xml", RSS.format(title))
        drop.with_suffix(".json").write_text(f'{{"url": "{SOURCE}"}}')
    queries = write_queries(tmp_path, "FROM S//item->a PUBLISH all")
    arguments = ["run", "--engine", "duckdb", "--queries", queries, "--feeds", "--documents", tmp_path / "crawl"]
    result = mmqjp(*arguments)
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr.startswith("mmqjp: 2 feed entries dated after the fetch, given the time of the fetch; 2 from ")
    assert result.stderr.endswith(f" {SOURCE}\n")
    assert len(mmqjp(*arguments, "--versions", "ignore").stdout.splitlines()) == 1


KILLS = [(when, at, 1) for when, at in product(["before", "after"], ["keep", "commit", "note", "drop_visits"])]
KILLS += [(when, "save_host", call) for when, call in product(["before", "after"], [1, 2, 3, 4])]
STEPS = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcde"), max_size=4, unique=True),
        st.booleans(),
        st.one_of(st.none(), st.sampled_from(KILLS)),
    ),
    max_size=8,
)
"""Fetches: the titles of the feed then, whether the server has validators, and at which call the process is killed."""


@pytest.mark.parametrize("layout", ["drop", "warc"])
@given(steps=STEPS)
@examples(3, 20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_fetches_with_crashes_give_each_entry_version_exactly_once(steps, layout, tmp_path_factory):
    """And readers learn of each visit; and the host is asked politely: after a pause, for its rules once, and for
    nothing that was committed."""
    directory = tmp_path_factory.mktemp("fetches")
    archives = {"drop": DropArchive, "warc": WarcArchive}
    versions: set[tuple[str, str]] = set()
    with running_server() as server, Engine("duckdb") as engine:
        engine.subscribe("FROM S//item->a PUBLISH all")
        fetching, asked = Fetching(directory, robots=True), list[int]()
        if layout == "warc":
            fetching.archive = lambda out, store: WarcArchive(out, store.archive_mark(), store.save_mark)

        async def resolve(host: str, port: int) -> list[str]:
            asked.append(fetching.clock.time)
            return [host]

        fetching.world = {"resolve": resolve}
        outputs: list[Output] = []
        url = server.url("/feed")
        for number, (titles, validated, kill) in enumerate(steps):
            # An entry's version is told by its date: each title has two, in turns.
            feed = rss(*titles).replace("10:00:00", f"1{number % 2}:00:00")
            server.validated("/feed", feed, f'"{hash(feed)}"') if validated else server.serve("/feed", feed)
            when, at, call = kill or ("after", "commit", 99)
            try:
                owner = archives[layout] if at in ("keep", "note") else FetchStore
                with armed((owner, at), killed, call, after=when == "after"):
                    fetching.run(url)
            except Killed:
                count, is_due = len(asked), fetching.feed(url).next_check <= fetching.clock.time
                fetching.run(url)  # makes what was committed readable, too
                assert (len(asked) > count) is is_due
                assert at not in ("keep", "commit") or is_due is ((when, at) != ("after", "commit"))
            else:
                assert kill is None or at != "commit"
            versions |= {(title, f"1{number % 2}") for title in titles}
            fetching.later(2 * 3600)
            found = list(read_documents([directory], feeds="item"))
            outputs += engine.process(found)
            visits = [one for one in found if isinstance(one, Visit)]
            assert (visits[0].outcome, visits[-1].outcome) == ("awaited", "complete")
            assert max(one.time for one in visits) == fetching.feed(url).checked_at
        times = Counter(_version(output.documents[0], engine) for output in outputs)
        assert times == dict.fromkeys(versions, 1)
        assert all(later - earlier >= SECOND for earlier, later in pairwise(asked))
        assert server.paths().count("/robots.txt") <= 1 + len([kill for _, _, kill in steps if kill])
        if layout == "drop" and steps:
            bodies = fetching.bodies(url)
            assert all(one != other for one, other in pairwise(bodies))
            assert (directory / source_name(url)).is_dir()


def _version(id: str, engine: Engine) -> tuple[str, str]:
    (row,) = engine.sql(f"SELECT xml FROM documents WHERE id = '{id}'").to_pylist()
    item = etree.fromstring(row["xml"])
    return item.findtext("title", ""), item.findtext("timestamp", "")[11:13]
