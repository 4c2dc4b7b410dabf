"""Web addresses: the canonical spelling, the host, and the registrable domain."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

_TRACKING = frozenset({"fbclid", "gclid", "mc_cid", "mc_eid", "igshid", "ref_src"})
_TRACKED = re.compile(rf"[?&](?:amp;)?(?:utm_[^=&\"\s<#]*+|{'|'.join(sorted(_TRACKING))})=[^&\"\s<#]*+", re.IGNORECASE)
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_MACHINE = re.compile(r"(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)$")
"""A host whose last label is a number is an IP address."""

_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_SAFE = "%/:@!$&'()*+,;=~?"


def canonical_url(text: str) -> str:
    """The canonical spelling of a web address; other text is only stripped. Idempotent.

    The scheme becomes https, the host lower-case and ASCII. Ports 80 and 443, the fragment, trailing slashes and
    tracking parameters (`utm_*`, `fbclid`, ...) are dropped, other parameters sorted, percent-encoding made uniform.

    >>> canonical_url(" HTTP://Example.org:80/a%7eb/?utm_source=x&b=2&a=1#top ")
    'https://example.org/a~b?a=1&b=2'
    """
    stripped = text.strip()
    try:
        parts = urlsplit(stripped)
        host = _ascii_host(parts)
        if parts.scheme not in ("http", "https") or host.split() != [host]:  # no host, or not one
            return stripped
        if ":" in host:
            host = f"[{host}]"
        port = f":{parts.port}" if parts.port not in (None, 80, 443) else ""
        user = _encoded(parts.netloc.rpartition("@")[0])
        path = _encoded(parts.path).rstrip("/")
        query = "&".join(sorted(_encoded(item) for item in parts.query.split("&") if item and not _tracks(item)))
    except ValueError:
        return stripped
    return f"https://{user + '@' if user else ''}{host}{port}{path}{'?' + query if query else ''}"


def without_tracking(text: str) -> str:
    """A text without the tracking parameters of addresses in it, which may be escaped as in HTML."""
    return _TRACKED.sub("", text)


def url_host(text: str) -> str:
    """The host of a URL in lower case and ASCII, without port and leading `www.`; "" if there is none.

    >>> url_host("https://WWW.Example.org:8080/news")
    'example.org'
    """
    try:
        return _ascii_host(urlsplit(text.strip())).removeprefix("www.")
    except ValueError:
        return ""


def url_domain(text: str) -> str:
    """The registrable domain of a URL (public suffix and one label), in lower case and ASCII.

    "" for no host, an IP address, or a public suffix itself. Public suffixes are those of the installed
    `publicsuffixlist`, private ones included. Below an unknown top level, each label is registrable.

    >>> url_domain("https://news.bbc.co.uk/2/hi"), url_domain("https://ida.github.io/notes"), url_domain("https://co.uk")
    ('bbc.co.uk', 'ida.github.io', '')
    """
    try:
        host = _ascii_host(urlsplit(text.strip()))
    except ValueError:
        return ""
    if ":" in host or _MACHINE.search(host) or not all(host.split(".")):
        return ""
    return _suffixes().privatesuffix(host) or ""


@cache
def _suffixes() -> PublicSuffixList:
    # Imported here because few queries need it, and reading the list takes a while.
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList()


def _ascii_host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if not host.isascii():
        with suppress(UnicodeError):
            from idna import uts46_remap  # here because few hosts need it

            # As in browsers (UTS 46, not transitional): ß differs from ss. Not of `hostname`, whose lower case has
            # final sigmas: they would name another host.
            labels = uts46_remap(parts.netloc.rpartition("@")[2].partition(":")[0], std3_rules=False).split(".")
            host = ".".join(one if one.isascii() else f"xn--{one.encode('punycode').decode('ascii')}" for one in labels)
    return host.rstrip(".")


def _tracks(parameter: str) -> bool:
    name = unquote(parameter.partition("=")[0]).lower()
    return name.startswith("utm_") or name in _TRACKING


def _encoded(text: str) -> str:
    return quote(_ESCAPE.sub(_escape, text), safe=_SAFE)


def _escape(found: re.Match[str]) -> str:
    digits = found[1]
    if digits is None:
        return "%25"
    char = chr(int(digits, 16))
    return char if char in _UNRESERVED else found[0].upper()
