"""Documents, their times, and their bytes."""

import pickle
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from common.dates import iso_utc
from feeds.documents import Document, parse_iso, parse_time

NOON = 1_778_068_800_000_000  # 2026-05-06T12:00:00Z


def test_a_point_in_every_spelling_a_pair_is_an_interval_and_a_day_is_its_midnight():
    for value in (
        *("2026-05-06T12:00:00Z", "2026-05-06T12:00:00", "2026-05-06 12:00", " 2026-05-06T14:00:00+02:00 "),
        *("2026-05-06T12:00:00.000000", NOON, datetime(2026, 5, 6, 12), datetime(2026, 5, 6, 12, tzinfo=UTC)),
        datetime(2026, 5, 6, 7, tzinfo=timezone(timedelta(hours=-5))),
    ):
        assert parse_time(value) == (NOON, NOON)
    assert parse_time([NOON, "2026-05-07"]) == (NOON, NOON + 12 * 3_600_000_000)
    assert parse_time((NOON, NOON)) == (NOON, NOON)
    assert parse_time("2026-05-06T12:00:00.000001Z") == (NOON + 1, NOON + 1)
    assert parse_time(datetime(1969, 12, 31, 23, 59, 59, 999999)) == (-1, -1)


def test_text_is_already_decoded_whatever_it_declares_and_bytes_keep_their_encoding():
    latin = "<?xml version='1.0' encoding='ISO-8859-1'?>"
    utf_16 = '<?xml version="1.0" encoding="utf-16" standalone="yes"?>'
    ebcdic = '\ufeff<?xml version="1.0"   encoding = "EBCDIC-CP-US"?>'
    for declaration in (latin, utf_16, ebcdic, '<?xml version="1.0"?>', ""):
        document = Document("d", declaration + "<a>\u00e9\u4e2d encoding='x'</a>", time=1)
        assert etree.fromstring(document.xml_bytes()).text == "\u00e9\u4e2d encoding='x'"
    raw = f"{latin}<a>\u00e9</a>".encode("latin-1")
    assert Document("d", raw, time=1).xml_bytes() is raw
    with pytest.raises(etree.XMLSyntaxError):  # a lone surrogate is left for the parser to refuse
        etree.fromstring(Document("d", "<a>\ud800</a>", time=1).xml_bytes())


@pytest.mark.parametrize(
    "value",
    [
        "yesterday", "", "2026-13-01", "20260506", "1778068800000000", 1.5, True, None, 2**63,
        [NOON], [NOON, NOON, NOON], [NOON, NOON - 1], [NOON, None], {"t": 1}, [[NOON, NOON], NOON],
    ],
)  # fmt: skip
def test_what_is_no_time(value):
    with pytest.raises(ValueError):
        parse_time(value)


@given(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)))
def test_iso_text_is_read_back(moment):
    microseconds = parse_time(moment)[0]
    assert parse_iso(iso_utc(microseconds)) == microseconds


def test_a_document_is_of_now_immutable_hashable_and_survives_pickling():
    document = Document(id="d", xml="<a/>", now=lambda: 7)
    assert (document.stream, document.t0, document.t1) == ("S", 7, 7)
    document = Document("d", b"<a/>", time=(1, 2))
    with pytest.raises(FrozenInstanceError):
        document.t0 = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(document)) == document
    assert len({document, Document("d", b"<a/>", time=[1, 2])}) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"id": ""}, {"id": 5}, {"id": "\ud800"}, {"stream": ""}, {"stream": None},
        {"xml": None}, {"xml": 5}, {"time": (2, 1)}, {"time": "never"},
    ],
)  # fmt: skip
def test_what_is_no_document(arguments):
    with pytest.raises(ValueError):
        Document(**{"id": "d", "xml": "<a/>", **arguments})
