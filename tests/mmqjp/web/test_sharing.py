"""The page of what queries share."""

from mmqjp.explain.sharing import sharing
from mmqjp.session import Session
from tests.support.web import browser, script, site_of, stranger


def test_the_page_shows_what_the_queries_share(site, engine):
    more = "FROM S//book->x1[./author->x2] FOLLOWED BY {x2 = x5, 1 d} S//blog->x4[./author->x5] PUBLISH also"
    engine.subscribe(more)
    found = script(site).get("/api/v1/sharing").json()
    expected = sharing(engine).to_dict()
    assert {key: found[key] for key in ("queries", "forms", "rows", "templates", "subscribers")} == {
        key: expected[key] for key in ("queries", "forms", "rows", "templates", "subscribers")
    }
    assert (found["queries"], found["rows"], found["templates"]) == (3, 2, 2)
    text = browser(site).get("/sharing").text
    assert "<svg" in text and 'href="/q/also"' in text and 'href="/q/book_blog"' in text
    assert "style=" not in text and "<style" not in text  # which the policy of the page would refuse


def test_without_queries_it_says_what_to_do():
    with Session("duckdb") as engine:
        text = browser(site_of(engine)).get("/sharing").text
    assert "Nothing to share yet" in text and "/new" in text


def test_strangers_see_nothing(site):
    assert stranger(site).get("/api/v1/sharing").status_code == 401
