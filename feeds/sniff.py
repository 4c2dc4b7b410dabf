"""Tells feeds and pages by their content, whatever the content type says."""

from __future__ import annotations

import codecs
import re
from typing import Literal

BodyKind = Literal["feed", "page", "other"]

_HEAD = 64 * 1024
# What may stand before the first element, and that element's name. Nothing is tried twice; and the possessive group has
# an empty alternative, as Python before 3.11.5 loses its place when one fails.
_START = re.compile(
    rb"(?:\s++|<\?[^>]*+>|<!--.*?-->|<!DOCTYPE\s++[^\s>\[]++[^>\[]*+(?:\[.*?\]\s*+)?>|)*+<(?>[\w.-]++:|)([\w.-]++)",
    re.DOTALL | re.IGNORECASE,
)
_FEED = re.compile(rb"<(?:[\w.-]+:)?(?:rss|feed|rdf)[\s>]|https?:\\?/\\?/jsonfeed\.org\\?/version\\?/", re.IGNORECASE)
# Some feeds are wrapped in a page; in a page about feeds, such a tag would be escaped.
_WRAPPED = re.compile(rb"""<(?:feed|rss)\s[^<>]*(?:xmlns|version)\s*+=""")
_PAGE = frozenset({b"html", b"head", b"body", b"title", b"meta", b"link", b"script", b"div", b"p"})
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def kind_of_body(body: bytes) -> BodyKind:
    """The kind of a body, or of its beginning: the first element decides, else the first sign of a feed.

    >>> kind_of_body(b"<?xml version='1.0'?><!-- made --><rss version='2.0'/>")
    'feed'
    >>> kind_of_body(b"<!DOCTYPE html><title>Hi</title>")
    'page'
    """
    head = body[:_HEAD]
    if head.startswith(_WIDE):
        head = head.decode("utf-16", "ignore").encode()
    start = _START.match(head.removeprefix(codecs.BOM_UTF8))
    if start is not None and start[1].lower() in _PAGE and not _WRAPPED.search(head):
        return "page"
    return "feed" if _FEED.search(head) else "other"
