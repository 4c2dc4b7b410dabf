"""Who has the token gets in, nobody else, and who holds connections or is slow shuts nobody out who has it."""

import csv
import html
import io
import logging
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from threading import Event
from typing import cast

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from join_stage.store.protocol import StoreError
from mmqjp.service.log import REPEATED_SECONDS, NullLog, records_in
from mmqjp.web import serving
from mmqjp.web.areas import sql as views
from mmqjp.web.guard import LARGEST, Guard, needs_no_token
from mmqjp.web.serving import (
    MOST_CONNECTIONS,
    MOST_OF_CLIENT,
    MOST_STRANGERS,
    Connections,
    PatientProtocol,
    app_served,
    listen,
)
from mmqjp.web.site import ATTEMPTS, ATTEMPTS_SECONDS, COOKIE_SECONDS, Access, Hosts, token_of
from tests.generate.seeds import at_length, seeds
from tests.support.service import Events
from tests.support.web import FROM_HERE, TOKEN, URL, shared_routes, site_of, stranger, visitor


@pytest.fixture
def engine(unchanged_engine):
    """Its queries are as they were at the end of each test."""
    return unchanged_engine


ELSEWHERE = [
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "cross-site", "Origin": URL},
    {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://evil.example", "Referer": f"{URL}/sql"},
    {"Referer": "http://evil.example/page"}, {"Referer": "http://127.0.0.1:8765.evil.example/"},
]  # fmt: skip
"""What a browser says of requests that do not come from a page of this site."""


def routes() -> list[tuple[str, str, str]]:
    """Methods and paths, each with an address."""
    found = [route for route in shared_routes().routes if isinstance(route, Route)]
    return [
        (method, route.path, re.sub(r"\{[^}]*\}", "x", route.path))
        for route in found
        for method in sorted(route.methods or ())
    ]


def test_every_route_but_a_few_needs_the_token(site):
    client = stranger(site)
    protected = [route for route in routes() if not needs_no_token(route[1])]
    open_to_all = {path for _, path, _ in routes() if needs_no_token(path) and not path.startswith("/f/")}
    assert len(protected) > 5 and open_to_all == {"/login", "/healthz", "/static/{digest}/{name}", "/websub/{token}"}
    for method, path, address in protected:
        found = client.request(method, address, headers=FROM_HERE)
        wanted = 401 if path.startswith("/api/") or method not in ("GET", "HEAD") else 303
        assert (method, path, found.status_code) == (method, path, wanted)
        assert wanted == 401 or found.headers["location"].startswith("/login")
        wrong = client.request(method, address, headers=FROM_HERE | {"Authorization": "Bearer wrong"})
        assert wrong.status_code in (401, 429)


def test_every_change_comes_from_a_page_of_this_site(site, api):
    client = visitor(site)
    for headers in ({}, *ELSEWHERE):  # a cookie alone changes nothing
        for method, path, address in routes():
            if method not in ("GET", "HEAD"):
                wanted = 410 if path == "/websub/{token}" else 403  # hubs have no page, and their pushes a signature
                assert client.request(method, address, headers=headers).status_code == wanted, (method, path, headers)
    assert client.post("/q/nobody/pause", headers={"Origin": URL}).status_code == 303
    assert api.post("/api/v1/queries/nobody/resume").json() == {"names": ["nobody"]}, "a token suffices"


def test_an_unknown_host_is_refused(site):
    unknown = "evil.example evil.example:8765 127.0.0.1 127.0.0.1:1 [::2]:8765 @:8765 localhost:8765# [::1%lo]:8765"
    client = stranger(site)
    for host in unknown.split():
        for path in ("/", "/login", "/healthz", "/api/v1/queries"):
            assert client.get(path, headers={"Host": host}).status_code == 421, host
    here = Hosts("127.0.0.1", 8765)
    assert all(map(here.has, ("127.0.0.1:8765", "localhost:8765", "[::1]:8765", "LOCALHOST:8765")))
    assert not any(map(here.has, ("", "10.0.0.1:8765", "localhost", "a@localhost:8765", "localhost:8765/x", "x:y:z")))
    proxied = Hosts("127.0.0.1", 8765, "https://stories.example")
    assert proxied.has("stories.example") and not proxied.has("stories.example:1")
    assert proxied.is_origin("https://stories.example")
    wrong = "null", "http://[::1", "https://stories.example/x", "ftp://stories.example", ""
    assert not any(map(proxied.is_origin, wrong))
    everywhere = Hosts("0.0.0.0", 80)
    assert everywhere.has("10.0.0.1") and everywhere.has("192.0.2.1:80") and not everywhere.has("evil.example")


def test_a_code_logs_in_once(site):
    client, again = stranger(site), stranger(site)
    link = site.access.link(URL)
    found = client.get(link)
    assert (found.status_code, found.headers["location"]) == (303, "/")
    cookie = found.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Secure" not in cookie
    assert client.get("/").status_code == 200
    assert "has already been used" in again.get(link).text
    assert again.get("/").status_code == 303
    object.__setattr__(site, "public_url", "https://stories.example")
    assert "Secure" in stranger(site).get(site.access.link("")).headers["set-cookie"]


def test_the_token_logs_in_and_leads_back(site):
    client = stranger(site)
    assert client.get("/?search=a").headers["location"] == "/login?next=%2F%3Fsearch%3Da"
    assert "That is not the token" in client.post("/login", data={"token": "x"}, headers=FROM_HERE).text
    found = client.post("/login", data={"token": TOKEN, "next": "/?search=a"}, headers=FROM_HERE)
    assert (found.status_code, found.headers["location"]) == (303, "/?search=a")
    assert client.get("/?search=a").status_code == 200
    assert client.post("/logout", headers=FROM_HERE).status_code == 303
    assert client.get("/").status_code == 303
    for next in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"):
        found = stranger(site).post("/login", data={"token": TOKEN, "next": next}, headers=FROM_HERE)
        assert found.headers["location"] == "/", "nobody is led elsewhere"


def test_wrong_tokens_are_counted_and_cookies_end():
    now = [1000.0]
    access = Access(TOKEN, clock=lambda: now[0])
    site = site_of(None, access=access)  # type: ignore[arg-type]  # nobody comes as far as the engine
    client = stranger(site)
    for status in (*[401] * ATTEMPTS, 429):
        assert client.post("/login", data={"token": "x"}).status_code == status
    found = client.get("/api/v1/queries", headers={"Authorization": "Bearer x"})
    assert (found.status_code, found.headers["retry-after"]) == (429, "60")
    # Others at the same address are not locked out.
    assert stranger(site).post("/login", data={"token": TOKEN}).status_code == 303
    now[0] += ATTEMPTS_SECONDS + 1
    assert client.post("/login", data={"token": "x"}).status_code == 401
    cookie = access.make_cookie()
    assert access.is_cookie(cookie)
    end, digest = cookie.split(".")
    assert not access.is_cookie(f"{int(end) + 1}.{digest}")
    assert not Access("another-token-of-another-state", clock=lambda: now[0]).is_cookie(cookie)
    assert not any(map(access.is_cookie, ("", ".", "x.y", f"{end}.", f"-1.{digest}", "٣.x", "9" * 5000 + ".x", "é.é")))
    now[0] += COOKIE_SECONDS
    assert not access.is_cookie(cookie)


def test_data_is_not_for_pages_elsewhere(pages):
    for path in ("/api/v1/queries", "/api/v1/tables"):
        for site, status in (("same-origin", 200), ("cross-site", 403), ("same-site", 403), ("none", 200)):
            assert pages.get(path, headers={"Sec-Fetch-Site": site}).status_code == status


def test_the_token_of_a_state_is_its_owners_alone(tmp_path):
    token = token_of(tmp_path)
    path = tmp_path / "secrets" / "token"
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert token_of(tmp_path) == token and len(token) > 40
    path.write_text("short")
    with pytest.raises(StoreError, match="remove the file"):
        token_of(tmp_path)


def test_responses_have_the_policy_and_large_requests_are_refused(pages):
    for path in ("/", "/login", "/healthz", "/nothing", "/api/v1/queries", "/api/v1/nothing"):
        headers = pages.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "same-origin"
        assert "cache-control" in headers
    assert pages.post("/q/x/pause", content=b"x" * (LARGEST + 1)).status_code == 413
    for path in ("/q/x/pause", "/login", "/nothing"):
        dripping = (b"x" * 1000 for _ in range(LARGEST // 1000 + 2))
        found = pages.post(path, content=dripping, headers={"Content-Type": "application/x-www-form-urlencoded"})
        assert found.status_code == (404 if path == "/nothing" else 413)


def test_an_address_of_static_files_changes_with_their_content(site):
    client = stranger(site)
    address = re.findall(r'href="(/static/[^"]+\.css)"', client.get("/login").text)[0]
    found = client.get(address)
    assert found.status_code == 200 and "immutable" in found.headers["cache-control"]
    for other in ("/static/0000000000000000/site.css", address.replace(".css", "..%2Flayout.html")):
        assert client.get(other).status_code == 404


def test_a_select_is_answered_with_so_many_rows(api, pages):
    for sql in (
        "SELECT query, seq FROM outputs",
        " select query, seq from outputs ; ",
        "WITH o AS (SELECT * FROM outputs) SELECT query, seq FROM o -- a comment",
        "SELECT query, seq FROM outputs ORDER BY seq DESC",
    ):
        expected = {"columns": ["query", "seq"], "rows": [["book_blog", 0]], "is_cut": False}
        assert api.get("/api/v1/sql", params={"sql": sql}).json() == expected
        assert api.post("/api/v1/sql", json={"sql": sql}).json() == expected
        page = pages.post("/sql", data={"sql": sql})
        assert page.status_code == 200 and "book_blog" in page.text and 'data-label="seq" class="n">0</td>' in page.text
    many = {"sql": "SELECT * FROM range(5000)"}
    found = api.get("/api/v1/sql", params=many).json()
    assert (len(found["rows"]), found["is_cut"]) == (views.MOST_ROWS, True)
    assert "the first of more" in pages.post("/sql", data=many).text


def test_whatever_is_no_select_is_refused_in_words(api, pages):
    for sql in ("DROP TABLE answers", "SELECT 1) AS a; DROP TABLE answers; --", "SELECT * FROM no", "SELECT (", "\0"):
        answer = api.get("/api/v1/sql", params={"sql": sql})
        assert answer.status_code == 400 and answer.json()["error"]
        page = pages.post("/sql", data={"sql": sql})
        assert page.status_code == 400 and 'id="sql-error"' in page.text


def test_values_are_shown_as_they_are_and_times_as_text(api, pages):
    hostile = {"sql": "SELECT '<script>alert(1)</script>' AS \"<b>\", NULL AS x, [1, 2] AS l, 1.5 AS n, '=1+1' AS f"}
    text = pages.post("/sql", data=hostile).text
    assert "<script>alert" not in text and "<b>" not in text and "&lt;script&gt;" in text and "[1, 2]" in text
    found = pages.post("/sql/answer.csv", data=hostile)
    assert "attachment" in found.headers["content-disposition"]
    assert list(csv.reader(io.StringIO(found.text)))[1] == ["<script>alert(1)</script>", "", "[1, 2]", "1.5", "'=1+1"]
    rows = pages.post("/sql/answer.json", data={"sql": "SELECT t1, t1 FROM outputs"}).json()
    assert list(rows[0]) == ["t1", "t1_1"] and rows[0]["t1"].endswith("Z")
    for sql in ("SELECT 'infinity'::date AS a", "SELECT '-infinity'::timestamp AS a"):  # which Python has not
        ((value,),) = api.get("/api/v1/sql", params={"sql": sql}).json()["rows"]
        assert isinstance(value, str)
        assert pages.post("/sql", data={"sql": sql}).status_code == 200


def test_there_are_questions_to_begin_with_and_the_tables_are_listed(site, api, pages):
    text = html.unescape(pages.get("/sql").text)
    for title, sql in views.EXAMPLES.items():
        assert title in text
        assert api.get("/api/v1/sql", params={"sql": sql}).status_code == 200
    found = {one["name"]: one["columns"] for one in api.get("/api/v1/tables").json()}
    site.__dict__["kept"] = None  # what is kept for a minute only: another process is slow to list them
    assert len(api.get("/api/v1/tables").json()) == len(found)
    assert {"query", "seq", "id"} <= set(found["outputs"]) and "documents" in found


def test_no_address_runs_sql_and_no_form_of_another_page_does(engine, site, api):
    """An address is shown with a button; what a browser sends by itself, or for another page, runs nothing."""
    asked, ran = {"sql": "SELECT query FROM outputs"}, "book_blog"
    reads = "/sql/answer.csv", "/sql/answer.json", "/api/v1/sql"
    links = [*ELSEWHERE, {}, {"Sec-Fetch-Site": "none"}, {"Referer": f"{URL}/q/book_blog"},
             {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}]  # fmt: skip
    for client in (visitor(site), stranger(site_of(engine, access=Access(None)))):
        for headers in links:
            page = client.get("/sql", params=asked, headers=headers)
            assert page.status_code == 200 and asked["sql"] in page.text and "press Ask" in page.text
            assert ran not in page.text
            for path in reads:
                found = client.get(path, params=asked, headers={"Accept": "text/html", **headers})
                assert found.status_code in (403, 405) and ran not in found.text, (path, headers)
        for headers in ELSEWHERE:
            for path in ("/sql", *reads):
                found = client.post(path, data=asked, headers=headers)
                assert found.status_code == 403 and ran not in found.text, (path, headers)
            assert ran not in client.get("/api/v1/sql", params=asked, headers=headers).text
        for headers in (FROM_HERE, {"Origin": URL}, {"Referer": f"{URL}/sql"}):
            assert ran in client.post("/sql", data=asked, headers=headers).text
    for client in (api, stranger(site_of(engine, access=Access(None)))):  # as with curl
        assert ran in client.get("/api/v1/sql", params=asked).text


@dataclass(eq=False)
class Fake:
    host: str
    number: int
    is_waiting: bool = True
    has_asked: bool = False
    is_known: bool = False
    is_open: bool = True
    of: "list[Fake]" = field(default_factory=list, repr=False)

    def drop(self) -> None:
        self.is_open = False
        self.of.remove(self)


@pytest.mark.parametrize("seed", seeds(20, 500))
def test_strangers_are_few_and_the_idle_and_old_give_way(seed: int) -> None:
    rng = Random(seed)
    found, there = Connections(most=30, strangers=10, of_client=6), list[Fake]()
    for number in range(400):
        what = rng.choice(("add", "add", "add", "know", "ask", "answer", "end"))
        one = rng.choice(there) if there else None
        if what == "add":
            before = list(there)
            new = Fake(rng.choice(("a", "a", "a", "b", "c", "d")), number, of=there)
            found.add(cast(PatientProtocol, new))
            there.append(new)
            gone = [other for other in before if not other.is_open]
            assert len(gone) <= 1 and new.is_open
            for other in gone:
                rivals = [rival for rival in before if not rival.is_known and rival is not other]
                if sum(rival.host == new.host for rival in rivals) >= 5 and not other.is_known:
                    rivals = [rival for rival in rivals if rival.host == new.host] or rivals
                if not other.is_waiting:  # nobody waits whom this client may displace
                    assert not any(rival.is_waiting for rival in rivals if rival.host == other.host)
        elif one is not None:
            if what == "know" and not one.is_known:
                found.know(cast(PatientProtocol, one))
                one.is_known = one.has_asked = True
            elif what == "ask":
                one.has_asked, one.is_waiting = True, False
            elif what == "answer":
                one.is_waiting = True
            elif what == "end":
                found.remove(cast(PatientProtocol, one))
                there.remove(one)
        strangers = [one for one in there if not one.is_known]
        assert len(strangers) <= 10 and max(Counter(one.host for one in strangers).values(), default=0) <= 6
        assert len(there) <= 30 or not any(one.is_waiting for one in there)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("here\n")(scope, receive, send)


@contextmanager
def page() -> Iterator[int]:
    """The port of a page that needs the token."""
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        guard = Guard(app, Access(TOKEN), Hosts("127.0.0.1", port))
        with app_served(guard, listening, NullLog(), Event()):
            yield port


def ask(port: int) -> int:
    return httpx.get(f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60).status_code


def opened(port: int, sent: bytes) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=60)
    found.sendall(sent)
    return found


HELD = {
    "silent": b"",
    "slow head": b"GET / HTTP/1.1\r\nHost:",
    "slow body": b"POST /login HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 9\r\n\r\nt",
    "idle": b"GET /login HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
}


@pytest.mark.parametrize("kind", HELD if at_length() else ["slow body", "idle"])
def test_held_connections_shut_out_nobody_who_has_the_token(kind: str) -> None:
    with page() as port, ExitStack() as held:
        known = held.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60))
        known.headers["Authorization"] = f"Bearer {TOKEN}"
        assert known.get("/").status_code == 200
        sent = HELD[kind].replace(b"PORT", b"%d" % port)
        found = [held.enter_context(closing(opened(port, sent))) for _ in range(MOST_CONNECTIONS)]
        assert ask(port) == 200 and known.get("/").status_code == 200
        assert MOST_OF_CLIENT <= MOST_STRANGERS < MOST_CONNECTIONS
        for one in found[: MOST_CONNECTIONS - MOST_OF_CLIENT]:  # the oldest were closed, with or without an answer
            with suppress(ConnectionResetError):
                while one.recv(4_096):
                    pass


def test_who_comes_in_a_crowd_is_heard() -> None:
    """The first of many that the system has queued: its request is read before those behind it displace it."""
    with listen("127.0.0.1", 0) as listening, ExitStack() as held:
        port = listening.getsockname()[1]
        head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        asks = held.enter_context(closing(opened(port, head)))
        for _ in range(2 * MOST_OF_CLIENT):
            held.enter_context(closing(opened(port, b"GET")))
        with app_served(Guard(app, Access(TOKEN), Hosts("127.0.0.1", port)), listening, NullLog(), Event()):
            assert asks.recv(100).startswith(b"HTTP/1.1 200")


def test_strangers_time_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with page() as port, httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as known:
        assert known.get(f"http://127.0.0.1:{port}/").status_code == 200
        monkeypatch.setattr(serving, "STRANGER_SECONDS", 0.0)
        for sent in (b"", b"GET / HTTP/1.1\r\nHost:"):
            with suppress(ConnectionError), closing(opened(port, sent)) as stranger:
                assert stranger.recv(100) == b""
        assert known.get(f"http://127.0.0.1:{port}/").status_code == 200  # on the connection that it has


def test_a_message_is_logged_once_a_minute_with_a_count() -> None:
    now, log = [0.0], Events()
    logger = logging.getLogger("tests.connections")
    with records_in(log, logger.name, clock=lambda: now[0]):
        for number in range(10_000):
            now[0] = number / 100
            logger.warning("Invalid request %s", "a")
            if number % 5_000 == 0:
                logger.warning("another %d", number)
        try:
            raise KeyError("where")
        except KeyError:
            for _ in range(2):
                logger.exception("it failed")
    assert [(fields["text"], fields.get("times")) for _, fields in log] == [
        ("Invalid request a", None),
        ("another 0", None),
        ("Invalid request a", 6_000),
        ("it failed", None),
        ("it failed", None),
        ("Invalid request a", 3_999),
        ("another 5000", 1),
    ]
    assert REPEATED_SECONDS == 60
