"""What a reader calls a feed, and the folders that it is in, from lists through archives to items."""

from pathlib import Path

import pytest
from lxml import etree

from feeds import feed as feed_module
from feeds.documents import Document
from feeds.fetch.archive import Archive, Capture, DropArchive, WarcArchive
from feeds.fetch.lists import read_feed_lists
from feeds.fetch.state import FeedState, FetchStore
from feeds.items import LONGEST_TITLE, MOST_FOLDERS, Entry, Membership, item_xml
from feeds.readers import Sidecar, read_sidecar, sidecar_json
from feeds.tail import read_documents
from tests.support.feed_server import START, rss

TITLE, FOLDERS = 'Größe: 10 € \U0001f600; "x" <y> %41', ("Nachrichten/日本", "a: b", "c, d")


def drops(directory: Path) -> Archive:
    return DropArchive(directory)


def warcs(directory: Path) -> Archive:
    return WarcArchive(directory, "", lambda mark: None)


def keep(archive: Archive, title: str, folders: tuple[str, ...]) -> None:
    body = rss("one").encode()
    archive.keep(
        Capture("https://a.example/", "a", "https://a.example/", 200, (), START, "ab" * 32, body, title, folders)
    )
    archive.finish()


@pytest.mark.parametrize("kind", [drops, warcs])
def test_any_title_and_folder_comes_through_an_archive(tmp_path, kind):
    keep(kind(tmp_path / "crawl"), TITLE, FOLDERS)
    (document,) = read_documents([tmp_path / "crawl"], feeds="item")
    assert isinstance(document, Document)
    item = etree.fromstring(document.xml_bytes())
    assert item.findtext("feed_title") == TITLE
    assert [folder.text for folder in item.iter("folder")] == ["Nachrichten", *FOLDERS]


def test_a_sidecar_is_read_as_it_was_written_and_those_of_other_crawlers_may_say_anything(tmp_path):
    file = tmp_path / "f.json"
    sidecar = Sidecar(url="https://a.example/", fetched=START, title=TITLE, folders=FOLDERS)
    file.write_bytes(sidecar_json(sidecar))
    assert read_sidecar(file) == sidecar
    for notes in (
        '{"title": 1, "folders": "News"}',
        '{"title": null, "folders": {"a": 1}}',
        '{"folders": [1, null]}',
        "{}",
    ):
        file.write_text(notes)
        assert read_sidecar(file) == Sidecar()


def listed(tmp_path: Path, body: str) -> FeedState:
    (tmp_path / "f.opml").write_text(f"<opml><body>{body}</body></opml>", "utf-8")
    (feed,), _ = read_feed_lists([str(tmp_path / "f.opml")])
    return feed


def test_a_feed_is_in_all_the_folders_where_it_is_listed_and_its_address_is_no_title(tmp_path):
    feed = "<outline text='{}' xmlUrl='https://a.example/'/>"
    named = (
        f"<outline text='A'>{feed.format('')}</outline>{feed.format('T')}<outline text='B'>{feed.format('U')}</outline>"
    )
    found = listed(tmp_path, named)
    assert (found.title, found.folders) == ("T", ("A", "B"))
    many = "".join(f"<outline text='{n}'>{feed.format('')}</outline>" for n in range(3 * MOST_FOLDERS))
    assert len(listed(tmp_path, many).folders) == MOST_FOLDERS
    assert listed(tmp_path, "<outline text='https://a.example/' xmlUrl='https://a.example/'/>").title == ""


def nested(names: list[str], inside: str) -> str:
    return "".join(f"<outline text='{name}'>" for name in names) + inside + "</outline>" * len(names)


def test_the_path_of_a_folder_is_not_too_long(tmp_path):
    """Inner folders are left out, whole, and what is around a feed counts for it alone."""
    names = ["a" * 500, "b" * 499, "c", "d"]
    feed = "<outline xmlUrl='https://a.example/'/>"
    assert listed(tmp_path, nested(names, feed)).folders == ("/".join(names[:2]),)
    assert listed(tmp_path, nested(["a" * 500, "b" * 500, "c"], feed)).folders == ("a" * 500,)
    body = f"<outline text='A'>{nested(['x' * 999], feed)}{nested(['B'], feed)}</outline>"
    assert listed(tmp_path, body).folders == ("A", "A/B")


def test_a_list_of_many_nested_folders_stays_small(tmp_path):
    feeds = "".join(f"<outline xmlUrl='https://a.example/{n}'/>" for n in range(1_000))
    (tmp_path / "f.opml").write_text(f"<opml><body>{nested(['x' * 1_000] * 240, feeds)}</body></opml>")
    found, _ = read_feed_lists([str(tmp_path / "f.opml")])
    assert len(found) == 1_000 and sum(len(feed.folder) for feed in found) == 1_000_000


LONG = ("a" * 600 + "/" + "b" * 500, "c" * 500 + "/" + "d" * 499, "e" * 2_000, "f" * 1_000 + "/g")


@pytest.mark.parametrize("kind", [drops, warcs])
def test_what_an_archive_tells_of_a_feed_is_bounded(tmp_path, monkeypatch, kind):
    keep(kind(tmp_path / "crawl"), "t" * 5_000, (*LONG, *map(str, range(5_000))))
    seen: list[Membership] = []

    def noted(entry: Entry, member: Membership) -> bytes:
        seen.append(member)
        return item_xml(entry, member)

    monkeypatch.setattr(feed_module, "item_xml", noted)
    monkeypatch.setattr(feed_module, "confined", lambda work, *arguments, size: work(*arguments))
    list(read_documents([tmp_path / "crawl"], feeds="item"))
    (member,) = seen
    assert member.title == "t" * LONGEST_TITLE and len(member.folders) == MOST_FOLDERS
    assert member.folders[:5] == ("a" * 600, LONG[1], "e" * 1_000, "f" * 1_000, "0")


def test_what_a_list_does_not_say_stays(tmp_path):
    url = "https://a.example/"
    with FetchStore(tmp_path / "fetch.sqlite", write=True) as store:
        for feed, title, folders in [
            (FeedState(url, "a", "T", "F"), "T", ("F",)),
            (FeedState(url, "a"), "T", ("F",)),
            (FeedState(url, "a", "", "G\nH/I"), "T", ("G", "H/I")),
            (FeedState(url, "a", "U"), "U", ()),
        ]:
            store.add([feed])
            (known,) = store.feeds()
            assert (known.title, known.folders) == (title, folders)
