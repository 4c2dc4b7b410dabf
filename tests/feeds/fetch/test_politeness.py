from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.dates import DAY, HOUR, MINUTE, SECOND
from feeds.fetch.http import Hints, body_hints, fresh_for, retry_after
from feeds.fetch.state import JITTER, Pace, after_failure, after_success, outside_skipped
from tests.support.feed_server import START, Request, failure, outcomes, rss

FEED = rss("a", "b")


@pytest.mark.parametrize(("status", "value"), [(429, "7200"), (503, "Wed, 06 May 2026 14:00:00 GMT")])
def test_retry_after_is_kept_to_for_all_feeds_of_the_host(server, fetching, status, value):
    url = server.serve("/busy", b"", status, Retry_After=value)
    other = server.serve("/other", FEED)
    assert outcomes(fetching.run(url, other)) == {"failed": 1, "put off": 1}
    assert server.paths() == ["/busy"]
    assert [fetching.feed(one).next_check for one in (url, other)] == [START + 2 * HOUR] * 2
    assert fetching.feed(other).errors == 0
    fetching.later(7199)
    fetching.run()
    assert len(server.log) == 1
    fetching.later(1)
    assert fetching.run().counts.total() == 2
    assert server.paths()[1] == "/busy"


def test_failures_back_off_to_a_ceiling_and_a_success_ends_that(server, fetching):
    url = server.url("/feed")
    for wait in (10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440):
        before = fetching.clock.time
        fetching.run(url)
        fetching.clock.time = fetching.feed(url).next_check
        assert (fetching.clock.time - before) // MINUTE == wait
    assert fetching.feed(url).errors == 10
    server.serve("/feed", FEED)
    fetching.run(url)
    assert (fetching.feed(url).errors, fetching.feed(url).last_error) == (0, "")


def test_how_long_a_feed_is_left_alone(server, fetching):
    cases = [
        *(("", {}, HOUR), ("<ttl>180</ttl>", {}, 3 * HOUR), ("<ttl>999999</ttl>", {}, DAY)),
        ("", {"Cache_Control": "max-age=7200", "Age": "600"}, 110 * MINUTE),
        ("<skipDays><day>Wednesday</day></skipDays>", {}, 12 * HOUR),
    ]
    for number, (extra, headers, wait) in enumerate(cases):
        server.serve(f"/{number}", rss("a", extra=extra), **headers)
        url = server.url(f"/{number}", f"h{number}.test")
        fetching.clock.time = START
        fetching.run(url)
        assert fetching.feed(url).next_check - START == wait, (extra, headers)
    url = server.validated("/feed", rss("a", extra="<ttl>120</ttl>"), '"1"')
    for _ in range(2):  # what it asked for holds after a 304, too
        before = fetching.clock.time
        fetching.run(url)
        assert fetching.feed(url).next_check - before == 2 * HOUR
        fetching.later(7200)


def test_robots_are_asked_once_a_day_and_obeyed(server, fetching):
    fetching.robots = True
    server.serve("/robots.txt", "User-agent: mmqjp\nDisallow: /private\nCrawl-delay: 5\nUser-agent: *\nDisallow: /")
    feeds = [server.serve(path, FEED) for path in ("/a", "/b", "/private/c")]
    report = fetching.run(*feeds)
    assert outcomes(report) == {"new": 2, "failed": 1}
    assert sorted(server.paths()) == ["/a", "/b", "/robots.txt"]
    assert "robots.txt" in fetching.feed(feeds[2]).last_error
    assert fetching.feed(feeds[2]).next_check >= START + DAY
    assert fetching.clock.time == START + 5 * SECOND + 5 * SECOND
    fetching.later(3600)
    fetching.run()
    # Every hop is checked.
    assert "robots.txt" in failure(fetching, server.serve("/hop", b"", 302, Location="/private/c"))
    assert server.paths().count("/robots.txt") == 1 and "/private/c" not in server.paths()


@pytest.mark.parametrize(("status", "asked"), [(404, True), (403, True), (500, False), (503, False), (429, False)])
def test_robots_that_cannot_be_had(server, fetching, status, asked):
    fetching.robots = True
    server.serve("/robots.txt", b"", status)
    fetching.run(server.serve("/a", FEED))
    assert ("/a" in server.paths()) == asked


def test_no_more_requests_are_under_way_than_are_allowed(server, fetching):
    """Three hosts with six feeds each: two requests to a host at once, and four in all."""
    under_way: list[str] = []
    most: list[tuple[int, int]] = []

    def answer(request: Request) -> None:
        under_way.append(request.host)
        most.append((under_way.count(request.host), len(under_way)))
        server.released.wait(0.02)
        under_way.remove(request.host)
        request.answer(200, FEED.encode())

    urls = [server.url(f"/{number}", f"h{number % 3}.test") for number in range(18)]
    server.routes |= {f"/{number}": answer for number in range(18)}
    fetching.courtesy = {"concurrency": 4, "per_host": 2, "spacing": 0}
    assert outcomes(fetching.run(*urls)) == {"new": 18}
    assert all(of_host <= 2 and count <= 4 for of_host, count in most)


def test_a_clock_that_was_set_back_does_not_keep_us_waiting(server, fetching):
    first, second = server.serve("/a", FEED), server.serve("/b", FEED)
    fetching.clock.time = START + 400 * DAY
    fetching.run(first)
    fetching.clock.time = START
    assert outcomes(fetching.run(second)) == {"new": 1}
    assert fetching.clock.time == START + SECOND


def test_feeds_that_moved_to_one_address_are_fetched_there_once_and_those_that_redirect_for_now_each(server, fetching):
    one, two = (server.serve(f"/{name}", b"", 301, Location="/new") for name in ("one", "two"))
    server.validated("/new", FEED, '"1"')
    assert outcomes(fetching.run(one, two)) == {"new": 1, "put off": 1}
    assert sorted(server.paths()) == ["/new", "/one", "/two"]
    assert [bool(fetching.bodies(url)) for url in (one, two)] == [True, False]
    aside = fetching.feed(two)
    assert (aside.address, aside.errors, aside.last_error) == (server.url("/new"), 0, f"fetched as {one}")
    fetching.later(2 * 3600)
    assert outcomes(fetching.run()) == {"unchanged": 1, "put off": 1}
    assert server.paths()[3:] == ["/new"]
    urls = [server.serve(f"/{name}", b"", 302, Location="/new") for name in ("three", "four")]
    assert outcomes(fetching.run(*urls)) == {"new": 2}
    # One that is subscribed to where others have moved is fetched as that.
    fetching.later(2 * 3600)
    assert outcomes(fetching.run(one, two, server.url("/new"))) == {"put off": 2, "new": 1, "unchanged": 2}
    assert fetching.bodies(server.url("/new"))


def test_what_fails_or_is_gone_leaves_its_place_to_the_next(server, fetching):
    one, two = (server.serve(f"/{name}", b"", 301, Location="/new") for name in ("one", "two"))
    server.serve("/new", b"", 500)
    assert outcomes(fetching.run(one, two)) == {"failed": 1, "put off": 1}
    server.serve("/new", FEED)
    fetching.later(2 * 3600)
    assert outcomes(fetching.run()) == {"new": 1, "put off": 1}
    server.serve("/new", b"", 410)
    fetching.later(2 * 3600)
    assert outcomes(fetching.run()) == {"stopped": 1, "put off": 1}
    fetching.later(10**7)
    server.serve("/new", FEED)
    assert outcomes(fetching.run()) == {"new": 1}
    assert [len(fetching.bodies(url)) for url in (one, two)] == [1, 1]


NOW = st.integers(0, 4_000_000_000_000_000)
CHANCE = st.floats(0, 1, exclude_max=True)
PLAIN = st.builds(Hints, st.integers(0, 400 * DAY))
SKIPPED = st.frozensets(st.integers(0, 23)), st.frozensets(st.integers(0, 6))
PACES = st.builds(Pace, st.integers(SECOND, 3 * DAY), st.just(DAY), st.integers(SECOND, 2 * DAY))


def is_skipped(moment, hints):
    when = datetime.fromtimestamp(moment // SECOND, UTC)
    return when.hour in hints.skip_hours or when.weekday() in hints.skip_days


@given(NOW, st.integers(0, 400 * DAY), st.integers(1, 10_000), PLAIN, PACES, CHANCE)
def test_neither_sooner_than_anyone_wants_nor_later_than_the_ceiling(now, asked, errors, hints, pace, chance):
    wait = after_success(now, asked, hints, pace, chance) - now
    ceiling = max(pace.longest, pace.interval)
    assert min(max(pace.interval, asked, hints.interval), ceiling) <= wait <= ceiling * (1 + JITTER)
    wait = after_failure(now, errors, None, Hints(), pace, chance) - now
    assert pace.backoff <= wait <= max(pace.longest, pace.backoff) * (1 + JITTER)
    assert wait <= after_failure(now, errors + 1, None, Hints(), pace, chance) - now
    assert after_failure(now, errors, now + asked, Hints(), pace, chance) >= now + max(asked, wait)


@given(NOW, st.builds(Hints, st.just(0), *SKIPPED), CHANCE)
def test_skipped_hours_and_days_are_skipped_and_no_other(moment, hints, chance):
    chosen = outside_skipped(moment, hints, chance)
    if not is_skipped(moment, hints) or len(hints.skip_hours) == 24 or len(hints.skip_days) == 7:
        assert chosen == moment
        return
    assert chosen > moment
    assert not is_skipped(chosen, hints)
    hour = moment - moment % HOUR + HOUR
    while hour <= chosen - HOUR:
        assert is_skipped(hour, hints)
        hour += HOUR


SY = 'xmlns:sy="http://purl.org/rss/1.0/modules/syndication/"'


@pytest.mark.parametrize(
    ("data", "hints"),
    [
        (rss("a"), Hints()),
        (rss("a", extra="<ttl> 60 </ttl>"), Hints(HOUR)),
        (rss("a", extra="<ttl>-5</ttl>"), Hints()),
        (rss("a", extra="<ttl>99999999999</ttl>"), Hints()),
        (rss("a", extra="<ttl>999999999</ttl>"), Hints(366 * DAY)),
        (rss("a", extra="<skipHours><hour>0</hour><hour>24</hour><hour>25</hour><hour>x</hour></skipHours>"),
         Hints(0, frozenset({0}))),
        (rss("a", extra="<skipDays><day>Monday</day><day> sunday </day><day>Noday</day></skipDays>"),
         Hints(0, frozenset(), frozenset({0, 6}))),
        (rss("a", extra=f"<sy:updatePeriod {SY}>\nhourly </sy:updatePeriod>"), Hints(HOUR)),
        (rss("a", extra=f"<sy:updatePeriod {SY}>fortnightly</sy:updatePeriod>"), Hints()),
        (rss("a", extra=f"<sy:updatePeriod {SY}>weekly</sy:updatePeriod>"
                        f"<sy:updateFrequency {SY}>0</sy:updateFrequency>"), Hints(7 * DAY)),
        ('<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">'
         f"<channel><sy:updatePeriod {SY}>daily</sy:updatePeriod></channel></rdf:RDF>", Hints(DAY)),
        (f'<feed xmlns="http://www.w3.org/2005/Atom"><sy:updatePeriod {SY}>daily</sy:updatePeriod></feed>', Hints(DAY)),
        ("<rss><channel><ttl>60</ttl><item>cut", Hints(HOUR)),
        ("", Hints()), ("{}", Hints()), ("<!-- -->", Hints()), ("\0", Hints()),
    ],
)  # fmt: skip
def test_what_a_body_asks_for(data, hints):
    assert body_hints(data.encode()) == hints


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("0", 0), ("120", 2 * MINUTE), (" 120 ", 2 * MINUTE), ("9" * 30, 366 * DAY), ("-1", None), ("1.5", None),
        ("", None), ("soon", None), ("Wed, 06 May 2026 13:00:00 GMT", HOUR), ("Wed, 06 May 2020 13:00:00 GMT", 0),
        ("Wed, 06 May 2099 13:00:00 GMT", 366 * DAY),
    ],
)  # fmt: skip
def test_retry_after(value, wait):
    assert retry_after({"Retry-After": value}, START) == (None if wait is None else START + wait)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        *(({}, 0), ({"Cache-Control": "max-age=60"}, 60), ({"Cache-Control": 'private, Max-Age="60" , x'}, 60)),
        *(({"Cache-Control": "s-maxage=60"}, 0), ({"Cache-Control": "max-age=soon"}, 0), ({"Expires": "0"}, 0)),
        ({"Cache-Control": "max-age=60", "Age": "50", "Expires": "Wed, 06 May 2026 13:00:00 GMT"}, 10),
        ({"Cache-Control": "max-age=60", "Age": "70"}, 0),
        ({"Cache-Control": "max-age=60, no-store"}, 0),
        ({"Expires": "Wed, 06 May 2026 12:01:00 GMT"}, 60),
    ],
)
def test_how_long_an_answer_is_fresh(headers, seconds):
    assert fresh_for(headers, START) == seconds * SECOND
