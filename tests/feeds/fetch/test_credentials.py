import base64
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.feed import EntryForm, read_entries
from feeds.fetch.lists import read_opml
from feeds.fetch.state import STATE_FILE
from feeds.history import Sighting
from feeds.items import Origin, without_credentials
from tests.support.cli import mmqjp, write_queries
from tests.support.feed_server import FeedServer, Request, rss
from tests.support.feed_texts import atom
from tests.support.in_turn import in_turn

NAME, PASSWORD = "ada", "s3cr%40t"
SENT = "Basic " + base64.b64encode(b"ada:s3cr@t").decode()
QUERY = "FROM S//item->a[./title->t] JOIN { t = u, 2 d } S//item->b[./title->u] PUBLISH same; S//item PUBLISH all_items"
SECRETS = (b"s3cr", SENT[-8:].encode())


def with_password(server: FeedServer, path: str) -> str:
    return server.url(path, f"{NAME}:{PASSWORD}@127.0.0.1")


def guarded(server: FeedServer, path: str, body: str, **headers: str) -> str:
    def answer(request: Request) -> None:
        known = request.headers.get("Authorization") == SENT
        request.answer(200 if known else 401, body.encode() if known else b"", **headers)

    server.routes[path] = answer
    return with_password(server, path)


def told(directory: Path) -> set[str]:
    """The files of a directory, but for the fetcher's state, in which some of a password stands."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(STATE_FILE)]
    assert files
    return {path.name for path in files for secret in SECRETS if secret in path.read_bytes()}


@pytest.mark.parametrize("layout", [[], ["--warc"]])
def test_passwords_are_kept_by_the_fetcher_alone(server: FeedServer, tmp_path: Path, layout: list[str]):
    item = "<rss><channel><title>F</title><item><title>one</title><link>/one</link></item></channel></rss>"
    addresses = [
        *(guarded(server, "/feed", item), guarded(server, "/twin", item)),
        guarded(server, "/page", '<html><head><link rel="alternate" type="application/rss+xml" href="/named"></head>'),
        *(with_password(server, path) for path in ("/missing", "/circle", "/nowhere")),
        f"ftp://{NAME}:{PASSWORD}@127.0.0.1/feed",
    ]
    guarded(server, "/named", rss("one", "two"))
    server.serve("/circle", b"", 302, Location=with_password(server, "/circle"))
    server.serve("/nowhere", b"", 302, Location=f"gopher://{NAME}:{PASSWORD}@127.0.0.1/x")
    lists = tmp_path / "feeds.txt"
    lists.write_text("\n".join(addresses))
    crawl = tmp_path / "crawl"
    shown = []

    def call(*arguments: str | Path, status: int = 0) -> bytes:
        result = mmqjp(*arguments)
        assert result.exit_code == status, result.stderr
        shown.append(result.stdout + result.stderr)
        return result.stdout.encode()

    call("fetch", lists, "--out", crawl, "--allow-private", "--spacing", "0s", *layout)
    assert "3 new" in shown[0] and "3 failed" in shown[0] and "ftp://127.0.0.1/feed" in shown[0]
    queries = write_queries(tmp_path, QUERY)
    found = call("run", "--engine", "duckdb", "--queries", queries, "--documents", crawl, "--feeds",
                 "--state", tmp_path / "state")  # fmt: skip
    assert b'"same"' in found and f"{server.url('/feed')} ".encode() in found
    call("feeds", "list", "--state", crawl)
    exported = call("feeds", "export", "--state", crawl)
    assert {feed.url for feed in read_opml(exported).feeds} >= {server.url("/feed"), server.url("/named")}
    call("feeds", "retry", "--state", crawl, server.url("/missing"))
    call("feeds", "retry", "--state", crawl, with_password(server, "/none"), status=1)
    assert not any(secret.decode() in text for secret in SECRETS for text in shown)
    lists.unlink()
    assert not told(tmp_path)
    # The host is told, now and the next time, and who asks for the passwords gets them.
    assert all(request.headers.get("Authorization") == SENT for request in server.log)
    whole = mmqjp("feeds", "export", "--state", crawl, "--passwords").stdout.encode()
    assert {feed.url for feed in read_opml(whole).feeds} >= {with_password(server, "/feed")}
    assert mmqjp("feeds", "retry", "--state", crawl, with_password(server, "/missing")).exit_code == 0


def test_a_crawl_of_others_may_have_passwords(tmp_path: Path):
    (tmp_path / "1.xml").write_text(rss("one"))
    (tmp_path / "1.json").write_text(
        '{"url": "https://ada:s3cret@example.org/feed", "fetched_at": "2026-01-01T00:00:00Z"}'
    )
    found = mmqjp("run", "--engine", "duckdb", "--queries", write_queries(tmp_path, QUERY), "--documents", tmp_path,
                  "--feeds")  # fmt: skip
    assert found.exit_code == 0 and "https://example.org/feed one" in found.stdout and "s3cret" not in found.stdout


REFUSED = r"""
    https://ada:s3/cret@example.org/f https://ada:s3#cret@example.org/f https://ada:s3?cret@example.org/f
    https://ada:s3://cret@example.org/f https://ada:99999/s3cret@example.org/f https:/ada:s3cret@example.org/f
    https:\\ada:s3cret@example.org/f ada:s3cret@example.org/f feed:ada:s3cret@example.org/f
"""
COMMANDS = """
    feeds add {} --state crawl; feeds remove {} --state crawl; feeds retry {} --state crawl
    fetch {} --out crawl; fetch list.txt --out crawl; fetch list.opml --out crawl
"""


@pytest.mark.parametrize(("address", "command"), in_turn(REFUSED.split(), re.split("[;\n]", COMMANDS.strip())))
def test_an_address_that_is_refused_shows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, address: str
):
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text(address)
    Path("list.opml").write_text(f"<opml><body><outline xmlUrl='{address}'/></body></opml>")
    assert mmqjp("feeds", "add", "https://a.example/", "--state", "crawl").exit_code == 0
    result = mmqjp(*(argument.format(address) for argument in command.split()))
    shown = result.stdout + result.stderr
    assert result.exit_code == 1 and "example.org/f" in shown
    assert not any(secret in shown for secret in ("ada", "s3", "cret", "99999"))


def test_a_refused_address_with_a_password_says_what_to_write(tmp_path: Path):
    result = mmqjp("feeds", "add", REFUSED.split()[0], "--state", tmp_path / "crawl")
    assert "is not an address: in a name or password, write / as %2F" in result.stderr
    missing = mmqjp("fetch", tmp_path / "me@work" / "list.txt", "--out", tmp_path / "crawl")
    assert f"{tmp_path}/me@work/list.txt: no such file" in missing.stderr


SELF = "<link rel='self' href='https://ada:s3cret@e.example/feed'/>"


@pytest.mark.parametrize(
    "links", [SELF, SELF.replace("rel='self'", ""), f"{SELF}<link href='/'/>", SELF.replace("https:", "")]
)
@pytest.mark.parametrize("form", ["item", "raw"])
def test_a_password_in_the_address_that_a_feed_gives_itself_is_left_out(links: str, form: EntryForm):
    page = "<title>T</title><content type='html'>&lt;a href='/there'>there&lt;/a></content>"
    for entry in (f"{page}<link href='one'/><link rel='enclosure' href='two'/>", f"{page}<id>1</id>"):
        items = list(read_entries(atom(entry, links).encode(), Origin("feed.xml", 1), form))
        (shown,) = (item for item in items if isinstance(item, Sighting))
        told = f"{shown.id} {shown.xml!r}"
        assert "e.example/" in told and "s3cret" not in told and "ada" not in told


HOSTS = st.sampled_from(["example.org", "[::1]:80", "a-b.example:8080"])
USERS = st.text("abc:%40.@!$&'()*+,;=-_~é", max_size=30)
PATHS = st.sampled_from(["", "/", "/feed@here", "/a?b=c@d", "?x=//y@z", "#@"])


@given(st.lists(st.tuples(USERS, HOSTS, PATHS), max_size=4))
def test_what_stands_before_the_host_is_left_out(parts: list[tuple[str, str, str]]):
    text = " and ".join(f"https://{user}@{host}{path}" for user, host, path in parts)
    expected = " and ".join(f"https://{host}{path}".replace("//y@z", "//z") for _, host, path in parts)
    assert without_credentials(text) == expected
    assert without_credentials(expected) == expected
