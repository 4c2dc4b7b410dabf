"""JSON lines and WARC archives: which documents they give, and what is rejected, cut short or no archive."""

import gzip
import json
import re
from datetime import UTC, datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from feeds.documents import Document, Reject, parse_time
from feeds.readers import read_jsonl, read_line, read_warc
from tests.support.files import DOCUMENTS, LINES, NOON, read, warc, write


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "X.JSONL"])
def test_json_lines_plain_and_compressed(tmp_path, name):
    text = "\ufeff" + "\n\r\n".join(json.dumps(line) for line in LINES)
    data = gzip.compress(text.encode()) if name.endswith("gz") else text
    assert read(write(tmp_path / name, data)) == DOCUMENTS


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        *(("{", "not JSON: "), ("[]", "not a JSON object"), ('{"xml": "<a/>"}', '"id" is missing')),
        *(('{"id": "d"}', '"xml" is missing'), ('{"id": "d", "xml": 5}', '"xml" is not a string')),
        ('{"id": 5, "xml": "<a/>"}', "id is a non-empty text"),
        ('{"id": "d", "xml": "<a/>", "stream": null}', "stream is a non-empty text"),
        ('{"id": "d", "xml": "<a/>", "time": "soon"}', "'soon' is not an ISO-8601 date"),
        ('{"id": "d", "xml": "<a/>", "time": [2, 1]}', "must not end before it starts"),
        ('{"id": "d", "xml": "<a/>", "time": 1700000000}', "Unix seconds, and numbers are microseconds"),
        ('{"id": "d", "xml": "<a/>", "time": 1700000000.5}', 'write 1700000000500000, or "2023-11-14T22:13:20.5'),
        ('{"id": "d", "xml": "<a/>", "time": 1700000000123}', 'write 1700000000123000, or "2023-11-14T22:13:20.123'),
        ('{"id": "d", "xml": "<a/>", "time": [1, 1700000000]}', "looks like Unix seconds"),
        ('{"id": "d", "xml": "<a/>", "time": %s}' % ("9" * 400), "must fit in 64 bits"),
        ('{"id": "\\ud800", "xml": "<a/>"}', "id is a non-empty text"),
        ("[" * 100_000, "nested too deeply"),
        (b'{"id": "\xff"}', "can't decode"),
    ],
)
def test_a_bad_line_is_rejected_with_its_place_and_the_rest_goes_on(tmp_path, line, cause):
    good = json.dumps(LINES[0]).encode()
    raw = line if isinstance(line, bytes) else line.encode()
    path = write(tmp_path / "x.jsonl", b"\n".join([good, raw, good]))
    first, reject, last = read(path)
    assert first == last == DOCUMENTS[0]
    assert isinstance(reject, Reject)
    assert reject.reason.startswith(f"{path}:2: ")
    assert cause in reject.reason
    assert reject.raw.strip() == raw[: 64 * 1024]
    reject.reason.encode()
    reject.id.encode()


@given(st.datetimes(datetime(2001, 9, 10), datetime(2039, 9, 1)), st.sampled_from([1, 1_000]), st.booleans())
def test_unix_time_is_no_time_and_the_reason_says_which_it_would_be(moment, each_second, interval):
    time = int(moment.replace(tzinfo=UTC).timestamp() * each_second)
    item = line_of([0, time] if interval else time)
    assert isinstance(item, Reject)
    (written,) = re.findall(r'write (\d+), or "(.*)"', item.reason)
    assert parse_time(int(written[0])) == parse_time(written[1]) == (time * 1_000_000 // each_second,) * 2


@given(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 10**9 - 1) | st.integers(10**13, 10**16))
def test_other_numbers_are_microseconds(time):
    assume(not (10**9 <= time < 22 * 10**8 or 10**12 <= time < 22 * 10**11))
    assert line_of(time) == Document("d", "<a/>", time=time)


def line_of(time):
    return read_line(json.dumps({"id": "d", "time": time, "xml": "<a/>"}).encode(), "x", lambda: 0)


def test_a_line_too_long_is_skipped_without_being_held_and_one_of_the_limit_read(tmp_path):
    good = json.dumps(LINES[0])
    path = write(tmp_path / "x.jsonl.gz", gzip.compress(f"{good}\n{'x' * 500_000}\n{good}\n".encode()))
    first, reject, last = read_jsonl(path, lambda: 0, max_line=1000)
    assert first == last == DOCUMENTS[0]
    assert isinstance(reject, Reject)
    assert reject.reason.startswith(f"{path}:2: the line is larger than")
    assert len(reject.raw) <= 64 * 1024
    path = write(tmp_path / "x.jsonl", f"{good}\n{good}")
    assert list(read_jsonl(path, lambda: 0, max_line=len(good))) == [DOCUMENTS[0]] * 2


@pytest.mark.parametrize("damage", [lambda data: data[:-12], lambda data: data[:-8] + b"\0" * 8])
def test_a_damaged_archive_gives_what_came_before_the_damage(tmp_path, damage):
    lines = [json.dumps({"id": f"d{i}", "time": i, "xml": f"<a>{i * i}</a>"}) + "\n" for i in range(10_000)]
    path = write(tmp_path / "x.jsonl.gz", damage(gzip.compress("".join(lines).encode())))
    *documents, reject = read(path)
    assert len(documents) > 5_000
    assert documents == [Document(f"d{i}", f"<a>{i * i}</a>", time=i) for i in range(len(documents))]
    assert reject.reason.startswith(f"{path}:{len(documents) + 1}: the file cannot be read further")


def test_what_a_reject_says(tmp_path):
    (reject,) = read(write(tmp_path / "x.jsonl", '{"id": "d", "stream": "T", "xml": 5}'))
    assert (reject.id, reject.stream, reject.time) == ("d", "T", None)
    (reject,) = read(write(tmp_path / "x.jsonl.gz", json.dumps(LINES[0])))
    assert isinstance(reject, Reject)


# ---------------------------------------------------------------- WARC


@pytest.mark.parametrize("name", ["x.warc", "x.warc.gz"])
def test_warc_responses_and_resources(tmp_path, name):
    path = warc(tmp_path / name, name.endswith("gz"))
    midnight = 1_778_112_000_000_000
    assert read(path) == [
        Document("https://c.example/map 2026-05-07T00:00:00Z", b"<map/>", "S", midnight),
        Document("https://c.example/res 2026-05-07T00:00:00Z", b"<res/>", "S", midnight),
    ]
    (entry,) = read(path, feeds="item")
    assert entry.id.startswith("https://c.example/rss g ")
    assert entry.t0 == NOON


def test_a_record_too_large_is_a_reject(tmp_path):
    path = warc(tmp_path / "x.warc", False)
    *_, reject = read_warc(path, None, 5)
    assert isinstance(reject, Reject)
    assert reject.reason == f"{path}: https://c.example/res 2026-05-07T00:00:00Z: larger than 5 bytes"


@pytest.mark.parametrize("data", [b"nonsense\n", b"WARC/1.0\r\nWARC-Type: response\r\n\r\n"])
def test_what_is_no_warc_is_a_reject(tmp_path, data):
    (reject,) = read(write(tmp_path / "y.warc", data))
    assert "cannot be read further" in reject.reason


def test_a_warc_cut_short_at_any_byte_gives_whole_documents_or_rejects(tmp_path):
    whole = warc(tmp_path / "x.warc", False).read_bytes()
    documents = read(tmp_path / "x.warc")
    rejects = 0
    for end in range(1, len(whole), 19):
        found = read(write(tmp_path / "cut.warc", whole[:end]))
        assert [item for item in found if isinstance(item, Document)] == documents[
            : sum(isinstance(item, Document) for item in found)
        ]
        rejects += any(isinstance(item, Reject) for item in found)
    assert rejects > 0
