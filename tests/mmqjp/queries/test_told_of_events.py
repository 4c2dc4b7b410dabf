"""Commands that tell about queries know event queries."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from mmqjp.cli import main

SCRIPT = "DEFINE EVENT Post FROM S//item->i (title := i/title); FROM Post PUBLISH posts; FROM S//item PUBLISH items"


def test_what_tells_about_queries_takes_them(tmp_path: Path):
    path, documents, state = tmp_path / "posts.xscl", tmp_path / "items.jsonl", tmp_path / "state"
    path.write_text(SCRIPT)
    documents.write_text(json.dumps({"id": "1", "stream": "S", "time": 1, "xml": "<item><title>a</title></item>"}))

    def told(*command: str) -> str:
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
        return result.output

    assert "an event query over Post" in told("explain", str(path))
    told("run", "--queries", str(path), "--documents", str(documents), "--state", str(state), "--output", "-")
    assert "FROM Post PUBLISH posts" in told("list", "--state", str(state))
    explained = told("explain", str(path), "--state", str(state))
    assert "an event query over Post; it joins no documents" in explained
    output = told("query", "SELECT id FROM outputs WHERE query = 'posts'", "--state", str(state))
    why = told("why", json.loads(output)["id"], "--state", str(state))
    assert "the query's conditions hold for these events, in this order" in why and "FROM Post PUBLISH posts" in why
    assert "events         answered to " in told("status", "--state", str(state))
    more = tmp_path / "more.xscl"
    more.write_text("FROM FILTER{title = 'a'} Post PUBLISH more")
    assert "more: subscribed" in told("subscribe", str(more), "--state", str(state))
    more.write_text("FROM FILTER{title = 'a'} Pots PUBLISH more")
    result = CliRunner().invoke(main, ["subscribe", str(more), "--state", str(state)])
    assert result.exit_code == 1 and "there are no events Pots" in result.output
    why_not = told("why-not", "posts", "--state", str(state))
    assert "events of the query" in why_not and "1 output in the store" in why_not
