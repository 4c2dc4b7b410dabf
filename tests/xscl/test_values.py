import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import ada_url
import publicsuffixlist
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.dates import parse_timestamp
from tests.generate.seeds import at_length
from tests.oracle import times as oracle
from tests.oracle import values as oracle_values
from xscl.algebra.regex import MAX_DEPTH, MAX_PATTERN, MAX_SIZE, MAX_WORK, PatternError, PatternLimit
from xscl.algebra.values import DERIVED, ORDER, compare_times, derive, matches_regex, time_text, with_literal


@pytest.mark.parametrize("name", ["soundex", "substring-before", 'substring-before "', 'substring-after "a"b"', ""])
def test_no_function_of_a_chain(name: str) -> None:
    assert derive(with_literal("substring-before", " - "), "a - b - c") == "a"
    with pytest.raises(KeyError):
        derive(name, "a")


url_like = st.text(st.sampled_from("htps:/.?#[]@&=%41a é ü\u212a\ud800W-_~+"), max_size=20).map(
    lambda tail: "http://" + tail
)


@given(st.one_of(st.text(), url_like, st.text(st.sampled_from("0126789-:T Z+.,JulMonGMT()\t"), max_size=30)))
def test_derived_values_are_strings_and_never_fail(text: str) -> None:
    for name in DERIVED:
        assert isinstance(derive(name, text), str)
    assert time_text(time_text(text)) == time_text(text)


@given(st.one_of(st.text(), url_like))
@example("HTTP:// :")
@example("http://\ud800@1")
@example("http://1\u3002.")
def test_a_canonical_url_is_its_own(text: str) -> None:
    once = derive("canonical-url", text)
    assert derive("canonical-url", once) == once


# ---------------------------------------------------------------- patterns

REFUSED = r"""
    \X \R \h \G \K \m \0 \a \f \v \b \B \A \Z \z \# \/ \: \_ \x41 \u0041 \N{A} \Q \E \p{l} \pL
    \p{Cs} \p{LC} \p{IsNope} \p{IsNoBlock} \p{Isbasiclatin} \p{Latin} \p{^L} \p{} \p{L \1 (\1) (a\1) [\1]
    a** a*+ a??? a{,2} {2} a{2}{3} a{x} a{1,2,3} a{1001} a{1,1001} a{99999999999999999999} (a{50}){50}
    } a} { ] a] [] [^] [--] [--a] [a--] [[:alpha:]] [a[b]] [a-z-[b]c] [-[a]] ? (* a|+
    [a-\d] [b-a] [\ [a- [a-[b]
    ( a) [ *a \q \p{Nonsense} a{2,1}
    (?=a) (?<n>a) (?i)a (?i:a) (?!a) (?<=a) (?<!a) (?P<n>a) (?>a) (?#a) (?|a) (?(1)a) (?
"""
"""What other kinds of regular expressions have, and what none has."""


@pytest.mark.parametrize(
    "pattern",
    [
        *REFUSED.split(),
        *("a{ 2}", "a{2, 3}", "\\ ", "\\", "a" * (MAX_PATTERN + 1), "((a{100}){100}){100}"),
        *("(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1), "[a-" * 100 + "[b]" + "]" * 100),
    ],
)
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(PatternError):
        matches_regex("a", pattern)


def test_a_search_is_linear_and_what_is_too_long_depends_on_nothing_else() -> None:
    text = "a" * 5000 + "b"
    assert not matches_regex(text, "^(a|a)*(a|a)*(a|a)*$") and matches_regex(text, "^(a|a)*(a|a)*(a|a)*b$")
    longest = MAX_WORK // MAX_SIZE
    assert matches_regex("b" * longest, f"b{{{MAX_SIZE}}}")
    with pytest.raises(PatternLimit, match="too long"):
        matches_regex("b" * (longest + 1), f"b{{{MAX_SIZE}}}")
    assert not matches_regex("a" * (MAX_SIZE - 1), f"a{{{MAX_SIZE}}}") and matches_regex(
        "", "(" * MAX_DEPTH + ")" * MAX_DEPTH
    )
    for one, many, pattern in (("ab", 490, "^((ab){5,10}){2,49}$"), ("é", 64, r"^\w{1,64}$")):
        assert matches_regex(one * many, pattern) and not matches_regex(one * (many + 1), pattern)
    letters = "".join(map(chr, range(0x3041, 0x3041 + 300)))
    assert matches_regex(letters, letters)


def test_a_search_with_back_references_takes_so_many_steps() -> None:
    assert matches_regex("x" * 10_000 + "abcabc", r"(abc)\1") and not matches_regex("x" * 10_000, r"(abc)\1")
    with pytest.raises(PatternLimit, match="too many ways"):
        matches_regex("a" * 2001 + "b", r"^(a*)(a*)(a*)\1\2\3b$")


ADDRESSES = """
    HTTP://WWW.Example.ORG:80/A/#top => https://www.example.org/A example.org
    https://example.org:8443/a => https://example.org:8443/a example.org
    https://example.org./a?b=2&a=1&&b=1 => https://example.org/a?a=1&b=1&b=2 example.org
    https://example.org/a?flag&x= => https://example.org/a?flag&x= example.org
    https://example.org/?utm_source=x&UTM_Medium=y&id=3&fbclid=z&gclid=q => https://example.org?id=3 example.org
    https://example.org/?mc_cid=1&mc_eid=2&igshid=3&ref_src=4 => https://example.org example.org
    https://example.org/?reference=1 => https://example.org?reference=1 example.org
    https://wwwx.example.org/%7euser/%c3%a9?q=%3d => https://wwwx.example.org/~user/%C3%A9?q=%3D wwwx.example.org
    https://u:p@bücher.example/100% => https://u:p@xn--bcher-kva.example/100%25 xn--bcher-kva.example
    http://[2001:DB8::1]:80/a => https://[2001:db8::1]/a 2001:db8::1
    mailto:a@Example.org => mailto:a@Example.org
    ftp://files.Example.org/a/ => ftp://files.Example.org/a/ files.example.org
    //example.org/a => //example.org/a example.org
    /relative/path/ => /relative/path/
    example.org/a => example.org/a
    http:// => http://
    http:///path => http:///path
    http://[broken/ => http://[broken/
    http://example.org:port/ => http://example.org:port/ example.org
    http://example.org:99999/ => http://example.org:99999/ example.org
"""
"""Addresses, their canonical forms, and their hosts if they have some."""


def test_canonical_url_and_host() -> None:
    for line in ADDRESSES.strip().splitlines():
        address, found = line.strip().split(" => ")
        url, _, host = found.partition(" ")
        assert (derive("canonical-url", f" {address}\n"), derive("host", address)) == (url, host), address
    assert (
        derive("canonical-url", "") == derive("host", "") == "" and derive("canonical-url", "Not a URL") == "Not a URL"
    )


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


# ---------------------------------------------------------------- times

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


TIMES = """
    2026-07-16 => 2026-07-16T00:00:00Z | 2026-07-16T08:30 => 2026-07-16T08:30:00Z
    2026-07-16T08:30:00Z => 2026-07-16T08:30:00Z | 2026-07-16t08:30:00z => 2026-07-16T08:30:00Z
    2026-07-16 08:30:00+02:00 => 2026-07-16T06:30:00Z | 2026-07-16 08:30:00 -0230 => 2026-07-16T11:00:00Z
    2026-07-16T08:30:00+05 => 2026-07-16T03:30:00Z | 2026-07-16T08:30:00.5 => 2026-07-16T08:30:00.500000Z
    2026-07-16T08:30:00,1234567891Z => 2026-07-16T08:30:00.123456Z | 2026-07-16T24:00:00Z => 2026-07-17T00:00:00Z
    2016-12-31T23:59:60Z => 2017-01-01T00:00:00Z | 2024-02-29 => 2024-02-29T00:00:00Z
    0001-01-01 => 0001-01-01T00:00:00Z | 9999-12-31T23:59:59.999999Z => 9999-12-31T23:59:59.999999Z
    Thu, 16 Jul 2026 08:30:00 GMT => 2026-07-16T08:30:00Z | Thu, 16 Jul 2026 08:30:00 +0200 => 2026-07-16T06:30:00Z
    16 jul 2026 8:30 => 2026-07-16T08:30:00Z | Thursday, 16-Jul-26 08:30:00 GMT => 2026-07-16T08:30:00Z
    Thu, 16 July 2026 08:30:00 EST => 2026-07-16T13:30:00Z | Thu, 16 Jul 2026 08:30:00 CEST => 2026-07-16T06:30:00Z
    Thu, 16 Jul 2026 08:30:00 +0000 (UTC) => 2026-07-16T08:30:00Z
    Mon, 16 Jul 1979 08:30:00 -0000 => 1979-07-16T08:30:00Z | 16 Jul 79 08:30:00 Z => 1979-07-16T08:30:00Z
    16 Jul 49 08:30:00 Z => 2049-07-16T08:30:00Z | 2026/07/16 08:30:00 => 2026-07-16T08:30:00Z
    2026/7/6 => 2026-07-06T00:00:00Z | 16.07.2026 08:30 => 2026-07-16T08:30:00Z | 16/07/2026 => 2026-07-16T00:00:00Z
    07/16/2026 8:30 PM => 2026-07-16T20:30:00Z | 7/7/2026 => 2026-07-07T00:00:00Z
    Thu, 16 Jul 2026 12:15 PM => 2026-07-16T12:15:00Z | 16 Jul 2026 12:15 am => 2026-07-16T00:15:00Z
    Thu, Jul 16 2026 02:02:33 PM => 2026-07-16T14:02:33Z | Jul 16, 2026 2 p.m. => 2026-07-16T14:00:00Z
    16 Jul 2026 1:55 PM EST => 2026-07-16T18:55:00Z | 16 Jul 2026 14:30 PM => 2026-07-16T14:30:00Z
    2026-07-16 08:30:00 UTC => 2026-07-16T08:30:00Z | 2026-07-16 08:30 +0000 UTC => 2026-07-16T08:30:00Z
    1784190600 => 2026-07-16T08:30:00Z
    1784190600.25 => 2026-07-16T08:30:00.250000Z | 2025130210 => 2034-03-05T00:10:10Z
    Jul 16, 2026 => 2026-07-16T00:00:00Z | 16 Jul 2026 => 2026-07-16T00:00:00Z
    July 16th, 2026 => 2026-07-16T00:00:00Z | Thursday, July 16, 2026 - 08:30 => 2026-07-16T08:30:00Z
    Thu,16 Jul 2026 08:30:00GMT => 2026-07-16T08:30:00Z | 16Jul2026 => 2026-07-16T00:00:00Z
    Thu, 16 Jul 202608:30:00 +0200 => 2026-07-16T06:30:00Z | 2026-07-1608:30 => 2026-07-16T08:30:00Z
    20260716T083000Z => 2026-07-16T08:30:00Z | 2026-07-16T8:30:5 => 2026-07-16T08:30:05Z
    Thu Jul 16 08:30:00 2026 => 2026-07-16T08:30:00Z | Thu Jul 16 08:30:00 EDT 2026 => 2026-07-16T12:30:00Z
    Thu Jul 16 2026 08:30:00 GMT+0200 (CEST) => 2026-07-16T06:30:00Z
    Thu, 16 Jul 2026 08:30:00 +02:00 => 2026-07-16T06:30:00Z | 16 Jul 2026 08:30 GMT+2 => 2026-07-16T06:30:00Z
    16 Jul 2026 08:30 CET => 2026-07-16T07:30:00Z | 16 Jul 2026 08:30 JST => 2026-07-15T23:30:00Z
    16 Jul 2026 08:30 IST => 2026-07-16T03:00:00Z | 16 Jul 2026 08:30 AEST => 2026-07-15T22:30:00Z
    16 Jul 2026 08:30 Europe/Berlin => 2026-07-16T06:30:00Z | 16 Jan 2026 08:30 ET => 2026-01-16T13:30:00Z
    2026-07-16T08:30+02:00[Europe/Berlin] => 2026-07-16T06:30:00Z | 2026-07-16T08:30 (UTC) => 2026-07-16T08:30:00Z
    gio, 16 lug 2026 08:30:00 GMT => 2026-07-16T08:30:00Z | jeu. 16 août 2026 08:30 => 2026-08-16T08:30:00Z
    Do, 16 Mär 2026 08:30 => 2026-03-16T08:30:00Z | 16 de marzo de 2026 => 2026-03-16T00:00:00Z
    Thu, 16 Juli 2026 08:30 => 2026-07-16T08:30:00Z | 2026년 7월 16일 오후 8:30 => 2026-07-16T20:30:00Z
    Thu, 16 Jul 2026 24:00:00 GMT => 2026-07-17T00:00:00Z | 16 Jul 2026 08:30:60 => 2026-07-16T08:31:00Z
"""


@pytest.mark.parametrize("case", re.split(r" \| |\n", TIMES.strip()))
def test_times(case: str) -> None:
    text, time = case.strip().split(" => ")
    assert time_text(text) == time_text(f" {text}\n") == derive("date", text) == oracle.moment(text).text() == time
    assert parse_timestamp(text) == us(datetime.fromisoformat(time))
    assert time_text(time) == time and derive("year-month", text) == time[:7]


NO_TIMES = """
    |soon|2026|20260716|2026-07|2026-W29-4|2026-197|2026-02-30|2023-02-29|2026-13-01|2026-00-10|2026-07-00
    |0000-01-01|10000-01-01|-0001-01-01|+2026-07-16|0001-01-01T00:00+00:01|9999-12-31T23:59-00:01|9999-12-31T24:00Z
    |9999-12-31T23:59:60Z|2026-07-16T|2026-07-16T08|2026-07-16T25:00|2026-07-16T24:00:01|2026-07-16T08:60
    |2026-07-16T08:30:61|2026-07-16T08:30:00.|2026-07-16T08:30:00+99:99|2026-07-16T08:30:00+24:00|2026-07-16T08:30+02:60
    |2026-07-16T08:30:00+2|2026-07-16T08:30:00ZZ|2026-07-16 8 Uhr|2026-07/16|2026-7-1608:30|16 Jul 202:30
    |٢٠٢٦-٠٧-١٦|2026-07-1٦|２０２６-07-16|2026\u201307\u201316|2026-07-16T08:30:00\u22120200
    |Foo, 16 Jul 2026 08:30:00 GMT|32 Jul 2026 08:30:00 GMT|16 Jui 2026|16 Ju 2026|Thu, 31 Jun 2026
    |Thu, 16 Jul 2026 25:30:00 GMT|Thu, 16 Jul 2026 08:30:00 +2460|16 Jul 0 08:30|16 Jul 126 08:30
    |16 Jul 2026 14:30 AM|16 Jul 2026 0:30 PM|16 Jul 2026 24:00 PM|16 Jul 2026 8
    |Thu, 16 Jul 2026 08:30:00 GMT tomorrow|Thu, 16 Jul 12026 08:30:00 GMT|16 Jul 2026 08:30 XYZ|16 Jul 2026 08:30 A
    |07/06/2026|6-7-2026 08:30|07/16/26|16 July|July 2026|1784190600000|178419060|-1784190600|2025090210|1999123123
    |25 Oct 2026 02:30 Europe/Berlin|29 Mar 2026 02:30 Europe/Berlin|16 Jul 2026 08:30 Europe/Nowhere
    |16 Jul 2026 08:30 ../etc/passwd
"""


@pytest.mark.parametrize("text", [text.strip("\n ") for text in NO_TIMES.split("|")])
def test_no_times(text: str) -> None:
    assert parse_timestamp(text) is None and time_text(text) == derive("year-month", text) == ""
    assert oracle.moment(text).at is None
    assert not any(compare_times(op, text, "2026-07-16") for op in ORDER if op != "!=")
    assert compare_times("!=", text, text) and not compare_times("=", text, text)


def test_a_long_text_is_no_time() -> None:
    assert parse_timestamp(" " * 1_000_000 + "2026-07-16" + "\n" * 1_000_000) == parse_timestamp("2026-07-16")
    for part in ("2", "2026-07-16", " ", "-", "Thu, ", "(", "T08:30:00.0"):
        assert parse_timestamp("2026-07-16T08:30:00." + part * 1_000_000 + "x") is None
    assert parse_timestamp(f"2026-07-16T08:30:00.{'0' * 59}Z") and not parse_timestamp(
        f"2026-07-16T08:30:00.{'0' * 60}Z"
    )


PARTS = ["2026", "07", "16", "-", "-", "T", " ", ":", "08", "30", "60", "24", "00", ".5", "Z", "+02:00", "-0130", "99"]
WORDS = "Thu, thursday 16 1 Jul AUG july 2026 26 99 08:30 8:30:15 24:00:00 25:00 GMT +0200 -9999 EST X (UTC) Juli ٣ "
WORDS += "pm 12:30PM 0:10am mer. 2026/07/16 07/16/2026 16.7.2026 16th CEST IST Jul, July. - at 2026-07-16T08:30 GMT+1"


def test_near_times() -> None:
    """Of times with one part changed, and of parts in any order, we and the oracle think the same."""
    rng = Random(1)
    told = 0
    for _ in range(4_000):
        if rng.random() < 0.5:
            ends = rng.choice("T "), rng.choice(("Z", "", ".5"))
            parts = ["2026", "-", "07", "-", "16", ends[0], "08", ":", "30", ":", "00", ends[1]]
            parts[rng.randrange(len(parts))] = rng.choice(PARTS)
            text = "".join(parts)
        else:
            words = ["Thu,", "16", "Jul", "2026", "08:30:00", rng.choice(("GMT", "+0200", "PDT"))]
            words[rng.randrange(len(words))] = rng.choice(WORDS.split())
            text = " ".join(words[rng.randrange(2) :])
        assert time_text(text) == oracle.moment(text).text(), text
        told += parse_timestamp(text) is not None
    assert 600 < told < 3_600
