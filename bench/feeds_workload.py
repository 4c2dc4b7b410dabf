"""The items of `bench.workload` written as feeds of each format, as their publishers would."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from email.utils import format_datetime
from itertools import islice
from xml.sax.saxutils import escape

from lxml import etree

from bench.workload import WORDS, items
from feeds.documents import EPOCH, iso_utc

A_FEED = 20
"""How many entries a feed has."""


@dataclass(frozen=True, slots=True)
class Story:
    """What an entry of any format says."""

    title: str
    url: str
    guid: str
    author: str
    category: str
    time: int
    content: str


def stories(count: int, content: int) -> Iterator[Story]:
    """Entries with about so many characters of HTML each."""
    for number, document in enumerate(items(count)):
        item = etree.fromstring(document.xml_bytes())
        text = {name: item.findtext(name, "") for name in ("title", "item_url", "guid", "author", "category")}
        title = f"{text['title']} ({number})"
        url = text["item_url"] or f"https://feed.example/{number}"
        yield Story(title, url, f"urn:{number}", text["author"], text["category"], document.t0, html(number, content))


def html(number: int, size: int) -> str:
    """Paragraphs with a link, an image and some emphasis in each."""
    paragraphs: list[str] = []
    length = 0
    while length < size:
        words = [WORDS[(number * 7 + length + place * place) % len(WORDS)] for place in range(40)]
        words[5:8] = [f'<a href="https://x.example/{number}?a=1&amp;b=2">', *words[6:8], "</a>"]
        words[20:21] = [f"<em>{words[20]}</em>", f'<img src="https://x.example/{length}.png" alt="{words[21]}">']
        paragraphs.append(f"<p>{' '.join(words)}</p>")
        length += len(paragraphs[-1])
    return "".join(paragraphs)


def _rss(feed: Sequence[Story]) -> bytes:
    def entry(story: Story) -> str:
        date = format_datetime(EPOCH + timedelta(microseconds=story.time), usegmt=True)
        return (
            f"<item><title>{escape(story.title)}</title><link>{escape(story.url)}</link>"
            f'<guid isPermaLink="false">{story.guid}</guid><dc:creator>{escape(story.author)}</dc:creator>'
            f"<category>{escape(story.category)}</category><pubDate>{date}</pubDate>"
            f"<content:encoded><![CDATA[{story.content}]]></content:encoded></item>"
        )

    return (
        '<?xml version="1.0" encoding="utf-8"?><rss version="2.0" xmlns:dc="http://purl.org/dc/elements/1.1/" '
        'xmlns:content="http://purl.org/rss/1.0/modules/content/"><channel><title>Feed</title>'
        f"<link>https://feed.example/</link>{''.join(map(entry, feed))}</channel></rss>"
    ).encode()


def _atom(feed: Sequence[Story]) -> bytes:
    def entry(story: Story) -> str:
        return (
            f"<entry><title>{escape(story.title)}</title><link href='{escape(story.url)}'/><id>{story.guid}</id>"
            f"<author><name>{escape(story.author)}</name></author><category term='{escape(story.category)}'/>"
            f"<published>{iso_utc(story.time)}</published><updated>{iso_utc(story.time)}</updated>"
            f"<content type='html'>{escape(story.content)}</content></entry>"
        )

    return (
        '<?xml version="1.0" encoding="utf-8"?><feed xmlns="http://www.w3.org/2005/Atom"><title>Feed</title>'
        f"<link href='https://feed.example/'/>{''.join(map(entry, feed))}</feed>"
    ).encode()


def _json(feed: Sequence[Story]) -> bytes:
    entries = [
        {
            "id": story.guid,
            "url": story.url,
            "title": story.title,
            "date_published": iso_utc(story.time),
            "authors": [{"name": story.author}],
            "tags": [story.category],
            "content_html": story.content,
        }
        for story in feed
    ]
    whole = {"version": "https://jsonfeed.org/version/1.1", "title": "Feed", "items": entries}
    return json.dumps(whole | {"home_page_url": "https://feed.example/"}).encode()


_WRITERS: dict[str, Callable[[Sequence[Story]], bytes]] = {"rss": _rss, "atom": _atom, "json": _json}
FORMATS = tuple(_WRITERS)


def feed_files(format: str, entries: int, content: int) -> list[bytes]:
    """Feeds of a format (one of FORMATS) with so many entries in all."""
    left = stories(entries, content)
    return [_WRITERS[format](feed) for feed in iter(lambda: list(islice(left, A_FEED)), [])]
