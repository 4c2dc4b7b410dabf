"""The page of what queries share."""

import pytest

from mmqjp.engine import Session
from mmqjp.explain.plan import MOST_NAMES, SharedRowUse, SharedTemplate, summarise_sharing
from mmqjp.web.areas.queries import has_others, names_of
from tests.support.web import browser, script, site_of, stranger


def test_the_page_shows_what_the_queries_share(site, engine):
    more = "FROM S//book->x1[./author->x2] FOLLOWED BY {x2 = x5, 1 d} S//blog->x4[./author->x5] PUBLISH also"
    engine.subscribe(more)
    found = script(site).get("/api/v1/sharing").json()
    expected = summarise_sharing(engine).to_dict()
    assert {key: found[key] for key in ("queries", "forms", "rows", "templates", "subscribers")} == {
        key: expected[key] for key in ("queries", "forms", "rows", "templates", "subscribers")
    }
    assert (found["queries"], found["rows"], found["templates"]) == (3, 2, 2)
    text = browser(site).get("/sharing").text
    assert "<svg" in text and 'href="/q/also"' in text and 'href="/q/book_blog"' in text
    assert "style=" not in text and "<style" not in text  # which the policy of the page would refuse
    assert stranger(site).get("/api/v1/sharing").status_code == 401
    with Session("duckdb") as empty:
        text = browser(site_of(empty)).get("/sharing").text
    assert "Nothing to share yet" in text and "/new" in text


MANY = tuple(f"q{number}" for number in range(MOST_NAMES))


@pytest.mark.parametrize(
    ("rows", "used", "others"),
    [
        (2, [(1, ("a",)), (2, ("a", "b"))], False),  # a subscribes to both
        (1, [(5, ("a",))], False),  # five times
        (3, [(1, ("a",)), (1, ("b",))], True),
        (1, [(len(MANY), MANY)], False),
        (1, [(len(MANY) + 1, MANY)], True),
        (2, [(len(MANY), MANY), (1, ("a",))], True),
    ],
)
def test_others_are_told_of_only_if_there_may_be_some(rows, used, others):
    shared = tuple(SharedRowUse(row, *one) for row, one in enumerate(used))
    template = SharedTemplate(0, "", rows, sum(count for count, _ in used), shared)
    assert has_others(template) == others and 0 < len(names_of(template)) <= MOST_NAMES
