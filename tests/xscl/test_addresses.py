"""Values of web addresses: the canonical spelling, the host, the registrable domain."""

from __future__ import annotations

from pathlib import Path

import publicsuffixlist
import pytest

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


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://www.Example.org:8080/a", "example.org"),
        (" http://user@example.org ", "example.org"),
        ("ftp://files.example.org/", "files.example.org"),
        ("//example.org/a", "example.org"),
        ("https://bücher.example", "xn--bcher-kva.example"),
        ("https://wwwx.example.org", "wwwx.example.org"),
        ("http://[2001:DB8::1]/", "2001:db8::1"),
        ("example.org/a", ""),
        ("mailto:a@example.org", ""),
        ("http://[broken/", ""),
        ("", ""),
    ],
)
def test_host(text: str, host: str) -> None:
    assert derive("host", text) == host


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("https://news.bbc.co.uk/2/hi", "bbc.co.uk"),
        ("https://WWW.Example.COM.:8080/", "example.com"),
        ("https://a.b.example.com", "example.com"),
        ("https://ida.github.io/notes", "ida.github.io"),
        ("https://www.github.io/", "www.github.io"),
        ("https://github.io/", ""),
        ("https://co.uk", ""),
        ("https://b.c.mm", "b.c.mm"),
        ("https://c.mm", ""),
        ("https://www.ck", "www.ck"),
        ("https://a.www.ck", "www.ck"),
        ("https://www.city.kobe.jp", "city.kobe.jp"),
        ("https://www.食狮.公司.cn", "xn--85x722f.xn--55qx5d.cn"),
        ("https://a.b.unlisted", "b.unlisted"),
        ("http://localhost/", ""),
        ("http://192.0.2.1/", ""),
        ("http://192.0.2.0x1/", ""),
        ("http://[2001:db8::1]/", ""),
        ("http://a..com/", ""),
        ("http://[broken/", ""),
        ("example.com", ""),
        ("", ""),
    ],
)
def test_domain(text: str, domain: str) -> None:
    assert derive("domain", text) == domain
    if "0x" not in text:
        assert oracle_values.domain(text) == domain


@pytest.mark.soak
def test_domains_below_each_public_suffix() -> None:
    """Held against the algorithm that publicsuffix.org describes. The rules of the list are the same."""
    with Path(publicsuffixlist.PSLFILE).open(encoding="utf-8") as lines:
        rules = [line.split()[0] for line in lines if line.strip() and not line.startswith("//")]
    for rule in rules[::7] + [rule for rule in rules if rule[0] in "*!"]:
        suffix = rule.removeprefix("!").replace("*", "x")
        for host in (suffix, f"b.{suffix}", f"a.b.{suffix}"):
            assert derive("domain", f"https://{host}/") == oracle_values.domain(f"https://{host}/"), host
