"""Listings: what is known is left out without being looked at, and sidecars are read once."""

from pathlib import Path

import pytest

from feeds import readers
from feeds import tail as tail_module
from feeds.files import files_below
from feeds.readers import ALL_READ, Offset
from feeds.tail import Listing, Tail


def names(listed: Listing, *known: str) -> list[str]:
    return [file.name for file in listed.files(known.__contains__)]


def test_known_files_are_left_out_wherever_they_are(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    for name in ("a.xml", "sub/a.xml", "sub/b.xml", "c.txt"):
        (tmp_path / name).write_text("<a/>")
    listed = Listing(tmp_path, feeds=False)
    assert names(listed) == ["a.xml", "sub/a.xml", "sub/b.xml"]
    assert names(listed, "a.xml", "sub", "sub/b.xml") == ["sub/a.xml"]


def test_files_have_their_names_below_the_directory(tmp_path: Path):
    (tmp_path / "ä").mkdir()
    (tmp_path / "ä" / "x.xml").touch()
    (tmp_path / "gone.xml").symlink_to(tmp_path / "none")
    assert list(files_below(tmp_path, lambda name: name.endswith("xml"))) == [(tmp_path / "ä" / "x.xml", "ä/x.xml")]
    assert list(files_below(tmp_path / "none", lambda name: True)) == [(tmp_path / "none", "none")]


def test_a_sidecar_is_read_once_as_long_as_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    real = readers.read_sidecar

    def reading(path: Path) -> object:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(tail_module, "read_sidecar", reading)
    (tmp_path / "a.json").write_text('{"url": "http://a/"}')
    (tmp_path / "a.rss").write_text("<rss/>")
    listed = Listing(tmp_path, feeds=True)
    assert names(listed) == names(listed) == ["a.rss"] and read == ["a.json"]
    (tmp_path / "a.json").unlink()
    assert names(listed) == ["a.rss"]
    (tmp_path / "a.json").write_text('{"version": "https://jsonfeed.org/version/1.1", "items": []}')
    assert names(listed) == ["a.json", "a.rss"], "it is a feed now"


def test_a_file_that_was_read_does_not_wait(tmp_path: Path):
    (tmp_path / "a.xml").write_text("<a/>")
    for path in (tmp_path, tmp_path / "a.xml"):
        tail = Tail(path)
        assert [waiting.file for waiting in tail.waiting({})] == ["a.xml"]
        assert list(tail.waiting({(tail.name, "a.xml"): Offset(tail.name, "a.xml", ALL_READ)})) == []
