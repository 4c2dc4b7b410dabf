"""The times of texts: ours, the oracle's, and as a second opinion those of Python's own parsers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import times as oracle
from tests.oracle import values as oracle_values
from xscl.algebra.values import ORDER, compare_times, derive, parse_timestamp, time_text

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        *(("2026-07-16", "2026-07-16T00:00:00Z"), (" 2026-07-16T08:30\n", "2026-07-16T08:30:00Z")),
        *(("2026-07-16T08:30:00Z", "2026-07-16T08:30:00Z"), ("2026-07-16t08:30:00z", "2026-07-16T08:30:00Z")),
        ("2026-07-16 08:30:00+02:00", "2026-07-16T06:30:00Z"),
        ("2026-07-16 08:30:00 -0230", "2026-07-16T11:00:00Z"),
        ("2026-07-16T08:30:00+05", "2026-07-16T03:30:00Z"),
        ("2026-07-16T08:30:00.5", "2026-07-16T08:30:00.500000Z"),
        ("2026-07-16T08:30:00,1234567891Z", "2026-07-16T08:30:00.123456Z"),
        ("2026-07-16T24:00:00Z", "2026-07-17T00:00:00Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
        ("2024-02-29", "2024-02-29T00:00:00Z"),
        ("0001-01-01", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
        ("Thu, 16 Jul 2026 08:30:00 GMT", "2026-07-16T08:30:00Z"),
        ("Thu, 16 Jul 2026 08:30:00 +0200", "2026-07-16T06:30:00Z"),
        ("16 jul 2026 8:30", "2026-07-16T08:30:00Z"),
        ("Thursday, 16-Jul-26 08:30:00 GMT", "2026-07-16T08:30:00Z"),
        ("Thu, 16 July 2026 08:30:00 EST", "2026-07-16T13:30:00Z"),
        ("Thu, 16 Jul 2026 08:30:00 CEST", "2026-07-16T08:30:00Z"),
        ("Thu, 16 Jul 2026 08:30:00 +0000 (UTC)", "2026-07-16T08:30:00Z"),
        ("Mon, 16 Jul 1979 08:30:00 -0000", "1979-07-16T08:30:00Z"),
        ("16 Jul 79 08:30:00 Z", "1979-07-16T08:30:00Z"),
        ("16 Jul 49 08:30:00 Z", "2049-07-16T08:30:00Z"),
    ],
)
def test_times(text: str, time: str) -> None:
    assert time_text(text) == derive("date", text) == oracle.moment(text).text() == time
    assert parse_timestamp(text) == us(datetime.fromisoformat(time))
    assert time_text(time) == time


NO_TIMES = """
    |soon|2026|20260716|2026-07|2026-W29-4|2026-197|2026-7-16|2026-02-30|2023-02-29|2026-13-01|2026-00-10|2026-07-00
    |0000-01-01|10000-01-01|-0001-01-01|+2026-07-16|0001-01-01T00:00+00:01|9999-12-31T23:59-00:01|9999-12-31T24:00Z
    |9999-12-31T23:59:60Z|2026-07-16T|2026-07-16T08|2026-07-16T8:30|2026-07-16T25:00|2026-07-16T24:00:01|2026-07-16T08:60
    |2026-07-16T08:30:61|2026-07-16T08:30:00.|2026-07-16T08:30:00+99:99|2026-07-16T08:30:00+24:00|2026-07-16T08:30+02:60
    |2026-07-16T08:30:00+2|2026-07-16T08:30:00 UTC|2026-07-16T08:30:00ZZ|2026-07-16  08:30|2026-07-16 8 Uhr|2026/07/16
    |٢٠٢٦-٠٧-١٦|2026-07-1٦|２０２６-07-16|2026\u201307\u201316|2026-07-16T08:30:00\u22120200
    |16 Jul 2026|Thu, 16 Jul 2026|Foo, 16 Jul 2026 08:30:00 GMT|32 Jul 2026 08:30:00 GMT|16 Juli 2026 08:30:00 GMT
    |Thu, 16 Jul 2026 08:30:00 +02:00|Thu, 16 Jul 2026 25:30:00 GMT|Thu, 16 Jul 2026 08:30:00 +2460|16 Jul 0 08:30
    |16 Jul 2026 10:30 PM|16 Jul 2026 10:30 am|Thu, 16 Jul 2026 10:30:00Pm|16 Jul 2026 12:30 AM (UTC)
    |Thu, 16 Jul 2026 08:30:00 GMT tomorrow|Thu Jul 16 08:30:00 2026|Thu, 16 Jul 12026 08:30:00 GMT
"""


@pytest.mark.parametrize("text", [text.strip("\n ") for text in NO_TIMES.split("|")])
def test_no_times(text: str) -> None:
    assert parse_timestamp(text) is None and time_text(text) == "" and oracle.moment(text).at is None
    assert not any(compare_times(op, text, "2026-07-16") for op in ORDER if op != "!=")
    assert compare_times("!=", text, text) and not compare_times("=", text, text)


def test_a_long_text_is_no_time() -> None:
    assert parse_timestamp(" " * 1_000_000 + "2026-07-16" + "\n" * 1_000_000) == parse_timestamp("2026-07-16")
    for part in ("2", "2026-07-16", " ", "-", "Thu, ", "(", "T08:30:00.0"):
        assert parse_timestamp("2026-07-16T08:30:00." + part * 1_000_000 + "x") is None
    assert parse_timestamp(f"2026-07-16T08:30:00.{'0' * 59}Z") and not parse_timestamp(
        f"2026-07-16T08:30:00.{'0' * 60}Z"
    )


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), st.integers(-1439, 1439), st.sampled_from("T "))
def test_what_python_writes_as_iso(moment: datetime, offset: int, separator: str) -> None:
    text = f"{moment.isoformat(separator)}{'+-'[offset < 0]}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
    try:
        python = us(datetime.fromisoformat(text).astimezone(UTC))
    except OverflowError:
        return
    assert parse_timestamp(text) == oracle.moment(text).at == python
    assert parse_timestamp(moment.isoformat(separator)) == us(moment.replace(tzinfo=UTC))


@given(st.datetimes(datetime(1000, 1, 2), datetime(9999, 12, 30)), st.booleans())
def test_what_python_writes_as_mail(moment: datetime, is_gmt: bool) -> None:
    text = format_datetime(moment.replace(tzinfo=UTC), usegmt=is_gmt)
    assert parse_timestamp(text) == oracle.moment(text).at == us(parsedate_to_datetime(text).astimezone(UTC))


PARTS = ["2026", "07", "16", "-", "-", "T", " ", ":", "08", "30", "60", "24", "00", ".5", "Z", "+02:00", "-0130", "99"]
WORDS = "Thu, thursday 16 1 Jul AUG july 2026 26 99 08:30 8:30:15 24:00:00 25:00 GMT +0200 -9999 EST X (UTC) Juli ٣"


def test_near_times() -> None:
    """Of times with one part changed, and of parts in any order, we and the oracle think the same."""
    rng = Random(1)
    told = 0
    for _ in range(4_000):
        if rng.random() < 0.5:
            ends = rng.choice("T "), rng.choice(("Z", "", ".5"))
            parts = ["2026", "-", "07", "-", "16", ends[0], "08", ":", "30", ":", "00", ends[1]]
            parts[rng.randrange(len(parts))] = rng.choice(PARTS)
            text = "".join(parts)
        else:
            words = ["Thu,", "16", "Jul", "2026", "08:30:00", rng.choice(("GMT", "+0200", "PDT"))]
            words[rng.randrange(len(words))] = rng.choice(WORDS.split())
            text = " ".join(words[rng.randrange(2) :])
        assert time_text(text) == oracle.moment(text).text(), text
        told += parse_timestamp(text) is not None
    assert 600 < told < 3_200


@given(st.one_of(st.text(), st.text(st.sampled_from("0126789-:T Z+.,JulMonGMT()\t"), max_size=30)))
def test_any_text_has_a_time_or_none(text: str) -> None:
    assert time_text(time_text(text)) == time_text(text)


@given(st.sampled_from(sorted(ORDER)), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_comparisons_of_times(op: str, one: int, other: int, is_mail: bool) -> None:
    texts = ["2026-07-16", "2026-07-16T02:00+02:00", "2026-07-16T00:00:00.000001", "Thu, 16 Jul 2026 00:00:01 GMT"]
    times = [0, 0, 1, 1_000_000]
    assert compare_times(op, texts[one], texts[other]) is ORDER[op](times[one], times[other])  # type: ignore[arg-type, index]  # one of six
    assert oracle_values.compare(op, oracle.moment(texts[one]), texts[other]) is ORDER[op](times[one], times[other])  # type: ignore[index]  # one of six
