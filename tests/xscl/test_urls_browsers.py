"""canonical-url and host, held against what browsers make of addresses, where they can be compared."""

from __future__ import annotations

from random import Random

import ada_url

from tests.oracle import values as oracle_values
from xscl.algebra.values import derive

SCHEMES = ("http", "https", "HTTP", "Https")
USERS = ("", "", "", "u@", "u:p@")
HOSTS: tuple[str, ...] = (
    "example.org",
    "EXAMPLE.org",
    "www.Example.org",
    "example.org.",
    "bücher.example",
    "Straße.de",
    "faß.de",
    "日本.jp",
)
HOSTS += (
    "xn--bcher-kva.example",
    "ａ.org",
    "a\u3002b",
    "İ.org",
    "ΑΣ.gr",
    "ας.gr",
    "a_b.c",
    "ﬁ.org",
    "A\u00adB.de",
    "K.org",
)
HOSTS += ("1.2.3.4", "[2001:DB8::1]", "😀.ws", "é.org", "e\u0301.org", "www.ß.de")
PORTS = ("", "", ":", ":80", ":443", ":8080")
PATHS: tuple[str, ...] = (
    "",
    "/",
    "/a",
    "/a/",
    "/a//b",
    "/%7Ea",
    "/ä",
    "/%c3%A4",
    "/a b",
    "/a%2fb",
    "/%zz",
    "/100%",
    "/a;b",
    "/a'b",
    '/a"b',
)
PATHS += ("/a<b>", "/a^b", "/a|b", "/a`b", "/{a}", "/[a]", "/...", "/a.b")
QUERIES: tuple[str, ...] = (
    "",
    "?",
    "?a=1",
    "?b=2&a=1",
    "?utm_source=1",
    "?a=ä",
    "?a=%c3%a4",
    "?a+b",
    "?a b",
    '?a="b"',
    "?a=<>",
    "?a=%27",
)
QUERIES += ("?a={x}", "?a=[1]", "?a|b", "?&&a", "?%75tm_source=1&fbclid=2")
FRAGMENTS = ("", "", "#", "#x", "#a#b")


def test_addresses() -> None:
    rng = Random(1)
    for _ in range(5000):
        host = rng.choice(HOSTS)
        text = f"{rng.choice(SCHEMES)}://{rng.choice(USERS)}{host}{rng.choice(PORTS)}"
        text += rng.choice(PATHS) + rng.choice(QUERIES) + rng.choice(FRAGMENTS)
        browsers = ada_url.URL(text)
        assert derive("host", text) == browsers.hostname.strip("[]").rstrip(".").removeprefix("www."), text
        assert derive("host", text) == oracle_values.host(text)
        assert derive("canonical-url", text) == derive("canonical-url", browsers.href), text
        assert derive("canonical-url", text) == oracle_values.canonical_url(text), text


def test_hosts_that_browsers_tell_apart_are_not_one() -> None:
    one, other = "https://straße.de/", "https://strasse.de/"
    assert derive("host", one) == "xn--strae-oqa.de" != derive("host", other)
    assert derive("canonical-url", one) != derive("canonical-url", other)
