"""JSON Feed 1.0 and 1.1 rewritten as Atom, so that one reader serves, sanitises and resolves every format."""

from __future__ import annotations

import json
from typing import Any

from lxml import etree

from feeds.bad_input import FeedError
from feeds.text import xml_text

ATOM = "http://www.w3.org/2005/Atom"
_VERSIONS = ("https://jsonfeed.org/version/", "http://jsonfeed.org/version/")


def load_json_feed(data: bytes) -> dict[str, Any]:
    """The feed's object. Raises FeedError with the cause if the bytes are no JSON Feed."""
    try:
        feed = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise FeedError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise FeedError(str(error)) from None
    except RecursionError:
        raise FeedError("JSON nested too deeply") from None
    if not is_json_feed(feed):
        raise FeedError("JSON, but not a JSON Feed: its version is not a https://jsonfeed.org/version/ address")
    if not isinstance(feed.get("items"), list):
        raise FeedError("a JSON Feed without a list of items")
    return dict(feed)


def is_json_feed(value: object) -> bool:
    """Whether a JSON value declares itself a JSON Feed."""
    return isinstance(value, dict) and str(value.get("version", "")).startswith(_VERSIONS)


def json_feed_to_atom(feed: dict[str, Any]) -> bytes:
    """The same feed in Atom 1.0. Values of a wrong type are left out."""
    root = etree.Element(f"{{{ATOM}}}feed")
    _language(root, feed)
    _add(root, "title", feed.get("title"))
    _link(root, "alternate", feed.get("home_page_url"))
    _link(root, "self", feed.get("feed_url"))
    _authors(root, feed)
    for item in feed["items"]:
        if isinstance(item, dict):
            _entry(etree.SubElement(root, f"{{{ATOM}}}entry"), item)
    return etree.tostring(root, encoding="utf-8", xml_declaration=True)


def _entry(entry: etree._Element, item: dict[str, Any]) -> None:
    _language(entry, item)
    _add(entry, "id", item.get("id"))
    _add(entry, "title", item.get("title"))
    _link(entry, "alternate", item.get("url"))
    _link(entry, "related", item.get("external_url"))
    _add(entry, "published", item.get("date_published"))
    _add(entry, "updated", item.get("date_modified"))
    _add(entry, "summary", item.get("summary"))
    _authors(entry, item)
    for tag in _list(item.get("tags")):
        if _text(tag):
            etree.SubElement(entry, f"{{{ATOM}}}category", term=_text(tag))
    for attachment in _list(item.get("attachments")):
        if isinstance(attachment, dict):
            about = {"type": attachment.get("mime_type"), "length": attachment.get("size_in_bytes")}
            _link(entry, "enclosure", attachment.get("url"), **about)
    if _text(item.get("content_html")):
        _add(entry, "content", item["content_html"], type="html")
    else:
        _add(entry, "content", item.get("content_text"))


def _authors(parent: etree._Element, holder: dict[str, Any]) -> None:
    """Version 1.1 has a list of authors, 1.0 had one author. A feed may have both, for old readers."""
    for author in _list(holder.get("authors")) or [holder.get("author")]:
        if isinstance(author, dict) and (name := _text(author.get("name")) or _text(author.get("url"))):
            _add(etree.SubElement(parent, f"{{{ATOM}}}author"), "name", name)


def _add(parent: etree._Element, name: str, value: object, **attributes: str) -> None:
    text = _text(value)
    if text:
        etree.SubElement(parent, f"{{{ATOM}}}{name}", attributes).text = text


def _language(holder: etree._Element, told: dict[str, Any]) -> None:
    if text := _text(told.get("language")):
        holder.set("{http://www.w3.org/XML/1998/namespace}lang", text)


def _link(parent: etree._Element, rel: str, href: object, **about: object) -> None:
    text = _text(href)
    if text:
        told = {name: _text(value) for name, value in about.items() if _text(value)}
        etree.SubElement(parent, f"{{{ATOM}}}link", told, rel=rel, href=text)


def _text(value: object) -> str:
    """The text of a value. Ids are often numbers although the format wants strings."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return xml_text(value).strip() if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
