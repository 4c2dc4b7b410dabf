"""Archives and pages of feeds, on a server on loopback that misbehaves as told."""

import json
import os
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from common.dates import DAY, HOUR, SECOND, iso_utc
from feeds.documents import Document, Visit
from feeds.fetch import archives
from feeds.fetch.fetcher import DropArchive, WarcArchive, remove_read
from feeds.fetch.settings import NONE, WHOLE
from feeds.fetch.state import STATE_FILE, FeedChange, FetchStore, change_feeds, source_name
from feeds.tail import read_documents
from mmqjp.answers.output import Output
from mmqjp.shown_engine import Engine
from tests.support.faults import Killed, armed, killed
from tests.support.feed_server import START, answer, outcomes

ATOM = "http://www.w3.org/2005/Atom"


def paged(number: int, link: str = "", rel: str = "prev-archive", day: int | None = None) -> str:
    """A page with two entries, of this number of days before START and a day before that."""
    day = number if day is None else day
    times = [START - (day * 2 + back) * DAY - HOUR for back in range(2)]
    dates = [iso_utc(time) for time in times]
    entries = "".join(
        f"<entry><id>urn:{number}.{place}</id><title>{number}.{place}</title><updated>{date}</updated></entry>"
        for place, date in enumerate(dates)
    )
    older = f'<link rel="{rel}" href="{link}"/>' if link else ""
    return f'<feed xmlns="{ATOM}"><title>F</title><id>urn:f</id>{older}{entries}</feed>'


def in_json(number: int, link: str = "") -> str:
    items = [{"id": f"urn:{number}.{place}", "title": f"{number}.{place}"} for place in range(2)]
    feed = {"version": "https://jsonfeed.org/version/1.1", "title": "F", "items": items}
    return json.dumps({**feed, "next_url": link} if link else feed)


def serve_chain(server, pages, write=paged):
    """A feed with a chain of pages, each of which names the one before it. Returns its address."""
    for number in range(pages):
        server.serve(f"/{number}", write(number, f"/{number + 1}" if number + 1 < pages else ""))
    return server.url("/0")


def found_in(fetching):
    """The titles of the documents in the order of reading, with their times, and the visits."""
    items = list(read_documents([fetching.directory], feeds="item"))
    documents = [one for one in items if isinstance(one, Document)]
    shown = [(one.id.split(" ")[1].removeprefix("urn:"), (START - one.t0) // DAY) for one in documents]
    return shown, [one for one in items if isinstance(one, Visit)]


def chain_of(fetching, url):
    with FetchStore(fetching.directory / STATE_FILE) as store:
        return store.chains()[url]


@pytest.mark.parametrize("layout", ["drop", "warc"])
@pytest.mark.parametrize("form", ["prev-archive", "next", "json", "header"])
def test_older_pages_are_read_before_the_first_visit_is_complete(server, fetching, layout, form):
    if layout == "warc":
        fetching.archive = lambda out, store: WarcArchive(out, store.archive_mark(), store.save_mark)
    fetching.own = replace(NONE, history=WHOLE)
    write = {"next": lambda number, link="": paged(number, link, "next"), "json": in_json}.get(form, paged)
    if form == "header":
        for number in range(4):
            older = {"Link": f'</{number + 1}>; rel="prev-archive"'} if number < 3 else {}
            server.serve(f"/{number}", paged(number), **older)
        url = server.url("/0")
    else:
        url = serve_chain(server, 4, write)
    report = fetching.run(url)
    assert (outcomes(report), report.pages) == ({"new": 1}, 3)
    assert server.paths() == ["/0", "/1", "/2", "/3", "/0"], "the last is the visit that is complete"
    documents, visits = found_in(fetching)
    assert [title for title, _ in documents] == [f"{page}.{place}" for page in range(4) for place in range(2)]
    if form != "json":
        assert [days for _, days in documents] == list(range(8)), "each at its own time"
    assert [one.outcome for one in visits] == ["awaited", "complete"]
    assert visits[1].time == fetching.feed(url).checked_at > START
    (news,) = visits[1].documents
    assert b"<entries>2</entries></visit>" in news.xml_bytes(), "nothing is withdrawn"
    assert "4" not in archives.chain_text(chain_of(fetching, url)).replace("4 older", "")
    fetching.later(3600)
    assert outcomes(fetching.run()) == {"unchanged": 1}, "a chain is read once"


def test_a_chain_ends_where_it_is_told_to_and_goes_on_from_there(server, fetching):
    url = serve_chain(server, 6)
    fetching.own = replace(NONE, history=5 * DAY)
    fetching.run(url)
    assert server.paths() == ["/0", "/1", "/2", "/3", "/0"], "the last page has nothing of the span"
    documents, _ = found_in(fetching)
    assert len(documents) == 6 and "read, back to 2026-05-01" in archives.chain_text(chain_of(fetching, url))
    fetching.later(3600)
    fetching.own = replace(NONE, history=WHOLE)
    del server.log[:]
    report = fetching.run()
    assert (outcomes(report), report.pages) == ({"unchanged": 1}, 3)
    assert server.paths() == ["/0", "/3", "/4", "/5"]
    documents, visits = found_in(fetching)
    every = [(f"{page}.{place}", page * 2 + place) for page in range(6) for place in range(2)]
    assert Counter(documents) == dict.fromkeys(every, 1)
    assert [one.outcome for one in visits].count("complete") == 2, "pages of a feed that is there are no visits"


def test_a_chain_that_is_not_wanted_any_more_ends_and_its_files_are_removed_once_read(server, fetching):
    url = serve_chain(server, 6)
    fetching.own = replace(NONE, history=WHOLE)
    with pytest.raises(Killed), armed((FetchStore, "save_chain"), killed, 3, after=True):
        fetching.run(url)
    fetching.own = NONE
    fetching.run()
    assert server.paths() == ["/0", "/1", "/2", "/0"]
    assert "3 older pages" not in archives.chain_text(chain_of(fetching, url))
    fetching.own = replace(NONE, history=4 * DAY)
    fetching.later(3600)
    fetching.run()
    assert chain_of(fetching, url).done and len(found_in(fetching)[0]) == 6
    names = {f"{path.parent.name}/{path.name}" for path in fetching.directory.glob("*/*.xml")}
    remove_read(fetching.directory, names, fetching.clock.time + 1)
    left = [path.parent.name for path in fetching.directory.glob("*/*.*") if path.suffix != ".visits"]
    assert left == [source_name(url)] * 2


def at_first(text: str):
    """An answer whose first time is 503."""
    calls = iter([answer(503)])
    return lambda request: next(calls, answer(200, text.encode()))(request)


ENDS = [
    ("a circle", {"/2": paged(2, "/1")}, "2 older pages read; http://…/1 leads in a circle", 6),
    ("itself", {"/1": paged(1, "/1")}, "1 older page read; http://…/1 leads in a circle", 4),
    ("the same again", {"/2": paged(1, "/2")}, "1 older page read; http://…/2: http://…/2 repeats", 4),
    ("the feed again", {"/1": paged(0, "/1")}, "0 older pages read", 2),
    ("gone", {"/2": answer(410)}, "1 older page read; http://…/2: the server answered 410", 4),
    ("missing", {"/1": answer(404)}, "0 older pages read; http://…/1: the server answered 404", 2),
    ("a page of the site", {"/2": "<html><p>all posts"}, "the answer is not a feed", 4),
    ("another scheme", {"/1": paged(1, "ftp://a.example/x")}, "1 older page read, to the end", 4),
    ("no address", {"/1": paged(1, "http://[::1")}, "1 older page read, to the end", 4),
    ("too large", {"/1": paged(1) + " " * 100_000}, "larger than 100,000 bytes", 2),
    ("inside the network", {"/1": paged(1, "http://192.168.7.7/2")}, "only public addresses are allowed", 4),
    ("there by a redirect", {"/1": answer(302, Location="http://192.168.7.7/")}, "only public", 2),
    ("not well-formed", {"/1": paged(1, "/2").replace("</feed>", "")}, "2 older pages read, to the end", 6),
    ("none", {"/0": paged(0)}, "0 older pages read; the feed names no older page", 2),
    ("later", {"/1": at_first(paged(1, "/2"))}, "2 older pages read, to the end", 6),
    ("never", {"/1": answer(503)}, "0 older pages read; http://…/1: the server answered 503", 2),
    ("busy for hours", {"/1": answer(429, Retry_After="7200")}, "http://…/1: the server answered 429", 2),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "text", "count"), [case[1:] for case in ENDS], ids=[case[0] for case in ENDS])
def test_where_a_chain_ends_before_its_time_is_reported(server, fetching, bad, text, count):
    """A feed of three pages, of which one is bad. The feed itself is read whatever becomes of its pages."""

    async def resolve(host, port):
        return [host]

    fetching.world = {"resolve": resolve}
    fetching.own = replace(NONE, history=WHOLE)
    url = serve_chain(server, 3)
    for path, behaviour in bad.items():
        server.routes[path] = answer(200, behaviour.encode()) if isinstance(behaviour, str) else behaviour
    fetching.run(url)
    fetched_at = fetching.feed(url).fetched_at
    assert fetched_at or "429" in text, "a page that fails does not hold the feed up, unless all of its host waits"
    for _ in range(12):
        fetching.later(3600)
        fetching.run()
    told = archives.chain_text(chain_of(fetching, url)).replace(server.url(""), "http://…")
    assert text in told and chain_of(fetching, url).done, told
    documents, visits = found_in(fetching)
    assert len(documents) == len(set(documents)) == count
    assert visits[-1].outcome == "complete"
    del server.log[:]
    reopened = bool(chain_of(fetching, url).error and chain_of(fetching, url).next)
    change_feeds(fetching.directory / STATE_FILE, FeedChange(retry=(url,)))
    fetching.run()
    assert (len(server.log) > 1) is reopened or "only public" in text, "feeds retry tries a page again"


@pytest.mark.parametrize(
    ("header", "links"),
    [
        ('</f>; rel="next prev-archive"; title="a, b; c", <g>;REL=Hub', "next /f prev-archive /f hub /d/g"),
        ('</f>; rel=next; anchor="/x"', ""), ("<>; rel=self", "self /d/e"), ("garbage", ""), ("</f", ""),
        ("<" * 9_000, ""),
        ('</f>; rel="next', ""), ("</f>; rel*=UTF-8''x; rel=next; rel=hub", "next /f"), ("<http://[::1>; rel=next", ""),
    ],
)  # fmt: skip
def test_links_of_headers(header, links):
    found = archives.PageLinks(tuple(archives.header_links({"Link": header}, "https://a.example/d/e")))
    told = [one for rel in ("next", "prev-archive", "hub", "self") for one in found.of(rel)]
    assert " ".join(f"{rel} {url.removeprefix('https://a.example')}" for rel, url in told) == links


def test_a_chain_is_bounded(server, fetching, monkeypatch):
    fetching.own = replace(NONE, history=WHOLE)
    server.otherwise = lambda request: request.answer(
        200, paged(number := int(request.path[1:]), f"/{number + 1}").encode()
    )
    monkeypatch.setattr(archives, "MOST_PAGES", 5)
    fetching.run(server.url("/0"))
    assert len(server.log) == 5 + 2
    assert "5 older pages read" in archives.chain_text(chain_of(fetching, server.url("/0")))
    monkeypatch.setattr(archives, "MOST_BYTES", 1_000)
    fetching.run(server.url("/7"))
    assert "stopped at the limit of 0 MiB" in archives.chain_text(chain_of(fetching, server.url("/7")))


def test_pages_of_a_host_are_asked_for_as_politely_as_feeds(server, fetching):
    asked = []

    def timed(text):
        def behave(request):
            asked.append(fetching.clock.time)
            request.answer(200, text.encode())

        return behave

    fetching.robots = True
    fetching.own = replace(NONE, history=WHOLE)
    server.serve("/robots.txt", "User-agent: *\nCrawl-delay: 7\nDisallow: /2")
    for number in range(3):
        server.routes[f"/{number}"] = timed(paged(number, f"/{number + 1}"))
    url = server.url("/0")
    fetching.run(url)
    assert "/2" not in server.paths() and all(b - a == 7 * SECOND for a, b in pairwise(asked))
    assert "robots.txt" in chain_of(fetching, url).error


@pytest.mark.parametrize("layout", ["drop", "warc"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("at", "calls"),
    [("keep", 1), ("keep", 2), ("save_chain", 1), ("save_chain", 3), ("commit", 1), *(("fsync", n) for n in (3, 6, 9))],
)
def test_a_chain_goes_on_after_a_kill(server, fetching, layout, when, at, calls):
    kind = {"drop": DropArchive, "warc": WarcArchive}[layout]
    seams: dict[str, Any] = {"keep": kind, "fsync": os}
    if layout == "warc":
        fetching.archive = lambda out, store: WarcArchive(out, store.archive_mark(), store.save_mark)
    fetching.own = replace(NONE, history=WHOLE)
    url = serve_chain(server, 4)
    with suppress(Killed), armed((seams.get(at, FetchStore), at), killed, calls, after=when == "after"):
        fetching.run(url)
    fetching.run()
    documents, visits = found_in(fetching)
    assert Counter(documents) == {(f"{page}.{place}", page * 2 + place): 1 for page in range(4) for place in range(2)}
    assert visits[-1].outcome == "complete" and chain_of(fetching, url).done
    assert len(server.log) <= 6, "what was committed is not asked for again"


def test_absences_are_decided_once_the_older_pages_are_read(server, fetching):
    """Page after page, newest first, as a service reads them: no day is silent in between."""
    fetching.own = replace(NONE, history=WHOLE)
    fetching.run(serve_chain(server, 4))
    query = "FROM S//item->a[./feed_url->f] NOT FOLLOWED BY { f = g, 36 h } S//item->b[./feed_url->g] PUBLISH silent"
    for leave_out, silent in (([], []), (["1.0", "1.1"], ["2.0"])):
        with Engine("duckdb", lateness=0) as engine:
            engine.subscribe(query)
            outputs: list[Output] = []
            for item in read_documents([fetching.directory], feeds="item"):
                if not (isinstance(item, Document) and item.id.split(" ")[1].removeprefix("urn:") in leave_out):
                    outputs += engine.process([item])
            assert [output.documents[0].split(" ")[1].removeprefix("urn:") for output in outputs] == silent
