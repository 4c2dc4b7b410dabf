"""One spelling for the URLs of one page: the derived values canonical-url and host."""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import SplitResult, quote, unquote, urlsplit

_WEB = frozenset({"http", "https"})
_DEFAULT_PORTS = frozenset({80, 443})
_TRACKING = frozenset({"fbclid", "gclid", "mc_cid", "mc_eid", "igshid", "ref_src"})
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_SAFE = "%/:@!$&'()*+,;=~?"


def canonical_url(text: str) -> str:
    """The canonical spelling of a web address; any other text without the white space around it. Never raises.

    For http and https: the scheme is https, the host in lower case and in its ASCII form, the ports 80 and 443 and
    the fragment left out, the parameters that only track (`utm_*`, `fbclid`, ...) left out and the others sorted,
    no slash at the path's end, and one percent-encoding. Applying it twice changes nothing more.

    >>> canonical_url(" HTTP://Example.org:80/a%7eb/?utm_source=x&b=2&a=1#top ")
    'https://example.org/a~b?a=1&b=2'
    """
    stripped = text.strip()
    try:
        parts = urlsplit(stripped)
        host = _ascii_host(parts)
        if parts.scheme not in _WEB or host.split() != [host]:  # no host, or not one
            return stripped
        if ":" in host:
            host = f"[{host}]"
        port = f":{parts.port}" if parts.port is not None and parts.port not in _DEFAULT_PORTS else ""
        user = _encoded(parts.netloc.rpartition("@")[0])
        path = _encoded(parts.path).rstrip("/")
        query = "&".join(sorted(_encoded(item) for item in parts.query.split("&") if item and not _tracks(item)))
    except ValueError:
        return stripped
    return f"https://{user + '@' if user else ''}{host}{port}{path}{'?' + query if query else ''}"


def url_host(text: str) -> str:
    """The host of a URL in lower case and in its ASCII form, without port and a leading `www.`; "" if it has none.

    >>> url_host("https://WWW.Example.org:8080/news")
    'example.org'
    """
    try:
        return _ascii_host(urlsplit(text.strip())).removeprefix("www.")
    except ValueError:
        return ""


def _ascii_host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if not host.isascii():
        with suppress(UnicodeError):
            # Not `hostname`: that lower case has a final sigma, which names another host.
            host = _idna(parts.netloc.rpartition("@")[2].partition(":")[0])
    return host.rstrip(".")


def _idna(host: str) -> str:
    """The ASCII form of a host, as browsers make it (UTS 46, not transitional): ß stays itself, for it is another host
    than ss."""
    # Imported here because few addresses have such a host.
    from idna import uts46_remap

    labels = uts46_remap(host, std3_rules=False).split(".")
    return ".".join(one if one.isascii() else f"xn--{one.encode('punycode').decode('ascii')}" for one in labels)


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
