"""The description of the API: it names all that there is, and so does docs/web.md."""

import re
from pathlib import Path

import pytest

from tests.support.web import script, site_of

DOCS = Path(__file__).parents[3] / "docs" / "web.md"


@pytest.fixture
def described(unchanged_engine):
    return script(site_of(unchanged_engine)).get("/api/v1/openapi.json").json()


def test_the_description_has_a_twin_of_every_page(described):
    assert {
        "/api/v1/queries", "/api/v1/queries/{name}", "/api/v1/outputs/{id}", "/api/v1/check", "/api/v1/backtest",
        "/api/v1/events", "/api/v1/feeds", "/api/v1/sinks", "/api/v1/sinks/{name}", "/api/v1/engine",
        "/api/v1/sharing", "/api/v1/sql", "/api/v1/tables",
    } <= described["paths"].keys()  # fmt: skip
    assert all(path.startswith("/api/v1/") for path in described["paths"])
    operations = [one for path in described["paths"].values() for one in path.values()]
    assert all(one["summary"] and one["tags"] for one in operations)


def test_the_documentation_lists_every_path(described):
    text = DOCS.read_text("utf-8")
    for path, operations in described["paths"].items():
        named = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), path.removeprefix("/api/v1"))
        parts = named.split("/")
        for method in operations:
            ways = (f"{method.upper()} {named}`", f"…/{parts[-1]}`", f"…/{'/'.join(parts[-2:])}`")
            assert any(way in text for way in ways), f"{method.upper()} {named} is not in docs/web.md"
