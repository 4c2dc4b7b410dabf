import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from tests.support.web import browser, script, site_of

NOW = int(time.time()) * 1_000_000

QUERIES = """FROM S//book->x1[./author->x2] FOLLOWED BY {x2 = x5, 7 d} S//blog->x4[./author->x5] PUBLISH book_blog;
FROM S//blog->b[./author = "Nobody"] PUBLISH nobody"""


@contextmanager
def small_engine() -> Iterator[Session]:
    with Session("duckdb", now=lambda: NOW) as engine:
        engine.subscribe(QUERIES)
        given = {"d1": "<book><author>Ada</author></book>", "d2": "<blog><author>Ada</author></blog>"}
        engine.process([Document(id, xml, time=NOW - 2 + n) for n, (id, xml) in enumerate(given.items())])
        yield engine


@pytest.fixture
def engine():
    with small_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def unchanged_engine():
    """One engine for all tests that only read it."""
    with small_engine() as engine:
        yield engine


@pytest.fixture
def site(engine):
    return site_of(engine, now=lambda: NOW)


@pytest.fixture
def pages(site):
    """A browser that is logged in."""
    return browser(site)


@pytest.fixture
def api(site):
    """A program with the token."""
    return script(site)
