"""WARC archives: responses and resources, and what is cut short or no archive."""

import pytest

from feeds.documents import Document, Reject
from feeds.readers import read_warc
from tests.support.files import NOON, read, warc, write


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
    for end in range(1, len(whole), 7):
        found = read(write(tmp_path / "cut.warc", whole[:end]))
        assert [item for item in found if isinstance(item, Document)] == documents[
            : sum(isinstance(item, Document) for item in found)
        ]
        rejects += any(isinstance(item, Reject) for item in found)
    assert rejects > 0
