"""Pages that are kept until the next commit: how long, and which."""

from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from mmqjp.web.serving import LONGEST_ADDRESS, MOST_SECONDS, PageCache


class Reader:
    batch = 0

    def version(self):
        return self.batch

    def refresh(self):
        pass


class Pages:
    """An app that counts what is asked of it."""

    made = 0

    async def __call__(self, scope, receive, send):
        self.made += 1
        page = Response("<p>page", media_type="text/html")
        await (PlainTextResponse("text") if scope["path"] == "/text" else page)(scope, receive, send)


def test_a_page_is_made_once_until_the_next_commit_or_change():
    pages, reader, now = Pages(), Reader(), [0.0]
    client = TestClient(PageCache(pages, reader, lambda: now[0]))  # type: ignore[arg-type]  # it reads nothing
    made = []
    for step in (lambda: None, lambda: setattr(reader, "batch", 1), lambda: client.post("/"), lambda: now.append(0)):
        step()
        made += [client.get("/").text, pages.made]
    now[0] += MOST_SECONDS
    made += [client.get("/").text, pages.made]
    assert made == ["<p>page", 1, "<p>page", 2, "<p>page", 4, "<p>page", 4, "<p>page", 5]


def test_what_is_no_page_or_has_a_long_address_is_not_kept():
    for address, made in (("/", 1), ("/?a=1", 1), ("/text", 2), ("/?" + "a" * LONGEST_ADDRESS, 2)):
        pages = Pages()
        client = TestClient(PageCache(pages, Reader(), lambda: 0.0))  # type: ignore[arg-type]  # it reads nothing
        assert [client.get(address).status_code for _ in range(2)] == [200, 200]
        assert pages.made == made, address
