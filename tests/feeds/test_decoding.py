"""Bytes, entities, dates, addresses and numbers at the borders of what is read right."""

from __future__ import annotations

import pytest

from common.dates import parse_timestamp
from feeds.decoding import decode_text, mend_references
from feeds.feed import load_json_feed
from feeds.items import Entry, entry_version


def test_a_cut_character_costs_no_encoding() -> None:
    assert decode_text(f"<a>{'日本語' * 9}@</a>".encode().replace(b"@", b"\xe6")) == f"<a>{'日本語' * 9}\ufffd</a>"
    assert decode_text(b"<a>\xef\xbf\xbd caf\xc3\xa9 \xff</a>") == "<a>\ufffd café \ufffd</a>"
    assert decode_text(b"<a>caf\xe9</a>") == "<a>café</a>"


def test_euc_jp_is_that_of_windows() -> None:
    head = b'<?xml version="1.0" encoding="EUC-JP"?>'
    assert decode_text(head + b"<a>\xad\xa1\xad\xea\xa1\xc1\xff\xc6</a>").endswith("<a>①㈱～\ufffd\ufffd</a>")


@pytest.mark.parametrize("before", ['<!ENTITY m "a]b">', "<!-- ] it's -->", "<?x ]> ?>"])
def test_entities_behind_a_bracket(before: str) -> None:
    dtd = f'<!DOCTYPE a [{before}<!ENTITY n "N">]>'
    assert mend_references(f"{dtd}<a>&n;&eacute;</a>") == f"{dtd}<a>&n;é</a>"


@pytest.mark.parametrize("told", ["(CEST)", "(Tokyo)", "[Europe/Berlin]"])
def test_a_zone_in_a_comment_is_not_utc(told: str) -> None:
    assert parse_timestamp(f"2025-09-02T10:00:00{'' if told[0] == '[' else ' '}{told}") is None
    assert parse_timestamp("2025-09-02T10:00:00+02:00[Europe/Berlin]") == parse_timestamp("2025-09-02T08:00 (UTC)")


@pytest.mark.parametrize("name", ["UTM_Source", "utm_x1", "FBCLID"])
def test_parameters_of_links_in_texts_make_no_version(name: str) -> None:
    versions = {entry_version(Entry(content=f'<a href="https://a/?{name}={one}">q</a>')) for one in "xy"}
    assert len(versions) == 1


def test_a_number_of_json_costs_no_feed() -> None:
    found = load_json_feed('{"version": "https://jsonfeed.org/version/1", "items": [{"id": %s}]}' % ("9" * 5_000))
    assert found["items"][0]["id"] == "9" * 5_000
