"""When a feed is asked next, and what it and its server say about that."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.fetch.http import DAY, HOUR, MINUTE, SECOND, Hints, body_hints, fresh_for, retry_after
from feeds.fetch.state import JITTER, Pace, after_failure, after_success, outside_skipped
from tests.support.feed_server import START, rss

NOW = st.integers(0, 4_000_000_000_000_000)
CHANCE = st.floats(0, 1, exclude_max=True)
PLAIN = st.builds(Hints, st.integers(0, 400 * DAY))
SKIPPED = st.frozensets(st.integers(0, 23)), st.frozensets(st.integers(0, 6))
PACES = st.builds(Pace, st.integers(SECOND, 3 * DAY), st.just(DAY), st.integers(SECOND, 2 * DAY))


def is_skipped(moment, hints):
    when = datetime.fromtimestamp(moment // SECOND, UTC)
    return when.hour in hints.skip_hours or when.weekday() in hints.skip_days


@given(NOW, st.integers(0, 400 * DAY), PLAIN, PACES, CHANCE)
def test_after_a_success_no_sooner_than_anyone_wants_and_no_later_than_the_ceiling(now, fresh, hints, pace, chance):
    wait = after_success(now, fresh, hints, pace, chance) - now
    ceiling = max(pace.longest, pace.interval)
    assert min(max(pace.interval, fresh, hints.interval), ceiling) <= wait <= ceiling * (1 + JITTER)


@given(NOW, st.integers(1, 10_000), st.integers(0, 400 * DAY), PACES, CHANCE)
def test_after_failures_longer_up_to_the_ceiling_and_never_before_the_server_lets_us(now, errors, later, pace, chance):
    wait = after_failure(now, errors, None, Hints(), pace, chance) - now
    assert pace.backoff <= wait <= max(pace.longest, pace.backoff) * (1 + JITTER)
    assert wait <= after_failure(now, errors + 1, None, Hints(), pace, chance) - now
    assert after_failure(now, errors, now + later, Hints(), pace, chance) >= now + max(later, wait)


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


@given(st.builds(Hints, st.integers(0, DAY), *SKIPPED))
def test_hints_are_kept_as_text(hints):
    assert Hints.from_json(hints.to_json()) == hints


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


@given(st.binary(max_size=200))
def test_no_body_is_too_odd(data):
    body_hints(data)


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
