"""Values of web addresses: the canonical spelling, the host, the registrable domain; the first two also held against
what browsers make of addresses, where they can be compared."""

from __future__ import annotations

from pathlib import Path
from random import Random

import ada_url
import publicsuffixlist
import pytest

from tests.generate.seeds import at_length
from tests.oracle import values as oracle_values
from xscl.algebra.values import derive


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://example.org", "https://example.org"),
        (" http://example.org/\n", "https://example.org"),
        ("HTTP://WWW.Example.ORG/A", "https://www.example.org/A"),
        ("http://example.org:80/a/", "https://example.org/a"),
        ("https://example.org:443/a//", "https://example.org/a"),
        ("https://example.org:8443/a", "https://example.org:8443/a"),
        ("https://example.org./a", "https://example.org/a"),
        ("https://example.org/a#top", "https://example.org/a"),
        ("https://example.org/?", "https://example.org"),
        ("https://example.org/a?b=2&a=1&&b=1", "https://example.org/a?a=1&b=1&b=2"),
        ("https://example.org/a?flag&x=", "https://example.org/a?flag&x="),
        ("https://example.org/?utm_source=x&UTM_Medium=y&id=3&fbclid=z&gclid=q", "https://example.org?id=3"),
        ("https://example.org/?mc_cid=1&mc_eid=2&igshid=3&ref_src=4", "https://example.org"),
        ("https://example.org/?reference=1", "https://example.org?reference=1"),
        ("https://example.org/%7euser/%c3%a9?q=%3d", "https://example.org/~user/%C3%A9?q=%3D"),
        ("https://example.org/é a", "https://example.org/%C3%A9%20a"),
        ("https://example.org/100%", "https://example.org/100%25"),
        ("https://bücher.example/", "https://xn--bcher-kva.example"),
        ("https://Straße.example/", "https://xn--strae-oqa.example"),
        ("https://ΑΣ.example/", "https://xn--mxa0b.example"),
        ("https://a\u3002example/", "https://a.example"),
        ("https://XN--BCHER-KVA.example/", "https://xn--bcher-kva.example"),
        ("https://u:p@Example.org/", "https://u:p@example.org"),
        ("http://[2001:DB8::1]:80/a", "https://[2001:db8::1]/a"),
        ("mailto:a@Example.org ", "mailto:a@Example.org"),
        ("ftp://Example.org/a/", "ftp://Example.org/a/"),
        ("/relative/path/", "/relative/path/"),
        ("Not a URL", "Not a URL"),
        ("http://", "http://"),
        ("http:///path", "http:///path"),
        ("http://[broken/", "http://[broken/"),
        ("http://example.org:port/", "http://example.org:port/"),
        ("http://example.org:99999/", "http://example.org:99999/"),
        ("", ""),
    ],
)
def test_canonical_url(text: str, url: str) -> None:
    assert derive("canonical-url", text) == url


HOSTS_OF = [
    *(("https://www.Example.org:8080/a", "example.org"), (" http://user@example.org ", "example.org")),
    *(("ftp://files.example.org/", "files.example.org"), ("//example.org/a", "example.org"), ("example.org/a", "")),
    *(("https://bücher.example", "xn--bcher-kva.example"), ("https://wwwx.example.org", "wwwx.example.org")),
    *(("http://[2001:DB8::1]/", "2001:db8::1"), ("mailto:a@example.org", ""), ("http://[broken/", ""), ("", "")),
]


def test_host() -> None:
    assert [(text, derive("host", text)) for text, _ in HOSTS_OF] == HOSTS_OF


DOMAINS = [
    *(("news.bbc.co.uk/2/hi", "bbc.co.uk"), ("WWW.Example.COM.:8080/", "example.com"), ("co.uk", "")),
    *(("a.b.example.com", "example.com"), ("ida.github.io/notes", "ida.github.io"), ("github.io/", "")),
    *(("www.github.io/", "www.github.io"), ("b.c.mm", "b.c.mm"), ("c.mm", ""), ("www.ck", "www.ck")),
    *(("a.www.ck", "www.ck"), ("www.city.kobe.jp", "city.kobe.jp"), ("a.b.unlisted", "b.unlisted"), ("localhost/", "")),
    *(("www.食狮.公司.cn", "xn--85x722f.xn--55qx5d.cn"), ("192.0.2.1/", ""), ("[2001:db8::1]/", ""), ("a..com/", "")),
    ("[broken/", ""),
]


def test_domain() -> None:
    for domain in (lambda address: derive("domain", address), oracle_values.domain):
        assert [(text, domain(f"https://{text}")) for text, _ in DOMAINS] == DOMAINS
        assert domain("example.com") == domain("") == ""
    assert derive("domain", "http://192.0.2.0x1/") == ""


def test_domains_below_each_public_suffix() -> None:
    """Held against the algorithm that publicsuffix.org describes. The rules of the list are the same."""
    with Path(publicsuffixlist.PSLFILE).open(encoding="utf-8") as lines:
        rules = [line.split()[0] for line in lines if line.strip() and not line.startswith("//")]
    for rule in rules[:: 7 if at_length() else 97] + [rule for rule in rules if rule[0] in "*!"]:
        suffix = rule.removeprefix("!").replace("*", "x")
        for host in (suffix, f"b.{suffix}", f"a.b.{suffix}"):
            assert derive("domain", f"https://{host}/") == oracle_values.domain(f"https://{host}/"), host


# ---------------------------------------------------------------- as browsers have them

SCHEMES = ("http", "https", "HTTP", "Https")
USERS = ("", "", "", "u@", "u:p@")
HOSTS = """
    example.org EXAMPLE.org www.Example.org example.org. bücher.example Straße.de faß.de 日本.jp xn--bcher-kva.example
    ａ.org a\u3002b İ.org ΑΣ.gr ας.gr a_b.c ﬁ.org A\u00adB.de K.org 1.2.3.4
    [2001:DB8::1] 😀.ws é.org e\u0301.org www.ß.de
"""
PORTS = ("", "", ":", ":80", ":443", ":8080")
PATHS = r"""
    / /a /a/ /a//b /%7Ea /ä /%c3%A4 /a%2fb /%zz /100% /a;b /a'b /a"b /a<b> /a^b /a|b /a`b /{a} /[a] /... /a.b
"""
QUERIES = """
    ? ?a=1 ?b=2&a=1 ?utm_source=1 ?a=ä ?a=%c3%a4 ?a+b ?a="b" ?a=<> ?a=%27 ?a={x} ?a=[1] ?a|b ?&&a
    ?%75tm_source=1&fbclid=2
"""
FRAGMENTS = ("", "", "#", "#x", "#a#b")


def test_random_addresses() -> None:
    rng = Random(1)
    hosts, paths, queries = HOSTS.split(), ["", "/a b", *PATHS.split()], ["", "?a b", *QUERIES.split()]
    for _ in range(1500):
        host = rng.choice(hosts)
        text = f"{rng.choice(SCHEMES)}://{rng.choice(USERS)}{host}{rng.choice(PORTS)}"
        text += rng.choice(paths) + rng.choice(queries) + rng.choice(FRAGMENTS)
        browsers = ada_url.URL(text)
        assert derive("host", text) == browsers.hostname.strip("[]").rstrip(".").removeprefix("www."), text
        assert derive("host", text) == oracle_values.host(text)
        assert derive("canonical-url", text) == derive("canonical-url", browsers.href), text
        assert derive("canonical-url", text) == oracle_values.canonical_url(text), text


def test_hosts_that_browsers_tell_apart_are_not_one() -> None:
    one, other = "https://straße.de/", "https://strasse.de/"
    assert derive("host", one) == "xn--strae-oqa.de" != derive("host", other)
    assert derive("canonical-url", one) != derive("canonical-url", other)
