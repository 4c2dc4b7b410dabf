import base64
import json
import re
import shutil
import ssl
import subprocess
from dataclasses import replace
from hashlib import md5
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.dates import DAY, HOUR, MINUTE
from common.errors import InvalidValue
from feeds.fetch.fetcher import WarcArchive
from feeds.fetch.http import is_allowed
from feeds.fetch.lists import ListedFeed, read_feed_list, write_opml
from feeds.fetch.settings import (
    KEYS,
    NONE,
    WHOLE,
    BadSettings,
    FeedSettings,
    SecretRef,
    SettingsOf,
    access_of,
    effective_settings,
    read_feed_tables,
)
from feeds.fetch.state import (
    STATE_FILE,
    ChangesOf,
    FeedChange,
    FeedState,
    FetchStore,
    SettingsChange,
    change_feeds,
    source_name,
)
from feeds.history import History, Sighting
from feeds.items import folder_names, folder_path
from feeds.readers import read_feed_file
from feeds.rules import AS_USUAL, ReadingRules
from tests.support.feed_server import Fetching, Request, outcomes, rss, running_server
from tests.support.files import read

SECRETS = {"pw": "s3cr:et", "key": "k3y", "proxy": "http://ada:s3cret@127.0.0.1:{}"}


def secret(name: str) -> str:
    if name not in SECRETS:
        raise InvalidValue("a secret is named that is not known")
    return SECRETS[name]


# ---------------------------------------------------------------- what may be set

ALL: dict[str, Any] = {
    "proxy": "http://proxy.lan:3128", "headers": {"X-Key": {"secret": "key"}, "Accept-Language": "de"},
    "cookies": {"consent": "yes", "session": {"secret": "pw"}}, "user_agent": "Reader/1 (+https://a.example)",
    "auth": "digest", "user": "ada", "password": {"secret": "pw"}, "interval": "30 min", "longest": "6 h",
    "encoding": "windows-1251", "identity": "./identifier", "keep": ["title:/^v[0-9]/"],
    "block": ["sport", 'path:category[@term="ad"]'],
    "versions": "ignore", "time": "arrival", "ca": "own.pem", "allow_private": ["nas.lan", "10.0.0.0/8", "::1"],
    "history": "INF", "hub": False,
}  # fmt: skip


def test_settings_are_read_as_they_are_written():
    made = FeedSettings.from_table(ALL)
    assert made.to_table() == ALL and FeedSettings.from_json(made.to_json()) == made
    assert {*KEYS} == {*ALL, "verify"}
    assert (made.interval, made.longest, made.history) == (30 * MINUTE, 6 * HOUR, WHOLE)
    assert FeedSettings.from_table({"history": "2y", "user": "ada", "password": "pw"}) == replace(
        NONE, history=730 * DAY, user="ada", password=SecretRef("pw")
    )
    assert made.changed({"interval": None, "hub": True}) == replace(made, interval=None, hub=True)
    assert {one.name for one in made.secrets()} == {"key", "pw"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"intervall": "1h"}, "there is no setting 'intervall'; did you mean interval?"),
    ({"interval": "soon"}, "interval: 'soon' is not a duration"),
    ({"interval": "1s"}, "interval: write between 1min and 366d"),
    ({"interval": True}, "interval: write a duration"),
    ({"interval": "INF"}, "interval: INF is not allowed"),
    ({"interval": "2h", "longest": "1h"}, "longest: write at least the interval"),
    ({"proxy": "socks5://a:1"}, "proxy: write http://HOST:PORT"),
    (
        {"proxy": "http://ada:pw@a.example:1"},
        "proxy: a user or password is not written here; make the address a secret",
    ),
    ({"proxy": "http://a.example:x"}, "proxy: write http://HOST:PORT"),
    ({"headers": "X: y"}, "headers: write a table"),
    ({"headers": {"X Y": "z"}}, "headers: 'X Y' is not a name of a header"),
    ({"headers": {"X": "a\r\nSet-Cookie: b=c"}}, "headers: X: it has a line break or control character"),
    ({"headers": {"X\r\nY": "z"}}, "is not a name of a header"),
    ({"headers": {"X": "é"}}, "headers: X: write printable ASCII"),
    ({"headers": {"Host": "a.example"}}, "headers: Host cannot be set here; the fetcher sets it itself"),
    ({"headers": {"authorization": "Basic x"}}, "write auth, user and password, or name a secret"),
    ({"headers": {"Cookie": "a=b"}}, "write cookies"),
    ({"headers": {"X": "1", "x": "2"}}, "headers: x is given twice"),
    ({"headers": {f"X-{n}": "1" for n in range(51)}}, "headers: write at most 50"),
    ({"cookies": {"a b": "c"}}, "cookies: 'a b' is not a name of a cookie"),
    ({"cookies": {"a": "b; Domain=x"}}, "cookies: a: write no blank, quote, comma, semicolon or backslash"),
    ({"cookies": {"a": "b\n"}}, "line break or control character"),
    ({"cookies": {f"a{n}": "x" * 1_500 for n in range(3)}}, "cookies: together they have more than 4,096 bytes"),
    ({"user_agent": "a\nb"}, "user_agent: it has a line break"),
    ({"auth": "ntlm"}, "auth: write basic, digest or bearer"),
    ({"auth": "basic"}, "password: name the secret"),
    ({"user": "a:b", "password": "pw"}, "user: a user name cannot contain a colon"),
    ({"user": "a", "password": "My Secret!"}, "password: name a secret, do not write it here"),
    ({"auth": "bearer", "user": "a", "password": "pw"}, "user: with auth = bearer, write the token as password"),
    ({"password": "pw"}, "user: write a user name"),
    ({"encoding": "klingon"}, "encoding: 'klingon' is not an encoding of the web"),
    ({"identity": "./["}, "identity: not a path in XPath"),
    (
        {"identity": "guids"},
        "identity: 'guids' is not an identity; write guid, link, title, or a path such as ./identifier",
    ),
    ({"keep": [""]}, "keep: write a text"),
    ({"keep": ["titel:x"]}, "keep: 'titel:x': there is no field 'titel'; the fields are title, text"),
    ({"block": ["/(/"]}, "block: '/(/': not a regular expression"),
    ({"block": ["path:///"]}, "not a path in XPath"),
    ({"block": ["title:!!"]}, "it has no word"),
    ({"versions": "no"}, "versions: write keep or ignore"),
    ({"time": "now"}, "time: write own or arrival"),
    ({"verify": "no"}, "verify: write true or false"),
    ({"verify": False, "ca": "own.pem"}, "ca: verify = false trusts any certificate"),
    ({"allow_private": "not a host"}, "allow_private: 'not a host' is not a host; write a name like nas.lan"),
    ({"history": "long"}, "history: 'long' is not a duration"),
    ({"hub": 1}, "hub: write true or false"),
]


@pytest.mark.parametrize(("table", "cause"), REFUSED, ids=str)
def test_what_is_refused_says_what_to_write(table: dict[str, Any], cause: str):
    with pytest.raises(BadSettings, match=re.escape(cause)) as refused:
        FeedSettings.from_table(table, "here: ")
    assert str(refused.value).startswith("here: ") and "Secret!" not in str(refused.value)


def test_what_a_feed_leaves_open_is_as_in_its_folders_and_the_file_goes_before():
    def made(**table: Any) -> FeedSettings:
        return FeedSettings.from_table(table)

    file = SettingsOf({"https://a.example/": made(interval="10min")}, {"News": made(user_agent="file")})
    state = SettingsOf(
        {"https://a.example/": made(interval="20min", block=["a"], headers={"X": "1"})},
        {"News": made(encoding="utf-8", user_agent="state", block=["b"], headers={"x": "2", "Y": "3"}),
         "News/World": made(encoding="koi8-r"), "": made(identity="link", encoding="gbk", proxy="http://p:1")},
    )  # fmt: skip
    found = effective_settings("https://a.example/", ["News/World"], file, state)
    assert found == made(interval="10min", block=["a", "b"], headers={"Y": "3", "X": "1"}, encoding="koi8-r",
                         user_agent="file", identity="link", proxy="http://p:1")  # fmt: skip
    assert effective_settings("https://b.example/", [], file, state) == state.folders[""]
    with_password = SettingsOf({"https://x:y@a.example/": made(time="own")}, {})
    found = effective_settings("https://x:y@a.example/", [], file, with_password, "https://a.example/")
    assert found == made(interval="10min", time="own")


def test_the_configuration_file_names_feeds_by_their_addresses(tmp_path: Path):
    tables: dict[str, Any] = {"feed": {"HTTPS://A.example": {"ca": "own.pem"}}, "folder": {"": {"hub": False}}}
    found = read_feed_tables(tables, tmp_path / "mmqjp.toml")
    assert found.feeds["https://a.example/"].ca == str(tmp_path / "own.pem") and found.folders[""].hub is False
    for bad, cause in (
        ({"feed": {"ftp://ada:pw@a.example/": {}}}, "is not an http or https address"),
        ({"feed": {"https://a.example/": 1}}, "write a table, as in"),
        ({"folder": {"News": {"hub": 1}}}, 'folder."News".hub: write true or false'),
    ):
        with pytest.raises(BadSettings, match=re.escape(cause)) as refused:
            read_feed_tables(bad, Path("mmqjp.toml"))
        assert "ada" not in str(refused.value)


def test_a_list_keeps_settings_but_none_that_could_harm_who_takes_it_over():
    folder = folder_path(["TV/Radio", "a\\b"])
    assert folder_names(folder) == ["TV/Radio", "a\\b"]
    listed = ListedFeed("https://a.example/", "A", folder, settings=FeedSettings.from_table(ALL))
    text = write_opml([listed, ListedFeed("https://b.example/")], {folder_path(["TV/Radio"]): replace(NONE, hub=False)})
    assert b"s3cr" not in text and b'text="TV/Radio"' in text
    found = read_feed_list(text, "the list")
    assert [(feed.url, feed.folder) for feed in found.feeds] == [
        ("https://b.example/", ""),
        ("https://a.example/", folder),
    ]
    harmful = {"proxy", "headers", "cookies", "auth", "user", "password", "ca", "allow_private"}
    expected = {key: value for key, value in ALL.items() if key not in harmful}
    assert found.settings["https://a.example/"].to_table() == expected
    assert found.folders == {r"TV\/Radio": replace(NONE, hub=False)}
    (complaint,) = found.complaints
    assert "proxy" in complaint and "ignored in a list; set it with mmqjp feeds set" in complaint
    bad = text.replace(b"30 min", b"soon")
    assert "is not a duration" in read_feed_list(bad, "the list").complaints[0]


def test_which_hosts_are_allowed():
    allowed = ("nas.lan", "10.0.0.0/8", "192.168.1.5", "::1")
    yes = [
        ("NAS.lan.", "172.16.0.1"),
        ("x.example", "10.1.2.3"),
        ("x.example", "192.168.1.5"),
        ("[::1]", "::1"),
        ("a.example", "93.184.215.14"),
    ]
    no = [("x.example", "192.168.1.6"), ("nas.lan.example", "172.16.0.1"), ("x.example", "::2")]
    assert [is_allowed(*one, allowed) for one in (*yes, *no)] == [True] * len(yes) + [False] * len(no)


# ---------------------------------------------------------------- how feeds are asked


def with_settings(fetching: Fetching, url: str, **table: Any) -> None:
    fetching.feeds = SettingsOf({url: FeedSettings.from_table(table)}, {})
    fetching.secret = secret


def test_headers_cookies_and_secrets_go_to_the_feeds_own_host_alone(server, fetching):
    with running_server() as other:
        other.serve("/feed", rss("a"))
        url = server.serve("/feed", b"", 302, Location="/here")
        server.serve("/here", b"", 302, Location=other.url("/feed"))
        with_settings(fetching, url, headers={"X-Key": {"secret": "key"}, "Accept": "text/xml"}, user_agent="Me/1",
                      cookies={"a": "b", "c": {"secret": "key"}}, user="ada", password="pw")  # fmt: skip
        assert outcomes(fetching.run(url)) == {"new": 1}
    sent = {"X-Key": "k3y", "Cookie": "a=b; c=k3y", "Accept": "text/xml",
            "Authorization": "Basic " + base64.b64encode(b"ada:s3cr:et").decode()}  # fmt: skip
    for request in server.log:
        assert {name: request.headers.get(name) for name in sent} == sent and request.headers["User-Agent"] == "Me/1"
    (away,) = other.log
    assert away.headers["User-Agent"] == "Me/1" and not {"X-Key", "Cookie", "Authorization"} & away.headers.keys()


def test_what_is_encrypted_stays_so(fetching):
    feed = FeedSettings.from_table({"headers": {"X": "y"}})
    cases = [
        ("https://a.example/f", "https://a.example/g", True), ("https://a.example/f", "http://a.example/f", False),
        ("http://a.example/f", "https://a.example/f", True),
        ("http://a.example:80/f", "http://a.example:8080/f", False),
        ("https://a.example/f", "https://b.a.example/f", False),
        ("https://A.example/f", "https://a.example:443/", True),
    ]  # fmt: skip
    for home, asked, is_sent in cases:
        assert ("X" in access_of(feed, home, "me", secret).headers(httpx.URL(asked))) is is_sent, (home, asked)


def test_digest_and_bearer(server, fetching):
    def answer(request: Request) -> None:
        given = dict(re.findall(r'(\w+)="?([^",]*)"?', request.headers.get("Authorization", "")))
        h1, h2 = (md5(text.encode()).hexdigest() for text in ("ada:here:s3cr:et", "GET:/digest"))
        wanted = f"{h1}:n0nce:{given.get('nc')}:{given.get('cnonce')}:auth:{h2}"
        if given.get("response") == md5(wanted.encode()).hexdigest():
            request.answer(200, rss("a").encode())
        else:
            request.answer(401, b"", WWW_Authenticate='Digest realm="here", nonce="n0nce", qop="auth"')

    server.routes["/digest"] = answer
    server.routes["/bearer"] = lambda request: request.answer(
        200 if request.headers.get("Authorization") == "Bearer k3y" else 403, rss("b").encode()
    )
    for path, table in (
        ("/digest", {"auth": "digest", "user": "ada", "password": "pw"}),
        ("/bearer", {"auth": "bearer", "password": "key"}),
    ):
        with_settings(fetching, server.url(path), **table)
        assert outcomes(fetching.run(server.url(path)))["new"] == 1
        fetching.later(-1)


def test_a_proxy_is_asked_for_the_feed_and_guards_what_it_looks_up_itself(server, fetching):
    SECRETS["there"] = SECRETS["proxy"].format(server.port)
    server.otherwise = lambda request: request.answer(200, rss("a").encode())
    fetching.allow_private = False
    with_settings(fetching, url := "http://far.example/feed", proxy={"secret": "there"})
    assert outcomes(fetching.run(url)) == {"new": 1}
    (request,) = server.log
    assert (request.path, request.host) == (url, "far.example")
    assert request.headers["Proxy-Authorization"] == "Basic " + base64.b64encode(b"ada:s3cret").decode()
    # Whoever answers through the proxy does not get inside by a redirect.
    server.otherwise = lambda request: request.answer(302, b"", Location="http://127.0.0.1:9/")
    fetching.later(HOUR)
    fetching.run(url)
    assert "only public addresses" in fetching.feed(url).last_error and len(server.log) == 2
    with_settings(fetching, url, proxy="http://127.0.0.1:1")
    fetching.later(HOUR)
    fetching.run(url)
    assert "s3cret" not in fetching.feed(url).last_error and fetching.feed(url).errors == 2


def test_only_the_host_that_is_allowed_is_fetched_from_inside(server, fetching):
    fetching.allow_private = False
    server.serve("/feed", rss("a"))
    urls = [server.url("/feed"), server.url("/feed", "nas.lan")]
    fetching.feeds = SettingsOf({urls[1]: FeedSettings.from_table({"allow_private": "nas.lan"})}, {})
    assert outcomes(fetching.run(*urls)) == {"failed": 1, "new": 1}
    assert "--allow-private HOST allows it" in fetching.feed(urls[0]).last_error
    server.serve("/feed", b"", 302, Location=server.url("/feed", "router.lan"))
    fetching.later(HOUR)
    fetching.run()
    assert "router.lan resolves to 127.0.0.1" in fetching.feed(urls[1]).last_error


OPENSSL = shutil.which("openssl")


@pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificates")
def test_an_authority_of_ones_own_is_trusted_and_none_only_where_that_is_said(fetching, tmp_path):
    def openssl(*arguments: str) -> None:
        subprocess.run([str(OPENSSL), *arguments], check=True, capture_output=True, cwd=tmp_path)

    new = "-newkey", "rsa:2048", "-nodes", "-subj"
    openssl("req", "-x509", *new, "/CN=ours", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *new, "/CN=x", "-addext", "subjectAltName=DNS:intra.test", "-keyout", "x.key", "-out", "x.csr")
    openssl(
        "x509",
        "-req",
        "-in",
        "x.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-days",
        "2",
        "-copy_extensions",
        "copy",
        "-out",
        "x.pem",
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "x.pem", tmp_path / "x.key")
    (tmp_path / "bad.pem").write_text("no certificate")
    with running_server(tls) as server:
        cases: list[tuple[dict[str, Any], str, str]] = [
            ({}, "intra.test", "unable to get local issuer certificate"),
            ({"ca": str(tmp_path / "ca.pem")}, "intra.test", ""),
            ({"ca": str(tmp_path / "ca.pem")}, "other.test", "Hostname mismatch"),
            ({"ca": str(tmp_path / "bad.pem")}, "intra.test", "cannot be read as certificates in PEM"),
            ({"ca": str(tmp_path / "none.pem")}, "intra.test", "No such file"),
            ({"verify": False}, "other.test", ""),
        ]
        for n, (table, host, cause) in enumerate(cases):
            server.serve(f"/{n}", rss("a"))
            url = f"https://{host}:{server.port}/{n}"
            with_settings(fetching, url, **table)
            assert outcomes(fetching.run(url))["failed" if cause else "new"] == 1, table
            assert cause in fetching.feed(url).last_error
            fetching.later(-1)


def test_the_pace_of_a_feed_is_its_own(server, fetching):
    server.serve("/feed", rss("a"), Cache_Control="max-age=40000")
    for table, wait in (
        ({}, 40_000),
        ({"interval": "12h"}, 43_200),
        ({"longest": "2h"}, 7_200),
        ({"interval": "15min", "longest": "15min"}, 900),
    ):
        url = server.serve(f"/{wait}", rss("a"), Cache_Control="max-age=40000")
        with_settings(fetching, url, **table)
        fetching.run(url)
        assert fetching.feed(url).next_check - fetching.feed(url).checked_at == wait * 1_000_000


def test_a_secret_that_is_missing_is_that_feeds_failure(server, fetching):
    urls = [server.serve(f"/{n}", rss("a")) for n in range(2)]
    with_settings(fetching, urls[0], user="ada", password="none")
    assert outcomes(fetching.run(*urls)) == {"failed": 1, "new": 1}
    assert fetching.feed(urls[0]).last_error == "a secret is named that is not known"
    assert [request.path for request in server.log] == ["/1"]


# ---------------------------------------------------------------- what is kept and changed


def test_changed_settings_are_kept_and_count_from_the_next_fetch(server, fetching):
    url, file = server.validated("/feed", rss("a"), '"1"'), fetching.directory / STATE_FILE
    fetching.run(url)

    def change(scope: Any, name: str, **table: Any) -> None:
        assert change_feeds(file, FeedChange(settings=(SettingsChange(scope, name, json.dumps(table)),)))

    change("feed", url, user_agent="Me/1", longest="10min", identity="title")
    change("folder", "", user_agent="All/1", headers={"X": "y"})
    with FetchStore(file) as store:
        assert store.settings().feeds[url].user_agent == "Me/1"
        (known,) = store.feeds()
        assert known.etag == "" and known.next_check == known.checked_at + 10 * MINUTE
    fetching.later(600)
    fetching.run(url)
    assert [server.log[1].headers.get(name) for name in ("User-Agent", "X", "If-None-Match")] == ["Me/1", "y", None]
    change("feed", url, user_agent=None, longest=None, identity=None)
    change("feed", url, interval=None)
    with FetchStore(file) as store:
        assert store.settings().feeds == {}
    with pytest.raises(BadSettings):
        change("feed", url, interval="soon")
    change("feed", url, interval="1h")
    change_feeds(file, FeedChange(remove=(url,)))
    with FetchStore(file) as store:
        assert store.settings() == SettingsOf(
            {}, {"": FeedSettings.from_table({"user_agent": "All/1", "headers": {"X": "y"}})}
        )


def test_a_running_fetch_takes_settings_in_and_passes_over_bad_ones(tmp_path):
    file = tmp_path / STATE_FILE
    waiting = ChangesOf(file)
    with FetchStore(file, write=True) as store:
        store.add([FeedState("https://a.example/", source_name("https://a.example/"), errors=3, next_check=9 * HOUR)])
        assert not change_feeds(
            file, FeedChange(settings=(SettingsChange("feed", "https://a.example/", '{"hub": false}'),))
        )
        waiting.ask(FeedChange(settings=(SettingsChange("feed", "https://a.example/", '{"hub": 3}'),)))
        (due,), removed = waiting.take(store)
        assert (due.next_check, due.errors, removed) == (0, 3, set()), "what fails may be mended"
        assert store.settings().feeds["https://a.example/"].hub is False
    with FetchStore(file) as store:
        assert store.settings().feeds["https://a.example/"].hub is False


# ---------------------------------------------------------------- how entries are read

ENTRY = """<item><title>Derby: Löwen win 3:1</title><link>https://a.example/derby?id=7</link><guid>{}</guid>
<category>Sport</category><category>Premier League</category><author>Ann Lee</author>
<description>The final whistle</description>
<dc:identifier xmlns:dc="http://purl.org/dc/elements/1.1/">d7</dc:identifier>
<pubDate>Mon, 05 Jan 2026 08:00:00 GMT</pubDate></item>"""

RULES = [
    ("derby", True), ("DERBY whistle", True), ("derb", False), ('"final whistle"', True), ('"whistle final"', False),
    ("löwen", True), ("title:whistle", False), ("text:whistle", True), ("category:sport", True),
    ('category:"premier league"', True), ('category:"sport premier"', False), ("author:lee", True),
    ("link:derby", True),
    ("link:/id=7$/", True), ("guid:g1", True), ("/3:1/", True), ("title:/^derby/", True), ("title:/^win/", False),
    ("path:identifier='d7'", True), ("path:category[.='Sport']", True), ("path:category[.='News']", False),
    ("path:count(category) > 2", False), ("path:nothing", False), ("https://a.example/", False),
]  # fmt: skip


def sightings(directory: Path, text: str, **reading: Any) -> list[Sighting]:
    path = directory / "20260106T120000Z-aaaaaaaaaaaa.xml"
    path.write_text(text, "utf-8")
    notes = {"url": "https://a.example/feed", "fetched_at": "2026-01-06T12:00:00Z", "reading": reading}
    path.with_suffix(".json").write_text(json.dumps(notes))
    return [one for one in read_feed_file(path, path.name, "item") if isinstance(one, Sighting)]


def feed_of(*entries: str) -> str:
    return f"<rss version='2.0'><channel><title>A</title>{''.join(entries)}</channel></rss>"


@pytest.mark.parametrize(("rule", "is_met"), RULES)
def test_a_rule_blocks_or_keeps_entries(tmp_path: Path, rule: str, is_met: bool):
    text = feed_of(ENTRY.format("g1"))
    assert bool(sightings(tmp_path, text, block=[rule])) is not is_met
    assert bool(sightings(tmp_path, text, keep=["nothing-like-it", rule])) is is_met


def test_an_entry_that_is_left_out_is_not_withdrawn_and_comes_when_the_rule_is_gone(tmp_path: Path):
    text, history = feed_of(ENTRY.format("g1"), ENTRY.replace("derby", "other").format("g2")), History()

    def judged(**reading: Any) -> list[str]:
        sightings(tmp_path, text, **reading)
        items = read_feed_file(tmp_path / "20260106T120000Z-aaaaaaaaaaaa.xml", "f", "item")
        return [type(one).__name__ for one in history.settle(items)]

    assert judged(block=["link:other"]) == ["Document", "Visit"]
    assert judged() == ["Document", "Visit"]


@pytest.mark.parametrize(
    ("identity", "same", "other"),
    [
        ("link", ENTRY.format("g2"), ENTRY.replace("derby?", "cup?").format("g1")),
        ("title", ENTRY.replace("derby?", "cup?").format("g2"), ENTRY.replace("3:1", "3:2").format("g1")),
        ("./identifier", ENTRY.replace("3:1", "3:2").format("g2"), ENTRY.replace("d7", "d8").format("g1")),
        ("guid", ENTRY.replace("derby?", "cup?").format("g1"), ENTRY.format("g2")),
    ],
)
def test_the_identity_of_entries_is_what_the_reader_says(tmp_path: Path, identity: str, same: str, other: str):
    def key(entry: str) -> str:
        return sightings(tmp_path, feed_of(entry), identity=identity)[0].key

    first = key(ENTRY.format("g1"))
    assert key(same) == first != key(other)
    assert key(ENTRY.replace(">d7<", "><").format("g9")) == (
        first if identity in ("link", "title") else key(ENTRY.replace(">d7<", "><").format("g9"))
    )


@pytest.mark.parametrize("kind", ["drop", "warc"])
def test_encoding_time_and_versions_are_what_the_reader_says(server, fetching, kind: str):
    if kind == "warc":
        fetching.archive = lambda out, store: WarcArchive(out, store.archive_mark(), store.save_mark)

    def documents(score: str, **more: Any) -> list[Any]:
        text = feed_of(ENTRY.replace("3:1", score).format("g1")).replace("Löwen", "Львы")
        url = server.serve("/feed", text.encode("windows-1251"))
        with_settings(fetching, url, encoding="windows-1251", time="arrival", **more)
        fetching.later(3_600)
        assert outcomes(fetching.run(url)) == {"new": 1}
        return list(read(fetching.directory, feeds="item"))

    (document,) = documents("3:1", versions="ignore", keep=["derby львы"])
    assert "Львы" in document.xml_bytes().decode()
    assert document.t0 == fetching.feed(server.url("/feed")).fetched_at
    assert len(documents("4:1", versions="ignore")) == 1
    assert len(documents("5:1")) == 2


def test_rules_of_other_crawls_are_taken_as_far_as_they_can_be_read():
    given = {"encoding": 3, "identity": "./[", "keep": ["/(/", "ok"], "block": "x", "versions": "?", "time": "own"}
    assert ReadingRules.from_table(given) == ReadingRules(keep=("ok",), time="own")
    assert ReadingRules.from_table([1]) == ReadingRules.from_json("{") == AS_USUAL
    assert ReadingRules.from_json(ReadingRules(block=("é",)).to_json()) == ReadingRules(block=("é",))
